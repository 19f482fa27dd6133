"""Symptoms of a training run, found in what the run wrote: a file for each group of symptoms."""
