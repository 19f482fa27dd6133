"""Code that comes with a checkpoint: read always, run when it is asked for by name."""
