"""What `mindspore.profiler` recorded of a run, read and judged."""
