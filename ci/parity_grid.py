"""Gradients of `sinkhorn` beside float32 PyTorch's on peaked and ordinary matrices: a grid of ratios of
errors.

    python -m ci.parity_grid [--where cpu bodies cuda] [--batch 60] [--worst 10] [--jobs 1]

A case is a batch of matrices.  Its ratio is the largest error against float64 over the largest error of
PyTorch's autograd of the definition in float32, both relative to the largest entry of their matrix; errors
below a floor count as equal (lab/sinkhorn/parity.py). "bodies" are the kernels with their default configs,
interpreted on the CPU, and "cuda" is the public function on a GPU.  With --jobs one process has all cases of
a kernel, which it compiles once.  The exit status is 1 if LIMITS are exceeded."""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--where", nargs="+", choices=("cpu", "bodies", "cuda"), default=["cpu"])
    parser.add_argument("--batch", type=int, default=60, help="matrices a case")
    parser.add_argument("--worst", type=int, default=10, help="cases to name")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    return parser


if __name__ == "__main__":
    # the next lines import torch, which takes seconds
    make_parser().parse_args()

import numpy as np
import torch
from rich.progress import track

from ci.gate import markdown as report
from helion_sinkhorn import sinkhorn
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.parent import end_with_parent
from helion_sinkhorn.lab.sinkhorn import budget as testing
from helion_sinkhorn.lab.sinkhorn.parity import peer_of_gradient
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.lab.truth import largest
from helion_sinkhorn.ops.sinkhorn import eager

SIZES = (2, 2), (3, 3), (4, 4), (4, 6), (8, 8), (16, 16), (33, 33)
LOGITS = (
    "randn_1", "randn_8", "randn_30", "identity_like_4", "identity_like", "identity_like_12",
    "identity_like_16", "noisy_permutation", "one_up_8", "one_up_20", "one_up_40", "one_down_40",
    "one_column", "masked",
)  # fmt: skip
ITERATIONS = 1, 3, 20, 60, 100
LIMITS = {"median": 1.2, "99 %": 5.0, "largest": 40.0}
"""Limits of the ratios of all cases, the largest of which come from 2 x 2 gradients that almost vanish."""
Gradient = Callable[[SinkhornWorkload, torch.Tensor, torch.Tensor], torch.Tensor]
Ratios = dict[str, float]


def cases(batch: int) -> Iterator[list[SinkhornWorkload]]:
    """The cases of the grid, ordered by kernel."""
    for (n, m), n_iters, form, first in itertools.product(
        SIZES, ITERATIONS, ("deepseek", "log"), ("rows", "cols")
    ):
        if n * n_iters <= 33 * 20:
            few = min(batch, max(8, 4096 // (n * m)))
            make = functools.partial(
                SinkhornWorkload, n=n, m=m, batch=few, tags=frozenset(), source="", n_iters=n_iters,
                form=form, first=first,
            )  # fmt: skip
            yield [make(f"{n}x{m} {logits} T={n_iters} {form} {first}", logits=logits) for logits in LOGITS]


def on_cpu(w: SinkhornWorkload, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    return eager.backward(dy, x, *w.arguments)


def on_cuda(w: SinkhornWorkload, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    leaf = x.cuda().requires_grad_()
    return torch.autograd.grad(sinkhorn(leaf, **w.options), leaf, dy.cuda())[0]


def by_bodies(kernel: str) -> Gradient:
    """A kernel interpreted with its default config; the other kernel if it does not take the call."""
    from helion_sinkhorn.configs.device import DEVICES
    from helion_sinkhorn.ops.sinkhorn import launch
    from helion_sinkhorn.runtime.kernel import default_choice

    def run(w: SinkhornWorkload, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        call = launch.call_of(x, *w.arguments)
        name = launch.backward_kernel(call) if kernel == "sinkhorn_backward" else kernel
        return launch.backward(dy, x, *w.arguments, default_choice(KERNELS[name], call, DEVICES["h200"]))

    return run


def gradients(where: str) -> dict[str, Gradient]:
    if where == "cpu":
        return {"CPU path": on_cpu}
    if where == "cuda":
        return {torch.cuda.get_device_name(): on_cuda}
    return {f"{k}, interpreted": by_bodies(k) for k in ("sinkhorn_backward", "sinkhorn_backward_history")}


def ratio(w: SinkhornWorkload, run: Gradient) -> float:
    """The ratio of the worst errors of a case."""
    x, dy = w.make_inputs()
    _, exact = testing.exact(x, dy, **w.options)
    peer = peer_of_gradient(x, dy, exact, largest(exact), *w.arguments)
    return peer.ratios(run(w, x, dy), exact)[1]


def ratios(where: str, workloads: list[SinkhornWorkload]) -> dict[str, Ratios]:
    """The ratios of some cases, for each gradient that exists there."""
    return {name: {w.name: ratio(w, run) for w in workloads} for name, run in gradients(where).items()}


def everywhere(where: Iterable[str], grid: list[list[SinkhornWorkload]], jobs: int) -> dict[str, Ratios]:
    """The ratios of all cases by gradient; in this process where `jobs` is 1."""
    found: dict[str, Ratios] = {}
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), end_with_parent) if jobs > 1 else None
    for place in where:
        run = functools.partial(ratios, place)
        for some in track((pool.map if pool else map)(run, grid), place, len(grid), transient=True):
            for name, of_cases in some.items():
                found.setdefault(name, {}).update(of_cases)
    if pool:
        pool.shutdown()
    return found


def main() -> int:
    parser = make_parser()
    options = parser.parse_args()
    grid, rows, bad = list(cases(options.batch)), [], []
    for name, found in everywhere(options.where, grid, options.jobs).items():
        values = np.array(list(found.values()))
        statistics = {
            "median": np.median(values), "90 %": np.percentile(values, 90), "99 %": np.percentile(values, 99),
            "largest": values.max(),
        }  # fmt: skip
        rows.append({"where": name, "cases": len(values), **{k: f"{v:.2f}" for k, v in statistics.items()}})
        bad += [
            f"{name}: {k} {statistics[k]:.2f}, at most {v}"
            for k, v in LIMITS.items()
            if not statistics[k] <= v
        ]
        for case in sorted(found, key=found.get, reverse=True)[: options.worst]:
            print(f"{found[case]:8.2f}  {name}: {case}")
    print(report.table(rows))
    print("\n".join(bad), file=sys.stderr, end="\n" if bad else "")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
