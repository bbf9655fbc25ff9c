"""Benchmarks and the demo; not part of the installed package."""
