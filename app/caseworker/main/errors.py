"""The error with which a process or a command fails to start."""


class StartupError(Exception):
    """The process cannot start. The message is a single line for the operator."""
