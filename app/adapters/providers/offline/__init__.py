"""A planner that needs no model: it reads questions about numbers, dates and stocks itself."""
