"""Daily stock prices: the price source port, and the packaged data set."""
