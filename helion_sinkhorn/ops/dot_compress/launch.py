"""From tensors to launches of the dot compress kernels: views, the choice of configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from helion_sinkhorn.ops.dot_compress import space
from helion_sinkhorn.ops.dot_compress.space import DotCall, padded, shrunk_to_fill
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import NO_CHOICES, Choices, Chosen, launch
from helion_sinkhorn.runtime.views import matrices
from helion_sinkhorn.runtime.wanted import Some, room_for

BODIES = "helion_sinkhorn.ops.dot_compress.kernels"


def facts(chosen: Chosen, call: DotCall, batch: int, *names: str) -> tuple[Any, ...]:
    """What a body takes after its tensors, with named values of the variant; a depth may be all columns."""
    variant, columns = chosen.choice.variant, padded(call.k)
    if not (chosen.choice.stored or chosen.named):
        variant = shrunk_to_fill(variant, call, batch, chosen.device)
    values = {"depth": columns, **dict(variant)}
    own = values["block_d"], columns, *(values[name] for name in names)
    return call.d, call.k, *own, call.parts, chosen.interpret


KERNELS = {
    name: Kernel(name, f"{BODIES}:{name}", DotCall, *configs, facts)
    # configs: the default and the space
    for name, *configs in (
        ("dot_compress_product", space.product_default, space.product_space),
        ("dot_compress_apply", space.apply_default, space.apply_space),
        ("dot_compress_expand", space.expand_default, space.expand_space),
    )
}


def call_of(x: torch.Tensor, y: torch.Tensor, parts: int) -> DotCall:
    """What the configs for x (B, M, D) and y (B, M, K) are chosen for."""
    return DotCall(str(x.dtype)[6:], x.size(1), x.size(2), y.size(2), parts)


def product(
    x: torch.Tensor, y: torch.Tensor, z: torch.Tensor | None, b: torch.Tensor, choice: Choice | None = None
) -> None:
    """Write b (B, parts, D, K) = x'y + z."""
    kernel, call = KERNELS["dot_compress_product"], call_of(x, y, b.size(1))
    launch(kernel, call, (x, y, z, b), len(x), batch=len(x), choice=choice)


def apply(x: torch.Tensor, b: torch.Tensor, out: torch.Tensor, choice: Choice | None = None) -> None:
    """Write out (B, M, K) = x b."""
    kernel, call = KERNELS["dot_compress_apply"], call_of(x, out, b.size(1))
    launch(kernel, call, (x, b, out), len(x), "rows", batch=len(x), choice=choice)


def expand(
    grad: torch.Tensor, y: torch.Tensor, b: torch.Tensor, db: torch.Tensor, dx: torch.Tensor,
    choice: Choice | None = None,
) -> None:  # fmt: skip
    """Write dx (B, M, D) = grad b' + y db'."""
    kernel, call = KERNELS["dot_compress_expand"], call_of(dx, y, b.size(1))
    launch(kernel, call, (grad, y, b, db, dx), len(y), "depth", "rows", batch=len(y), choice=choice)


def forward(
    x: torch.Tensor, y: torch.Tensor, z: torch.Tensor | None, parts: int, choices: Choices = NO_CHOICES
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, b) for x (B, M, D), y (B, M, K), z (B, D, K); b is (B, parts, D, K)."""
    x, y = matrices(x), matrices(y)
    z = None if z is None else matrices(z)
    out = torch.empty_like(y, memory_format=torch.contiguous_format)
    b = torch.empty((x.size(0), parts, x.size(2), y.size(2)), dtype=x.dtype, device=x.device)
    product(x, y, z, b, choices.get("dot_compress_product"))
    apply(x, b, out, choices.get("dot_compress_apply"))
    return out, b


def backward(
    grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, b: torch.Tensor,
    wanted: Sequence[bool] = (True,) * 3, choices: Choices = NO_CHOICES,
) -> tuple[Some, ...]:  # fmt: skip
    """(dx, dy, db), None for each that is not wanted; dx and dy are made of db, (B, parts, D, K) like b."""
    grad, x, y, b = matrices(grad), matrices(x), matrices(y), b.contiguous()
    dx, dy, db = *room_for((x, y), wanted[:2]), torch.empty_like(b)
    product(x, grad, None, db, choices.get("dot_compress_product"))
    if dy is not None:
        apply(x, db, dy, choices.get("dot_compress_apply"))
    if dx is not None:
        expand(grad, y, b, db, dx, choices.get("dot_compress_expand"))
    return dx, dy, db if wanted[2] else None
