"""Every operator that has a gradient: its public function, its specification, and small arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from autograd_calls import randn

from helion_sinkhorn import (
    Reduce,
    dot_compress,
    hc_boundary,
    hc_coeffs,
    hc_head,
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
MIXES = 5
"""Rows of fn where it is a projection by itself."""
MATRIX, RECTANGLE = (3, 3), (4, 5)
PRODUCT = 4, 3, 2
"""M, D and K of dot_compress."""
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


def _matrices(*lead):
    return {"logits": (*lead, *MATRIX)}


def _attention(*gates):
    names = "q", "k", "v", *gates, "initial_state"

    def of(run):
        def call(*given, **options):
            return run(**dict(zip(names, given, strict=True)), output_final_state=True, **options)

        return call

    def shapes(*lead):
        b, t = lead if len(lead) > 1 else (1, *lead)
        every = {
            "q": (b, t, 2, 3), "k": (b, t, 2, 3), "v": (b, t, 2, 2), "g": (b, t, 2), "g_gamma": (2,),
            "gk": (b, t, 2, 3), "gv": (b, t, 2, 2), "initial_state": (b, 2, 3, 2),
        }  # fmt: skip
        return {name: every[name] for name in names}

    functions = of(recurrent_linear_attention), of(reference.recurrent_linear_attention)
    return Row(*functions, shapes, "recurrent_linear_attention", names[:-1])


def _products(*lead):
    m, d, k = PRODUCT
    return {"x": (*lead, m, d), "y": (*lead, m, k), "z": (*lead, d, k)}


def _without_z(*lead):
    return {name: _products(*lead)[name] for name in "xy"}


def _split(run, *constants, **options):
    return lambda mixes, scale, base, **others: run(mixes, scale, base, N, 3, *constants, **options, **others)


def _split_shapes(*lead):
    return {"mixes": (*lead, ROWS), "scale": (3,), "base": (ROWS,)}


def _reduced(run):
    def of(partials, squares, scale, base):
        return run(partials, scale, base, N, 3, reduce=Reduce(squares.square(), N * C))

    return of


def _reduced_shapes(*lead):
    return {"partials": (2, *lead, ROWS), "squares": (2, *lead), "scale": (3,), "base": (ROWS,)}


def _mixes(run):
    return lambda x, fn, norm_weight, **options: run(x, fn, norm_weight=norm_weight, **options)


def _prenorm(run):
    return lambda x, fn, norm_weight: tuple(run(x, fn, norm_weight=norm_weight, prenorm=True))


def _mixes_shapes(*lead):
    return {"x": (*lead, N, C), "fn": (MIXES, N * C), "norm_weight": (N * C,)}


def _merged_shapes(*lead):
    return {"x": (*lead, N * C), "fn": (MIXES, N * C)}


def _pre(run):
    return lambda x, pre, y_norm_weight: run(x, pre, y_norm_weight=y_norm_weight, y_norm_eps=0.1)


def _pre_shapes(*lead):
    return {"x": (*lead, N, C), "pre": (*lead, N)}


def _normed_shapes(*lead):
    return {**_pre_shapes(*lead), "y_norm_weight": (C,)}


def _site(run):
    def of(x, fn, scale, base, norm_weight, y_norm_weight=None, **options):
        norms = {"norm_weight": norm_weight, "y_norm_weight": y_norm_weight}
        return tuple(run(x, fn, scale, base, 3, **norms, **options))

    return of


def _site_shapes(*lead):
    parameters = {"fn": (ROWS, N * C), "scale": (3,), "base": (ROWS,), "norm_weight": (N * C,)}
    return {"x": (*lead, N, C), **parameters}


def _normed_site_shapes(*lead):
    return {**_site_shapes(*lead), "y_norm_weight": (C,)}


def _coefficients(run):
    return lambda x, fn, scale, base: run(x, fn, scale, base, 3)


def _specified_coefficients(x, fn, scale, base, iters):
    return reference.hc_split_sinkhorn(reference.hc_mixes(x.flatten(-2), fn), scale, base, N, iters)


def _specified_head(x, fn, scale, base):
    return reference.hc_pre(x, (reference.hc_mixes(x.flatten(-2), fn) * scale + base).sigmoid() + 1e-6)


def _projection_shapes(*lead):
    return {name: _site_shapes(*lead)[name] for name in ("x", "fn", "scale", "base")}


def _head_shapes(*lead):
    return {"x": (*lead, N, C), "fn": (N, N * C), "scale": (1,), "base": (N,)}


def _boundary(run):
    def of(f, x, post, comb, bias, pre_next, *parameters):
        return tuple(run(f, x, post, comb, pre_next, *parameters, 3, bias=bias))

    return of


def _normed_boundary(run):
    """A call in V4's order, which collapses by the weights of the site itself."""

    def of(f, x, post, comb, bias, *parameters):
        *site, norm = parameters
        return tuple(run(f, x, post, comb, None, *site, 3, bias=bias, y_norm_weight=norm))

    return of


