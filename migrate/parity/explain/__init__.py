"""Why stage F fails: where the difference begins, which modules are guilty and which inherit it, what it may be."""
