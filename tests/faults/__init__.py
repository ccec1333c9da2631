"""What a user sees when something is wrong."""
