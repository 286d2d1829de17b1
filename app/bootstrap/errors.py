"""What keeps a process from starting."""


class StartupError(Exception):
    """The process cannot start; the message is the one line to show."""
