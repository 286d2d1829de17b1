"""A planner that uses no model: it parses fixed sentences about numbers, dates and stocks."""
