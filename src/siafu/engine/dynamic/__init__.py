"""Training and inference on dynamic graphs."""
