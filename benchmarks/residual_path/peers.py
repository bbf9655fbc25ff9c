"""PEERS: who computes which part of the residual path, each adapted to the inputs of `operations`.

An adapter turns our inputs into the peer's layout, order and dtypes before anything is timed, and has the
peer's own formula of those inputs, which `tasks` evaluates in float64.  What a peer does not compute, or not
by itself, is in `lacks`, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module

import torch

from benchmarks import peer_files
from benchmarks.residual_path.operations import (
    EPS,
    ITERATIONS,
    OPERATIONS,
    ROWS,
    STREAMS,
    Function,
    Tensors,
    coefficients,
    site,
)  # fmt: skip
from helion_sinkhorn import reference


def unchanged(*given: torch.Tensor) -> Tensors:
    return given


def one(function: Callable[..., torch.Tensor]) -> Function:
    """The function with its tensor as the only result."""
    return lambda *given: (function(*given),)


@dataclass(frozen=True)
class Adapter:
    """How a peer's function of an operation is called, and compared."""

    definition: Function | None = None
    """Its formula of the same inputs, differentiable in any dtype; None for our specification."""
    given: Function = unchanged
    gradient: bool = True
    note: str = ""


@dataclass(frozen=True)
class Peer:
    """A package, or files of a repository (peer_files)."""

    load: Callable[[str], Function]
    """Imports the peer; its function of an operation takes what the adapter's `given` makes."""
    adapters: dict[str, Adapter]
    package: str = ""
    file: str = ""
    """One of peer_files, for what is in no package."""
    lacks: dict[str, str] = field(default_factory=dict)


OURS, EAGER, COMPILED, FLOOR = "helion_sinkhorn", "eager", "torch.compile", "copy"
PARTS, TF32 = "its parts", "helion_sinkhorn, tf32"
"""hc_coeffs, hc_pre and hc_post, whose gradients autograd adds; and our projection with TF32's precision."""

# ---------------------------------------------------------------------------------- this package and PyTorch


def with_norm(function: Function) -> Function:
    """The function, and PyTorch's RMSNorm of its first result, whose weight is the last tensor."""

    def run(*given: torch.Tensor) -> Tensors:
        y, *others = function(*given[:-1])
        return torch.nn.functional.rms_norm(y, y.shape[-1:], given[-1], EPS), *others

    return run


def load_ours(name: str) -> Function:
    import helion_sinkhorn as ours

    def whole(f, x, fn, scale, base, weight=None):
        y, post, comb, residual = ours.hc_site(x, fn, scale, base, y_norm_weight=weight)
        return y, ours.hc_post(f, residual, post, comb)

    def boundary(*given):
        return ours.hc_boundary(*given[:-1], y_norm_weight=given[-1])

    def seam(f, x, post, comb, *others):
        return boundary(f, x, post, comb, None, *others)

    return {
        "normed_site": whole, "normed_boundary": boundary, "normed_seam": seam,
        "coefficients": ours.hc_split_sinkhorn, "hc_pre": one(ours.hc_pre), "hc_post": one(ours.hc_post),
        "hc_mixes": one(ours.hc_mixes), "site": whole, "boundary": ours.hc_boundary,
    }[name]  # fmt: skip


def load_parts(name: str) -> Function:
    import helion_sinkhorn as ours

    def whole(f, x, fn, scale, base):
        pre, post, comb = ours.hc_coeffs(x, fn, scale, base)
        return ours.hc_pre(x, pre), ours.hc_post(f, x, post, comb)

    def boundary(f, x, post, comb, pre_next, *parameters):
        streams = ours.hc_post(f, x, post, comb)
        return ours.hc_pre(streams, pre_next), *ours.hc_coeffs(streams, *parameters), streams

    def seam(f, x, post, comb, *parameters):
        streams = ours.hc_post(f, x, post, comb)
        made = ours.hc_coeffs(streams, *parameters)
        return ours.hc_pre(streams, made[0]), *made, streams

    function = {"site": whole, "boundary": boundary, "seam": seam}[name.removeprefix("normed_")]
    return with_norm(function) if name.startswith("normed_") else function


