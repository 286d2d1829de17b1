"""Other ways of working out what tools find, which share no code with the tools.

A tool that runs again on the same arguments shows that it is deterministic and no more. Here its
value is worked out by another method: expressions in Python's integers and floats instead of exact
decimals, dates by day numbers instead of a date library, figures of prices by other formulas on the
whole series. Each function returns True or False, or None where it knows no other way.
"""
