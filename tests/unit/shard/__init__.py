"""A part on its rank."""
