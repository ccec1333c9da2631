"""Saving and loading the state of a run, without pickle."""
