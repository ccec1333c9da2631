"""Time-parallel training against a plain sequential reference."""
