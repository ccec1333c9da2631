"""Tests of siafu.engine."""
