"""Every operator that has a gradient: its public function, its specification, and small arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from autograd_calls import randn

import helion_sinkhorn
from helion_sinkhorn import Reduce, nn, reference

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


def loss(output: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """A weighted sum of all results, with a different weight for each entry."""
    results = (output,) if isinstance(output, torch.Tensor) else output
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


def _of_site(*lead: int) -> dict[str, tuple[int, ...]]:
    """The shapes of all arguments of a site, of its parts and of its update, and of matrices."""
    return {
        "x": (*lead, N, C), "f": (*lead, C), "mixes": (*lead, ROWS), "pre": (*lead, N),
        "pre_next": (*lead, N), "post": (*lead, N), "comb": (*lead, N, N), "partials": (2, *lead, ROWS),
        "squares": (2, *lead), "fn": (ROWS, N * C), "scale": (3,), "base": (ROWS,), "bias": (C,),
        "norm_weight": (N * C,), "y_norm_weight": (C,), "logits": (*lead, *MATRIX),
    }  # fmt: skip


def _row(
    named: str,
    arguments: str,
    streams: str,
    call: Callable[..., Any] | None = None,
    own: Callable[..., dict[str, tuple[int, ...]]] = _of_site,
    exact: Callable[..., Any] | None = None,
    kernels: bool = False,
) -> Row:
    """A row of a public function and of its specification, which has the same name in `reference`.

    Args:
        call: how the function is called where its arguments are not all by position; its first argument is
            the module that has the function.
        own: shapes of arguments that are others than those of a site.
        exact: the specification where it is called otherwise.
    """

    def of(module: Any) -> Callable[..., Any]:
        def function(*given, **options):
            return (
                getattr(module, named)(*given, **options) if call is None else call(module, *given, **options)
            )

        return function

    def shapes(*lead):
        every = {**_of_site(*lead), **own(*lead)}
        return {name: every[name] for name in arguments.split()}

    return Row(of(helion_sinkhorn), exact or of(reference), shapes, named, tuple(streams.split()), kernels)


def _of_attention(*lead):
    b, t = lead if len(lead) > 1 else (1, *lead)
    return {
        "q": (b, t, 2, 3), "k": (b, t, 2, 3), "v": (b, t, 2, 2), "g": (b, t, 2), "g_gamma": (2,),
        "gk": (b, t, 2, 3), "gv": (b, t, 2, 2), "initial_state": (b, 2, 3, 2),
    }  # fmt: skip


def _attention(*gates):
    names = "q", "k", "v", *gates, "initial_state"

    def call(of, *given, **options):
        named = dict(zip(names, given, strict=True))
        return of.recurrent_linear_attention(**named, output_final_state=True, **options)

    return _row("recurrent_linear_attention", " ".join(names), " ".join(names[:-1]), call, _of_attention)


def _of_products(*lead):
    m, d, k = PRODUCT
    return {"x": (*lead, m, d), "y": (*lead, m, k), "z": (*lead, d, k)}


def _split(of, mixes, scale, base, *constants, **options):
    return of.hc_split_sinkhorn(mixes, scale, base, N, 3, *constants, **options)


def _reduced(of, partials, squares, scale, base):
    reduce = Reduce(squares.square(), N * C)
    return of.hc_split_sinkhorn(partials, scale, base, N, 3, reduce=reduce)


def _mixes(of, x, fn, norm_weight, **options):
    return of.hc_mixes(x, fn, norm_weight=norm_weight, **options)


def _of_mixes(*lead):
    return {"fn": (MIXES, N * C)}


def _merged(*lead):
    return {"x": (*lead, N * C), "fn": (MIXES, N * C)}


def _normed(of, x, pre, y_norm_weight):
    return of.hc_pre(x, pre, y_norm_weight=y_norm_weight, y_norm_eps=0.1)


def _site(of, x, fn, scale, base, norm_weight, y_norm_weight=None, **options):
    norms = {"norm_weight": norm_weight, "y_norm_weight": y_norm_weight}
    return tuple(of.hc_site(x, fn, scale, base, 3, **norms, **options))


def _specified_coefficients(x, fn, scale, base):
    return reference.hc_split_sinkhorn(reference.hc_mixes(x.flatten(-2), fn), scale, base, N, 3)


def _specified_head(x, fn, scale, base):
    return reference.hc_pre(x, (reference.hc_mixes(x.flatten(-2), fn) * scale + base).sigmoid() + 1e-6)


def _of_head(*lead):
    return {"fn": (N, N * C), "scale": (1,), "base": (N,)}


def _boundary(of, f, x, post, comb, bias, pre_next, *parameters, **options):
    return tuple(of.hc_boundary(f, x, post, comb, pre_next, *parameters, 3, bias=bias, **options))


def _normed_boundary(of, *given):
    """A call in V4's order, which collapses by the weights of the site itself."""
    *before, fn, scale, base, norm = given
    return _boundary(of, *before, None, fn, scale, base, y_norm_weight=norm)


