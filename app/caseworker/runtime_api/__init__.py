"""Python API for graphs and agents; needs neither the service nor a database."""
