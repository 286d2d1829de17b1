"""Real model providers, spoken to through pydantic-ai.

Importing ``.openai`` or ``.anthropic`` costs about a second and tens of megabytes, so each is
imported only by a configuration that uses it; this package itself imports nothing.
"""
