"""Tests of siafu.config."""
