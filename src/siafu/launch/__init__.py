"""Starting ranks on this machine or under torchrun."""
