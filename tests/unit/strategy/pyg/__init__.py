"""Tests of siafu.strategy."""
