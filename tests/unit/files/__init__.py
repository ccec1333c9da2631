"""Tests of siafu.files."""
