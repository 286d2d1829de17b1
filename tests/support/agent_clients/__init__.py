"""Client libraries of other projects, each in its own environment, as agents that run elsewhere."""
