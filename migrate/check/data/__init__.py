"""Data that a model is to be trained on: prepared rows with their description, or text."""
