"""The composition root: the only package that knows both settings and adapters, and wires them."""
