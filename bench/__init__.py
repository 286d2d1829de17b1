"""Every figure of docs/benchmarks.md, measured side by side with its peers: ``python -m bench``.

To add a figure, add a module to ``bench.rows`` with a ``ROW`` (see ``harness.py``): its title, its
peers at pinned versions, and a coroutine that measures and returns figures with their targets.
What runs in an environment of its own is a worker (``environments.py``) that executes a module of
``bench.sides``; rows about the service start it as a child process inside ``measure``.
Results go to ``bench/results/`` as JSON.
"""
