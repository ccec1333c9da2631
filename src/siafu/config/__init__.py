"""What a run is asked to do, checked when it is made."""
