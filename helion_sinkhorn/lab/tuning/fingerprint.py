"""A hash of a kernel's source: entries that were tuned for another source are stale."""

from __future__ import annotations

from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.runtime.fingerprint import fingerprint_of
from helion_sinkhorn.runtime.fingerprint import without_docstrings as without_docstrings


def fingerprint(kernel: str, sources: tuple[tuple[str, str], ...] = ()) -> str:
    """`fingerprint_of` the body of a kernel, by its name in KERNELS."""
    return fingerprint_of(KERNELS[kernel].body, sources)
