"""OPERATORS: the row of every operator.  Importing this module imports Triton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from helion_sinkhorn.lab.balance.evidence import EVIDENCE as SINKHORN_BALANCE
from helion_sinkhorn.lab.dot_compress.evidence import EVIDENCE as DOT_COMPRESS
from helion_sinkhorn.lab.evidence import Evidence
from helion_sinkhorn.lab.linear_attention.evidence import EVIDENCE as LINEAR_ATTENTION
from helion_sinkhorn.lab.mixes.evidence import EVIDENCE as HC_MIXES
from helion_sinkhorn.lab.post.evidence import EVIDENCE as HC_POST
from helion_sinkhorn.lab.pre.evidence import EVIDENCE as HC_PRE
from helion_sinkhorn.lab.pre.quantized.evidence import EVIDENCE as QUANTIZE
from helion_sinkhorn.lab.sinkhorn.evidence import EVIDENCE as SINKHORN
from helion_sinkhorn.lab.sinkhorn.large.evidence import EVIDENCE as SINKHORN_LARGE
from helion_sinkhorn.lab.site.evidence import EVIDENCE as HC_SITE
from helion_sinkhorn.lab.split.evidence import EVIDENCE as HC_SPLIT_SINKHORN

ROWS = (
    SINKHORN, SINKHORN_LARGE, DOT_COMPRESS, LINEAR_ATTENTION, HC_SPLIT_SINKHORN, HC_MIXES, HC_PRE, HC_POST,
    HC_SITE, SINKHORN_BALANCE, QUANTIZE,
)  # fmt: skip
OPERATORS: dict[str, Evidence] = {row.name: row for row in ROWS}
KERNELS = {name: kernel for row in OPERATORS.values() for name, kernel in row.kernels.items()}
TRIALS = {name: trial for row in OPERATORS.values() for name, trial in row.trials.items()}
_OPERATOR_OF = {name: row for row in OPERATORS.values() for name in row.kernels}


def operator_of(kernel: str) -> Evidence:
    """The row with the kernel of this name."""
    return _OPERATOR_OF[kernel]


def operator_for(workload: Any) -> Evidence:
    """The row whose calls a workload describes.

    Raises:
        TypeError: no operator has workloads of this type.
    """
    for row in OPERATORS.values():
        if isinstance(workload, row.workload):
            return row
    raise TypeError(f"no operator has workloads of type {type(workload).__name__}")


def kernel_calls(workload: Any) -> Iterator[tuple[str, Any]]:
    """(kernel, its call), one for each kernel that a workload runs."""
    return operator_for(workload).kernel_calls(workload)
