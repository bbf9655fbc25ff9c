"""From tensors to launches of the dot compress kernels: views, the choice of configs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from helion_sinkhorn.ops.dot_compress.space import (
    DotCall,
    apply_default,
    apply_space,
    expand_default,
    expand_space,
    padded,
    product_default,
    product_space,
    shrunk_to_fill,
)
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.serving import (
    NO_CHOICES,
    Choices,
    Served,
    launch_kept,
    layout_key,
    run_and_keep,
    serve,
)
from helion_sinkhorn.runtime.views import matrices

BODIES = "helion_sinkhorn.ops.dot_compress.kernels"
KERNELS = {
    name: Kernel(name, f"{BODIES}:{name}", DotCall, default, space)
    for name, default, space in (
        ("dot_compress_product", product_default, product_space),
        ("dot_compress_apply", apply_default, apply_space),
        ("dot_compress_expand", expand_default, expand_space),
    )
}


def call_of(x: torch.Tensor, y: torch.Tensor, parts: int) -> DotCall:
    """What the configs for x (B, M, D) and y (B, M, K) are chosen for."""
    return DotCall(str(x.dtype)[6:], x.size(1), x.size(2), y.size(2), parts)


def run(
    name: str,
    call: DotCall,
    choice: Choice | None,
    tensors: tuple[torch.Tensor | None, ...],
    constants: Callable[[dict[str, int]], tuple[int, ...]],
) -> None:
    """Launch a kernel with the choice named, or the one looked up; `constants` follow from its variant."""
    x = tensors[0]
    key = name, choice, call.parts, layout_key(*tensors)
    if launch_kept(key, *tensors):
        return

    def launch(served: Served) -> None:
        variant = served.choice.variant
        if not (served.choice.stored or served.named):
            variant = shrunk_to_fill(variant, call, x.size(0), served.device)
        own = call.d, call.k, *constants(dict(variant)), call.parts, served.interpret
        run_and_keep(served.kernel, tensors, own, tensors, key)

    serve(KERNELS, name, call, x.size(0), x, launch, choice)


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
    columns = padded(call.k)

    def constants(variant: dict[str, int]) -> tuple[int, ...]:
        return variant["block_d"], columns, variant.get("depth", columns), variant["rows"]

    run("dot_compress_expand", call, choice, (grad, y, b, db, dx), constants)


def forward(
    x: torch.Tensor, y: torch.Tensor, z: torch.Tensor | None, parts: int, choices: Choices = NO_CHOICES
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, b) for x (B, M, D), y (B, M, K), z (B, D, K); b is (B, parts, D, K).

    choices: by the name of the kernel, where the caller has one of its own.
    """
    x, y = matrices(x), matrices(y)
    z = None if z is None else matrices(z)
    out = torch.empty_like(y, memory_format=torch.contiguous_format)
    b = torch.empty((x.size(0), parts, x.size(2), y.size(2)), dtype=x.dtype, device=x.device)
    product(x, y, z, b, choices.get("dot_compress_product"))
    apply(x, b, out, choices.get("dot_compress_apply"))
    return out, b


def backward(
    grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, b: torch.Tensor, choices: Choices = NO_CHOICES
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dx, dy, db); db is like b (B, parts, D, K)."""
    grad, x, y, b = matrices(grad), matrices(x), matrices(y), b.contiguous()
    dx, dy = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, y))
    db = torch.empty_like(b)
    product(x, grad, None, db, choices.get("dot_compress_product"))
    apply(x, db, dy, choices.get("dot_compress_apply"))
    expand(grad, y, b, db, dx, choices.get("dot_compress_expand"))
    return dx, dy, db
