"""OPERATIONS: the parts of the residual path that the benchmark compares, their inputs and their bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from helion_sinkhorn import reference

STREAMS = 4
ROWS = STREAMS * (STREAMS + 2)
ITERATIONS = 20
EPS = 1e-6
SERVING = 1, 16, 128
"""Tokens of a server's step."""
Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Tensors]


@dataclass(frozen=True)
class Operation:
    """Inputs in this package's layout, and the equations that make results of them."""

    inputs: tuple[str, ...]
    results: tuple[str, ...]
    draw: Callable[[int, int, torch.Generator], Tensors]
    """(tokens, C, generator) -> inputs: streams in bfloat16, all else in float32."""
    specification: Function
    """In the dtype of the inputs, differentiable."""
    rows: tuple[int, int] = (0, 0)
    """Rows of C entries a token that forward and backward move at least; zeros for every tensor once."""

    def bytes_of(self, which: str, given: Tensors, results: Tensors) -> int:
        """Every input and result once; every input, its gradient and every upstream gradient once."""
        backward = which == "backward"
        if self.rows[backward]:
            fn = given[self.inputs.index("fn")]
            return self.rows[backward] * given[0].nbytes + fn.nbytes * (1 + backward)
        return (1 + backward) * sum(t.nbytes for t in given) + sum(t.nbytes for t in results)


def normal(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device=generator.device, dtype=dtype)


def streams(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return normal(generator, *shape, dtype=torch.bfloat16)


def weights(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Like pre, post and comb: between 0 and 1, and not symmetric."""
    return torch.rand(shape, generator=generator, device=generator.device)


def parameters(generator: torch.Generator, hidden: int) -> Tensors:
    """(fn, scale, base)."""
    fn = 0.02 * normal(generator, ROWS, STREAMS * hidden)
    return fn, 1 + 0.1 * normal(generator, 3), normal(generator, ROWS)


def draw_coefficients(tokens: int, hidden: int, generator: torch.Generator) -> Tensors:
    return normal(generator, tokens, ROWS), *parameters(generator, 1)[1:]


def draw_pre(tokens: int, hidden: int, generator: torch.Generator) -> Tensors:
    return streams(generator, tokens, STREAMS, hidden), weights(generator, tokens, STREAMS)


def draw_post(tokens: int, hidden: int, generator: torch.Generator) -> Tensors:
    f, x = streams(generator, tokens, hidden), streams(generator, tokens, STREAMS, hidden)
    return f, x, weights(generator, tokens, STREAMS), weights(generator, tokens, STREAMS, STREAMS)


def draw_mixes(tokens: int, hidden: int, generator: torch.Generator) -> Tensors:
    return streams(generator, tokens, STREAMS, hidden), parameters(generator, hidden)[0]


def draw_site(tokens: int, hidden: int, generator: torch.Generator) -> Tensors:
    f, x = streams(generator, tokens, hidden), streams(generator, tokens, STREAMS, hidden)
    return f, x, *parameters(generator, hidden)


def draw_boundary(tokens: int, hidden: int, generator: torch.Generator) -> Tensors:
    return (
        *draw_post(tokens, hidden, generator),
        weights(generator, tokens, STREAMS),
        *parameters(generator, hidden),
    )


def coefficients(mixes, scale, base) -> Tensors:
    return reference.hc_split_sinkhorn(mixes, scale, base, STREAMS, ITERATIONS, EPS)


def site(f, x, fn, scale, base, comb_order: str = "io", **options) -> Tensors:
    """The collapsed streams and the new ones; `comb_order` is that of the update alone."""
    y, post, comb, _ = reference.hc_site(x, fn, scale, base, ITERATIONS, EPS, EPS, **options)
    return y, reference.hc_post(f, x, post, comb, comb_order=comb_order)


def boundary(f, x, post, comb, pre_next, fn, scale, base) -> Tensors:
    """The next sublayer's input, the coefficients of its site, and the new streams."""
    streams = reference.hc_post(f, x, post, comb)
    made = coefficients(reference.hc_mixes(streams, fn, EPS), scale, base)
    return reference.hc_pre(streams, pre_next), *made, streams


OPERATIONS = {
    "coefficients": Operation(
        ("mixes", "scale", "base"), ("pre", "post", "comb"), draw_coefficients, coefficients
    ),
    "hc_pre": Operation(("x", "pre"), ("y",), draw_pre, lambda x, pre: (reference.hc_pre(x, pre),)),
    "hc_post": Operation(
        ("f", "x", "post", "comb"), ("streams",), draw_post, lambda *given: (reference.hc_post(*given),)
    ),
    "hc_mixes": Operation(
        ("x", "fn"), ("mixes",), draw_mixes, lambda x, fn: (reference.hc_mixes(x, fn, EPS),)
    ),
    "site": Operation(
        ("f", "x", "fn", "scale", "base"), ("y", "streams"), draw_site, site, (18, 32)
    ),
    "boundary": Operation(
        ("f", "x", "post", "comb", "pre_next", "fn", "scale", "base"),
        ("y", "pre", "post", "comb", "streams"), draw_boundary, boundary, (10, 23),
    ),
}  # fmt: skip
"""`site` is the path around a sublayer whose output f is given, `boundary` the path of DeepSeek-V4.1 from one
sublayer's output to the next one's input; their rows are those of docs/hc_site.md."""


def drawn(operation: str, tokens: int, hidden: int, device: str, seed: int = 0) -> Tensors:
    return OPERATIONS[operation].draw(tokens, hidden, torch.Generator(device).manual_seed(seed))
