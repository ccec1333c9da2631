"""Tests of siafu.pipeline."""
