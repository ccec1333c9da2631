"""Tests of siafu.elastic."""
