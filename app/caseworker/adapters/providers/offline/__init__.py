"""A planner that needs no model: it reads a table of sentences about numbers, dates and stocks."""
