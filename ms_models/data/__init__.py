"""Text to MindRecord shards of packed sequences, and the loader that reads them in a reproducible order."""
