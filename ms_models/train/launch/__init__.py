"""What starts a run, watches it and ends it; nothing here computes."""
