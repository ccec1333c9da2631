"""The strategy value, its presets, and the Neighbours that carry it out."""
