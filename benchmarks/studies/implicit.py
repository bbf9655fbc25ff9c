"""Time backward="implicit" on a GPU beside the exact backward, a copy of the same bytes and plain Triton.

    python -m benchmarks.studies.implicit --out implicit_speed.md     # a minute on an H200

"Triton CG" is the idea found on the web, written anew: a (tile, n, n) block a program, n steps of plain
conjugate gradients on the corrected system with 1e-10 in the denominators, tile and warps autotuned.
Medians in us, L2 cleared before each run; the floor is torch.add(p, dy, out=dx).  The error is that of a
gradient against the same equations in float64, relative to its largest entry, on 1024 matrices; for the exact
backward against autograd in float64.  Most of the time is compiling.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import command


def make_parser() -> argparse.ArgumentParser:
    parser = command.parser("studies.implicit", __doc__)
    parser.add_argument("--out", type=Path, default=Path("implicit_speed.md"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--batches", type=int, nargs="+", default=[65536, 1 << 20])
    return parser


if __name__ == "__main__":
    # what follows imports torch, which takes seconds
    make_parser().parse_args()

import torch
import triton
import triton.language as tl
from triton.testing import do_bench

from helion_sinkhorn import plan, reference, sinkhorn
from helion_sinkhorn.ops.sinkhorn.implicit import eager as implicit
from helion_sinkhorn.ops.sinkhorn.implicit import launch as implicit_launch
from helion_sinkhorn.ops.sinkhorn.implicit.space import thread_per_matrix
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.runtime.launch import device_of
from helion_sinkhorn.tuning import markdown

T = 20
CHECKED = 1024


@triton.jit
def product(a, y):
    """(tile, k) sums of a (tile, k, l) times y (tile, l)."""
    return tl.sum(a * tl.expand_dims(y, 1), axis=2)


@triton.jit
def product_t(a, y):
    """(tile, l) sums of a (tile, k, l) times y (tile, k)."""
    return tl.sum(a * tl.expand_dims(y, 2), axis=1)


@triton.jit
def quotient(above, below):
    return tl.expand_dims(above / (below + 1e-10), 1)


CONFIGS = [
    triton.Config({"TILE": tile}, num_warps=warps, num_stages=1)
    for tile in (1, 4, 16, 64)
    for warps in (1, 4)
]


def few_enough(configs, arguments, **_):
    """4 to 64 entries a thread: beyond are idle lanes or spills, and minutes of compiling."""
    entries = arguments["N"] ** 2
    return [c for c in configs if 4 <= c.kwargs["TILE"] * entries / (32 * c.num_warps) <= 64]


@triton.autotune(CONFIGS, key=["N"], prune_configs_by={"early_config_prune": few_enough})
@triton.jit
def triton_cg_kernel(p_ptr, g_ptr, out_ptr, batch, N: tl.constexpr, TILE: tl.constexpr):
    matrix = tl.program_id(0) * TILE + tl.arange(0, TILE)
    line = tl.arange(0, N)
    at = matrix[:, None, None].to(tl.int64) * (N * N) + line[None, :, None] * N + line[None, None, :]
    mask = (matrix < batch)[:, None, None]
    p = tl.load(p_ptr + at, mask=mask, other=1.0)
    g = tl.load(g_ptr + at, mask=mask, other=0.0)
    r, c = tl.sum(p, axis=2), tl.sum(p, axis=1)
    s_r, s_c = tl.sum(p * g, axis=2), tl.sum(p * g, axis=1)
    b = s_c - product_t(p, s_r / (r + 1e-10))
    x = tl.zeros_like(b)
    along = b
    left = tl.sum(b * b, axis=1)
    for _ in range(N):
        image = c * along - product_t(p, product(p, along) / r)
        alpha = quotient(left, tl.sum(along * image, axis=1))
        x += alpha * along
        b -= alpha * image
        now = tl.sum(b * b, axis=1)
        along = b + quotient(now, left) * along
        left = now
    rows = (s_r - product(p, x)) / r
    tl.store(out_ptr + at, (g - tl.expand_dims(rows, 2) - tl.expand_dims(x, 1)) * p, mask=mask)


def triton_cg(dy: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(p)
    batch, n = p.shape[:2]
    triton_cg_kernel[lambda config: (triton.cdiv(batch, config["TILE"]),)](p, dy, out, batch, n)
    return out


def cases(x: torch.Tensor, dy: torch.Tensor, p: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """name -> a call that returns dX; the public operators, past autograd."""
    operators = torch.ops.helion_sinkhorn
    arguments = p, T, "helion", torch.float32
    named = {
        "implicit corrected direct": ("corrected", "direct"),
        "implicit corrected cg": ("corrected", "cg"),
        "implicit full cg": ("full", "cg"),
    }
    return {
        "exact": partial(operators.sinkhorn_backward, dy, x, T, 0.0, "log", "rows", "helion"),
        **{k: partial(operators.sinkhorn_implicit_backward, dy, *arguments, *v) for k, v in named.items()},
        **({"implicit corrected direct, packed": partial(packed, dy, p)} if p.size(-1) == 8 else {}),
        "Triton CG": partial(triton_cg, dy, p),
    }


def packed(dy: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """One 8 x 8 matrix a thread, which is not the default: is it worth its compile time?"""
    variant = (("packed", True),)
    choice = Choice("sinkhorn_implicit_direct", thread_per_matrix(device_of(p)), variant, "a trial")
    return implicit_launch.implicit_backward(dy, p, T, "corrected", "direct", torch.float32, choice)


def error(name: str, dx: torch.Tensor, x: torch.Tensor, dy: torch.Tensor, p: torch.Tensor) -> float:
    """Largest error over the largest entry, on the first matrices."""
    x, dy, p, dx = (t[:CHECKED].double().cpu() for t in (x, dy, p, dx))
    if name == "exact":
        leaf = x.requires_grad_()
        (expected,) = torch.autograd.grad(reference.sinkhorn(leaf, T, form="log"), leaf, dy)
    else:
        words = name.replace(",", "").split()
        system, solver = words[1:3] if words[0] == "implicit" else ("corrected", "direct")
        expected = implicit.backward(dy, p, 10 * p.size(-1), system, solver, torch.float64)
    return float((dx - expected).abs().max() / expected.abs().max())


def main() -> None:
    parser = make_parser()
    options = parser.parse_args()
    command.need_gpu(parser, instead="make study WHAT=backward runs on a CPU")
    begin = time.perf_counter()
    lines = [
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}; log form",
        "",
        markdown.head(("n", "matrices", "backward", "us", "x floor", "error", "first call, s")),
    ]

    def note(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        options.out.write_text("\n".join(lines) + "\n")

    for n in options.sizes:
        for batch in options.batches:
            generator = torch.Generator("cuda").manual_seed(n)
            x = torch.randn(batch, n, n, device="cuda", generator=generator)
            dy = torch.randn(batch, n, n, device="cuda", generator=generator)
            p = sinkhorn(x, T, form="log")
            out = torch.empty_like(p)
            floor = 1e3 * do_bench(
                lambda p=p, dy=dy, out=out: torch.add(p, dy, out=out), return_mode="median"
            )
            note(markdown.line((n, batch, "torch.add", f"{floor:.1f}", "1.00", "", "")))
            for name, run in cases(x, dy, p).items():
                try:
                    start = time.perf_counter()
                    dx = run()
                    torch.cuda.synchronize()
                    first = time.perf_counter() - start
                    us = 1e3 * do_bench(run, return_mode="median")
                    wrong = error(name, dx, x, dy, p)
                    found = f"{us:.1f}", f"{us / floor:.2f}", f"{wrong:.1e}", f"{first:.1f}"
                except Exception as problem:  # the other rows are still worth their time on the device
                    found = f"{type(problem).__name__}: {str(problem)[:80]!r}", "", "", ""
                note(markdown.line((n, batch, name, *found)))
            best = getattr(triton_cg_kernel, "best_config", None)
            print(
                f"  Triton CG took {best}; {plan(x, T, form='log', backward='implicit').backward}", flush=True
            )
    print(f"{time.perf_counter() - begin:.0f} s in all, {options.out} written")


if __name__ == "__main__":
    main()
