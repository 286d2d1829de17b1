"""``python -m app`` is ``caseworker``."""

from app.cli import main

main()
