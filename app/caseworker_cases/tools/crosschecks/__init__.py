"""Independent recalculations of tool results, which share no code with the tools.

Running a tool again on the same arguments only shows that it is deterministic. Here its value is
recomputed by another method. Expressions use Python's integers and floats instead of exact
decimals. Dates use day numbers instead of a date library. Price metrics use other formulas on the
whole series. Each function returns True or False, or None if it has no other method.
"""
