"""Sinkhorn forward and backward on what this machine has: the path taken, its error, its time, a picture.

    python -m benchmarks.demo [--tokens 8192] [--no-compile]     # make demo; 100 s on one CPU core

The logits are as in an mHC step: one n x n matrix per token, the sum of a static part that
favours the diagonal and a random part.  Exits with 1 when an error exceeds its bound.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable

from benchmarks import command


def make_parser() -> argparse.ArgumentParser:
    parser = command.parser("demo", __doc__)
    for name, default, what in (
        ("tokens", 8192, "matrices in the batch"), ("n", 4, "rows and columns of a matrix"),
        ("n-iters", 20, "iterations, T"),
    ):  # fmt: skip
        parser.add_argument(
            f"--{name}", type=command.size, default=default, help=f"{what} (default %(default)s)"
        )
    parser.add_argument("--device", help="cuda or cpu (default: cuda where torch sees one)")
    parser.add_argument("--seed", type=int, default=0, help="of the logits (default %(default)s)")
    parser.add_argument("--output", default="sinkhorn.png", help="the picture (default %(default)s)")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out of the table")
    return parser


def arguments() -> argparse.Namespace:
    args = make_parser().parse_args()
    command.need_packages(matplotlib="matplotlib")
    return args


if __name__ == "__main__":  # before torch is imported, which takes seconds
    arguments()

import torch
from rich.console import Console
from torch.autograd.graph import saved_tensors_hooks

from benchmarks import timing
from benchmarks.jobs import said
from helion_sinkhorn import plan, reference, sinkhorn
from helion_sinkhorn.configs import store
from helion_sinkhorn.lab.tuning.progress import Progress

DTYPES = (torch.float32, torch.bfloat16)
STATIC_DIAGONAL = 2.0
# 20 iterations in float32 stay within a few 1e-6 of float64; to this comes one rounding to the result's dtype
ERROR_BOUND = 1e-5
MILLISECONDS_PER_TIMING = 500.0
CHECKED, WORK = 0.4, {"helion_sinkhorn": 1.2, "eager": 1.8, "torch.compile": 26}
"""Seconds of the errors and of a row on a CPU, by which the time left is estimated."""
HEADING = (
    f"{'':18}{'forward, us (20% to 80%)':32}{'forward + backward, us':32}kept for backward, B per matrix"
)
PICTURE_SIZE = 8
PICTURE_ITERS = (0, 1, 2, 5, 20)

Function = Callable[[torch.Tensor], torch.Tensor]


def versions(device: torch.device) -> str:
    """One line on the software, one on the hardware."""
    names = ("helion_sinkhorn", "helion", "torch", "triton", "pytorch-triton-rocm")
    software = [f"python {platform.python_version()}"]
    software += [f"{name} {version}" for name in names if (version := store.installed(name))]
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
        software.append(f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}")
    else:
        hardware = f"{platform.machine()} CPU, {torch.get_num_threads()} threads of {os.cpu_count()} cores"
    return f"{', '.join(software)}\n{hardware}"


def make_logits(args: argparse.Namespace, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(args.seed)
    dynamic = torch.randn(args.tokens, args.n, args.n, generator=generator)
    return (STATIC_DIAGONAL * torch.eye(args.n) + dynamic).to(args.device, dtype).requires_grad_()


def eager(n_iters: int) -> Function:
    """The iterations as one would write them, in float32, differentiated by autograd."""
    return lambda logits: reference.sinkhorn(logits.float(), n_iters).to(logits.dtype)


def relative_error(value: torch.Tensor, truth: torch.Tensor) -> float:
    """Largest absolute error over the largest entry of the truth."""
    return float((value.detach().cpu().double() - truth).abs().max() / truth.abs().max())


def check(logits: torch.Tensor, upstream: torch.Tensor, n_iters: int) -> bool:
    """Print the errors against float64 on the CPU and the row and column sums; whether within the bound."""
    exact = logits.detach().cpu().double().requires_grad_()
    want = reference.sinkhorn(exact, n_iters)
    (want_grad,) = torch.autograd.grad(want, exact, upstream.cpu().double())
    p = sinkhorn(logits, n_iters)
    (grad,) = torch.autograd.grad(p, logits, upstream)
    errors = relative_error(p, want.detach()), relative_error(grad, want_grad)
    bound = ERROR_BOUND + torch.finfo(logits.dtype).eps / 2
    passed = max(errors) <= bound
    print(
        f"error against float64, of the largest entry: values {errors[0]:.1e}, gradient {errors[1]:.1e} "
        f"(bound {bound:.1e}: {'ok' if passed else 'EXCEEDED'})"
    )
    for name, dim in (("row", -1), ("column", -2)):
        sums = p.detach().double().sum(dim)
        print(f"{name} sums, 1 at convergence: {sums.min():.7f} to {sums.max():.7f}")
    return passed


def bytes_kept(function: Function, logits: torch.Tensor) -> float:
    """What autograd holds between forward and backward, per matrix."""
    held: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        result = function(logits)
    del result
    return sum(held.values()) / logits[..., 0, 0].numel()


def time_one(function: Function, logits: torch.Tensor, upstream: torch.Tensor) -> str:
    """Forward without autograd, forward and backward, and the memory between them, as table cells."""
    kept = bytes_kept(function, logits)
    cells = []
    for call in (
        torch.no_grad()(lambda: function(logits)),
        lambda: torch.autograd.grad(function(logits), logits, upstream),
    ):
        middle, low, high = timing.eager(call, logits.device, MILLISECONDS_PER_TIMING)
        cells.append(f"{middle:9.1f} ({low:.1f} to {high:.1f})".ljust(32))
    return "".join(cells) + f"{kept:8.0f}"


def functions(n_iters: int, compiled: bool) -> dict[str, Function]:
    """This package, eager and torch.compile of the same iterations."""
    implementations = {"helion_sinkhorn": lambda x: sinkhorn(x, n_iters), "eager": eager(n_iters)}
    if compiled:
        implementations["torch.compile"] = torch.compile(eager(n_iters), dynamic=False)
    return implementations


def row_of(name: str, function: Function, logits: torch.Tensor, upstream: torch.Tensor) -> str:
    """A line of the table."""
    try:
        cells = time_one(function, logits, upstream)
    except Exception as error:
        # No C++ compiler, say: the other rows still stand
        if name != "torch.compile":
            raise
        cells = f"did not compile: {said(error)}"
    return f"{name:18}{cells}"


def draw(path: str, device: str, seed: int) -> None:
    """One matrix after 0, 1, 2, 5 and 20 iterations, and its largest row-sum error after each."""
    from matplotlib.figure import Figure

    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(PICTURE_SIZE, PICTURE_SIZE, generator=generator).to(device)
    steps = range(1, PICTURE_ITERS[-1] + 1)
    row_errors = [float((sinkhorn(logits, t).sum(-1) - 1).abs().max()) for t in steps]
    figure = Figure(figsize=(15, 2.8), layout="constrained")
    axes = figure.subplots(1, len(PICTURE_ITERS) + 1, width_ratios=[1] * len(PICTURE_ITERS) + [1.5])
    for axis, t in zip(axes, PICTURE_ITERS, strict=False):
        matrix = sinkhorn(logits, t).cpu()
        # exp(logits) itself has no scale in common with the others: show it over its largest entry
        image = axis.imshow(matrix if t else matrix / matrix.max(), vmin=0, vmax=1, cmap="viridis")
        axis.set(title=f"T = {t}" if t else "exp(X), scaled", xticks=[], yticks=[])
    figure.colorbar(image, ax=axes[:-1], shrink=0.8)
    axes[-1].semilogy(steps, row_errors, marker=".")
    axes[-1].set(title="largest |row sum - 1|", xlabel="T", xticks=PICTURE_ITERS)
    axes[-1].grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    print(f"picture of an {PICTURE_SIZE} x {PICTURE_SIZE} matrix converging: {os.path.abspath(path)}")


def main() -> int:
    args = arguments()
    args.device = command.device_for(make_parser(), args.device)
    print(versions(torch.device(args.device)))
    console = Console(soft_wrap=True, highlight=False)
    # of a dtype the errors, and the rows of its table
    work = [CHECKED, *(WORK[name] for name in functions(args.n_iters, not args.no_compile))]
    with Progress("steps", len(DTYPES) * len(work), console, work=len(DTYPES) * sum(work)) as progress:
        passed = judged(args, progress.step)
    print()
    draw(args.output, args.device, args.seed)
    return 0 if passed else 1


def judged(args: argparse.Namespace, done: Callable[[float], None]) -> bool:
    """Print errors and times for each dtype; whether all errors are within their bounds."""
    passed = True
    for dtype in DTYPES:
        logits = make_logits(args, dtype)
        generator = torch.Generator().manual_seed(args.seed + 1)
        upstream = torch.randn(logits.shape, generator=generator).to(args.device, dtype)
        name = str(dtype).removeprefix("torch.")
        print(f"\n== {args.tokens} x {args.n} x {args.n}, T = {args.n_iters}, {name} ==")
        print(plan(logits, n_iters=args.n_iters))
        passed &= check(logits, upstream, args.n_iters)
        done(CHECKED)
        print(HEADING)
        for of, function in functions(args.n_iters, not args.no_compile).items():
            print(row_of(of, function, logits, upstream))
            done(WORK[of])
    return passed


if __name__ == "__main__":
    sys.exit(main())
