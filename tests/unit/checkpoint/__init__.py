"""Tests of siafu.checkpoint."""
