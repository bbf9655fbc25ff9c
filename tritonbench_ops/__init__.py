"""Operators for tritonbench; importing this package imports neither tritonbench nor Helion."""
