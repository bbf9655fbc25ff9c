"""What the environment may change, read once at import."""

from __future__ import annotations

import os

DEVICE = os.environ.get("HELION_SINKHORN_DEVICE", "")
"""Take the configs of this DEVICES key whatever the hardware reports."""

TUNING_DIR = os.environ.get("HELION_SINKHORN_TUNING_DIR", "")
"""A folder laid out like tuning_cache/, searched before the one shipped."""

CACHE_DIR = os.environ.get("HELION_SINKHORN_CACHE_DIR", "")
"""The folder that keeps generated code, if not the user's cache folder; "off": none."""
