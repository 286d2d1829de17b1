"""Independent recalculations of tool results, which share no code with the tools.

Running a tool again on the same arguments only shows that it is deterministic. Here the result is
recomputed by another method. Expressions use Python's integers and floats instead of exact
decimals. Dates use day numbers instead of a date library. Price metrics use other formulas on the
whole series. Each function returns whether the results agree, or None if there is no other method.
"""
