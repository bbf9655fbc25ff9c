"""The inputs of `--op sinkhorn`: WORKLOADS tagged "bench", or the shapes that its flags ask for."""

from __future__ import annotations

import argparse
import dataclasses
import logging

import torch

from helion_sinkhorn.lab.sinkhorn.workloads import LARGEST_ENTRIES, SinkhornWorkload
from helion_sinkhorn.lab.workloads import tagged
from tritonbench_ops import flags, measure
from tritonbench_ops.flags import MODES as MODES
from tritonbench_ops.judged import METRICS, Judged
from tritonbench_ops.measure import of_mode
from tritonbench_ops.sinkhorn import compare
from tritonbench_ops.sinkhorn.backends import BACKENDS, has_other_gradient, wanted

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGE_BATCHES = 1, 8
"""Batches of matrices of which not even the smallest of the table fits."""

parse = flags.parser("sinkhorn").parse_args
LEAVES = 2
"""The logits, and n_iters, which is given like them."""
log = logging.getLogger("tritonbench_ops")


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


def inputs(case: SinkhornWorkload, device: torch.device | str) -> tuple[torch.Tensor, int, torch.Tensor]:
    """(logits (B, n, m), n_iters, upstream gradient); no strings, which numeric_check could not compare."""
    logits, dy = case.make_inputs(device=device)
    return logits, case.n_iters, dy


def x_value(case: SinkhornWorkload) -> str:
    """An input as tables show it; no ";" and no "-", on which tritonbench's writers split.

    Without form and first, one of each a run: --side-a and --side-b join what has one value.
    """
    return f"{case.batch}x{case.n}x{case.m} T={case.n_iters}"


def operations(case: SinkhornWorkload) -> float:
    """Floating-point operations of forward: a product and an addition an entry in each half-step."""
    return 4.0 * case.batch * case.n * case.m * case.n_iters


def bytes_moved(case: SinkhornWorkload, mode: str) -> int:
    """Bytes that a mode has to read or write at least: X and P; dP, X and dX."""
    logits = case.batch * case.n * case.m * case.dtype.itemsize
    return of_mode(mode, 2 * logits, 3 * logits)


class Operator(Judged):
    """Sinkhorn-Knopp; an input is (logits, n_iters, (upstream gradient,)); a run has one form and `first`."""

    label = "BxNxM T"
    own_metrics = "max_abs_err", "grad_rel_err", "marginal_err", "host_us", "kept_bytes"
    DEFAULT_PRECISION = "fp32"
    DEFAULT_METRICS = [*METRICS, "max_abs_err"]  # noqa: RUF012

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        if self.device == "cpu":
            self._skip = [*(self._skip or []), *(name for name, row in BACKENDS.items() if not row.on_cpu)]
        if not self.named:
            # another gradient on purpose: timed when requested
            self._skip = [*(self._skip or []), *filter(has_other_gradient, BACKENDS)]
        if any(getattr(self.tb_args, name, None) for name in ("rtol", "atol", "bitwise")):
            log.warning("the error budget decides accuracy: --rtol, --atol and --bitwise do nothing")

    @property
    def arguments(self):
        return {"n_iters": self.case.n_iters, "form": self.case.form, "first": self.case.first}

    def errors_of(self, name, p, gradients):
        logits, _, (dy,) = self.example_inputs
        dx = None if gradients is None else gradients[0]
        allowed = self.once("budget", lambda: compare.budget(logits, dy, **self.arguments))
        return compare.errors(logits, dy, p, dx, allowed, **self.arguments)

    def worst(self, errors):
        return errors.share

    def accuracy(self, fn, baseline_fn):
        """Whether the result of this mode is within the error budget against float64; the baseline's too."""
        self.errors(baseline_fn)
        return super().accuracy(fn, baseline_fn)

    def best_config(self, fn):
        backend = BACKENDS.get(fn._name)
        call = self.example_inputs[0], *self.arguments.values()
        return backend.config(*call, self.mode.value) if backend else ""

    def copy(self):
        return measure.floor(self.example_inputs[0], self.mode.value)

    def max_abs_err(self, fn, inputs, metrics):
        return self.errors(fn).max_abs

    def grad_rel_err(self, fn, inputs, metrics):
        return self.errors(fn).gradient

    def marginal_err(self, fn, inputs, metrics):
        return self.errors(fn).marginal

    def host_us(self, fn, inputs, metrics):
        return measure.host_microseconds(fn, inputs[0].device)

    def kept_bytes(self, fn, inputs, metrics):
        return measure.kept_bytes(self.forward(fn._name), inputs[0])

    def required(self):
        must = wanted(self.named, self._skip or [], self.device)
        return must, {n for n in must if not (has_other_gradient(n) and "bwd" in self.mode.value)}

    def built(self, name, backend, logits, n_iters, upstream):
        if backend.missing:
            raise NotImplementedError(backend.missing)
        if not (backend.on_cpu or logits.is_cuda):
            raise NotImplementedError("runs on GPUs only")
        return backend.build(logits, *upstream, *self.arguments.values())
