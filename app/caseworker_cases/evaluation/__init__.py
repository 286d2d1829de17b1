"""Measures how well the service answers a data set, through its public HTTP API."""
