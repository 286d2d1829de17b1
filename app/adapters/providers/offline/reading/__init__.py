"""The grammar of the offline planner: from the words of a question to tool calls.

tokens -> cursor -> numerals, formulas, dates, stocks -> problems, questions. Every rule reads from
a cursor and either moves it past what it understood or raises ``MisreadError``. A question is
understood only if its rules reach the end: words that nothing accounts for may carry meaning, so
they are never skipped. Only word problems have places for words of any kind, and none of these may
be one that changes an amount or a day.
"""
