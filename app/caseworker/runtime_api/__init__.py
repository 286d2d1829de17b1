"""The graph runtime and agents in Python, without a service and a database."""
