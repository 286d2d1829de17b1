"""The grammar of the offline planner: from the words of a question to tool calls.

tokens -> cursor -> numerals, formulas, dates -> questions. Every rule reads from a cursor and
either moves it past what it understood or raises ``MisreadError``. A question is understood only
if its rules reach the end: words that nothing accounts for may carry meaning, so they are never
skipped.
"""
