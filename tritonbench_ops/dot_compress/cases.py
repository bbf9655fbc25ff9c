"""The inputs of `--op dot_compress`, its backends, and the bounds of their results."""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from helion_sinkhorn import dot_compress, reference
from helion_sinkhorn.lab.dot_compress import budget as testing_dot_compress
from helion_sinkhorn.lab.dot_compress.workloads import DotWorkload
from tritonbench_ops import flags
from tritonbench_ops.bounds import PIECE_ENTRIES, Tensors, largest_share, pieces
from tritonbench_ops.judged import METRICS, Backends, Judged, compiled, of_pytorch
from tritonbench_ops.measure import of_mode

REPORTED = 0.2, 0.01
"""atol and rtol of pytorch/helion#1661: a view, and no test, of the accuracy (docs/dev/dot_compress.md)."""

parse = flags.parser("dot_compress").parse_args
LEAVES = 3


def cases(options: argparse.Namespace, dtype: torch.dtype) -> list[DotWorkload]:
    """The bench workloads as `options` change them, each once."""
    return flags.bench("dot_compress", DotWorkload, options, dtype, has_z=options.with_z)


def inputs(case: DotWorkload, device: torch.device | str) -> tuple[torch.Tensor | None, ...]:
    """(x, y, z or None, upstream gradient)."""
    return case.make_inputs(device=device)


def x_value(case: DotWorkload) -> str:
    """An input as tables show it."""
    return f"{case.batch}x{case.m}x{case.d} {case.k}{' z' if case.has_z else ''}"


def bytes_moved(case: DotWorkload, mode: str) -> int:
    """Bytes of every tensor moved once: x, y and out; the upstream gradient, x, y, dx and dy."""
    x, y = (case.batch * case.m * columns * case.dtype.itemsize for columns in (case.d, case.k))
    return of_mode(mode, x + 2 * y, 2 * x + 3 * y)


def operations(case: DotWorkload) -> float:
    """Floating-point operations of forward: its two products, x'y and x b."""
    return 4.0 * case.batch * case.m * case.d * case.k


BACKENDS: Backends = {
    **of_pytorch(reference.dot_compress),
    "torch_compile_max_autotune": functools.partial(
        compiled, reference.dot_compress, "max-autotune-no-cudagraphs"
    ),
    "helion_dot_compress": lambda: dot_compress,
    "helion_dot_compress_precise": lambda: functools.partial(dot_compress, precise_intermediate=True),
}


@dataclass(frozen=True)
class Figures:
    """How a result compares with float64."""

    share: float
    """Its largest error in units of the budget of the entry."""
    error: float
    """Its largest error."""


def named(out: torch.Tensor | None, gradients: Tensors | None) -> dict[str, torch.Tensor]:
    """The results of a mode by their names."""
    results = {"out": out} | dict(zip(("dx", "dy", "dz"), gradients or (), strict=False))
    return {name: t.detach() for name, t in results.items() if t is not None}


def figures(given: Tensors, out: torch.Tensor | None, gradients: Tensors | None) -> dict[str, Figures]:
    """Figures of each result, every entry against its own budget, computed where the tensors are."""
    x, results, worst = given[0], named(out, gradients), {}
    for at in pieces(len(x), PIECE_ENTRIES, x[0].numel()):
        tensors = (None if t is None else t[at] for t in given)
        exact = testing_dot_compress.exact(*tensors, device=x.device)
        for name, t in results.items():
            share = largest_share(t[at], exact[name].value, exact[name].budget)
            error = largest(t[at].double() - exact[name].value)
            before = worst.get(name, Figures(0.0, 0.0))
            worst[name] = Figures(max(before.share, share), max(before.error, error))
    return worst


def share_of_budget(
    case: DotWorkload, given: Tensors, out: torch.Tensor | None, gradients: Tensors | None
) -> float:
    """The largest error of out, dx, dy and dz."""
    return max(each.share for each in figures(given, out, gradients).values())


def differences(
    results: tuple[torch.Tensor | None, Tensors | None], others: tuple[torch.Tensor | None, Tensors | None]
) -> dict[str, tuple[int, float]]:
    """Result -> (entries that REPORTED rejects beside another's, the largest difference from them)."""
    ours, theirs = named(*results), named(*others)
    return {
        name: (mismatches(t, theirs[name]), largest(t.double() - theirs[name])) for name, t in ours.items()
    }


def mismatches(a: torch.Tensor, b: torch.Tensor) -> int:
    """How many entries REPORTED rejects; NaN is rejected."""
    atol, rtol = REPORTED
    close = (a - b).abs().double() <= atol + rtol * b.abs().double()
    return int((~(close | (a == b))).sum())


def largest(difference: torch.Tensor) -> float:
    """The largest absolute entry; NaN counts as any."""
    return float(difference.abs().nan_to_num(nan=math.inf).max())


def written(values: Mapping[str, float]) -> str | None:
    """A number for each result in one cell of a table; None without any."""
    cells = (
        f"{name}={value if isinstance(value, int) else f'{value:.3g}'}" for name, value in values.items()
    )
    return " ".join(cells) or None


class Operator(Judged):
    """Dot compress; an input is (x, y, z or None, (upstream gradient,))."""

    label = "BxMxD K"
    own_metrics = "max_abs_err", "shares", "inductor_mismatches", "inductor_max_diff"
    UNJUDGED = (*Judged.UNJUDGED, "torch_compile_max_autotune")
    DEFAULT_METRICS = [*METRICS, *own_metrics]  # noqa: RUF012

    def figures(self, fn):
        """How each result compares with float64, and with Inductor's where that runs."""

        def judge():
            results = self.results(fn)
            own, theirs = figures(self.given(), *results), self.results_of_inductor()
            self.is_right(fn, max(of.share for of in own.values()))
            return own, {} if theirs is None else differences(results, theirs)

        return self.once(("figures", fn._name), judge)

    def share(self, fn):
        return max(each.share for each in self.figures(fn)[0].values())

    def max_abs_err(self, fn, inputs, metrics):
        """The largest error of each result against float64."""
        return written({name: each.error for name, each in self.figures(fn)[0].items()})

    def shares(self, fn, inputs, metrics):
        """The largest error of each result in units of its budget."""
        return written({name: each.share for name, each in self.figures(fn)[0].items()})

    def inductor_mismatches(self, fn, inputs, metrics):
        """How many entries of each result pytorch/helion#1661 rejects beside Inductor's; no criterion."""
        return written({name: count for name, (count, _) in self.figures(fn)[1].items()})

    def inductor_max_diff(self, fn, inputs, metrics):
        """The largest difference of each result from Inductor's; no criterion."""
        return written({name: most for name, (_, most) in self.figures(fn)[1].items()})
