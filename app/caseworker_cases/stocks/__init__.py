"""Daily stock prices: the price source interface, and the packaged data set."""
