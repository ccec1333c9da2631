"""Pools and ranks on a real Ray cluster of two nodes, all on loopback."""
