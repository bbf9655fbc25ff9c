"""From tensors to kernel launches: canonical views, the choice of a config, scratch and slices."""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Hashable
from typing import Any

import helion
import torch

from helion_sinkhorn.configs.device import DEVICES, Device, current
from helion_sinkhorn.configs.lookup import lookup
from helion_sinkhorn.kernels import (
    REGISTER_HISTORY_ENTRIES,
    REGISTER_HISTORY_STEPS,
    Call,
    Choice,
    build,
    default_choice,
    power_of_two,
)
from helion_sinkhorn.kernels.dispatch import repeat, run
from helion_sinkhorn.scaling import pairs_are_safe, pivot_is_safe, segment_length
from helion_sinkhorn.stationarity import cg_steps, solver_for
from helion_sinkhorn.workloads import tagged

log = logging.getLogger("helion_sinkhorn")
VECTOR_BYTES = 16
SCRATCH_BYTES = 64 << 20
"""History of one launch of `sinkhorn_backward_history`: it should stay in the last-level cache."""
MOST_REPEATS = 4096
_repeats: dict[Hashable, Callable[..., None] | None] = {}
"""Launches by all that decides one but the addresses of the tensors; None where `repeat` knows none."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """All of a launch that does not depend on the tensors' contents or place."""

    kernel: helion.Kernel
    name: str
    call: Call
    constants: tuple[Any, ...]
    packed: bool
    choice: Choice = dataclasses.field(compare=False)


def call_for(n: int, m: int, dtype: torch.dtype, n_iters: int, eps: float, form: str, first: str) -> Call:
    """Without eps the deepseek form is the log form: softmax is its first row step."""
    return Call(form == "deepseek" and eps > 0, 1 if first == "rows" else 2, str(dtype)[6:], n, m, n_iters)


def call_of(x: torch.Tensor, n_iters: int, eps: float, form: str, first: str) -> Call:
    """`call_for` a tensor."""
    return call_for(*x.shape[-2:], x.dtype, n_iters, eps, form, first)


def backward_kernel(call: Call) -> str:
    """The kernel for a gradient: register history while the iterations and the matrix are few and small."""
    few = call.steps <= min(REGISTER_HISTORY_STEPS, segment(call))
    small = call.n * call.m <= REGISTER_HISTORY_ENTRIES
    return "sinkhorn_backward" if few and small else "sinkhorn_backward_history"


def segment(call: Call) -> int:
    """Iterations between restarts; the deepseek form needs none, eps bounds u v."""
    return call.n_iters if call.deepseek else segment_length(call.n, call.m)


@functools.lru_cache(maxsize=4096)
def choose(name: str, call: Call, batch: int, device: Device) -> Choice:
    """The stored config for this call, or the kernel's default."""
    entry = lookup(device, name, call.key, batch)
    if entry is not None:
        stored = Choice(name, entry.config, entry.variant, f"{entry.path} ({entry.evidence})", True)
        if stored not in _refused:
            return stored
    return default_choice(name, call, device)


_refused: set[Choice] = set()
_saying = threading.Lock()


def refuse(choice: Choice, refusal: Exception) -> None:
    """Take a stored choice out of service: the kernel's default serves from now on.

    Raises:
        Exception: the refusal itself, where the choice was not a stored one or memory ran out.
    """
    if not choice.stored or isinstance(refusal, torch.OutOfMemoryError):
        raise refusal
    with _saying:
        if choice not in _refused:
            log.warning("%s is refused (%s): the kernel's default serves", choice, refusal)
            _refused.add(choice)
    for cache in (choose, served, implicit_served):
        cache.cache_clear()


@functools.cache
def tuned_keys() -> frozenset[tuple[Any, ...]]:
    """Keys, without the batch, that `make tune` covers."""
    return frozenset(
        call_for(w.n, w.m, w.dtype, *w.arguments).key for w in tagged("tune") if w.backward == "exact"
    )


