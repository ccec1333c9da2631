"""Tests of siafu.ingest.tables."""
