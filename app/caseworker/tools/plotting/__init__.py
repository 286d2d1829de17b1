"""Pictures of prices, drawn in a process of their own."""
