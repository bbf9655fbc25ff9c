"""The batch with which a workload is run: its row's, or one that only large calls have."""

from __future__ import annotations

from typing import Any

from ci.gate.gate import Operator

PIECES = {"hc_post_model": 70, "hc_pre_model": 70}
"""More entries than the CPU path takes at a time (runtime.pieces), so that there is a second piece."""
LARGE = {
    "tail_5x3": 4_200_000, "implicit_tail_5x3": 4_200_000, "lane_32": 140_000,
    "hc_one_iteration": 130_000, "hc_pre_one_entry": 2_100_000, "hc_post_two_entries": 1_100_000,
    "mixes_narrow": 70_000, "hc_site_narrow": 140_000, "attention_unused_end": 140_000, "dot_tail": 66_000,
}  # fmt: skip
"""More than 65,535 programs of each kernel, which has up to 1024 elements or tokens in one; for a GPU."""


def elements(workload: Any, large: bool = False) -> int:
    """The batch of a workload."""
    return LARGE[workload.name] if large else PIECES.get(workload.name, workload.batch)


def is_judged(operator: Operator, of: str, large: bool) -> bool:
    """Whether a result is tested; in a large batch, none that needs a call for each element."""
    return not (large and operator.same_bits) or of in operator.same_bits
