"""WORKLOADS: the calls that tuning, benchmarks, CI and tritonbench loop over, a module for each operator."""

from __future__ import annotations

from typing import Any, TypeVar

from helion_sinkhorn.lab.balance import workloads as balance
from helion_sinkhorn.lab.dot_compress import workloads as dot_compress
from helion_sinkhorn.lab.linear_attention import workloads as linear_attention
from helion_sinkhorn.lab.mixes import workloads as hc_mixes
from helion_sinkhorn.lab.post import workloads as hc_post
from helion_sinkhorn.lab.pre import workloads as hc_pre
from helion_sinkhorn.lab.pre.quantized import workloads as quantize
from helion_sinkhorn.lab.sinkhorn import workloads as sinkhorn
from helion_sinkhorn.lab.sinkhorn.large import workloads as sinkhorn_large
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.lab.site import workloads as hc_site
from helion_sinkhorn.lab.split import workloads as hc_split_sinkhorn

Row = TypeVar("Row")
_TABLES = (
    sinkhorn, sinkhorn_large, dot_compress, linear_attention, hc_split_sinkhorn, hc_mixes, hc_pre, hc_post,
    hc_site, balance, quantize,
)  # fmt: skip
_ROWS = [row for table in _TABLES for row in table.ROWS]
WORKLOADS: dict[str, Any] = {row.name: row for row in _ROWS}
assert len(WORKLOADS) == len(_ROWS)


def tagged(tag: str, kind: type[Row] = SinkhornWorkload) -> list[Row]:
    """The rows of one operator, or with kind=object of all, that carry a tag, in the order of the table."""
    return [w for w in WORKLOADS.values() if isinstance(w, kind) and tag in w.tags]
