"""Judges a model directory, a run configuration and a machine before anything expensive starts."""
