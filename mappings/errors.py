"""The one exception type whose text is meant for the user."""


class UserError(Exception):
    """A fault in what the user gave: a file, an option, a configuration.

    The message is one line that says what happened, where, and what to do. The command line prints it and exits 2;
    any other exception is a defect of msmigrate.
    """
