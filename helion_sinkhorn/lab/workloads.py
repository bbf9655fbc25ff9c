"""WORKLOADS: the calls that tuning, benchmarks, CI and tritonbench loop over, a module for each operator."""

from __future__ import annotations

from typing import TypeVar

from helion_sinkhorn.lab.balance import workloads as balance
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.lab.dot_compress import workloads as dot_compress
from helion_sinkhorn.lab.dot_compress.workloads import DotWorkload
from helion_sinkhorn.lab.linear_attention import workloads as linear_attention
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.lab.mixes import workloads as hc_mixes
from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from helion_sinkhorn.lab.post import workloads as hc_post
from helion_sinkhorn.lab.post.workloads import HcPostWorkload
from helion_sinkhorn.lab.pre import workloads as hc_pre
from helion_sinkhorn.lab.pre.quantized import workloads as quantize
from helion_sinkhorn.lab.pre.quantized.workloads import QuantizeWorkload
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload
from helion_sinkhorn.lab.sinkhorn import workloads as sinkhorn
from helion_sinkhorn.lab.sinkhorn.large import workloads as sinkhorn_large
from helion_sinkhorn.lab.sinkhorn.large.workloads import LargeWorkload
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.lab.site import workloads as hc_site
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload
from helion_sinkhorn.lab.split import workloads as hc_split_sinkhorn
from helion_sinkhorn.lab.split.workloads import HcWorkload

Row = TypeVar("Row")

_ROWS = (
    *sinkhorn.ROWS, *sinkhorn_large.ROWS, *dot_compress.ROWS, *linear_attention.ROWS,
    *hc_split_sinkhorn.ROWS, *hc_mixes.ROWS, *hc_pre.ROWS, *hc_post.ROWS, *hc_site.ROWS, *balance.ROWS,
    *quantize.ROWS,
)  # fmt: skip
Workload = (
    SinkhornWorkload
    | LargeWorkload
    | DotWorkload
    | AttentionWorkload
    | HcWorkload
    | MixesWorkload
    | HcPreWorkload
    | HcPostWorkload
    | HcSiteWorkload
    | BalanceWorkload
    | QuantizeWorkload
)
WORKLOADS: dict[str, Workload] = {w.name: w for w in _ROWS}
assert len(WORKLOADS) == len(_ROWS)


def tagged(tag: str, kind: type[Row] = SinkhornWorkload) -> list[Row]:
    """The rows of one operator, or with kind=object of all, that carry a tag, in the order of the table."""
    return [w for w in WORKLOADS.values() if isinstance(w, kind) and tag in w.tags]
