"""From tensors to kernel launches: canonical views, the choice of a config, scratch and slices."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.ops.sinkhorn import scaling, space
from helion_sinkhorn.ops.sinkhorn.space import (
    REGISTER_HISTORY_ENTRIES,
    REGISTER_HISTORY_RESTARTED,
    REGISTER_HISTORY_STEPS,
    SinkhornCall,
)
from helion_sinkhorn.ops.sinkhorn.views import (
    is_ordered,
    kept_views,
    lanes_first,
    loaded,
    thread_of,
    written_view,
)
from helion_sinkhorn.runtime.kernel import Choice, Kernel, build
from helion_sinkhorn.runtime.launch import (
    Chosen,
    chosen_for,
    device_of,
    launch_chosen,
    launch_kept,
    run_and_keep,
    run_once,
)
from helion_sinkhorn.runtime.views import matrices_of

ROOM = "helion_sinkhorn.ops.sinkhorn"
COMMON = {"traits": frozenset({"normalises"}), "similar": SinkhornCall.as_tuned}


def facts(chosen: Chosen, call: SinkhornCall, n_iters: int, eps: float, *_: Any) -> tuple[Any, ...]:
    """The constants of a body."""
    return constants(call, eps, chosen.choice, chosen.reciprocal)


KERNELS = {
    name: Kernel(name, f"{ROOM}.{body}:{name}", SinkhornCall, *configs, facts, **COMMON)
    for name, body, *configs in (
        ("sinkhorn_forward", "kernels", space.forward_default, space.forward_space),
        ("sinkhorn_backward", "kernels", space.backward_default, space.backward_space),
        ("sinkhorn_backward_history", "history", space.history_default, space.history_space),
    )
}

SCRATCH_BYTES = 64 << 20
"""The most bytes of history of one launch of `sinkhorn_backward_history`, to stay in the last-level cache."""


@functools.lru_cache(maxsize=4096)
def call_for(
    n: int, m: int, dtype: torch.dtype, n_iters: int, eps: float, form: str, first: str
) -> SinkhornCall:
    """What configs are chosen for; without eps the deepseek form counts as the log form, which it equals."""
    return SinkhornCall(
        form == "deepseek" and eps > 0, 1 if first == "rows" else 2, str(dtype)[6:], n, m, n_iters
    )


def call_of(x: torch.Tensor, n_iters: int, eps: float, form: str, first: str) -> SinkhornCall:
    """`call_for` with the shape and dtype of a tensor."""
    return call_for(*x.shape[-2:], x.dtype, n_iters, eps, form, first)


def backward_kernel(call: SinkhornCall) -> str:
    """The kernel for a gradient: with the history in registers for few iterations of small matrices.

    On an H200 the history in memory is faster from 32 x 32 on, and from 16 x 16 where the log form restarts.
    """
    restarts = call.steps > segment(call)
    few = call.steps <= REGISTER_HISTORY_STEPS and 2 * call.steps <= 3 * segment(call)
    small = call.n * call.m <= (REGISTER_HISTORY_RESTARTED if restarts else REGISTER_HISTORY_ENTRIES)
    return "sinkhorn_backward" if few and small else "sinkhorn_backward_history"


def shift(call: SinkhornCall) -> int:
    """SHIFT where the log form needs a restart without it and none with it, otherwise 0."""
    few = call.deepseek or call.steps <= scaling.segment_length(call.n, call.m)
    return 0 if few or call.steps > scaling.shifted_length(call.n, call.m) else scaling.SHIFT


def segment(call: SinkhornCall) -> int:
    """Iterations between restarts; the deepseek form needs no restart, since eps bounds u v."""
    return call.n_iters if call.deepseek or shift(call) else scaling.segment_length(call.n, call.m)


def segments(call: SinkhornCall, length: int) -> tuple[int, int, int]:
    """(length, head, tail): how `sinkhorn_backward` divides its iterations.

    These are `head` segments of `length` iterations, then the 1 to `length` left over, and, where the log
    form has to restart, `tail` segments after the restart.
    """
    most = segment(call)
    if call.steps <= most:
        return length, max(call.steps - 1, 0) // length, 0
    length = min(length, most // 2)
    tail = most // length
    return length, (call.steps - tail * length - 1) // length, tail


def must_round(call: SinkhornCall, choice: Choice) -> bool:
    """Whether a thread of the kernel with history holds one entry of a line, or an unknown number."""
    thread = thread_of(choice)
    return min(thread) == 1 if any(thread) else call.n * call.m < 1024


def is_persistent(choice: Choice, how: str) -> bool:
    """Whether blocks take tile after tile; in the interpreter a block has one tile."""
    return how != "full" and dict(choice.config).get("pid_type", "flat") != "flat"


@functools.lru_cache(maxsize=4096)
def constants(call: SinkhornCall, eps: float, choice: Choice, how: str) -> tuple[Any, ...]:
    """The constants of the body of a choice's kernel; `how` pins its reciprocal."""
    variant = dict(choice.variant)
    kernel_eps = eps if call.deepseek else 0.0
    safe = not shift(call) and scaling.pairs_are_safe(call.n, call.m, call.steps, kernel_eps)
    paired = variant.get("paired", False) and safe
    pivoted = variant.get("pivoted", False) and scaling.pivot_is_safe(call.steps, kernel_eps)
    ordered = is_ordered(choice)
    rounded, persistent = must_round(call, choice), is_persistent(choice, how)
    by_lanes = lanes_first(call, choice)
    most, by = segment(call), shift(call)
    own = {
        "sinkhorn_forward": (most, by, how, ordered, by_lanes, paired, pivoted),
        "sinkhorn_backward": (
            *segments(call, variant.get("length", 1)), by, how, ordered, by_lanes, paired, pivoted,
            variant.get("lean", False) and scaling.lean_is_safe(call.n, call.m, kernel_eps),
        ),
        "sinkhorn_backward_history": (most, by, how, rounded, ordered, persistent, by_lanes),
    }[choice.kernel]  # fmt: skip
    return call.n, call.m, call.n_iters, kernel_eps, call.deepseek, call.lead_axis, *own


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
    # a kept launch is looked up before anything is prepared, which saves 1.7 us over `launch`
    key = x.shape, x.stride(), x.dtype, x.device, out_dtype, n_iters, eps, form, first, choice
    if launch_kept(key, x, out) or not x.numel():
        return out
    call, kernel = call_of(x, n_iters, eps, form, first), KERNELS["sinkhorn_forward"]

    def make(chosen: Chosen) -> None:
        views = loaded(x, chosen.choice), written_view(out, call, any(thread_of(chosen.choice)))
        own = kernel.after_tensors(chosen, call, n_iters, eps)
        run_and_keep(chosen, views, own, (x, out), key)

    launch_chosen(kernel, call, matrices_of(x), x, make, choice)
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
    if launch_kept(key, x, dy, dx) or not x.numel():
        return dx
    call = call_of(x, n_iters, eps, form, first)

    def make(chosen: Chosen) -> None:
        with_history = chosen.choice.kernel == "sinkhorn_backward_history"
        if with_history:
            chosen = with_bounded_history(chosen, call, x.device)
        flat = any(thread_of(chosen.choice))
        views = loaded(x, chosen.choice), loaded(dy, chosen.choice), written_view(dx, call, flat)
        own = kernel.after_tensors(chosen, call, n_iters, eps)
        if with_history:
            run_with_history(chosen, call, *views, own)
        else:
            run_and_keep(chosen, views, own, (x, dy, dx), key)

    kernel = KERNELS[choice.kernel if choice else backward_kernel(call)]
    launch_chosen(kernel, call, matrices_of(x), x, make, choice)
    return dx


