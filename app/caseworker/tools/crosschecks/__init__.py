"""Independent recalculations of tool results, which share no code with the tools.

Running a tool again on the same arguments only shows that it is deterministic. Here its value is
recomputed by another method: expressions in Python's integers and floats instead of exact decimals,
dates by day numbers instead of a date library, price figures by other formulas on the whole series.
Each function returns True or False, or None if it has no other method.
"""
