"""Tests of siafu.record."""
