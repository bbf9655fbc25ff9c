"""Jobs of `benchmarks.bench residual_path`: the residual path of mHC beside other packages.

Four streams in bfloat16, 20 iterations.  `coefficients` are pre, post and comb of mixes, for the tokens
given and for 2^20; `hc_pre`, `hc_post` and `hc_mixes` are the parts around them; `site` is all of it around
a sublayer whose output is given, and its backward has the sums of the gradients of the streams; `boundary` is
that of DeepSeek-V4.1, from one sublayer's output to the next one's input.  "its parts" are this package's
operators one by one, with autograd's sums, and PyTorch's RMSNorm where `normed_` is before the name.

us are single calls that the host has queued ahead, graph_us a call in a CUDA graph; calls go round inputs of
a gigabyte together unless one call's fit into the cache.  Errors are root mean square, relative to that of
the result, of the worst result or gradient against float64 of the peer's own formula, over 256 tokens.  The
peak is what backward allocates at most, relative to its gradients.  Kernels are those that the profiler
counts, of a site and a boundary.  Bytes are those of each tensor moved once; for a site and a boundary they
are counted in docs/mhc.md.
"""

from __future__ import annotations

import argparse
import os

from benchmarks.jobs import Row
from benchmarks.residual_path import peers
from benchmarks.residual_path.operations import OPERATIONS
from benchmarks.residual_path.tasks import Job

FILE, NAMES = "residual_path.csv", (peers.FLOOR, *peers.PEERS)
WORKERS = max(2, 3 * (os.cpu_count() or 1))
FIRST_COLUMNS = (
    "section", "operation", "function", "tokens", "columns", "pass", "us", "us_20", "us_80", "graph_us",
    "kernels", "bytes", "error", "peak", "note", "uncaptured", "package_version",
)  # fmt: skip
SPLIT = (peers.COMPILED, "TransformerEngine", "Megatron-LM")
"""Functions that compile or try so much that every size is a process of its own."""
SPLIT_OPERATIONS = {(peers.OURS, of) for of in ("boundary", "normed_boundary", "normed_seam")}
"""So are these operations of a function: their sizes compile for minutes in one process."""
SLOWEST = (peers.COMPILED, "Liger")
"""Functions that take longest to get ready."""


def absent(options: argparse.Namespace) -> list[Row]:
    return [
        {"function": name, "operation": operation, "note": why}
        for name in options.only or peers.PEERS
        if name in peers.PEERS
        for operation, why in peers.PEERS[name].lacks.items()
        if operation in (options.operations or [operation])
    ]


def shapes_of(name: str, operation: str, options: argparse.Namespace) -> list[tuple[int, int]]:
    """(tokens, C) of a function; the coefficients of a token do not depend on C."""
    if operation == "coefficients":
        return [(options.tokens, 0), (options.many, 0)]
    return [(options.tokens, hidden) for hidden in options.columns]


def waves(options: argparse.Namespace) -> list[list[Job]]:
    """Jobs that get ready together, in the order in which they are measured.

    What gets ready longest comes first.  A site of Triton kernels comes later: its parts were compiled by
    then.
    """
    slow, other = [], []
    for name in options.only or NAMES:
        for of in OPERATIONS if name == peers.FLOOR else peers.PEERS[name].adapters:
            if of not in (options.operations or OPERATIONS):
                continue
            shapes = shapes_of(name, of, options)
            split = name in SPLIT or (name, of) in SPLIT_OPERATIONS
            first = name in SLOWEST or (split and "site" not in of)
            for part in [(shape,) for shape in shapes] if split else [tuple(shapes)]:
                (slow if first else other).append(Job(name, of, part, options.device))
    return [wave for wave in (slow, other) if wave]
