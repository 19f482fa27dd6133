"""The state of a run on disk: what is in it, how it is written, found, checked and read."""
