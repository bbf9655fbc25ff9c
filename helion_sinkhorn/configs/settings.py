"""Environment variables, read once at import."""

from __future__ import annotations

import os

DEVICE = os.environ.get("HELION_SINKHORN_DEVICE", "")
"""The DEVICES key whose configs are used, whatever the hardware reports."""

TUNING_DIR = os.environ.get("HELION_SINKHORN_TUNING_DIR", "")
"""A folder with the layout of tuning_cache/ that is searched before the package's."""

CACHE_DIR = os.environ.get("HELION_SINKHORN_CACHE_DIR", "")
"""The folder of generated code in place of the user's cache folder; "off": none."""
