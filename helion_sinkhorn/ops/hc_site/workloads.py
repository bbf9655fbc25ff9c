"""The calls of `hc_site`."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class HcSiteWorkload:
    """One row of WORKLOADS: a call of `hc_site`, what it stands for, and who loops over it."""

    name: str
    batch: int
    tags: frozenset[str]
    """As those of SinkhornWorkload."""
    source: str
    n: int = 4
    c: int = 4096
    tokens: int = 1
    dtype: torch.dtype = torch.bfloat16
    precision: str = "float32"


ROWS: list[HcSiteWorkload] = []
