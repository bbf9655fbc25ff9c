"""From tensors to launches of the dot compress kernels: views, the choice of configs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.configs.store import Key
from helion_sinkhorn.kernels import Choice, build, launch
from helion_sinkhorn.kernels.dot_compress_space import DotCall, fitted, padded
from helion_sinkhorn.workloads import DotWorkload, tagged

Choices = Mapping[str, Choice]
NO_CHOICES: Choices = MappingProxyType({})
COMPUTES = {
    "dot_compress_product": ("out", "dz"),
    "dot_compress_apply": ("out", "dy"),
    "dot_compress_expand": ("dx",),
}
"""The results in which an error of a kernel shows."""


def call_of(x: torch.Tensor, y: torch.Tensor, parts: int) -> DotCall:
    """What the configs for x (B, M, D) and y (B, M, K) are chosen for."""
    return DotCall(str(x.dtype)[6:], x.size(1), x.size(2), y.size(2), parts)


@functools.cache
def tuned_keys() -> frozenset[Key]:
    """Keys, without the batch, that `make tune` covers."""
    calls = (DotCall(str(w.dtype)[6:], w.m, w.d, w.k, w.parts) for w in tagged("tune", DotWorkload))
    return frozenset(call.key for call in calls)


def run(
    name: str,
    call: DotCall,
    choice: Choice | None,
    tensors: tuple[torch.Tensor | None, ...],
    constants: Callable[[dict[str, int]], tuple[int, ...]],
) -> None:
    """Launch a kernel with the choice named, or the one looked up; `constants` follow from its variant."""
    x = tensors[0]
    device, _, interpret = launch.device_at(launch.index_of(x))
    taken = choice or launch.choose(name, call, x.size(0), device)
    if not (interpret or taken.stored or choice) and device.key in DEVICES and call.key in tuned_keys():
        launch.say_untuned(device, name)
    try:
        kernel = build(name, taken.config, interpret)
        variant = taken.variant if taken.stored or choice else fitted(taken.variant, call, x.size(0), device)
        own = call.d, call.k, *constants(dict(variant)), call.parts
        launch.run(kernel, *tensors, *own, interpret)
    except Exception as refusal:
        launch.refuse(taken, refusal)
        run(name, call, None, tensors, constants)


def product(
    x: torch.Tensor, y: torch.Tensor, z: torch.Tensor | None, b: torch.Tensor, choice: Choice | None = None
) -> None:
    """b (B, parts, D, K) = x'y + z."""
    call = call_of(x, y, b.size(1))
    run("dot_compress_product", call, choice, (x, y, z, b), lambda v: (v["block_d"], padded(call.k)))


def apply(x: torch.Tensor, b: torch.Tensor, out: torch.Tensor, choice: Choice | None = None) -> None:
    """out (B, M, K) = x b."""
    call = call_of(x, out, b.size(1))
    run("dot_compress_apply", call, choice, (x, b, out), lambda v: (v["block_d"], padded(call.k), v["rows"]))


def expand(
    grad: torch.Tensor,
    y: torch.Tensor,
    b: torch.Tensor,
    db: torch.Tensor,
    dx: torch.Tensor,
    choice: Choice | None = None,
) -> None:
    """dx (B, M, D) = grad b' + y db'."""
    call = call_of(dx, y, b.size(1))
    tensors = grad, y, b, db, dx
    run("dot_compress_expand", call, choice, tensors, lambda v: (v["block_d"], padded(call.k), v["rows"]))


def forward(
    x: torch.Tensor, y: torch.Tensor, z: torch.Tensor | None, parts: int, choices: Choices = NO_CHOICES
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, b) for x (B, M, D), y (B, M, K), z (B, D, K); b is (B, parts, D, K).

    choices: by the name of the kernel, where the caller has one of its own.
    """
    x, y = launch.matrices(x), launch.matrices(y)
    z = None if z is None else launch.matrices(z)
    out = torch.empty_like(y, memory_format=torch.contiguous_format)
    b = torch.empty((x.size(0), parts, x.size(2), y.size(2)), dtype=x.dtype, device=x.device)
    product(x, y, z, b, choices.get("dot_compress_product"))
    apply(x, b, out, choices.get("dot_compress_apply"))
    return out, b


def backward(
    grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, b: torch.Tensor, choices: Choices = NO_CHOICES
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dx, dy, db); db is like b (B, parts, D, K)."""
    grad, x, y, b = launch.matrices(grad), launch.matrices(x), launch.matrices(y), b.contiguous()
    dx, dy = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, y))
    db = torch.empty_like(b)
    product(x, grad, None, db, choices.get("dot_compress_product"))
    apply(x, db, dy, choices.get("dot_compress_apply"))
    expand(grad, y, b, db, dx, choices.get("dot_compress_expand"))
    return dx, dy, db
