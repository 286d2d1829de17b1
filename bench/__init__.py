"""Measures every figure of docs/benchmarks.md next to its peers: ``python -m bench``.

To add a figure, add a module to ``bench.rows`` with a ``ROW`` (see ``harness.py``). A row has a
title, peers at pinned versions, and a coroutine that returns figures with their targets. Code that
needs its own environment runs in a worker (``environments.py``) that executes a module of
``bench.sides``. Rows about the service start it as a child process inside ``measure``. Results are
written to ``bench/results/`` as JSON. Two commands have options of their own: ``growth`` and
``migrations`` in ``bench.growth``.
"""
