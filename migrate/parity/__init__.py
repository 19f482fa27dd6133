"""Proves that a MindSpore model is the PyTorch model: each side is captured in its own process, files are compared."""
