"""WORKLOADS: the calls that tuning, benchmarks, CI and tritonbench loop over, a module for each operator."""

from __future__ import annotations

from typing import TypeVar

from helion_sinkhorn.ops.dot_compress import workloads as dot_compress
from helion_sinkhorn.ops.dot_compress.workloads import DotWorkload
from helion_sinkhorn.ops.hc_mixes import workloads as hc_mixes
from helion_sinkhorn.ops.hc_mixes.workloads import MixesWorkload
from helion_sinkhorn.ops.hc_post import workloads as hc_post
from helion_sinkhorn.ops.hc_post.workloads import HcPostWorkload
from helion_sinkhorn.ops.hc_pre import workloads as hc_pre
from helion_sinkhorn.ops.hc_pre.workloads import HcPreWorkload
from helion_sinkhorn.ops.hc_site import workloads as hc_site
from helion_sinkhorn.ops.hc_site.workloads import HcSiteWorkload
from helion_sinkhorn.ops.hc_split_sinkhorn import workloads as hc_split_sinkhorn
from helion_sinkhorn.ops.hc_split_sinkhorn.workloads import HcWorkload
from helion_sinkhorn.ops.linear_attention import workloads as linear_attention
from helion_sinkhorn.ops.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.ops.sinkhorn import workloads as sinkhorn
from helion_sinkhorn.ops.sinkhorn.workloads import SinkhornWorkload

Row = TypeVar("Row")

_ROWS = (
    *sinkhorn.ROWS, *dot_compress.ROWS, *linear_attention.ROWS, *hc_split_sinkhorn.ROWS, *hc_mixes.ROWS,
    *hc_pre.ROWS, *hc_post.ROWS, *hc_site.ROWS,
)  # fmt: skip
Workload = (
    SinkhornWorkload
    | DotWorkload
    | AttentionWorkload
    | HcWorkload
    | MixesWorkload
    | HcPreWorkload
    | HcPostWorkload
    | HcSiteWorkload
)
WORKLOADS: dict[str, Workload] = {w.name: w for w in _ROWS}
assert len(WORKLOADS) == len(_ROWS)


def tagged(tag: str, kind: type[Row] = SinkhornWorkload) -> list[Row]:
    """The rows of one operator, or with kind=object of all, that carry a tag, in the order of the table."""
    return [w for w in WORKLOADS.values() if isinstance(w, kind) and tag in w.tags]
