"""Parsing of written dates, and calculations with dates."""
