"""Exact arithmetic on written expressions, with a limit on everything that could grow."""
