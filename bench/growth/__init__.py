"""Compares every route and loop on a small and a large database: ``python -m bench growth``.

``fill`` copies real runs by SQL, ``routes`` has the requests, ``loops`` the work without a request,
and ``migrations`` upgrades a filled database under load: ``python -m bench migrations``.
"""