def run_with_history(
    chosen: Chosen,
    call: SinkhornCall,
    x: torch.Tensor,
    dy: torch.Tensor,
    dx: torch.Tensor,
    own: tuple[Any, ...],
) -> None:
    """One launch of persistent blocks, or one for each slice of the batch that fits into SCRATCH_BYTES."""
    lead, trail = (call.n, call.m) if call.lead_axis == 1 else (call.m, call.n)
    kept, restarts = history_steps(call)
    batch, by_lanes = x.size(0), lanes_first(call, chosen.choice)
    if is_persistent(chosen.choice, chosen.reciprocal):
        if batch == 1:
            # The matrix is computed twice, to the same place.  For a batch of one Triton would compile
            # another program without the loop over blocks, in which LLVM fuses other products (32 x 32 on
            # sm_90, Triton 3.9)
            x, dy, dx = (t.expand(2, *t.shape[1:]) for t in (x, dy, dx))
        size, room = x.size(0), places(chosen.choice, chosen.device, x.device)
    else:
        floats = (kept + restarts) * (lead + trail)
        most = max(16, SCRATCH_BYTES // (4 * floats) // 16 * 16)
        size = min(batch, most)
        # By lanes, places are not the first axis, so their number is fixed: if it followed the batch, each
        # batch would need a program.  Otherwise a batch of one gets two places: the stand-ins for one place
        # (`generated.stand_ins`) would share no memory between stores and loads, and Helion would put no
        # barrier between them, for any batch.
        room = most if by_lanes else max(size, 2)
    empty = functools.partial(torch.empty, dtype=torch.float32, device=x.device)
    lines = (lead, call.lead_axis), (trail, 3 - call.lead_axis)
    us_vs = [
        view for k, axis in lines for view in kept_views(empty(room, kept, k), axis, x, call.m, by_lanes)
    ]
    logs = [empty(room if restarts else 1, max(restarts, 1), k) for k in (lead, trail)]
    for begin in range(0, batch, size):
        rows = slice(begin, begin + size)
        run_once(chosen, x[rows], dy[rows], dx[rows], *us_vs, *logs, *own)


def history_steps(call: SinkhornCall) -> tuple[int, int]:
    """(kept vectors of iterations, kept vectors of restarts) for each side of a matrix."""
    steps = max(call.steps, 1)
    # a multiple of four, so that 16 divides the strides of lines of 4 and 8 too and Triton loads 16 bytes
    return (steps + 3) // 4 * 4, (steps - 1) // segment(call)


@functools.lru_cache(maxsize=4096)
def places(choice: Choice, device: Device, at: torch.device) -> int:
    """The matrices that all persistent blocks hold at a time, over all compute units."""
    config, units = dict(choice.config), device.compute_units
    if at.type == "cuda":
        units = max(units, torch.cuda.get_device_properties(at).multi_processor_count)
    return units * config["num_sm_multiplier"] * config["block_sizes"][0]


def with_bounded_history(chosen: Chosen, call: SinkhornCall, at: torch.device) -> Chosen:
    """The config without persistent blocks where their history would exceed SCRATCH_BYTES.

    Persistent blocks keep the history of all their places for any batch, and a config that was tuned for 20
    iterations is used for any number of them: with 10,000, one matrix of 16 x 16 took 3.9 GB.
    """
    if not is_persistent(chosen.choice, chosen.reciprocal):
        return chosen
    if (
        4 * sum(history_steps(call)) * (call.n + call.m) * places(chosen.choice, chosen.device, at)
        <= SCRATCH_BYTES
    ):
        return chosen
    config = tuple(item for item in chosen.choice.config if item[0] not in ("pid_type", "num_sm_multiplier"))
    return dataclasses.replace(
        chosen,
        choice=dataclasses.replace(chosen.choice, config=config),
        kernel=build(chosen.kernel.kernel, config, chosen.interpret),
    )


def with_variant(choice: Choice, **values: object) -> Choice:
    """The choice with other values of some variants."""
    return dataclasses.replace(choice, variant=tuple(sorted({**dict(choice.variant), **values}.items())))


def describe(x: torch.Tensor, n_iters: int, eps: float, form: str, first: str) -> tuple[str, str, str]:
    """(device key, forward choice, backward choice) for these arguments, in words."""
    call = call_of(x, n_iters, eps, form, first)
    names = "sinkhorn_forward", backward_kernel(call)
    chosen = (str(chosen_for(KERNELS[name], call, matrices_of(x), x)) for name in names)
    return f"{device_of(x).key} ({x.device})", *chosen
