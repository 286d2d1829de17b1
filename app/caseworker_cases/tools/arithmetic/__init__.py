"""Exact arithmetic on text expressions, with limits on size, depth and digits."""
