"""Stored configs, and the files of a tuning folder that hold them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helion_sinkhorn.configs import store

KERNEL = "sinkhorn_forward"
FIELDS = {"form": "deepseek", "first": "rows", "dtype": "float32", "n": 4, "m": 4, "iters": 20}
CONFIG = {"block_sizes": [128], "num_warps": 4}
VARIANT = {"thread": [4, 4], "paired": False, "pivoted": True, "ordered": False}


def entry(
    batch: Any = 4096, fields: dict[str, Any] = FIELDS, config: Any = CONFIG, variant: Any = VARIANT,
    evidence: Any = "measured", us: float = 1.0, **version: Any,
) -> dict[str, Any]:  # fmt: skip
    """One entry, of `triton` where that is given."""
    key = {**fields, "batch": batch, **version}
    return {"key": key, "config": config, "variant": variant, "evidence": evidence, "us": us}


def file_of(entries: Any, device: str = "h200", kernel: str = KERNEL) -> dict[str, Any]:
    """What a file with these entries holds."""
    return {"schema": store.SCHEMA, "kernel": kernel, "device": {"key": device}, "entries": entries}


def write(
    folder: Path, entries: Sequence[dict[str, Any]], device: str = "h200", kernel: str = KERNEL
) -> Path:
    """Write that file into a tuning folder."""
    path = folder / device / f"{kernel}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(file_of(entries, device, kernel)))
    return path
