"""From tensors to kernel launches: canonical views, the choice of a config, scratch and slices."""

from __future__ import annotations

import dataclasses
import functools

import torch

from helion_sinkhorn.configs.device import DEVICES, Device, current
from helion_sinkhorn.configs.lookup import lookup
from helion_sinkhorn.kernels import KERNELS, REGISTER_HISTORY_ENTRIES, REGISTER_HISTORY_STEPS, Call, Choice, build, run
from helion_sinkhorn.scaling import pairs_are_safe, segment_length

LARGEST = 128
"""Most rows or columns of a matrix."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
VECTOR_BYTES = 16
SCRATCH_BYTES = 64 << 20
"""History of one launch of `sinkhorn_backward_history`: it should stay in the last-level cache."""


def call_of(x: torch.Tensor, n_iters: int, eps: float, form: str, first: str) -> Call:
    """Without eps the deepseek form is the log form: softmax is its first row step."""
    n, m = x.shape[-2:]
    return Call(form == "deepseek" and eps > 0, 1 if first == "rows" else 2, str(x.dtype)[6:], n, m, n_iters)


def backward_kernel(call: Call) -> str:
    """The kernel for a gradient: register history while the iterations and the matrix are few and small."""
    few = call.steps <= min(REGISTER_HISTORY_STEPS, segment_length(call.n, call.m))
    return "sinkhorn_backward" if few and call.n * call.m <= REGISTER_HISTORY_ENTRIES else "sinkhorn_backward_history"


@functools.lru_cache(maxsize=4096)
def choose(name: str, call: Call, batch: int, device: Device) -> Choice:
    """The stored config for this call, or the kernel's default."""
    entry = lookup(device, name, call.key, batch)
    if entry is not None:
        return Choice(name, entry.config, entry.variant, f"{entry.path} ({entry.evidence})")
    return Choice(name, *KERNELS[name].default(call, device), "the kernel's default")


def device_of(x: torch.Tensor) -> tuple[Device, str, bool]:
    """(row, reciprocal, interpret) for a tensor; CPU tensors are interpreted with an H200's configs."""
    if x.is_cuda:
        device = current(x.device.index)
        return device, device.asm, False
    return DEVICES["h200"], "full", True


def matrices(x: torch.Tensor) -> torch.Tensor:
    """(B, n, m) with contiguous matrices at any distance; a copy where the layout has no such view."""
    n, m = x.shape[-2:]
    if x.is_contiguous():
        return x.view(-1, n, m)
    x = x.reshape(-1, n, m)
    if (x.stride(2) == 1 or m == 1) and (x.stride(1) == m or n == 1):
        return x.as_strided(x.shape, (x.stride(0) if x.size(0) > 1 else n * m, m, 1))
    return x.contiguous()


