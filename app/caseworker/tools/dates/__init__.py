"""Dates as people write them, and what is worked out from them."""
