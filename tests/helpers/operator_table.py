"""Every operator that has a gradient: its public function, its specification, and small arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from autograd_calls import randn

from helion_sinkhorn import (
    Reduce,
    dot_compress,
    hc_boundary,
    hc_mixes,
    hc_post,
    hc_pre,
    hc_site,
    hc_split_sinkhorn,
    nn,
    recurrent_linear_attention,
    reference,
    sinkhorn,
)

N, C = 2, 3
ROWS = N * N + 2 * N
GATES = ("g", "g_gamma", "gk", "gv")


@dataclass(frozen=True)
class Row:
    """An operator, and tensors for it by the names of its arguments."""

    function: Callable[..., Any]
    specification: Callable[..., Any]
    shapes: Callable[[int], dict[str, tuple[int, ...]]]
    """The number of tokens, steps or matrices -> the shape of each argument."""
    kernels: bool = False
    """Whether a CPU call is made of it only with hc_sites.kernels_on_cpu."""

    def arguments(self, tokens: int = 3) -> dict[str, torch.Tensor]:
        """Random, the same for the same number; gates are decays."""
        drawn = {name: randn(*s, seed=k) for k, (name, s) in enumerate(self.shapes(tokens).items())}
        return {name: -x.abs() if name in GATES else x for name, x in drawn.items()}


def loss(found: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """A number of all results, each entry with a weight of its own."""
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


def _matrices(t):
    return {"logits": (t, 3, 3)}


def _attention(*gates):
    names = "q", "k", "v", *gates, "initial_state"

    def of(run):
        return lambda *given: run(**dict(zip(names, given, strict=True)), output_final_state=True)

    def shapes(t):
        every = {
            "q": (1, t, 2, 3), "k": (1, t, 2, 3), "v": (1, t, 2, 2), "g": (1, t, 2), "g_gamma": (2,),
            "gk": (1, t, 2, 3), "gv": (1, t, 2, 2), "initial_state": (1, 2, 3, 2),
        }  # fmt: skip
        return {name: every[name] for name in names}

    return Row(of(recurrent_linear_attention), of(reference.recurrent_linear_attention), shapes)


def _split(run):
    return lambda mixes, scale, base: run(mixes, scale, base, N, 3)


def _reduced(run):
    def of(partials, squares, scale, base):
        return run(partials, scale, base, N, 3, reduce=Reduce(squares.square(), N * C))

    return of


def _mixes(run):
    return lambda x, fn, norm_weight: run(x, fn, norm_weight=norm_weight)


def _site(run):
    def of(x, fn, scale, base, norm_weight):
        return tuple(run(x, fn, scale, base, 3, norm_weight=norm_weight))

    return of


def _site_shapes(t):
    return {"x": (t, N, C), "fn": (ROWS, N * C), "scale": (3,), "base": (ROWS,), "norm_weight": (N * C,)}


def _boundary(run):
    def of(f, x, post, comb, bias, pre_next, fn, scale, base):
        return tuple(run(f, x, post, comb, pre_next, fn, scale, base, 3, bias=bias))

    return of


def _update_shapes(t):
    return {"f": (t, C), "x": (t, N, C), "post": (t, N), "comb": (t, N, N), "bias": (C,)}


def _boundary_shapes(t):
    site = {name: _site_shapes(t)[name] for name in ("fn", "scale", "base")}
    return {**_update_shapes(t), "pre_next": (t, N), **site}


SITE = _site(hc_site), _site(reference.hc_site), _site_shapes
BOUNDARY = _boundary(hc_boundary), _boundary(reference.hc_boundary), _boundary_shapes
OPERATORS = {
    "sinkhorn": Row(sinkhorn, reference.sinkhorn, _matrices),
    # of so many iterations the exact gradient is that of the fixed point
    "sinkhorn, implicit": Row(
        lambda x: sinkhorn(x, 60, backward="implicit"), lambda x: reference.sinkhorn(x, 60), _matrices
    ),
    "FusedMHC": Row(
        nn.FusedMHC(5), lambda x: reference.sinkhorn(x, 5, eps=0.0, form="log"), _matrices
    ),
    "dot_compress": Row(
        dot_compress, reference.dot_compress, lambda t: {"x": (t, 4, 3), "y": (t, 4, 2), "z": (t, 3, 2)}
    ),
    "attention": _attention(),
    **{f"attention, {gate}": _attention(gate) for gate in GATES},
    "attention, all gates": _attention(*GATES),
    "hc_split_sinkhorn": Row(
        _split(hc_split_sinkhorn), _split(reference.hc_split_sinkhorn),
        lambda t: {"mixes": (t, ROWS), "scale": (3,), "base": (ROWS,)},
    ),
    "hc_split_sinkhorn, reduced": Row(
        _reduced(hc_split_sinkhorn), _reduced(reference.hc_split_sinkhorn),
        lambda t: {"partials": (2, t, ROWS), "squares": (2, t), "scale": (3,), "base": (ROWS,)},
    ),
    "hc_mixes": Row(
        _mixes(hc_mixes), _mixes(reference.hc_mixes),
        lambda t: {"x": (t, N, C), "fn": (5, N * C), "norm_weight": (N * C,)},
    ),
    "hc_pre": Row(hc_pre, reference.hc_pre, lambda t: {"x": (t, N, C), "pre": (t, N)}),
    "hc_post": Row(hc_post, reference.hc_post, _update_shapes),
    "hc_site": Row(*SITE),
    "hc_site, kernels": Row(*SITE, kernels=True),
    "hc_boundary": Row(*BOUNDARY),
    "hc_boundary, kernels": Row(*BOUNDARY, kernels=True),
}  # fmt: skip