def pieces(x: torch.Tensor) -> torch.Tensor:
    """A (B, n, m) view as (B, n m / c, c) with c entries of 16 bytes, for kernels that load pieces."""
    size = x.size(1) * x.size(2)
    c = min(VECTOR_BYTES // x.element_size(), size)
    return x.as_strided((x.size(0), size // c, c), (x.stride(0), c, 1))


def tuned(choice: Choice, call: Call, eps: float) -> dict[str, object]:
    """The variant as keyword values, pairs of reciprocals only where they cannot overflow."""
    variant = dict(choice.variant)
    if variant.get("paired") and not pairs_are_safe(call.n, call.m, call.steps, eps):
        variant["paired"] = False
    return variant


def forward(
    x: torch.Tensor,
    n_iters: int,
    eps: float,
    form: str,
    first: str,
    out_dtype: torch.dtype,
    choice: Choice | None = None,
) -> torch.Tensor:
    """P for logits x (..., n, m); the contract is api.sinkhorn's."""
    out = torch.empty(x.shape, dtype=out_dtype, device=x.device)
    if x.numel() == 0:
        return out
    call = call_of(x, n_iters, eps, form, first)
    eps = eps if call.deepseek else 0.0
    device, how, interpret = device_of(x)
    x3, out3 = matrices(x), out.view(-1, call.n, call.m)
    choice = choice or choose("sinkhorn_forward", call, x3.size(0), device)
    variant = tuned(choice, call, eps)
    if variant["packed"]:
        x3, out3 = pieces(x3), out3.view(-1, call.n * call.m)
    run(
        build(choice.kernel, choice.config, interpret), x3, out3, call.n, call.m, n_iters, eps, call.deepseek, call.lead_axis,
        segment(call), how, variant["paired"], variant["packed"],
    )  # fmt: skip
    return out


def segment(call: Call) -> int:
    """Iterations between restarts; the deepseek form needs none, eps bounds u v."""
    return call.n_iters if call.deepseek else segment_length(call.n, call.m)


def backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    n_iters: int,
    eps: float,
    form: str,
    first: str,
    choice: Choice | None = None,
) -> torch.Tensor:
    """dX for cotangents dy of `forward`'s result, any layout; dX has the dtype of x."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return dx
    call = call_of(x, n_iters, eps, form, first)
    eps = eps if call.deepseek else 0.0
    device, how, interpret = device_of(x)
    x3, dy3, dx3 = matrices(x), matrices(dy), dx.view(-1, call.n, call.m)
    choice = choice or choose(backward_kernel(call), call, x3.size(0), device)
    kernel = build(choice.kernel, choice.config, interpret)
    if choice.kernel == "sinkhorn_backward_history":
        launch_with_history(kernel, x3, dy3, dx3, call, eps, how)
        return dx
    variant = tuned(choice, call, eps)
    if variant["packed"]:
        x3, dy3, dx3 = pieces(x3), pieces(dy3), dx3.view(-1, call.n * call.m)
    run(
        kernel, x3, dy3, dx3, call.n, call.m, n_iters, eps, call.deepseek, call.lead_axis,
        variant["length"], how, variant["paired"], variant["packed"],
    )  # fmt: skip
    return dx


def launch_with_history(kernel, x, dy, dx, call: Call, eps: float, how: str) -> None:
    """One launch for each slice of the batch whose history fits SCRATCH_BYTES; all share one scratch."""
    lead, trail = (call.n, call.m) if call.lead_axis == 1 else (call.m, call.n)
    steps = max(call.steps, 1)
    restarts = (steps - 1) // segment(call)
    floats = steps * (lead + trail) + restarts * call.n * call.m
    batch = x.size(0)
    slice_size = min(batch, max(1, SCRATCH_BYTES // (4 * floats)))
    empty = functools.partial(torch.empty, dtype=torch.float32, device=x.device)
    us, vs = empty(steps, slice_size, lead), empty(steps, slice_size, trail)
    logits = empty(max(restarts, 1), slice_size if restarts else 1, call.n, call.m)
    for begin in range(0, batch, slice_size):
        rows = slice(begin, begin + slice_size)
        run(
            kernel, x[rows], dy[rows], dx[rows], us, vs, logits, call.n, call.m, call.n_iters, eps,
            call.deepseek, call.lead_axis, segment(call), how,
        )  # fmt: skip


def with_variant(choice: Choice, **values: object) -> Choice:
    """The same choice with other values of some variants."""
    return dataclasses.replace(choice, variant=tuple(sorted({**dict(choice.variant), **values}.items())))


def describe(x: torch.Tensor, n_iters: int, eps: float, form: str, first: str) -> tuple[str, str, str]:
    """(device key, forward choice, backward choice) for these arguments, in words."""
    call = call_of(x, n_iters, eps, form, first)
    device, _, _ = device_of(x)
    batch = x.numel() // (call.n * call.m)
    names = ("sinkhorn_forward", backward_kernel(call))
    return (f"{device.key} ({x.device})", *(str(choose(name, call, batch, device)) for name in names))
