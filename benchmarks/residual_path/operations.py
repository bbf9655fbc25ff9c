"""OPERATIONS: the parts of the residual path that the benchmark compares, their inputs and their bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from helion_sinkhorn import reference

STREAMS = 4
ROWS = STREAMS * (STREAMS + 2)
ITERATIONS = 20
EPS = 1e-6
Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Tensors]


@dataclass(frozen=True)
class Operation:
    """Inputs in this package's layout, and the equations that make results of them."""

    inputs: tuple[str, ...]
    results: tuple[str, ...]
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


def drawn(operation: str, tokens: int, hidden: int, device: str, seed: int = 0) -> Tensors:
    """Inputs: streams in bfloat16, all else in float32; pre, post and comb between 0 and 1, not symmetric."""
    options = dict(generator=torch.Generator(device).manual_seed(seed), device=device)
    normal, weights = partial(torch.randn, **options), partial(torch.rand, **options)
    draw = {
        "f": lambda: normal(tokens, hidden, dtype=torch.bfloat16),
        "x": lambda: normal(tokens, STREAMS, hidden, dtype=torch.bfloat16),
        "pre": lambda: weights(tokens, STREAMS),
        "pre_next": lambda: weights(tokens, STREAMS),
        "post": lambda: weights(tokens, STREAMS),
        "comb": lambda: weights(tokens, STREAMS, STREAMS),
        "mixes": lambda: normal(tokens, ROWS),
        "fn": lambda: 0.02 * normal(ROWS, STREAMS * hidden),
        "scale": lambda: 1 + 0.1 * normal(3),
        "base": lambda: normal(ROWS),
        "y_norm_weight": lambda: (1 + 0.1 * normal(hidden)).bfloat16(),
    }
    return tuple(draw[name]() for name in OPERATIONS[operation].inputs)


def coefficients(mixes, scale, base) -> Tensors:
    return reference.hc_split_sinkhorn(mixes, scale, base, STREAMS, ITERATIONS, EPS)


def site(f, x, fn, scale, base, comb_order: str = "io", **options) -> Tensors:
    """The collapsed streams and the new ones; `comb_order` applies only to the update."""
    y, post, comb, _ = reference.hc_site(x, fn, scale, base, ITERATIONS, EPS, EPS, **options)
    return y, reference.hc_post(f, x, post, comb, comb_order=comb_order)


def boundary(*given: torch.Tensor | None, **norm) -> Tensors:
    """The next sublayer's input, the coefficients of its site, and the new streams; with pre_next None it is
    collapsed by weights of its own."""
    return reference.hc_boundary(*given, ITERATIONS, EPS, EPS, **norm)


def normed_site(f, x, fn, scale, base, y_norm_weight, **options) -> Tensors:
    """The same with the sublayer's RMSNorm after the collapse."""
    return site(f, x, fn, scale, base, y_norm_weight=y_norm_weight, y_norm_eps=EPS, **options)


def normed_boundary(*given: torch.Tensor | None) -> Tensors:
    """`boundary` and the sublayer's RMSNorm, whose weight comes last."""
    return boundary(*given[:-1], y_norm_weight=given[-1], y_norm_eps=EPS)


def normed_seam(f, x, post, comb, *others) -> Tensors:
    return normed_boundary(f, x, post, comb, None, *others)


UPDATE, PARAMETERS, NORM = ("f", "x", "post", "comb"), ("fn", "scale", "base"), "y_norm_weight"
OPERATIONS = {
    "coefficients": Operation(("mixes", "scale", "base"), ("pre", "post", "comb"), coefficients),
    "hc_pre": Operation(("x", "pre"), ("y",), lambda *given: (reference.hc_pre(*given),)),
    "hc_post": Operation(UPDATE, ("streams",), lambda *given: (reference.hc_post(*given),)),
    "hc_mixes": Operation(("x", "fn"), ("mixes",), lambda x, fn: (reference.hc_mixes(x, fn, EPS),)),
    "site": Operation(("f", "x", *PARAMETERS), ("y", "streams"), site, (18, 32)),
    "boundary": Operation(
        (*UPDATE, "pre_next", *PARAMETERS), ("y", "pre", "post", "comb", "streams"), boundary, (10, 23)
    ),
    "normed_site": Operation(("f", "x", *PARAMETERS, NORM), ("y", "streams"), normed_site, (18, 35)),
    "normed_boundary": Operation(
        (*UPDATE, "pre_next", *PARAMETERS, NORM), ("y", "pre", "post", "comb", "streams"), normed_boundary,
        (12, 24),
    ),
    "normed_seam": Operation(
        (*UPDATE, *PARAMETERS, NORM), ("y", "pre", "post", "comb", "streams"), normed_seam, (18, 24)
    ),
}  # fmt: skip
"""`site` is the path around a sublayer whose output f is given, `boundary` the path of DeepSeek-V4.1 from one
sublayer's output to the next one's input, `normed_seam` that of DeepSeek-V4; normed, y is after the
sublayer's RMSNorm.  Their rows are those of docs/performance.md."""
