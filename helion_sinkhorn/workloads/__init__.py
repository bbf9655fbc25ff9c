"""WORKLOADS: the calls that tuning, benchmarks, CI and tritonbench loop over, a module for each operator."""

from __future__ import annotations

from typing import TypeVar

from helion_sinkhorn.workloads import dot_compress, linear_attention, sinkhorn
from helion_sinkhorn.workloads.dot_compress import DotWorkload as DotWorkload
from helion_sinkhorn.workloads.draws import LOGITS as LOGITS
from helion_sinkhorn.workloads.draws import PEAKED as PEAKED
from helion_sinkhorn.workloads.draws import make_cotangents as make_cotangents
from helion_sinkhorn.workloads.draws import make_logits as make_logits
from helion_sinkhorn.workloads.linear_attention import AttentionWorkload as AttentionWorkload
from helion_sinkhorn.workloads.sinkhorn import LARGEST_ENTRIES as LARGEST_ENTRIES
from helion_sinkhorn.workloads.sinkhorn import Workload as Workload

Row = TypeVar("Row")

_ROWS = (*sinkhorn.ROWS, *dot_compress.ROWS, *linear_attention.ROWS)
WORKLOADS: dict[str, Workload | DotWorkload | AttentionWorkload] = {w.name: w for w in _ROWS}
assert len(WORKLOADS) == len(_ROWS)


def tagged(tag: str, kind: type[Row] = Workload) -> list[Row]:
    """The rows of one operator, or with kind=object of all, that carry a tag, in the order of the table."""
    return [w for w in WORKLOADS.values() if isinstance(w, kind) and tag in w.tags]
