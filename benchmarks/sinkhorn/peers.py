"""FUNCTIONS: everything the benchmark times, each adapted to logits (B, n, n) -> P and checked before.

A row names the definition it computes in this package's terms, so that `worker` can hold it to
the float64 reference of that definition.  Loading a row imports its package or its file; where
that is absent the row is reported with the error, not hidden.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from operator import attrgetter

import torch

from benchmarks import peer_files

EPS = 1e-6
TIMED = "forward", "backward", "both"
Passes = dict[str, Callable[[], object]]
"""Closures by name: of TIMED, "forward" gives P, "backward" dX, "both" runs one after the other.

"kept" gives a copy of the logits, in the layout a function takes them in, and what else it keeps of a forward
pass for its backward.
"""
Build = Callable[[torch.Tensor, torch.Tensor, int], Passes]
"""(logits, upstream gradient, T) -> Passes."""


@dataclass(frozen=True)
class Function:
    """One row: what is computed, by whom, and how to call it."""

    build: Build
    form: str = "deepseek"
    first: str = "rows"
    package: str = ""
    """On the package index; empty for what is here anyway."""
    sizes: tuple[int, ...] = ()
    """Accepted n; empty for any."""
    note: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    """Set before anything is imported."""
    file: str = ""
    """One of benchmarks.peer_files, for what is in no package."""


def differentiable(load: Callable[[], Callable[[torch.Tensor, int], torch.Tensor]]) -> Build:
    """Passes of a function (logits, T) -> P that autograd differentiates."""

    def build(x: torch.Tensor, dy: torch.Tensor, n_iters: int) -> Passes:
        function = load()
        leaf = x.detach().requires_grad_()
        y = function(leaf, n_iters)

        def forward():
            with torch.no_grad():
                return function(x, n_iters)

        def kept():
            own = x.detach().clone().requires_grad_()
            return own, function(own, n_iters).grad_fn

        return {
            "forward": forward,
            "backward": lambda: torch.autograd.grad(y, leaf, dy, retain_graph=True)[0],
            "both": lambda: torch.autograd.grad(function(leaf, n_iters), leaf, dy)[0],
            "kept": kept,
        }

    return build


def floor(x: torch.Tensor, dy: torch.Tensor, n_iters: int) -> Passes:
    """The same bytes moved by PyTorch: a copy for forward, an addition for backward."""
    out, dx = torch.empty_like(x), torch.empty_like(x)

    def both():
        out.copy_(x)
        return torch.add(x, dy, out=dx)

    return {"forward": partial(out.copy_, x), "backward": partial(torch.add, x, dy, out=dx), "both": both}


def imported(module: str, name: str, *more: object, **options: object) -> Build:
    """Passes of a function of a module, which takes (logits, T) and what follows."""

    def load():
        function = attrgetter(name)(import_module(module))
        # a call has no more of Python in it than it needs: the host's time counts
        return (lambda x, n_iters: function(x, n_iters, *more)) if more else partial(function, **options)

    return differentiable(load)


def load_eager():
    from helion_sinkhorn import reference

    return reference.sinkhorn


@functools.cache
def load_compiled():
    import torch._functorch.config

    # the backward pass alone is run again and again on one forward pass
    torch._functorch.config.donated_buffer = False
    return torch.compile(load_eager(), dynamic=False)


def liger(history: bool) -> Build:
    """The raw kernels: the package has no function of Sinkhorn alone, and no autograd around it."""

    def build(x: torch.Tensor, dy: torch.Tensor, n_iters: int) -> Passes:
        from liger_kernel.ops.mhc import mhc_sinkhorn_bwd, mhc_split_sinkhorn_fwd

        batch, n = x.shape[:2]
        mix = torch.cat([x.new_zeros(batch, 2 * n), x.reshape(batch, n * n)], 1)
        zero, one = x.new_zeros(mix.size(1)), x.new_ones(1)

        def run():
            return mhc_split_sinkhorn_fwd(
                mix, zero, one, one, one, tmax=n_iters, pre_eps=0.0, sinkhorn_eps=EPS, post_mult=2.0,
                return_hist=history,
            )[2:]  # fmt: skip

        def adjoint(states):
            kept = states[0] if states else None
            return mhc_sinkhorn_bwd(mix, zero, one, dy, tmax=n_iters, sinkhorn_eps=EPS, hist=kept)

        kept = run()[1:]
        return {
            "forward": lambda: run()[0],
            "backward": lambda: adjoint(kept),
            "both": lambda: adjoint(run()[1:]),
            "kept": lambda: (mix.clone(), run()[1:]),
        }

    return build


def transformer_engine(history: bool) -> Build:
    def load():
        sinkhorn = peer_files.transformer_engine().mhc_fused_sinkhorn
        return lambda x, n_iters: sinkhorn(x[None], x.size(-1), not history, n_iters)[0]

    return differentiable(load)


def load_megatron():
    sinkhorn = peer_files.megatron().fused_sinkhorn
    return lambda x, n_iters: sinkhorn(x, n_iters, EPS)


def flag_gems(x: torch.Tensor, dy: torch.Tensor, n_iters: int) -> Passes:
    from flag_gems.fused.mhc.hc_split_sinkhorn import hc_split_sinkhorn

    batch, n = x.shape[:2]
    mix = torch.cat([x.new_zeros(batch, 2 * n), x.reshape(batch, n * n)], 1)
    scale, base = x.new_ones(3), x.new_zeros(mix.size(1))
    return {"forward": lambda: hc_split_sinkhorn(mix, scale, base, n, n_iters, EPS)[2]}


OURS = "helion_sinkhorn"
FLOOR = "copy"
COMPILED = "torch.compile"
_MIX = "also computes pre and post from a (B, n n + 2 n) mix: moves half as much again"
_FLA = imported("fla.ops.utils.sinkhorn", "sinkhorn"), "log", "cols", "fla-core", tuple(range(1, 9))
_LIGER = dict(package="liger-kernel", sizes=(2, 4, 8, 16))
_TE = dict(form="log", file=peer_files.TRANSFORMER_ENGINE, sizes=(4,))

FUNCTIONS = {
    FLOOR: Function(floor, form="", note="y.copy_(x); torch.add(x, dy, out=dx)"),
    OURS: Function(imported("helion_sinkhorn", "sinkhorn", form="deepseek", first="rows")),
    f"{OURS} log": Function(imported("helion_sinkhorn", "sinkhorn", form="log", first="rows"), form="log"),
    "eager": Function(differentiable(load_eager), note="reference.sinkhorn"),
    COMPILED: Function(differentiable(load_compiled), note="of reference.sinkhorn, dynamic=False"),
    "Liger, recompute": Function(liger(False), **_LIGER, note=_MIX),
    "Liger, history": Function(liger(True), **_LIGER, note=f"{_MIX}; keeps T matrices for backward"),
    "fla, Triton": Function(*_FLA, note="its default"),
    "fla, Gluon": Function(*_FLA, note="opt-in", environment={"FLA_GLUON": "1"}),
    "FlagGems": Function(flag_gems, package="flag-gems", note=f"{_MIX}; has no gradient of this form"),
    "hyper-connections": Function(
        imported("hyper_connections.triton_sinkhorn", "TritonSinkhornFunction.apply"), "log", "cols",
        "hyper-connections", note="its gradient takes the last P for every step",
    ),
    # from version 2 on there is no autograd, and it takes torch 2.13 and CUDA 13.1
    "TileKernels": Function(
        imported("tile_kernels.modeling.mhc.ops", "sinkhorn_normalize", EPS),
        package="tile-kernels", sizes=(4,), note="version 1.0",
    ),
    "TransformerEngine, recompute": Function(transformer_engine(False), **_TE, note="its default"),
    "TransformerEngine, history": Function(
        transformer_engine(True), **_TE, note="keeps the potentials of every iteration"
    ),
    "Megatron-LM": Function(
        differentiable(load_megatron), file=peer_files.MEGATRON, sizes=(2, 4, 8, 16),
        note="its Triton kernels, of branch dev; backward writes every iterate to memory",
    ),
}  # fmt: skip
PEERS = tuple(name for name, f in FUNCTIONS.items() if f.package or f.file)

LEFT_OUT = {
    "mhc": "PyTorch operations without kernels, eps = 1e-9: what `eager` stands for",
    "triton-sinkhorn": "in no package index; keeps 2 T matrices, one program a matrix",
}
"""Known, and not timed here, with the reason."""


def load(name: str) -> Function:
    """The row, its environment set."""
    function = FUNCTIONS[name]
    os.environ.update(function.environment)
    return function
