"""Trains a class that the code converter produced: its repository, its calls, its batches, its place among ranks."""
