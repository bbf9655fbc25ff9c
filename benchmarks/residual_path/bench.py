"""Time the residual path of mHC beside other packages, PyTorch, torch.compile and a copy of the same bytes.

    python -m benchmarks.residual_path.bench --out docs/bench [--tokens 8192] [--columns 4096 7168]
                                             [--only FUNCTION ...] [--device cpu]     # 10 minutes on an H200

Four streams in bfloat16, 20 iterations.  `coefficients` are pre, post and comb of mixes, for the tokens
given and for 2^20; `hc_pre`, `hc_post` and `hc_mixes` are the parts around them; `site` is all of it around
a sublayer whose output is given, and its backward has the sums of the gradients of the streams; `boundary` is
that of DeepSeek-V4.1, from one sublayer's output to the next one's input.  "its parts" are this package's
operators one by one, with autograd's sums; a site and a boundary are timed for a few tokens too, as a server
has them.  Every function and operation is a process with a time limit, as in benchmarks.sinkhorn.bench; what
is not installed, fails or takes too long becomes a row with the reason.

Writes residual_path.csv after every job.  us are single calls that the host has queued ahead, graph_us a call
in a CUDA graph; calls go round inputs of a gigabyte together unless one call's fit into the cache.  Errors
are root mean square, relative to that of the result, of the worst result or gradient against float64 of the
peer's own formula, over 256 tokens.  The peak is what backward allocates at most, relative to its gradients.
Kernels are those that the profiler counts, of a site and a boundary.  Bytes are those of each tensor moved
once; for a site and a boundary they are counted in docs/hc_site.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks import command

TOKENS, COLUMNS, MANY = 1 << 13, (4096, 7168), 1 << 20
LIMIT = 600.0


def make_parser(every=None) -> argparse.ArgumentParser:
    """Without the names that an import of torch brings, of flags and numbers alone."""
    parser = command.parser("residual_path.bench", __doc__)
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--columns", type=int, nargs="+", default=COLUMNS, help="C, entries of a stream")
    parser.add_argument("--many", type=int, default=MANY, help="tokens of the second size of coefficients")
    parser.add_argument("--only", nargs="+", choices=every, default=every, metavar="FUNCTION")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: for a tiny trial")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds in all (default %(default)s)")
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # what follows imports torch, which takes seconds; --help has names from there
    make_parser().parse_args()

from benchmarks.jobs import Table, measure, of_now
from benchmarks.residual_path import peers
from benchmarks.residual_path.operations import OPERATIONS, SERVING
from benchmarks.residual_path.worker import Job

SERVED = (peers.FLOOR, peers.OURS, peers.PARTS)
"""Functions that are timed for SERVING tokens too."""
SPLIT = (peers.COMPILED, "TransformerEngine", "Megatron-LM")
"""Functions that compile or try so much that every size is a process of its own."""
SPLIT_OPERATION = (peers.OURS, "boundary")
"""So is this operation of a function: its eight sizes compile for minutes in one process."""
SLOWEST = (peers.COMPILED, "Liger")
"""Functions that take longest to get ready."""
Shapes = tuple[tuple[int, int], ...]
FIRST_COLUMNS = (
    "section", "operation", "function", "tokens", "columns", "pass", "us", "us_20", "us_80", "graph_us",
    "kernels", "bytes", "error", "peak", "note", "uncaptured", "package_version",
)  # fmt: skip


def shapes_of(name: str, operation: str, tokens: int, columns: tuple[int, ...], many: int) -> Shapes:
    """(tokens, C) of a function; the coefficients of a token do not depend on C."""
    if operation == "coefficients":
        return (tokens, 0), (many, 0)
    is_served = name in SERVED and operation in ("site", "boundary")
    return tuple((t, hidden) for t in ((*SERVING, tokens) if is_served else (tokens,)) for hidden in columns)


def waves(only: list[str], tokens: int, columns: tuple[int, ...], many: int, device: str) -> list[list[Job]]:
    """Jobs that get ready together, in the order in which they are measured.

    What gets ready longest comes first.  A site of Triton kernels comes later: its parts were compiled by
    then.
    """
    slow, other = [], []
    for name in only:
        having = OPERATIONS if name == peers.FLOOR else peers.PEERS[name].adapters
        for of in having:
            shapes = shapes_of(name, of, tokens, columns, many)
            split = name in SPLIT or (name, of) == SPLIT_OPERATION
            parts = [(shape,) for shape in shapes] if split else [shapes]
            first = name in SLOWEST or (split and of != "site")
            (slow if first else other).extend(Job(name, of, part, device) for part in parts)
    return [wave for wave in (slow, other) if wave]


def main() -> None:
    every = [peers.FLOOR, *peers.PEERS]
    parser = make_parser(every)
    options = parser.parse_args()
    command.need_gpu(
        parser, options.device, "--device cpu --tokens 64 --columns 128 --many 128 runs the same code"
    )
    options.out.mkdir(parents=True, exist_ok=True)
    table = Table(options.out / "residual_path.csv", of_now(), FIRST_COLUMNS)
    for name in options.only:
        for operation, why in peers.PEERS[name].lacks.items() if name in peers.PEERS else ():
            table.add({"section": "left out", "function": name, "operation": operation, "note": why})
    jobs = waves(options.only, options.tokens, tuple(options.columns), options.many, options.device)
    measure(table, jobs, options.limit, workers=max(2, 3 * (os.cpu_count() or 1)))
    table.write()
    print(f"wrote {table.path}")


if __name__ == "__main__":
    main()
