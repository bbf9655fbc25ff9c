"""Large matrices of both forms: times and kept bytes beside the definition, and errors.

Forward and backward by themselves, eagerly and in a CUDA graph; "reads" are reads of the matrix, one for each
iteration, at the rate of a copy.  On a CPU eager calls alone.
"""

from __future__ import annotations

import argparse
import functools
from typing import NamedTuple

import torch

from benchmarks.timing import ready, waited_for
from helion_sinkhorn import reference, sinkhorn
from helion_sinkhorn.lab.tuning.timing import Run, captured
from helion_sinkhorn.ops.sinkhorn.large.torch_op import call, call_backward


class Case(NamedTuple):
    batch: int
    n: int
    m: int
    n_iters: int
    eps: float = 0.0
    """The deepseek form's, or 0 for the log form."""
    first: str = "rows"

    def __str__(self) -> str:
        form, side = "deepseek" if self.eps else "log", "" if self.first == "rows" else ", columns first"
        return f"{form}{side}, {self.batch} x {self.n} x {self.m}, T = {self.n_iters}"


CASES = [
    Case(1, 1024, 1024, 100), Case(16, 1024, 1024, 20), Case(16, 1024, 1024, 100), Case(16, 1025, 1025, 100),
    Case(64, 256, 256, 20), Case(1, 1229, 98304, 3), Case(1, 1229, 98304, 3, first="cols"),
    Case(1, 1024, 1024, 100, 1e-6), Case(16, 1024, 1024, 100, 1e-6), Case(64, 256, 256, 20, 1e-6),
]  # fmt: skip
"""With SuperGlue's dustbins, and with DINO's samples and prototypes, of which the prototypes come first."""
ALONE = (), 0
"""No ranks share the rows."""


def timed(run: Run, device: str) -> float:
    """Milliseconds of a call."""
    run()
    return waited_for(run, torch.device(device)) / 1e3


def graphed(run: Run) -> Run:
    """Replays of a call."""
    _, stream = ready(lambda: run)
    return captured(run, stream=stream)


def kernel_parts(x: torch.Tensor, dy: torch.Tensor, case: Case, how: str):
    """The forward that keeps what a gradient needs, and the backward, each by itself."""

    def forward(keep: bool = True):
        given = x, None, None, case.n_iters, case.eps, case.first, 1.0, keep, how, x.dtype, *ALONE
        return call(*given)

    _, _, _, rows, columns = forward()
    backward = dy, None, None, x, None, None, rows, columns, case.eps, case.first, 1.0, how, *ALONE
    return forward, (lambda: call_backward(*backward)), 4 * (rows.numel() + columns.numel())


def errors(x: torch.Tensor, dy: torch.Tensor, n_iters: int) -> list[float]:
    """(of P, of dX) of `sinkhorn` and of float32 autograd, relative to the largest entry."""
    results = []
    for function, dtype in (
        (reference.sinkhorn, torch.float64), (sinkhorn, torch.float32), (reference.sinkhorn, torch.float32),
    ):  # fmt: skip
        leaf = x.to(dtype).requires_grad_()
        p = function(leaf, n_iters, form="log")
        results.append((p.detach(), *torch.autograd.grad(p, leaf, dy.to(dtype))))
    exact, *others = results
    return [
        ((a.double() - b).abs().max() / b.abs().max()).item()
        for own in others
        for a, b in zip(own, exact, strict=True)
    ]


def main(arguments: argparse.Namespace) -> None:
    device = arguments.device
    on_gpu = device == "cuda"
    for case in CASES if on_gpu else CASES[:1]:
        x, dy = (torch.randn(case.batch, case.n, case.m, device=device) for _ in range(2))
        forward, backward, kept = kernel_parts(x, dy, case, "helion" if on_gpu else "pytorch")
        leaf = x.clone().requires_grad_()
        form = {"eps": case.eps} if case.eps else {"form": "log"}
        plain = functools.partial(reference.sinkhorn, n_iters=case.n_iters, first=case.first, **form)

        def definition(leaf=leaf, dy=dy, plain=plain):
            torch.autograd.grad(plain(leaf), leaf, dy)

        row = {"forward": timed(forward, device), "backward": timed(backward, device)}
        if on_gpu:
            row |= {
                "forward in a graph": timed(graphed(forward), device),
                "without gradient in a graph": timed(graphed(functools.partial(forward, False)), device),
                "backward in a graph": timed(graphed(backward), device),
                "reads": case.n_iters / 2 * timed(graphed(functools.partial(leaf.detach().copy_, x)), device),
            }
        with torch.no_grad():
            row["definition"] = timed(functools.partial(plain, x), device)
        row["definition, both"] = timed(definition, device)
        times = ", ".join(f"{name} {t:.3g}" for name, t in row.items())
        print(f"{case}: {times} ms; kept {kept / 1e6:.2f} MB", flush=True)
    for name, scale in (("randn", 1), ("8 randn", 8), ("30 randn", 30)):
        x, dy = (torch.randn(1, 256, 256, device=device) for _ in range(2))
        own = ", ".join(f"{e:.1e}" for e in errors(scale * x, dy, 20))
        print(f"256 x 256, T = 20, {name}: errors of P and dX, and of autograd's: {own}", flush=True)
