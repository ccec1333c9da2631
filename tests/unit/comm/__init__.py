"""Tests of siafu.comm."""
