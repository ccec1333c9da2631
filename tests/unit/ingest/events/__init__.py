"""Tests of siafu.ingest.events."""
