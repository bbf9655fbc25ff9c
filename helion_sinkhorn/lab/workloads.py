"""WORKLOADS: the calls that tuning, benchmarks, CI and tritonbench loop over, a module for each operator."""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeVar

from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload

Row = TypeVar("Row")
FOLDERS = (
    "sinkhorn", "sinkhorn.large", "dot_compress", "linear_attention", "split", "mixes", "pre", "post", "site",
    "balance", "pre.quantized",
)  # fmt: skip
"""The folders with `workloads` and `evidence`, one for each operator."""
_ROWS = [row for folder in FOLDERS for row in import_module(f"helion_sinkhorn.lab.{folder}.workloads").ROWS]
WORKLOADS: dict[str, Any] = {row.name: row for row in _ROWS}
assert len(WORKLOADS) == len(_ROWS)


def tagged(tag: str, kind: type[Row] = SinkhornWorkload) -> list[Row]:
    """The rows of one operator, or with kind=object of all, that carry a tag, in the order of the table."""
    return [w for w in WORKLOADS.values() if isinstance(w, kind) and tag in w.tags]
