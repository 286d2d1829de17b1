"""Metrics of price and number series, each with an exact definition."""