@functools.cache
def say_untuned(device: Device, name: str) -> None:
    """Once a process: nothing is stored for a call that the tuner would cover."""
    log.warning(
        "%s is not tuned for %s and runs with its default config; `make tune DEVICE=%s KERNEL=%s` tunes it",
        name, device.key, device.key, name,
    )  # fmt: skip


def index_of(x: torch.Tensor) -> int | None:
    """The GPU a tensor is on."""
    return x.device.index if x.is_cuda else None


def device_at(index: int | None) -> tuple[Device, str, bool]:
    """(row, reciprocal, interpret) for cuda:index; None is a CPU, interpreted with an H200's configs."""
    if index is None:
        return DEVICES["h200"], "full", True
    device = current(index)
    return device, device.asm, False


@functools.lru_cache(maxsize=8192)
def served(
    gradient: bool,
    n: int,
    m: int,
    dtype: torch.dtype,
    n_iters: int,
    eps: float,
    form: str,
    first: str,
    batch: int,
    index: int | None,
    choice: Choice | None,
) -> Prepared:
    """What `forward` or `backward` launches for these arguments: the choice named, or the one looked up."""
    call = call_for(n, m, dtype, n_iters, eps, form, first)
    device, how, interpret = device_at(index)
    name = backward_kernel(call) if gradient else "sinkhorn_forward"
    taken = choice or choose(name, call, batch, device)
    if not (interpret or taken.stored or choice) and device.key in DEVICES and call.key in tuned_keys():
        with _saying:
            say_untuned(device, name)
    try:
        return prepare(call, eps, taken, how, interpret)
    except Exception as refusal:
        refuse(taken, refusal)
        return prepare(call, eps, default_choice(name, call, device), how, interpret)


def ready_for(
    gradient: bool, x: torch.Tensor, n_iters: int, eps: float, form: str, first: str, choice: Choice | None
) -> Prepared:
    """`served` for logits x."""
    n, m = x.shape[-2:]
    return served(
        gradient, n, m, x.dtype, n_iters, eps, form, first, x.numel() // (n * m), index_of(x), choice
    )  # fmt: skip


def prepare(call: Call, eps: float, choice: Choice, how: str, interpret: bool) -> Prepared:
    """The kernel built for a choice, with the constants its body takes after the tensors."""
    variant = dict(choice.variant)
    kernel_eps = eps if call.deepseek else 0.0
    paired = variant.get("paired", False) and pairs_are_safe(call.n, call.m, call.steps, kernel_eps)
    packed = variant.get("packed", False)
    pivoted = variant.get("pivoted", False) and pivot_is_safe(call.steps, kernel_eps)
    own = {
        "sinkhorn_forward": (segment(call), how, paired, packed, pivoted),
        "sinkhorn_backward": (variant.get("length"), how, paired, packed, pivoted),
        "sinkhorn_backward_history": (segment(call), how),
    }[choice.kernel]
    shared = (call.n, call.m, call.n_iters, kernel_eps, call.deepseek, call.lead_axis)
    return Prepared(
        build(choice.kernel, choice.config, interpret), choice.kernel, call, shared + own, packed, choice
    )


