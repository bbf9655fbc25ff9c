"""Every operator that has a gradient: its public function, its specification, and small arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from autograd_calls import randn

import helion_sinkhorn as hs
from helion_sinkhorn import reference

N, C = 2, 3
ROWS = N * N + 2 * N
GATES = ("g", "g_gamma", "gk", "gv")


@dataclass(frozen=True)
class Row:
    """An operator, and tensors for it by the names of its arguments."""

    function: Callable[..., Any]
    specification: Callable[..., Any]
    shapes: Callable[..., dict[str, tuple[int, ...]]]
    """The leading dimensions of the tokens -> the shape of each argument."""
    named: str = ""
    """The specification that errors name."""
    streams: tuple[str, ...] = ()
    """Arguments that may be narrow while the others are float32."""
    kernels: bool = False
    """Whether a CPU call is made of it only with launches.kernels_on_cpu."""

    def arguments(
        self,
        *lead: int,
        dtype: torch.dtype = torch.float32,
        streams: torch.dtype | None = None,
        seed: int = 0,
    ) -> dict[str, torch.Tensor]:
        """Random tensors, the same for the same numbers; gates are decays; by default three tokens."""
        drawn = {
            name: randn(
                *shape, seed=100 * seed + k, dtype=(streams or dtype) if name in self.streams else dtype
            )
            for k, (name, shape) in enumerate(self.shapes(*lead or (3,)).items())
        }
        return {name: -x.abs() if name in GATES else x for name, x in drawn.items()}

    def token_dims(self) -> dict[str, tuple[int, ...]]:
        """Which dimensions of each argument are the two of (..., ...) tokens; a parameter has none."""
        some, others = self.shapes(101, 103), self.shapes(107, 109)
        return {
            name: tuple(
                d for d, sizes in enumerate(zip(some[name], others[name], strict=True)) if len({*sizes}) > 1
            )
            for name in some
        }


def loss(found: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """A weighted sum of all results, with a different weight for each entry."""
    results = (found,) if isinstance(found, torch.Tensor) else found
    weighted = [
        t * torch.arange(1, t.numel() + 1, dtype=t.dtype, device=t.device).cos().view(t.shape)
        for t in results
    ]
    return torch.stack([t.sum() for t in weighted]).sum()


def gradients(
    function: Callable[..., Any], given: dict[str, torch.Tensor], trained: Collection[str]
) -> dict[str, torch.Tensor | None]:
    """What a backward of the loss leaves in .grad of each argument."""
    leaves = {name: x.detach().clone().requires_grad_(name in trained) for name, x in given.items()}
    loss(function(*leaves.values())).backward()
    return {name: x.grad for name, x in leaves.items()}


def _row(name, shapes, streams, made=lambda run: run, **options):
    """A function and its specification, which has the same name, called with the options as `made` says."""
    runs = getattr(hs, name), getattr(reference, name)
    runs = [partial(run, **options) for run in runs] if options else runs
    return Row(*map(made, runs), shapes, name, streams)


def _of(*names):
    """Shapes of arguments that mean the same in every operator of streams."""

    def shapes(*lead):
        every = {
            "f": (*lead, C), "x": (*lead, N, C), "pre": (*lead, N), "post": (*lead, N), "comb": (*lead, N, N),
            "bias": (C,), "pre_next": (*lead, N), "mixes": (*lead, ROWS), "partials": (2, *lead, ROWS),
            "squares": (2, *lead), "fn": (ROWS, N * C), "scale": (3,), "base": (ROWS,),
            "norm_weight": (N * C,), "y_norm_weight": (C,),
        }  # fmt: skip
        return {name: every[name] for name in names}

    return shapes


def _merged(shapes):
    return lambda *lead: {**shapes(*lead), "x": (*lead, N * C)}


def _few_rows(shapes):
    return lambda *lead: {**shapes(*lead), "fn": (5, N * C)}


def _matrices(*lead):
    return {"logits": (*lead, 3, 3)}


def _attention(*gates):
    names = "q", "k", "v", *gates, "initial_state"

    def of(run):
        return lambda *given: run(**dict(zip(names, given, strict=True)), output_final_state=True)

    def shapes(*lead):
        b, t = lead if len(lead) > 1 else (1, *lead)
        every = {
            "q": (b, t, 2, 3), "k": (b, t, 2, 3), "v": (b, t, 2, 2), "g": (b, t, 2), "g_gamma": (2,),
            "gk": (b, t, 2, 3), "gv": (b, t, 2, 2), "initial_state": (b, 2, 3, 2),
        }  # fmt: skip
        return {name: every[name] for name in names}

    return _row("recurrent_linear_attention", shapes, names[:-1], of)


def _products(*lead):
    return {"x": (*lead, 4, 3), "y": (*lead, 4, 2), "z": (*lead, 3, 2)}


def _without_z(*lead):
    return {name: _products(*lead)[name] for name in "xy"}


def _split(run):
    return lambda mixes, scale, base: run(mixes, scale, base, N, 3)


def _reduced(run):
    def of(partials, squares, scale, base):
        return run(partials, scale, base, N, 3, reduce=hs.Reduce(squares.square(), N * C))

    return of


def _mixes(run):
    return lambda x, fn, norm_weight: run(x, fn, norm_weight=norm_weight)


def _prenorm(run):
    return lambda x, fn, norm_weight: tuple(run(x, fn, norm_weight=norm_weight, prenorm=True))


def _pre(run):
    return lambda x, pre, y_norm_weight: run(x, pre, y_norm_weight=y_norm_weight, y_norm_eps=0.1)


def _site(run):
    def of(x, fn, scale, base, norm_weight, y_norm_weight=None):
        return tuple(run(x, fn, scale, base, 3, norm_weight=norm_weight, y_norm_weight=y_norm_weight))

    return of


def _boundary(run):
    def of(f, x, post, comb, bias, pre_next, fn, scale, base):
        return tuple(run(f, x, post, comb, pre_next, fn, scale, base, 3, bias=bias))

    return of


def _normed_boundary(run):
    """A call in V4's order, which collapses by the weights of the site itself."""

    def of(f, x, post, comb, bias, fn, scale, base, norm):
        return tuple(run(f, x, post, comb, None, fn, scale, base, 3, bias=bias, y_norm_weight=norm))

    return of