def load_tf32(name: str) -> Function:
    from helion_sinkhorn import hc_mixes

    return lambda x, fn: (hc_mixes(x, fn, precision="tf32"),)


STREAMS_DTYPE = "y", "streams"
"""Results that are rounded to the dtype of the streams."""


def load_eager(name: str) -> Function:
    """The specification in float32, its streams rounded once."""
    operation = OPERATIONS[name]

    def run(*given: torch.Tensor) -> Tensors:
        results = operation.specification(*(t.float() for t in given))
        return tuple(
            t.bfloat16() if of in STREAMS_DTYPE else t
            for t, of in zip(results, operation.results, strict=True)
        )

    return run


def load_compiled(name: str) -> Function:
    return torch.compile(load_eager(name), dynamic=False)


# --------------------------------------------------------------------------------------------------- Liger

_ATOMICS = "sums over tokens or columns by atomic additions, in an order that changes"
_OI = "comb is [output, input]"


class LigerMixes(torch.autograd.Function):
    """Its two projection kernels, which it calls in one function with the coefficients' kernels."""

    @staticmethod
    def forward(ctx, x, phi):
        from liger_kernel.ops.mhc import mhc_mm_norm_fwd

        mixes, factor = mhc_mm_norm_fwd(x, phi, eps=EPS)
        ctx.save_for_backward(x, phi, mixes, factor)
        return mixes

    @staticmethod
    def backward(ctx, grad):
        from liger_kernel.ops.mhc import mhc_mm_norm_bwd

        return mhc_mm_norm_bwd(*ctx.saved_tensors, grad)


def load_liger(name: str) -> Function:
    from liger_kernel.ops.mhc import mhc_split_sinkhorn_fwd
    from liger_kernel.transformers import functional

    options = dict(tmax=ITERATIONS, pre_eps=EPS, sinkhorn_eps=EPS, post_mult=2.0)

    def whole(f, x, phi, base, *scales):
        pre, post, comb = functional.liger_mhc_coeffs(x, phi, base, *scales, rms_eps=EPS, **options)
        return functional.liger_mhc_pre(x, pre), functional.liger_mhc_post_res(x, f, post, comb)

    return {
        "coefficients": partial(mhc_split_sinkhorn_fwd, **options), "hc_pre": one(functional.liger_mhc_pre),
        "hc_post": one(functional.liger_mhc_post_res), "hc_mixes": one(LigerMixes.apply), "site": whole,
    }[name]  # fmt: skip


def three(scale: torch.Tensor) -> Tensors:
    """A parameter of its own for each of the three factors."""
    return tuple(s.clone() for s in scale)


LIGER = Peer(
    load_liger,
    {
        "coefficients": Adapter(
            lambda mixes, base, *scales: coefficients(mixes, torch.stack(scales), base),
            lambda mixes, scale, base: (mixes, base, *three(scale)),
            gradient=False,
            note="its backward of pre and post is PyTorch inside one function with the projection: see site",
        ),
        "hc_pre": Adapter(note=f"float32 temporaries; {_ATOMICS}"),
        "hc_post": Adapter(
            lambda x, f, post, comb: (reference.hc_post(f, x, post, comb, comb_order="oi"),),
            lambda f, x, post, comb: (x, f, post, comb.mT.contiguous()),
            note=f"{_OI}; float32 temporaries; {_ATOMICS}",
        ),
        "hc_mixes": Adapter(
            lambda x, phi: (reference.hc_mixes(x, phi.mT, EPS),),
            lambda x, fn: (x.flatten(-2), fn.mT.contiguous()),
            note=f"fn is (n C, 24), TF32 products; {_ATOMICS}",
        ),
        "site": Adapter(
            lambda f, x, phi, base, *s: site(f, x, phi.mT, torch.stack(s), base, comb_order="oi"),
            lambda f, x, fn, scale, base: (f, x, fn.mT.contiguous(), base, *three(scale)),
            note=f"{_OI}; TF32 products; keeps 20 matrices a token; {_ATOMICS}",
        ),
    },
    package="liger-kernel",
)

# --------------------------------------------------------------------------------------------- TileKernels


def in_one_sequence(*given: torch.Tensor) -> Tensors:
    return tuple(t[None] for t in given)


