"""Measures how well the service answers a data set, by the HTTP API that every caller uses."""
