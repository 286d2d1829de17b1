"""The plans of all statements that the service sends."""
