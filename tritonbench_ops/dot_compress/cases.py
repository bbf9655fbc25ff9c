"""The inputs of `--op dot_compress`, its backends, and what their results are held to."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch

from helion_sinkhorn import dot_compress, reference
from helion_sinkhorn.ops.dot_compress import budget as testing_dot_compress
from helion_sinkhorn.ops.dot_compress.workloads import DotWorkload
from helion_sinkhorn.testing.rounding import worst
from helion_sinkhorn.workloads import tagged
from tritonbench_ops.bounds import relative, share_beyond

REPORTED = 0.2, 0.01
"""atol and rtol of pytorch/helion#1661: a view of the accuracy, and no test of it (docs/dot_compress.md)."""
Tensors = tuple[torch.Tensor, ...]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The operator's own flags, which tritonbench hands on."""
    parser = argparse.ArgumentParser("--op dot_compress", allow_abbrev=False)
    for name, what in {
        "batch": "elements", "m": "rows of x and y", "d": "columns of x", "k": "columns of y"
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, help=f"{what}; default: those of the bench workloads")
    parser.add_argument("--with-z", action="store_true", help="add z to the intermediate")
    options = parser.parse_args(arguments)
    for name in ("batch", "m", "d", "k"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} is {value}; pass at least 1")
    return options


def cases(options: argparse.Namespace, dtype: torch.dtype) -> list[DotWorkload]:
    """The bench workloads as `options` change them, each once."""
    named = {name: v for name in ("batch", "m", "d", "k") if (v := getattr(options, name)) is not None}
    rows = [
        dataclasses.replace(row, **named, has_z=options.with_z, dtype=dtype)
        for row in tagged("bench", DotWorkload)
    ]
    return list({(row.batch, row.m, row.d, row.k): row for row in rows}.values())


def x_value(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor | None) -> str:
    """An input as tables show it."""
    return f"{'x'.join(map(str, x.shape))} {y.size(-1)}{'' if z is None else ' z'}"


def bytes_moved(x: torch.Tensor, y: torch.Tensor, mode: str) -> int:
    """Bytes of every tensor moved once: x, y and out; the upstream gradient, x, y, dx and dy."""
    forward, backward = x.nbytes + 2 * y.nbytes, 2 * x.nbytes + 3 * y.nbytes
    return {"fwd": forward, "fwd_no_grad": forward, "bwd": backward, "fwd_bwd": forward + backward}[mode]


def operations(x: torch.Tensor, y: torch.Tensor) -> float:
    """Floating-point operations of forward: its two products, x'y and x b."""
    return 4.0 * x.numel() * y.size(-1)


def compiled(mode: str | None) -> Callable[..., torch.Tensor]:
    import torch._functorch.config

    # the backward pass alone is run again and again on one forward pass
    torch._functorch.config.donated_buffer = False
    return torch.compile(reference.dot_compress, dynamic=False, mode=mode)


BASELINE = "eager"
BACKENDS: dict[str, Callable[[], Callable[..., torch.Tensor]]] = {
    BASELINE: lambda: reference.dot_compress,
    "torch_compile": functools.partial(compiled, None),
    "torch_compile_max_autotune": functools.partial(compiled, "max-autotune-no-cudagraphs"),
    "helion_dot_compress": lambda: dot_compress,
    "helion_dot_compress_precise": lambda: functools.partial(dot_compress, precise_intermediate=True),
}
PYTORCH = (BASELINE, "torch_compile", "torch_compile_max_autotune")
"""Those that need not keep the budget: they round each term of a gradient."""
PIECE_ENTRIES = 1 << 24
"""Entries of x computed in float64 at a time."""


def share_of_budget(
    inputs: Tensors, grad: torch.Tensor, out: torch.Tensor | None, gradients: Tensors | None
) -> float:
    """The largest error in units of its budget: of the first and last element entry by entry, then of all.

    All others have one bound a result, from the budgets of these two.
    """
    few = [0, len(inputs[0]) - 1]
    found = {"out": out} | dict(zip(("dx", "dy", "dz"), gradients or (), strict=False))
    given = {name: t for name, t in found.items() if t is not None}
    sample = testing_dot_compress.exact(*(None if t is None else t.detach()[few] for t in inputs), grad[few])
    shares = [worst(t[few], sample[name].value, sample[name].budget) for name, t in given.items()]
    within = {name: relative(sample[name].budget, sample[name].value) for name in given}
    x = inputs[0]
    for piece in torch.arange(len(x)).split(max(1, PIECE_ENTRIES // x[0].numel())):
        at = slice(int(piece[0]), int(piece[-1]) + 1)
        exact = exact_results([None if t is None else t[at] for t in inputs], grad[at])
        shares += [share_beyond(t[at], exact[name], within[name]) for name, t in given.items()]
    return max(shares)


def exact_results(inputs: Sequence[torch.Tensor | None], grad: torch.Tensor) -> dict[str, torch.Tensor]:
    """out, dx, dy and, with z, dz in float64 where the inputs are."""
    x, y, z = (None if t is None else t.detach().double().requires_grad_() for t in inputs)
    out = reference.dot_compress(x, y, z)
    leaves = {"dx": x, "dy": y} | ({} if z is None else {"dz": z})
    found = torch.autograd.grad(out, tuple(leaves.values()), grad.double())
    return {"out": out.detach(), **dict(zip(leaves, found, strict=True))}


def mismatched(a: torch.Tensor, b: torch.Tensor) -> float:
    """The share of entries that REPORTED rejects; NaN is rejected."""
    atol, rtol = REPORTED
    close = (a - b).abs().double() <= atol + rtol * b.abs().double()
    return 1 - (close | (a == b)).double().mean().item()
