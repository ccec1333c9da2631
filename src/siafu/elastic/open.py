"""From the settings of a run to its pool, watched."""
