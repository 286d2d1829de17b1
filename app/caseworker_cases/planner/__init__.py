"""A planner without a model: it parses fixed sentences about numbers, dates and stocks."""