MATRIX, STREAM, UPDATED = ("logits",), ("x",), ("f", "x")
SPLIT_SHAPES = _of("mixes", "scale", "base")
MIXES_SHAPES = _few_rows(_of("x", "fn", "norm_weight"))
UPDATE = "f", "x", "post", "comb", "bias"
AT_SITE = "x", "fn", "scale", "base", "norm_weight"
BOUNDARY_SHAPES = _of(*UPDATE, "pre_next", "fn", "scale", "base")
SITE = _row("hc_site", _of(*AT_SITE), STREAM, _site)
NORMED_SITE = _row("hc_site", _of(*AT_SITE, "y_norm_weight"), STREAM, _site)
BOUNDARY = _row("hc_boundary", BOUNDARY_SHAPES, UPDATED, _boundary)
NORMED_BOUNDARY = _row(
    "hc_boundary", _of(*UPDATE, "fn", "scale", "base", "y_norm_weight"), UPDATED, _normed_boundary
)
OPERATORS = {
    "sinkhorn": _row("sinkhorn", _matrices, MATRIX),
    # after so many iterations the exact gradient equals the gradient of the fixed point
    "sinkhorn, implicit": Row(
        lambda x: hs.sinkhorn(x, 60, backward="implicit"), lambda x: reference.sinkhorn(x, 60), _matrices,
        "sinkhorn", MATRIX,
    ),
    "FusedMHC": Row(
        hs.nn.FusedMHC(5), lambda x: reference.sinkhorn(x, 5, eps=0.0, form="log"), _matrices, "sinkhorn",
        MATRIX,
    ),
    "dot_compress": _row("dot_compress", _products, ("x", "y", "z")),
    "attention": _attention(),
    **{f"attention, {gate}": _attention(gate) for gate in GATES},
    "attention, all gates": _attention(*GATES),
    "hc_split_sinkhorn": _row("hc_split_sinkhorn", SPLIT_SHAPES, ("mixes",), _split),
    "hc_split_sinkhorn, reduced": _row(
        "hc_split_sinkhorn", _of("partials", "squares", "scale", "base"), ("scale", "base"), _reduced
    ),
    "hc_mixes": _row("hc_mixes", MIXES_SHAPES, STREAM, _mixes),
    "hc_pre": _row("hc_pre", _of("x", "pre"), STREAM),
    "hc_pre, norm": _row("hc_pre", _of("x", "pre", "y_norm_weight"), STREAM, _pre),
    "hc_post": _row("hc_post", _of(*UPDATE), UPDATED),
    "hc_site": SITE,
    "hc_site, kernels": replace(SITE, kernels=True),
    "hc_boundary": BOUNDARY,
    "hc_boundary, kernels": replace(BOUNDARY, kernels=True),
    "hc_site, norm": NORMED_SITE,
    "hc_site, norm, kernels": replace(NORMED_SITE, kernels=True),
    "hc_boundary, norm": NORMED_BOUNDARY,
    "hc_boundary, norm, kernels": replace(NORMED_BOUNDARY, kernels=True),
    "hc_site, log form": _row("hc_site", _of(*AT_SITE), STREAM, _site, form="log"),
    "hc_boundary, log form": _row("hc_boundary", BOUNDARY_SHAPES, UPDATED, _boundary, form="log"),
}  # fmt: skip


