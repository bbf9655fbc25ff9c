"""Devices, the tuned configs stored for them, and the choice of one for a call."""