def load_tile(name: str) -> Function:
    from tile_kernels.modeling.mhc import functional, ops

    def split(mixes, scale, base):
        pre, post, comb = ops.mhc_pre_split_mixes(mixes, scale, base, STREAMS, 2.0, EPS)
        return pre, post, ops.sinkhorn_normalize(comb, ITERATIONS, EPS)

    def whole(f, x, fn, scale, base):
        y, (post, comb) = functional.mhc_pre(
            x, fn, scale, base, norm_eps=EPS, post_mult_value=2.0, pre_eps=EPS, sinkhorn_eps=EPS,
            sinkhorn_repeat=ITERATIONS,
        )  # fmt: skip
        return y, ops.mhc_post(f, x, post, comb)

    return {
        "coefficients": split, "hc_pre": one(ops.mhc_pre_apply_mix), "hc_post": one(ops.mhc_post),
        "hc_mixes": lambda x, fn: (ops.mhc_pre_norm_fn(x, fn, None, EPS, fuse_grad_acc=False),),
        "site": whole,
    }[name]  # fmt: skip


def tile_coefficients(mixes, scale, base) -> Tensors:
    pre, post, comb = coefficients(mixes, scale, base)
    return pre.unsqueeze(-1), post.unsqueeze(-1), comb


TILE_KERNELS = Peer(
    load_tile,
    {
        "coefficients": Adapter(
            tile_coefficients,
            lambda mixes, scale, base: (mixes[None], scale, base),
            note="two kernels each way; writes comb before its iterations",
        ),
        "hc_pre": Adapter(
            lambda x, pre: (reference.hc_pre(x, pre.squeeze(-1)),),
            lambda x, pre: in_one_sequence(x, pre.unsqueeze(-1)),
            note="adds to a gradient of zeros that it makes first",
        ),
        "hc_post": Adapter(
            lambda f, x, post, comb: (reference.hc_post(f, x, post.squeeze(-1), comb),),
            lambda f, x, post, comb: in_one_sequence(f, x, post.unsqueeze(-1), comb),
        ),
        "hc_mixes": Adapter(
            given=lambda x, fn: (x[None], fn),
            note="TF32 products; no split of the columns, for which it names DeepGEMM",
        ),
        "site": Adapter(
            given=lambda f, x, *rest: (f[None], x[None], *rest),
            note="TF32 products; forward without a gradient is another, fused kernel; gradients of x are "
            "added in place through an attribute of its storage",
        ),
    },
    package="tile-kernels",
)

# --------------------------------------------------------------------------------------- TransformerEngine

_STREAM_LAST = "streams last in memory, (tokens, C, n)"
_LOG = "log form of Sinkhorn, no eps in pre and Sinkhorn"
TE_NORM_EPS = torch.finfo(torch.float32).eps