def _of_rows(run):
    return lambda logits, rows: run(logits, 3, form="log", temperature=0.5, log_row_marginals=rows)


def _apart(run):
    """A specification of streams (..., n, C) for merged ones."""
    return lambda x, pre: run(x.unflatten(-1, (N, C)), pre)


def _joined_update(f, x, post, comb, bias):
    return reference.hc_post(f, x.unflatten(-1, (N, C)), post, comb, bias).flatten(-2)


_log = {"n_iters": 7, "form": "log", "first": "cols"}
_others = {"eps": 0.0, "post_mult": 1.5, "pre_eps": 1e-2, "post_eps": 1e-3, "comb_order": "oi"}
_of_norm = {"norm_eps": 0.1, "eps_outside": True}
VARIANTS = {
    "sinkhorn, log": Row(
        partial(hs.sinkhorn, **_log, out_dtype=torch.float64), partial(reference.sinkhorn, **_log),
        lambda *lead: {"logits": (*lead, 4, 5)}, "sinkhorn", MATRIX,
    ),
    "sinkhorn, marginals": _row(
        "sinkhorn", lambda *lead: {"logits": (*lead, 4, 5), "rows": (*lead, 4)}, MATRIX, _of_rows
    ),
    "dot_compress, without z": Row(
        partial(hs.dot_compress, precise_intermediate=True), reference.dot_compress, _without_z,
        "dot_compress", ("x", "y"),
    ),
    "hc_split_sinkhorn, others": _row(
        "hc_split_sinkhorn", SPLIT_SHAPES, ("mixes", "base"), _split, **_others
    ),
    "hc_mixes, merged": Row(
        partial(hs.hc_mixes, precision="tf32", **_of_norm), partial(reference.hc_mixes, **_of_norm),
        _merged(_few_rows(_of("x", "fn"))), "hc_mixes", ("x", "fn"),
    ),
    "hc_mixes, prenorm": _row("hc_mixes", MIXES_SHAPES, STREAM, _prenorm),
    "hc_pre, merged": Row(
        partial(hs.hc_pre, merged=True), _apart(reference.hc_pre), _merged(_of("x", "pre")), "hc_pre", STREAM
    ),
    "hc_post, merged": Row(
        partial(hs.hc_post, merged=True), _joined_update, _merged(_of(*UPDATE)), "hc_post", UPDATED
    ),
    "hc_post, without bias": _row("hc_post", _of(*UPDATE[:-1]), ("x", "post"), comb_order="oi"),
}  # fmt: skip
"""Calls with other options than those of OPERATORS."""
