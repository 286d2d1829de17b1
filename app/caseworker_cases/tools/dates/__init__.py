"""Parsing written dates, and calculating with dates."""
