"""Price charts, drawn in a separate process."""
