"""The comparisons of the sources of docs/sinkhorn.md, run again with ours beside them, in their own numbers.

Three settings: X uniform in [0, 4) and P = exp(X) balanced, columns first, with 8 x 8 and 10 iterations or
with 16 x 16 and 100; and standard normal X in the deepseek form with eps = 1e-10, 8 x 8 and 10 iterations.
The upstream gradient is standard normal.  Their algorithm is that of benchmarks.studies.backward, "as
published".  Truth is autograd in float64, where theirs is in float32.  Of |dX - truth|, and of that over
|truth| + 1e-12, the mean and the maximum of a matrix are taken, and then the largest of all matrices.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.studies.backward import SOURCES, truth
from helion_sinkhorn import Implicit, reference, sinkhorn

COLUMNS = ("Max MAE", "Max max_abs_diff", "Max mean_rel_diff", "Max max_rel_diff")
LEAST = 1e-12
"""Added to |truth| in relative differences."""


@dataclass(frozen=True)
class Setting:
    """What one of the comparisons computes."""

    name: str
    n: int
    n_iters: int
    form: str = "log"
    first: str = "cols"
    eps: float = 0.0

    def logits(self, tokens: int, device: str) -> torch.Tensor:
        shape = (tokens, self.n, self.n)
        return (
            4 * torch.rand(shape, device=device) if self.form == "log" else torch.randn(shape, device=device)
        )


SETTINGS = (
    Setting("8 x 8, uniform in [0, 4), log form", 8, 10),
    Setting("16 x 16, uniform in [0, 4), log form", 16, 100),
    Setting("8 x 8, normal, deepseek form", 8, 10, "deepseek", "rows", 1e-10),
)


def metrics(dx: torch.Tensor, expected: torch.Tensor) -> tuple[float, ...]:
    """COLUMNS of a gradient (B, n, n)."""
    wrong = (dx.double() - expected).abs().flatten(1)
    relative = wrong / (expected.abs().flatten(1) + LEAST)
    return tuple(
        float(of.max())
        for of in (wrong.mean(1), wrong.max(1).values, relative.mean(1), relative.max(1).values)
    )


def gradients(setting: Setting, x: torch.Tensor, dy: torch.Tensor, n_iters: int) -> dict[str, torch.Tensor]:
    """Each way to differentiate -> dX in float32."""
    options = {"form": setting.form, "first": setting.first}
    if setting.eps:
        options["eps"] = setting.eps
    ways = {
        "autograd in float32": partial(reference.sinkhorn, n_iters=n_iters, **options),
        "sinkhorn": partial(sinkhorn, n_iters=n_iters, **options),
    }
    if setting.form == "log":
        for solver in ("direct", "cg"):
            how = Implicit(solver=solver)
            ways[f'sinkhorn, Implicit(solver="{solver}")'] = partial(ways["sinkhorn"], backward=how)
    found = {}
    for name, way in ways.items():
        leaf = x.clone().requires_grad_()
        (found[name],) = torch.autograd.grad(way(leaf), leaf, dy)
    if setting.form == "log":
        p = reference.sinkhorn(x, n_iters, **options)
        found |= {name: gradient(x, p, dy, n_iters) for name, gradient in SOURCES.items()}
    return found


def main(args: argparse.Namespace) -> None:
    device = args.device
    for setting in SETTINGS:
        torch.manual_seed(42)
        n_iters = args.iter or setting.n_iters
        x = setting.logits(args.tokens, device)
        dy = torch.randn_like(x)
        _, expected = truth(x, dy, n_iters, setting.first, setting.form, setting.eps)
        print(f"\n{setting.name}: {args.tokens} matrices, {n_iters} iterations\n")
        print(f"{'':36}" + "".join(f"{name:>20}" for name in COLUMNS))
        for name, dx in gradients(setting, x, dy, n_iters).items():
            print(f"{name:36}" + "".join(f"{value:20.2e}" for value in metrics(dx, expected)))