def matrices(x: torch.Tensor) -> torch.Tensor:
    """(B, n, m) with contiguous matrices at any distance; a copy where the layout has no such view.

    A start off the 16-byte grid is copied too: code without vector loads sums in another order.
    """
    n, m = x.shape[-2:]
    if x.data_ptr() % VECTOR_BYTES:
        x = x.clone(memory_format=torch.contiguous_format)
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
    if c == x.size(2):
        return x
    return x.as_strided((x.size(0), size // c, c), (x.stride(0), c, 1))


def loaded(x: torch.Tensor, packed: bool) -> torch.Tensor:
    """An argument as the kernel reads it."""
    x = matrices(x)
    return pieces(x) if packed else x


def stored(out: torch.Tensor, call: Call, packed: bool) -> torch.Tensor:
    """A contiguous result as the kernel writes it."""
    return out.view(-1, call.n * call.m) if packed else out.view(-1, call.n, call.m)


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
    out = torch.empty_like(x, dtype=out_dtype, memory_format=torch.contiguous_format)
    key = x.shape, x.stride(), x.dtype, x.device, out_dtype, n_iters, eps, form, first, choice
    again = _repeats.get(key)
    if again is not None and x.data_ptr() % VECTOR_BYTES == 0:
        again(x, out)
    elif x.numel():
        ready = ready_for(False, x, n_iters, eps, form, first, choice)
        try:
            views = loaded(x, ready.packed), stored(out, ready.call, ready.packed)
            run_and_remember(ready, views, (x, out), key)
        except Exception as refusal:
            refuse(ready.choice, refusal)
            return forward(x, n_iters, eps, form, first, out_dtype)
    return out


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
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    key = x.shape, x.stride(), x.dtype, x.device, dy.stride(), dy.dtype, n_iters, eps, form, first, choice
    again = _repeats.get(key)
    if again is not None and (x.data_ptr() | dy.data_ptr()) % VECTOR_BYTES == 0:
        again(x, dy, dx)
    elif x.numel():
        ready = ready_for(True, x, n_iters, eps, form, first, choice)
        try:
            views = loaded(x, ready.packed), loaded(dy, ready.packed), stored(dx, ready.call, ready.packed)
            if ready.name == "sinkhorn_backward_history":
                run_with_history(ready, *views)
            else:
                run_and_remember(ready, views, (x, dy, dx), key)
        except Exception as refusal:
            refuse(ready.choice, refusal)
            return backward(dy, x, n_iters, eps, form, first)
    return dx


def run_and_remember(
    ready: Prepared, views: tuple[torch.Tensor, ...], tensors: tuple[torch.Tensor, ...], key: Hashable
) -> None:
    """One launch on views of the tensors; where they are no copies it is kept for the calls like it."""
    run(ready.kernel, *views, *ready.constants)
    in_place = all(v.data_ptr() == t.data_ptr() for v, t in zip(views, tensors, strict=True))
    if in_place and key not in _repeats:
        # a program of ever new shapes starts anew now and then
        if len(_repeats) >= MOST_REPEATS:
            _repeats.clear()
        _repeats[key] = repeat(ready.kernel, *views, *ready.constants)


def run_with_history(ready: Prepared, x: torch.Tensor, dy: torch.Tensor, dx: torch.Tensor) -> None:
    """One launch for each slice of the batch whose history fits SCRATCH_BYTES; all share one scratch."""
    call = ready.call
    lead, trail = (call.n, call.m) if call.lead_axis == 1 else (call.m, call.n)
    steps = max(call.steps, 1)
    restarts = (steps - 1) // segment(call)
    floats = steps * (lead + trail) + restarts * call.n * call.m
    batch = x.size(0)
    most = max(16, SCRATCH_BYTES // (4 * floats) // 16 * 16)
    # Powers of two are few host functions to generate, and strides that 16 divides one binary: with others
    # Triton loads the history in another layout and sums in another order
    room = min(most, max(16, power_of_two(batch)))
    size = min(batch, room)
    empty = functools.partial(torch.empty, dtype=torch.float32, device=x.device)
    us, vs = empty(steps, room, lead), empty(steps, room, trail)
    logits = empty(max(restarts, 1), room if restarts else 2, call.n, call.m)
    for begin in range(0, batch, size):
        rows = slice(begin, begin + size)
        run(ready.kernel, x[rows], dy[rows], dx[rows], us, vs, logits, *ready.constants)


def implicit_call(n: int, m: int, dtype: torch.dtype, n_iters: int) -> Call:
    """The key of the implicit kernels for P (..., n, m): they see neither form nor first, no more columns
    than rows, and as many iterations as conjugate gradients take steps."""
    return Call(False, 1, str(dtype)[6:], max(n, m), min(n, m), cg_steps("corrected", n, m, n_iters))


def implicit_kernel(solver: str, call: Call) -> str:
    """The kernel of an implicit gradient."""
    return f"sinkhorn_implicit_{solver_for(solver, call.n, call.m)}"


@functools.lru_cache(maxsize=1024)
def implicit_served(
    call: Call, batch: int, steps: int, system: str, solver: str, index: int | None, choice: Choice | None
) -> Prepared:
    """What `implicit_backward` launches."""
    device, how, interpret = device_at(index)
    name = implicit_kernel(solver, call)
    taken = choice or choose(name, call, batch, device)
    try:
        return implicit_prepare(call, steps, system, taken, how, interpret)
    except Exception as refusal:
        refuse(taken, refusal)
        return implicit_prepare(call, steps, system, default_choice(name, call, device), how, interpret)


def implicit_prepare(
    call: Call, steps: int, system: str, choice: Choice, how: str, interpret: bool
) -> Prepared:
    """`prepare` for the implicit kernels."""
    packed = dict(choice.variant).get("packed", False) and system == "corrected"
    own = {
        "sinkhorn_implicit_direct": (system == "corrected", how, packed),
        "sinkhorn_implicit_cg": (steps, system, how),
    }[choice.kernel]
    kernel = build(choice.kernel, choice.config, interpret)
    return Prepared(kernel, choice.kernel, call, (call.n, call.m, *own), packed, choice)


def implicit_backward(
    dy: torch.Tensor,
    p: torch.Tensor,
    n_iters: int,
    system: str,
    solver: str,
    dtype: torch.dtype,
    choice: Choice | None = None,
) -> torch.Tensor:
    """dX for cotangents dy at P (..., n, m), as if P were a fixed point; dX has the given dtype."""
    dx = torch.empty(p.shape, dtype=dtype, device=p.device)
    key = (
        p.shape, p.stride(), p.dtype, p.device, dy.stride(), dy.dtype, dtype, n_iters, system, solver, choice
    )  # fmt: skip
    again = _repeats.get(key)
    if again is not None and (p.data_ptr() | dy.data_ptr()) % VECTOR_BYTES == 0:
        again(p, dy, dx)
    elif p.numel():
        n, m = p.shape[-2:]
        call, steps = implicit_call(n, m, p.dtype, n_iters), cg_steps(system, n, m, n_iters)
        ready = implicit_served(call, p.numel() // (n * m), steps, system, solver, index_of(p), choice)
        try:
            if ready.packed:
                views = loaded(p, True), loaded(dy, True), stored(dx, call, True)
            else:
                views = matrices(p), matrices(dy), dx.view(-1, n, m)
                if n < m:
                    views = tuple(t.mT for t in views)
            run_and_remember(ready, views, (p, dy, dx), key)
        except Exception as refusal:
            refuse(ready.choice, refusal)
            return implicit_backward(dy, p, n_iters, system, solver, dtype)
    return dx


def with_variant(choice: Choice, **values: object) -> Choice:
    """The same choice with other values of some variants."""
    return dataclasses.replace(choice, variant=tuple(sorted({**dict(choice.variant), **values}.items())))


def describe(x: torch.Tensor, n_iters: int, eps: float, form: str, first: str) -> tuple[str, str, str]:
    """(device key, forward choice, backward choice) for these arguments, in words."""
    call = call_of(x, n_iters, eps, form, first)
    device, _, _ = device_at(index_of(x))
    batch = x.numel() // (call.n * call.m)
    names = "sinkhorn_forward", backward_kernel(call)
    return (f"{device.key} ({x.device})", *(str(choose(name, call, batch, device)) for name in names))


def describe_implicit(
    x: torch.Tensor, n_iters: int, eps: float, form: str, first: str, solver: str
) -> tuple[str, str, str]:
    """`describe` with the choice of the implicit backward."""
    where, forward_choice, _ = describe(x, n_iters, eps, form, first)
    device, _, _ = device_at(index_of(x))
    call = implicit_call(*x.shape[-2:], x.dtype, n_iters)
    batch = x.numel() // (call.n * call.m)
    return where, forward_choice, str(choose(implicit_kernel(solver, call), call, batch, device))
