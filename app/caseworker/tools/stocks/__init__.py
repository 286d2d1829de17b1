"""Daily stock prices: the port to their source, and the set that comes with the service."""
