"""What can be worked out from a series of prices or numbers, each with its exact definition."""
