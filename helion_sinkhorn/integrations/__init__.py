"""Adapters that put this package into the models of other packages."""
