"""Entry point of ``python -m caseworker``; the same as the ``caseworker`` command."""

from caseworker.cli import main

main()
