"""``python -m caseworker`` is ``caseworker``."""

from caseworker.cli import main

main()