def _update_shapes(*lead):
    return {
        "f": (*lead, C), "x": (*lead, N, C), "post": (*lead, N), "comb": (*lead, N, N), "bias": (C,)
    }  # fmt: skip


def _without_comb(run):
    return lambda f, x, post, bias: run(f, x, post, None, bias)


def _shapes_without_comb(*lead):
    return {name: shape for name, shape in _update_shapes(*lead).items() if name != "comb"}


def _without_bias(*lead):
    return {name: shape for name, shape in _update_shapes(*lead).items() if name != "bias"}


def _boundary_shapes(*lead):
    site = {name: _site_shapes(*lead)[name] for name in ("fn", "scale", "base")}
    return {**_update_shapes(*lead), "pre_next": (*lead, N), **site}


def _normed_boundary_shapes(*lead):
    shapes = {**_boundary_shapes(*lead), "y_norm_weight": (C,)}
    return {name: shape for name, shape in shapes.items() if name != "pre_next"}


SPLIT = "hc_split_sinkhorn"
MATRICES = _matrices, "sinkhorn", ("logits",)
PRODUCTS = "dot_compress", ("x", "y", "z")
SITE = _site(hc_site), _site(reference.hc_site), _site_shapes, "hc_site", ("x",)
BOUNDARY = (
    _boundary(hc_boundary),
    _boundary(reference.hc_boundary),
    _boundary_shapes,
    "hc_boundary",
    ("f", "x"),
)
NORMED_SITE = *SITE[:2], _normed_site_shapes, *SITE[3:]
NORMED_BOUNDARY = (
    _normed_boundary(hc_boundary),
    _normed_boundary(reference.hc_boundary),
    _normed_boundary_shapes,
    *BOUNDARY[3:],
)
OPERATORS = {
    "sinkhorn": Row(sinkhorn, reference.sinkhorn, *MATRICES),
    # after so many iterations the exact gradient equals the gradient of the fixed point
    "sinkhorn, implicit": Row(
        lambda x: sinkhorn(x, 60, backward="implicit"), lambda x: reference.sinkhorn(x, 60), *MATRICES
    ),
    "FusedMHC": Row(
        nn.FusedMHC(5), lambda x: reference.sinkhorn(x, 5, eps=0.0, form="log"), *MATRICES
    ),
    "dot_compress": Row(dot_compress, reference.dot_compress, _products, *PRODUCTS),
    "attention": _attention(),
    **{f"attention, {gate}": _attention(gate) for gate in GATES},
    "attention, all gates": _attention(*GATES),
    SPLIT: Row(
        _split(hc_split_sinkhorn), _split(reference.hc_split_sinkhorn), _split_shapes, SPLIT, ("mixes",)
    ),
    "hc_split_sinkhorn, reduced": Row(
        _reduced(hc_split_sinkhorn), _reduced(reference.hc_split_sinkhorn), _reduced_shapes, SPLIT,
        ("scale", "base"),
    ),
    "hc_mixes": Row(_mixes(hc_mixes), _mixes(reference.hc_mixes), _mixes_shapes, "hc_mixes", ("x",)),
    "hc_pre": Row(hc_pre, reference.hc_pre, _pre_shapes, "hc_pre", ("x",)),
    "hc_pre, norm": Row(_pre(hc_pre), _pre(reference.hc_pre), _normed_shapes, "hc_pre", ("x",)),
    "hc_post": Row(hc_post, reference.hc_post, _update_shapes, "hc_post", ("f", "x")),
    "hc_coeffs": Row(
        _coefficients(hc_coeffs), _coefficients(_specified_coefficients), _projection_shapes, "hc_site",
        ("x",),
    ),
    "hc_head": Row(
        lambda *given, **options: hc_head(*given, **options), _specified_head, _head_shapes, "hc_pre", ("x",)
    ),
    "hc_site": Row(*SITE),
    "hc_site, kernels": Row(*SITE, kernels=True),
    "hc_boundary": Row(*BOUNDARY),
    "hc_boundary, kernels": Row(*BOUNDARY, kernels=True),
    "hc_site, norm": Row(*NORMED_SITE),
    "hc_site, norm, kernels": Row(*NORMED_SITE, kernels=True),
    "hc_boundary, norm": Row(*NORMED_BOUNDARY),
    "hc_boundary, norm, kernels": Row(*NORMED_BOUNDARY, kernels=True),
    "hc_site, log form": Row(
        _site(partial(hc_site, form="log")), _site(partial(reference.hc_site, form="log")), *SITE[2:]
    ),
    "hc_boundary, log form": Row(
        _boundary(partial(hc_boundary, form="log")), _boundary(partial(reference.hc_boundary, form="log")),
        *BOUNDARY[2:],
    ),
}  # fmt: skip


