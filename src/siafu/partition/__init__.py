"""Deciding which rank owns which vertex, and scoring that."""
