"""The rules the source keeps, and what the documents say, run."""
