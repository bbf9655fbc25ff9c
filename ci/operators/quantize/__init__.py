"""Correct and wrong implementations of quantize, for the gate."""