def _of_rows(run):
    return lambda logits, rows: run(logits, 3, form="log", temperature=0.5, log_row_marginals=rows)


_log = {"n_iters": 7, "form": "log", "first": "cols"}


def _apart(run):
    """A specification of streams (..., n, C) for merged ones."""
    return lambda x, pre: run(x.unflatten(-1, (N, C)), pre)


def _joined_update(f, x, post, comb, bias):
    return reference.hc_post(f, x.unflatten(-1, (N, C)), post, comb, bias).flatten(-2)


def _merged(shapes):
    def of(*lead):
        return {**shapes(*lead), "x": (*lead, N * C)}

    return of


_others = {"post_mult": 1.5, "pre_eps": 1e-2, "post_eps": 1e-3, "comb_order": "oi"}
_outputs_first = {"comb_order": "oi"}
_of_norm = {"norm_eps": 0.1, "eps_outside": True}
VARIANTS = {
    "sinkhorn, log": Row(
        partial(sinkhorn, **_log, out_dtype=torch.float64), partial(reference.sinkhorn, **_log),
        lambda *lead: {"logits": (*lead, *RECTANGLE)}, "sinkhorn", ("logits",),
    ),
    "sinkhorn, marginals": Row(
        _of_rows(sinkhorn), _of_rows(reference.sinkhorn),
        lambda *lead: {"logits": (*lead, 4, 5), "rows": (*lead, 4)}, "sinkhorn", ("logits",),
    ),
    "dot_compress, without z": Row(
        partial(dot_compress, precise_intermediate=True), reference.dot_compress, _without_z, "dot_compress",
        ("x", "y"),
    ),
    "hc_split_sinkhorn, others": Row(
        _split(hc_split_sinkhorn, 0.0, **_others), _split(reference.hc_split_sinkhorn, 0.0, **_others),
        _split_shapes, SPLIT, ("mixes", "base"),
    ),
    "hc_mixes, merged": Row(
        partial(hc_mixes, precision="tf32", **_of_norm), partial(reference.hc_mixes, **_of_norm),
        _merged_shapes, "hc_mixes", ("x", "fn"),
    ),
    "hc_mixes, prenorm": Row(
        _prenorm(hc_mixes), _prenorm(reference.hc_mixes), _mixes_shapes, "hc_mixes", ("x",),
    ),
    "hc_pre, merged": Row(
        partial(hc_pre, merged=True), _apart(reference.hc_pre), _merged(_pre_shapes), "hc_pre", ("x",)
    ),
    "hc_post, merged": Row(
        partial(hc_post, merged=True), _joined_update, _merged(_update_shapes), "hc_post", ("f", "x")
    ),
    "hc_post, without bias": Row(
        partial(hc_post, **_outputs_first), partial(reference.hc_post, **_outputs_first),
        _without_bias, "hc_post", ("x", "post"),
    ),
}  # fmt: skip
"""Calls with other options than those of OPERATORS."""
OF_PYTORCH = {
    "hc_post, without comb": Row(
        _without_comb(hc_post), _without_comb(reference.hc_post), _shapes_without_comb, "hc_post", ("f", "x")
    ),
}
"""Functions that call no operator of this package."""
