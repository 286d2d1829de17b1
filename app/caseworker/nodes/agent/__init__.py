"""The agent: its definition, its loop, its tools and the node that executes it."""
