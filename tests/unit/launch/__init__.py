"""Tests of siafu.launch."""
