"""Tests of siafu.ingest: load and the cache."""
