"""Tests of siafu.graph."""
