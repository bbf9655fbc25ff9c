"""KERNELS: every Helion kernel body with the config it takes when none was tuned for the call.

Importing this module imports Helion; the package does so on the first call that needs it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import helion
import torch

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.kernels import (
    bodies,
    dot_compress,
    history,
    implicit,
    linear_attention,
    linear_attention_gates,
)
from helion_sinkhorn.kernels import dot_compress_space as dot
from helion_sinkhorn.kernels import linear_attention_chunked as chunked
from helion_sinkhorn.kernels import linear_attention_space as attention
from helion_sinkhorn.kernels import sinkhorn_space as sinkhorn
from helion_sinkhorn.kernels.sinkhorn_space import Call
from helion_sinkhorn.kernels.space import Grid, Items


@dataclass(frozen=True)
class Choice:
    """A kernel with everything a launch needs to know, and where that came from."""

    kernel: str
    config: Items
    variant: Items
    source: str
    stored: bool = False
    """Whether it was looked up, and not the kernel's default or named by the caller."""

    def __str__(self) -> str:
        values = ", ".join(f"{k}={v}" for k, v in (*self.config, *self.variant))
        return f"{self.kernel} ({values}) from {self.source}"


@dataclass(frozen=True)
class Kernel:
    """One row of KERNELS."""

    body: Callable[..., None]
    default: Callable[[Call, Device], tuple[Items, Items]]
    space: Callable[[Call, Device], tuple[Grid, ...]]
    """What the tuner tries: the product of each grid's values."""
    call: type[Any] = Call
    """What its configs are chosen for: hashable, of JSON values, with `key`, `of(key)` and `dtype`."""
    products: str = "ieee"
    """Of float32 matrices on NVIDIA: as they are, or "tf32x3", three products of parts, to 2^-21."""


KERNELS = {
    "sinkhorn_forward": Kernel(bodies.sinkhorn_forward, sinkhorn.forward_default, sinkhorn.forward_space),
    "sinkhorn_backward": Kernel(bodies.sinkhorn_backward, sinkhorn.backward_default, sinkhorn.backward_space),
    "sinkhorn_backward_history": Kernel(
        history.sinkhorn_backward_history, sinkhorn.history_default, sinkhorn.history_space
    ),
    "sinkhorn_implicit_direct": Kernel(
        implicit.sinkhorn_implicit_direct, sinkhorn.implicit_direct_default, sinkhorn.implicit_direct_space
    ),
    "sinkhorn_implicit_cg": Kernel(
        implicit.sinkhorn_implicit_cg, sinkhorn.implicit_cg_default, sinkhorn.implicit_cg_space
    ),
    "dot_compress_product": Kernel(
        dot_compress.dot_compress_product, dot.product_default, dot.product_space, dot.DotCall
    ),
    "dot_compress_apply": Kernel(
        dot_compress.dot_compress_apply, dot.apply_default, dot.apply_space, dot.DotCall
    ),
    "dot_compress_expand": Kernel(
        dot_compress.dot_compress_expand, dot.expand_default, dot.expand_space, dot.DotCall
    ),
    "linear_attention_walk": Kernel(
        linear_attention.linear_attention_walk,
        attention.walk_default,
        attention.walk_space,
        linear_attention.WalkCall,
    ),
    "linear_attention_gates": Kernel(
        linear_attention_gates.linear_attention_gates,
        attention.gates_default,
        attention.gates_space,
        chunked.ChunkCall,
        "tf32x3",
    ),
    "linear_attention_chunk_scores": Kernel(
        chunked.linear_attention_chunk_scores,
        attention.chunk_scores_default,
        attention.chunk_scores_space,
        chunked.ChunkCall,
        "tf32x3",
    ),
    "linear_attention_chunk_walk": Kernel(
        chunked.linear_attention_chunk_walk,
        attention.chunk_walk_default,
        attention.chunk_walk_space,
        chunked.ChunkCall,
        "tf32x3",
    ),
    "linear_attention_chunk_gradients": Kernel(
        chunked.linear_attention_chunk_gradients,
        attention.chunk_gradients_default,
        attention.chunk_gradients_space,
        chunked.ChunkCall,
        "tf32x3",
    ),
}


def default_choice(name: str, call: Call, device: Device) -> Choice:
    """What serves a call that nothing was tuned for."""
    return Choice(name, *KERNELS[name].default(call, device), "the kernel's default")


def candidates(name: str, call: Call, device: Device) -> tuple[Choice, ...]:
    """The default and every point of the kernel's space, each once."""

    def points() -> Iterator[tuple[Items, Items]]:
        yield KERNELS[name].default(call, device)
        for grid in KERNELS[name].space(call, device):
            variants = {k: v for k, v in grid.items() if k != "config"}
            for config, *values in itertools.product(grid["config"], *variants.values()):
                yield config, tuple(zip(variants, values, strict=True))

    distinct: dict[tuple[Items, ...], tuple[Items, Items]] = {}
    for point in points():
        distinct.setdefault(tuple(tuple(sorted(items)) for items in point), point)
    return tuple(Choice(name, *point, "the kernel's space") for point in distinct.values())


def in_space(choice: Choice, call: Call, device: Device) -> bool:
    """Whether the kernel's space for this call on this device holds the choice, types of values included.

    No other variant may be launched: many are no error anywhere, and a count of -4 writes nothing.
    """

    def exactly(c: Choice) -> str:
        return repr((sorted(c.config), sorted(c.variant)))

    return exactly(choice) in map(exactly, candidates(choice.kernel, call, device))


@functools.cache
def build(name: str, config: Items, interpret: bool = False) -> helion.Kernel:
    """The Helion kernel `name` with this fixed config: nothing is ever autotuned by a call.

    interpret=True runs the body eagerly on CPU tensors (Helion's reference mode).
    """
    values = {k: list(v) if isinstance(v, tuple) else v for k, v in config}
    mode = {"ref_mode": helion.RefMode.EAGER} if interpret else {}
    return helion.kernel(
        KERNELS[name].body,
        config=helion.Config(**values),
        static_shapes=False,
        dot_precision="ieee" if torch.version.hip else KERNELS[name].products,
        # what it calls a tensor operation on the host is `x is not None`
        ignore_warnings=[helion.exc.TensorOperationInWrapper],
        **mode,
    )