def stream_last(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous()[None]


def columns_of_streams_last(fn: torch.Tensor) -> torch.Tensor:
    return fn.unflatten(1, (STREAMS, -1)).mT.flatten(1).contiguous()


def load_te(name: str) -> Function:
    te = peer_files.transformer_engine()

    def split(h, alpha, beta, ms):
        pre, post, comb = te.mhc_fused_scale(h, alpha, beta, ms, STREAMS)
        logits = comb.reshape(1, -1, STREAMS, STREAMS)
        return pre, post, te.mhc_fused_sinkhorn(logits, STREAMS, True, ITERATIONS)[0]

    def update(f, x, post, comb):
        return te.mhc_fused_expand_combine(f, None, post, x, comb, STREAMS)

    def whole(f, x, phi, alpha, beta):
        y, post, comb = te.mhc_generate_mix_and_aggregate(x, phi, alpha, beta)
        return y, update(f, x, post, comb)

    return {
        "coefficients": split, "hc_pre": lambda x, pre: (te.mhc_fused_aggregate(x, pre, STREAMS),),
        "hc_post": one(update), "hc_mixes": te.mhc_fused_projection, "site": whole,
    }[name]  # fmt: skip


def te_gates(h, alpha, beta, ms) -> Tensors:
    """Its scale and Sinkhorn of a padded projection."""
    n = STREAMS
    s = torch.cat([alpha[k].expand(size) for k, size in enumerate((n, n, n * n))])
    a = h[..., :ROWS] * s / (ms + TE_NORM_EPS).sqrt().unsqueeze(-1) + beta
    comb = reference.sinkhorn(a[..., 2 * n :].unflatten(-1, (n, n)), ITERATIONS, form="log")
    return a[..., :n].sigmoid(), 2 * a[..., n : 2 * n].sigmoid(), comb


def te_pre(x, pre) -> Tensors:
    return ((x @ pre.unsqueeze(-1)).squeeze(-1),)


def te_post(f, x, post, comb) -> Tensors:
    return (f.unsqueeze(-1) * post.unsqueeze(-2) + x @ comb,)


def te_mixes(x, phi) -> Tensors:
    return torch.nn.functional.pad(x @ phi.mT, (0, 32 - ROWS)), x.square().mean(-1)


def te_site(f, x, phi, alpha, beta) -> Tensors:
    h, ms = te_mixes(x.flatten(-2), phi)
    pre, post, comb = te_gates(h, alpha, beta, ms)
    return *te_pre(x, pre), *te_post(f, x, post, comb)


def te_given_coefficients(mixes, scale, base) -> Tensors:
    padded = torch.nn.functional.pad(mixes, (0, 32 - ROWS))
    return padded, scale, base[None], mixes.new_ones(len(mixes))


def te_given_site(f, x, fn, scale, base) -> Tensors:
    return f[None], stream_last(x), columns_of_streams_last(fn), scale, base[None]


TRANSFORMER_ENGINE = Peer(
    load_te,
    {
        "coefficients": Adapter(
            te_gates,
            te_given_coefficients,
            note=f"{_LOG}; the norm is applied here too; sums over tokens by atomic additions",
        ),
        "hc_pre": Adapter(te_pre, lambda x, pre: (stream_last(x), pre[None]), note=_STREAM_LAST),
        "hc_post": Adapter(
            te_post,
            lambda f, x, post, comb: (f[None], stream_last(x), post[None], comb[None]),
            note=_STREAM_LAST,
        ),
        "hc_mixes": Adapter(
            te_mixes,
            lambda x, fn: (stream_last(x)[0].flatten(-2), columns_of_streams_last(fn)),
            note=f"{_STREAM_LAST}; TF32 products; the norm is applied with the coefficients",
        ),
        "site": Adapter(
            te_site,
            te_given_site,
            note=f"{_STREAM_LAST}; {_LOG}; norm_eps 1.2e-7; TF32 products; without its float32 buffer for dx",
        ),
    },
    file=peer_files.TRANSFORMER_ENGINE,
)

# --------------------------------------------------------------------------------------------- Megatron-LM

_ROUNDED = "coefficients rounded to bfloat16"


def load_megatron(name: str) -> Function:
    megatron, pytorch = peer_files.megatron(), peer_files.megatron_pytorch()

    def update(f, x, post, comb):
        return megatron.fused_h_post_bda(comb, x, post, f, None)

    def whole(f, x, fn, base, *scales):
        """As its HyperConnectionModule calls them, with its sum of the three gradients of x."""
        of_mixes, of_pre, of_post = pytorch.BroadcastTensorFused.apply(x, megatron.fused_add_3)
        pre, post, logits, _ = megatron.fused_proj_rms_compute_h(
            of_mixes.flatten(0, 1).flatten(1), fn, *scales, base, STREAMS, EPS, EPS
        )
        comb = megatron.fused_sinkhorn(logits.view(*x.shape[:2], STREAMS, STREAMS), ITERATIONS, EPS)
        pre, post, comb = (
            t.view(*x.shape[:2], *t.shape[-k:]).to(x.dtype) for t, k in ((pre, 1), (post, 1), (comb, 2))
        )
        return megatron.fused_h_aggregate(of_pre, pre), update(f, of_post, post, comb)

    return {"hc_pre": one(megatron.fused_h_aggregate), "hc_post": one(update), "site": whole}[name]


MEGATRON = Peer(
    load_megatron,
    {
        "hc_pre": Adapter(
            given=lambda x, pre: in_one_sequence(x, pre.bfloat16()),
            note=f"{_ROUNDED}; backward is eager PyTorch where there is no cuTile",
        ),
        "hc_post": Adapter(
            given=lambda f, x, post, comb: in_one_sequence(f, x, post.bfloat16(), comb.bfloat16()),
            note=_ROUNDED,
        ),
        "site": Adapter(
            lambda f, x, fn, base, *s: site(f, x, fn, torch.stack(s), base, eps_outside=True),
            lambda f, x, fn, scale, base: (f[None], x[None], fn, base, *three(scale)),
            note=f"{_ROUNDED}; norm_eps outside the root; projection and gates are torch.compile's where "
            "there is no cuTile",
        ),
    },
    file=peer_files.MEGATRON,
    lacks={
        "coefficients": "pre and post are made in its projection; its Sinkhorn alone is in bench/report.md",
        "hc_mixes": "its projection makes pre and post too: see site",
    },
)

# ------------------------------------------------------------------------------------------------ FlagGems


def load_flag(name: str) -> Function:
    mhc = import_module("flag_gems.fused.mhc")

    def whole(f, x, fn, scale, base):
        # without gradients it looks fn up in a dictionary of tensors, whose == raises at the second call
        with torch.enable_grad():
            post, comb, y = mhc.mhc_pre(x, fn, scale, base, EPS, EPS, EPS, 2.0, ITERATIONS)
        return y, mhc.mhc_post(f, x, post, comb)

    return {
        "coefficients": lambda *given: mhc.hc_split_sinkhorn(*given, STREAMS, ITERATIONS, EPS),
        "hc_post": one(mhc.mhc_post), "site": whole,
    }[name]  # fmt: skip


_NO_GRADIENT = "no gradient"
FLAG_GEMS = Peer(
    load_flag,
    {
        "coefficients": Adapter(gradient=False, note=_NO_GRADIENT),
        "hc_post": Adapter(gradient=False, note=_NO_GRADIENT),
        "site": Adapter(gradient=False, note=f"{_NO_GRADIENT}; fn rounded to bfloat16 in each call"),
    },
    package="flag-gems",
    lacks={
        "hc_pre": "only in one function with the projection: see site",
        "hc_mixes": "only in one function with the coefficients and the collapse: see site",
    },
)


def other(peer: Peer) -> Peer:
    """The peer, its site with PyTorch's RMSNorm after it, and what no other package has."""
    own = peer.adapters["site"]
    normed = replace(
        own,
        definition=with_norm(own.definition or OPERATIONS["site"].specification),
        given=lambda *given: (*own.given(*given[:-1]), given[-1]),
        note=f"{own.note}; RMSNorm by PyTorch" if own.note else "RMSNorm by PyTorch",
    )

    def load(name: str) -> Function:
        return with_norm(peer.load("site")) if name == "normed_site" else peer.load(name)

    no_boundary = "no function takes the weights of another site"
    lacks = {**peer.lacks, **dict.fromkeys(("boundary", "normed_boundary"), no_boundary)}
    lacks["normed_seam"] = "no function of an update and the next site"
    return replace(peer, load=load, adapters={**peer.adapters, "normed_site": normed}, lacks=lacks)


PEERS = {
    OURS: Peer(load_ours, dict.fromkeys(OPERATIONS, Adapter())),
    PARTS: Peer(
        load_parts,
        dict.fromkeys(("site", "boundary", "normed_site", "normed_boundary", "normed_seam"), Adapter()),
    ),
    TF32: Peer(load_tf32, {"hc_mixes": Adapter()}),
    EAGER: Peer(load_eager, dict.fromkeys(OPERATIONS, Adapter())),
    COMPILED: Peer(load_compiled, dict.fromkeys(OPERATIONS, Adapter())),
    "TileKernels": other(TILE_KERNELS),
    "Liger": other(LIGER),
    "TransformerEngine": other(TRANSFORMER_ENGINE),
    "Megatron-LM": other(MEGATRON),
    "FlagGems": other(FLAG_GEMS),
}


def definition_of(name: str, operation: str) -> Function:
    """The formula that a peer's results are held to."""
    return PEERS[name].adapters[operation].definition or OPERATIONS[operation].specification
