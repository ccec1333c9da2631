"""The rows and files a run writes."""
