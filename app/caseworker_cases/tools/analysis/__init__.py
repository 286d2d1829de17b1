"""Metrics for price and number series, each with an exact definition."""
