"""Tests of siafu.ingest.datasets."""
