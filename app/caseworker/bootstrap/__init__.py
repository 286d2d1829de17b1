"""The composition root: the only place that knows settings and adapters, and joins everything."""
