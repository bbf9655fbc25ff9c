"""OPERATORS: the row of every operator.  Importing this module imports Triton."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from helion_sinkhorn.lab.evidence import Evidence
from helion_sinkhorn.lab.workloads import FOLDERS
from helion_sinkhorn.runtime.fingerprint import fingerprint_of

_ROWS = [import_module(f"helion_sinkhorn.lab.{folder}.evidence").EVIDENCE for folder in FOLDERS]
OPERATORS: dict[str, Evidence] = {row.name: row for row in _ROWS}
KERNELS = {name: kernel for row in OPERATORS.values() for name, kernel in row.kernels.items()}
TRIALS = {name: trial for row in OPERATORS.values() for name, trial in row.trials.items()}
_OPERATOR_OF = {name: row for row in OPERATORS.values() for name in row.kernels}


def operator_of(kernel: str) -> Evidence:
    """The row with the kernel of this name."""
    return _OPERATOR_OF[kernel]


def fingerprint(kernel: str, sources: tuple[tuple[str, str], ...] = ()) -> str:
    """A hash of the source of the kernel of this name: entries that were tuned for another are stale."""
    return fingerprint_of(KERNELS[kernel].body, sources)


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
