"""Tests of siafu."""
