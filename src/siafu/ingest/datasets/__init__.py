"""Data sets by name: made from a seed (`builtin`, `drifting`) or public ones (`named`)."""
