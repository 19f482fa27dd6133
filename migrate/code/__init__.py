"""The PyTorch to MindSpore source converter: `scan` and `convert` in `migrate.code.command`."""
