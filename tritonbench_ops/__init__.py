"""The tritonbench operator `sinkhorn`; importing this package imports neither tritonbench nor Helion."""
