"""Tests of siafu.nn."""
