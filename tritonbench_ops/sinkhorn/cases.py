"""The inputs of `--op sinkhorn`: WORKLOADS tagged "bench", or the shapes that its flags ask for."""

from __future__ import annotations

import argparse
import dataclasses

import torch

from helion_sinkhorn.lab.sinkhorn.workloads import LARGEST_ENTRIES, SinkhornWorkload
from helion_sinkhorn.lab.workloads import tagged
from tritonbench_ops import flags
from tritonbench_ops.flags import MODES as MODES

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TENSORS_MOVED = {"fwd": 2, "fwd_no_grad": 2, "bwd": 3, "fwd_bwd": 5}
"""Tensors of the size of the logits that a mode has to read or write at least: X and P; dP, X and dX."""
LARGE_BATCHES = 1, 8
"""Batches of matrices of which not even the smallest of the table fits."""

parse = flags.parser("sinkhorn").parse_args


def cases(options: argparse.Namespace, dtype: torch.dtype) -> list[SinkhornWorkload]:
    """The bench workloads as `options` change them, each once, in the order of WORKLOADS.

    Args:
        options: of `parse`.
        dtype: of the logits: float32, bfloat16 or float16.
    """
    if dtype not in DTYPES:
        raise ValueError(f"precision {dtype} is not accepted; use --precision fp32, bf16 or fp16")
    rows = tagged("bench")
    known = any(row.n == options.n for row in rows)
    if options.n and min(row.batch for row in rows) * options.n**2 > LARGEST_ENTRIES:
        # batches of the table are of small matrices
        rows = [dataclasses.replace(rows[0], batch=batch) for batch in LARGE_BATCHES]
    chosen: dict[tuple[int, ...], SinkhornWorkload] = {}
    for row in rows:
        n, m = options.n or row.n, options.n or row.m
        batch, n_iters = options.batch or row.batch, options.n_iters or row.n_iters
        # a size that is not in the table takes the batches of all
        if (known and row.n != n) or (not options.batch and batch * n * m > LARGEST_ENTRIES):
            continue
        case = dataclasses.replace(
            row, n=n, m=m, batch=batch, n_iters=n_iters, form=options.form, first=options.first, dtype=dtype
        )
        chosen.setdefault((n, m, batch, n_iters), case)
    return list(chosen.values())


def x_value(logits: torch.Tensor, n_iters: int) -> str:
    """An input as tables show it; no ";" and no "-", on which tritonbench's writers split.

    Without form and first, one of each a run: --side-a and --side-b join what has one value.
    """
    return f"{'x'.join(map(str, logits.shape))} T={n_iters}"


def operations(logits: torch.Tensor, n_iters: int) -> float:
    """Floating-point operations of forward: a product and an addition an entry in each half-step."""
    return 4.0 * logits.numel() * n_iters


def bytes_moved(logits: torch.Tensor, mode: str) -> int:
    """Bytes that a mode has to move at least."""
    return TENSORS_MOVED[mode] * logits.numel() * logits.element_size()
