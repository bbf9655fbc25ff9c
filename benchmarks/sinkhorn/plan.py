"""Jobs of `benchmarks.bench sinkhorn`: which functions are timed at which sizes, in which order."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from benchmarks.jobs import Row
from benchmarks.sinkhorn import peers
from benchmarks.sinkhorn.tasks import Job

FILE, NAMES, WORKERS = "bench.csv", tuple(peers.FUNCTIONS), 2 * (os.cpu_count() or 1)
FIRST_COLUMNS = (
    "section", "function", "n", "batch", "dtype", "iterations", "pass", "timer", "us", "us_20", "us_80",
    "quantity", "bytes", "error", "gradient_error", "note", "package_version",
)  # fmt: skip
LARGEST_BYTES = 8 << 30
"""Most bytes of logits, upstream gradient and result together; larger batches are skipped."""


def powers(*exponents: int) -> tuple[int, ...]:
    return tuple(1 << e for e in exponents)


FULL = {
    4: powers(7, 10, 12, 13, 15, 17, 18, 20, 22),
    8: powers(7, 10, 13, 15, 17, 18, 20, 22),
    16: powers(7, 10, 13, 16, 18, 20, 22),
    32: powers(14),
    64: powers(7, 10, 12, 14, 16, 18),
    128: powers(10),
}
QUICK = {4: powers(7, 13, 20), 8: powers(18), 16: powers(16), 32: powers(14), 64: powers(12), 128: powers(10)}
SMOKE = {4: powers(5, 7), 8: powers(5)}
FEW = {4: powers(13, 20), 8: powers(18), 16: powers(16)}
PEER_BATCHES = {4: powers(12, 13, 17, 20), 8: powers(17)}


def absent(options: argparse.Namespace) -> list[Row]:
    left_out = {} if options.quick else peers.LEFT_OUT
    return [{"function": function, "note": why} for function, why in left_out.items()]


def waves(options: argparse.Namespace) -> list[list[Job]]:
    """Jobs that get ready together, in the order in which they are measured."""
    every = planned(options)
    if options.only:
        some = [
            [replace(job, functions=tuple(f for f in job.functions if f in options.only)) for job in wave]
            for wave in every
        ]
        every = [[job for job in wave if job.functions] for wave in some]
    return [wave for wave in every if wave]


def planned(options: argparse.Namespace) -> list[list[Job]]:
    smoke = options.device != "cuda"
    short = 2.0 if smoke else 20.0
    base = Job("sweep", "sweep", (peers.FLOOR, peers.OURS), device=options.device, milliseconds=short)

    def sweeps(sizes: dict[int, tuple[int, ...]], **changes: object) -> list[Job]:
        """One for each n, at the batches that fit."""
        fitting = {
            n: tuple(b for b in batches if 12 * n * n * b <= LARGEST_BYTES)
            for n, batches in (SMOKE if smoke else sizes).items()
        }
        return [replace(base, n=n, batches=batches, **changes) for n, batches in fitting.items()]

    def other(name: str) -> Job:
        return replace(base, section=name, task=name, functions=())

    log = (f"{peers.OURS} log",)
    own = [*sweeps(QUICK if options.quick else FULL), other("host")]
    if options.quick:
        return [own, sweeps(QUICK, functions=log)]
    own.append(replace(other("lanes"), batches=(32, 128)))
    variants = [
        job for pair in zip(sweeps(FEW, dtype="bfloat16"), sweeps(FEW, functions=log), strict=True)
        for job in pair
    ]  # fmt: skip
    # a pass of eager PyTorch takes 15 ms: enough of them
    beside = sweeps(PEER_BATCHES, functions=("eager",), milliseconds=3 * short)
    for name in peers.PEERS:
        sizes = peers.FUNCTIONS[name].sizes
        beside += [job for job in sweeps(PEER_BATCHES, functions=(name,)) if not sizes or job.n in sizes]
    # it compiles anew for every batch: side by side
    compiled = sweeps(PEER_BATCHES, functions=(peers.COMPILED,), milliseconds=3 * short)
    beside += [replace(job, batches=(batch,)) for job in compiled for batch in job.batches]
    return [own, variants, beside]
