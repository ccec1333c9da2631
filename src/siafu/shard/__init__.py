"""Where a rank's rows live and how rows of other ranks are reached."""
