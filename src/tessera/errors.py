"""The exception for bad input, whose message is shown to the user."""


class UserError(Exception):
    """Bad input, described in one sentence. The command line prints it to stderr and exits with code 2, without a traceback."""
