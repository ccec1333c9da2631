"""The training and inference loops; they evaluate and write records."""
