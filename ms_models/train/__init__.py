"""The runner: one command that checks, starts and ends the processes of a training run."""
