"""Words, numbers and phrases: what every reader is made of."""