SPLIT = "hc_split_sinkhorn"
PARAMETERS = "x fn scale base"
UPDATE = "f x post comb bias"
FUSED = nn.FusedMHC(5)
SITE = "hc_site", f"{PARAMETERS} norm_weight", "x"
NORMED_SITE = "hc_site", f"{PARAMETERS} norm_weight y_norm_weight", "x", _site
BOUNDARY = "hc_boundary", f"{UPDATE} pre_next fn scale base", "f x"
NORMED_BOUNDARY = "hc_boundary", f"{UPDATE} fn scale base y_norm_weight", "f x", _normed_boundary
OPERATORS = {
    "sinkhorn": _row("sinkhorn", "logits", "logits"),
    # after so many iterations the exact gradient equals the gradient of the fixed point
    "sinkhorn, implicit": _row(
        "sinkhorn", "logits", "logits", lambda of, x: of.sinkhorn(x, 60, backward="implicit"),
        exact=lambda x: reference.sinkhorn(x, 60),
    ),
    "FusedMHC": _row(
        "sinkhorn", "logits", "logits", lambda of, x: FUSED(x),
        exact=lambda x: reference.sinkhorn(x, 5, eps=0.0, form="log"),
    ),
    "dot_compress": _row("dot_compress", "x y z", "x y z", own=_of_products),
    "attention": _attention(),
    **{f"attention, {gate}": _attention(gate) for gate in GATES},
    "attention, all gates": _attention(*GATES),
    SPLIT: _row(SPLIT, "mixes scale base", "mixes", _split),
    "hc_split_sinkhorn, reduced": _row(SPLIT, "partials squares scale base", "scale base", _reduced),
    "hc_mixes": _row("hc_mixes", "x fn norm_weight", "x", _mixes, _of_mixes),
    "hc_pre": _row("hc_pre", "x pre", "x"),
    "hc_pre, norm": _row("hc_pre", "x pre y_norm_weight", "x", _normed),
    "hc_post": _row("hc_post", UPDATE, "f x"),
    "hc_coeffs": _row(
        "hc_site", PARAMETERS, "x", lambda of, *given: of.hc_coeffs(*given, 3), exact=_specified_coefficients
    ),
    "hc_head": _row(
        "hc_pre", PARAMETERS, "x", lambda of, *given, **options: of.hc_head(*given, **options), _of_head,
        exact=_specified_head,
    ),
    "hc_site": _row(*SITE, _site),
    "hc_site, kernels": _row(*SITE, _site, kernels=True),
    "hc_boundary": _row(*BOUNDARY, _boundary),
    "hc_boundary, kernels": _row(*BOUNDARY, _boundary, kernels=True),
    "hc_site, norm": _row(*NORMED_SITE),
    "hc_site, norm, kernels": _row(*NORMED_SITE, kernels=True),
    "hc_boundary, norm": _row(*NORMED_BOUNDARY),
    "hc_boundary, norm, kernels": _row(*NORMED_BOUNDARY, kernels=True),
    "hc_site, log form": _row(*SITE, partial(_site, form="log")),
    "hc_boundary, log form": _row(*BOUNDARY, partial(_boundary, form="log")),
}  # fmt: skip

_log = {"n_iters": 7, "form": "log", "first": "cols"}
_others = {"post_mult": 1.5, "pre_eps": 1e-2, "post_eps": 1e-3, "comb_order": "oi"}
_outputs_first = {"comb_order": "oi"}
_of_norm = {"norm_eps": 0.1, "eps_outside": True}


def _merged_mixes(of, *given, **options):
    return of.hc_mixes(*given, **options)


def _apart(x):
    """Merged streams as the specifications take them."""
    return x.unflatten(-1, (N, C))


VARIANTS = {
    "sinkhorn, log": _row(
        "sinkhorn", "logits", "logits", lambda of, x: of.sinkhorn(x, **_log, out_dtype=torch.float64),
        lambda *lead: {"logits": (*lead, *RECTANGLE)}, partial(reference.sinkhorn, **_log),
    ),
    "sinkhorn, marginals": _row(
        "sinkhorn", "logits rows", "logits",
        lambda of, x, rows: of.sinkhorn(x, 3, form="log", temperature=0.5, log_row_marginals=rows),
        lambda *lead: {"logits": (*lead, 4, 5), "rows": (*lead, 4)},
    ),
    "dot_compress, without z": _row(
        "dot_compress", "x y", "x y", lambda of, x, y: of.dot_compress(x, y, precise_intermediate=True),
        _of_products, reference.dot_compress,
    ),
    "hc_split_sinkhorn, others": _row(
        SPLIT, "mixes scale base", "mixes base", lambda of, *given: _split(of, *given, 0.0, **_others)
    ),
    "hc_mixes, merged": _row(
        "hc_mixes", "x fn", "x fn", partial(_merged_mixes, precision="tf32", **_of_norm),
        _merged, partial(reference.hc_mixes, **_of_norm),
    ),
    "hc_mixes, prenorm": _row(
        "hc_mixes", "x fn norm_weight", "x", lambda of, *given: tuple(_mixes(of, *given, prenorm=True)),
        _of_mixes,
    ),
    "hc_pre, merged": _row(
        "hc_pre", "x pre", "x", lambda of, x, pre: of.hc_pre(x, pre, merged=True), _merged,
        lambda x, pre: reference.hc_pre(_apart(x), pre),
    ),
    "hc_post, merged": _row(
        "hc_post", UPDATE, "f x", lambda of, *given: of.hc_post(*given, merged=True), _merged,
        lambda f, x, *others: reference.hc_post(f, _apart(x), *others).flatten(-2),
    ),
    "hc_post, without bias": _row(
        "hc_post", "f x post comb", "x post", lambda of, *given: of.hc_post(*given, **_outputs_first)
    ),
}  # fmt: skip
"""Calls with other options than those of OPERATORS."""
OF_PYTORCH = {
    "hc_post, without comb": _row(
        "hc_post", "f x post bias", "f x", lambda of, f, x, post, bias: of.hc_post(f, x, post, None, bias)
    ),
}
"""Functions that call no operator of this package."""
