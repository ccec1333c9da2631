"""Unit tests of siafu.minibatch."""
