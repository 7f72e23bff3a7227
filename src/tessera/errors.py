"""The one exception whose message is meant for the person at the keyboard."""


class UserError(Exception):
    """Bad input, told in one sentence. The command line prints it and leaves with code 2, no traceback."""
