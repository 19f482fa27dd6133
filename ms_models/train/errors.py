"""The exception of a run that cannot go on."""


class RunError(Exception):
    """The training itself cannot go on; the message says at which step and why."""
