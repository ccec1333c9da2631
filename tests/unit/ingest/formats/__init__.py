"""Tests of siafu.ingest.formats."""
