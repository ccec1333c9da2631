"""Tests of siafu.cli."""
