"""From tensors to launches of hc_split_sinkhorn: views, the choice of configs, sums over tokens."""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn.configs.store import Key
from helion_sinkhorn.ops.hc_split_sinkhorn.kernels import (
    hc_split_sinkhorn_backward,
    hc_split_sinkhorn_forward,
)
from helion_sinkhorn.ops.hc_split_sinkhorn.space import HcCall
from helion_sinkhorn.ops.hc_split_sinkhorn.workloads import ROWS
from helion_sinkhorn.ops.sinkhorn.launch import loaded, spread_over_threads, thread_of
from helion_sinkhorn.ops.sinkhorn.scaling import lean_is_safe, pairs_are_safe, pivot_is_safe
from helion_sinkhorn.ops.sinkhorn.space import (
    backward_default,
    backward_space,
    forward_default,
    forward_space,
)
from helion_sinkhorn.runtime import serving
from helion_sinkhorn.runtime.kernel import Choice, Kernel, default_choice
from helion_sinkhorn.runtime.serving import Served, launch_kept, layout_key, run_and_keep, serve
from helion_sinkhorn.runtime.views import VECTOR_BYTES

FORWARD, BACKWARD = "hc_split_sinkhorn_forward", "hc_split_sinkhorn_backward"
KERNELS = {
    body.__name__: Kernel(body.__name__, body, HcCall, default, space, traits=frozenset({"normalises"}))
    for body, default, space in (
        (hc_split_sinkhorn_forward, forward_default, forward_space),
        (hc_split_sinkhorn_backward, backward_default, backward_space),
    )
}


def call_for(n: int, n_iters: int, eps: float, dtype: torch.dtype) -> HcCall:
    """What the configs of a call are chosen for."""
    return HcCall(str(dtype)[6:], n, n_iters, eps > 0)


@functools.cache
def tuned_keys() -> frozenset[Key]:
    """Keys, without the batch, that `make tune` covers."""
    return frozenset(call_for(w.n, w.n_iters, w.eps, w.dtype).key for w in ROWS if "tune" in w.tags)


def rows(x: torch.Tensor) -> torch.Tensor:
    """(T, columns) contiguous at a 16-byte boundary; a copy where the layout has no such view."""
    x = x.reshape(-1, x.size(-1)).contiguous()
    return x.clone() if x.data_ptr() % VECTOR_BYTES else x


def parameter(x: torch.Tensor) -> torch.Tensor:
    """A small tensor in float32."""
    return x.to(torch.float32).contiguous()


def logits_view(x: torch.Tensor, n: int, thread: tuple[int, int], batch: int = 0) -> torch.Tensor:
    """(T, n^2), or (n^2,) for a batch of stride 0, as `iteration.read` takes matrices."""
    size, step = (x.size(0), x.stride(0)) if x.dim() == 2 else (batch, 0)
    x = x.as_strided((size, n, n), (step, n, 1))
    return spread_over_threads(x, *thread) if any(thread) else x


def shared(call: HcCall, eps: float, choice: Choice) -> tuple[bool, bool]:
    """(paired, pivoted) where they are safe."""
    variant, eps = dict(choice.variant), eps if call.deepseek else 0.0
    paired = variant.get("paired", False) and pairs_are_safe(call.n, call.n, call.steps, eps)
    return paired, variant.get("pivoted", False) and pivot_is_safe(call.steps, eps)


def forward(
    mixes: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    n: int,
    n_iters: int,
    eps: float,
    post_mult: float,
    pre_eps: float,
    post_eps: float,
    comb_order: str,
    out_dtype: torch.dtype,
    choice: Choice | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(pre, post, comb); the contract is api.hc_split_sinkhorn's."""
    lead = mixes.shape[:-1]
    mixes, scale, base = rows(mixes), parameter(scale), parameter(base)
    tokens = mixes.size(0)
    pre, post, comb = (
        torch.empty((*lead, *shape), dtype=out_dtype, device=mixes.device) for shape in ((n,), (n,), (n, n))
    )
    logits, base_logits = mixes[:, 2 * n :], base[2 * n :]
    tensors = mixes, logits, scale, base, base_logits, pre, post, comb
    constants = n_iters, eps, post_mult, pre_eps, post_eps, comb_order
    key = FORWARD, layout_key(*tensors), n, constants, choice
    if launch_kept(key, *tensors):
        return pre, post, comb
    call = call_for(n, n_iters, eps, mixes.dtype)

    def launch(served: Served) -> None:
        thread = thread_of(served.choice)
        views = (
            mixes.view(tokens, n + 2, n), logits_view(logits, n, thread), scale,
            base.view(n + 2, n), logits_view(base_logits, n, thread, tokens),
            pre.view(-1, n), post.view(-1, n), comb.view(-1, n * n) if any(thread) else comb.view(-1, n, n),
        )  # fmt: skip
        own = (
            n, n_iters, eps, call.deepseek, post_mult, pre_eps, post_eps, comb_order == "oi",
            served.reciprocal, *shared(call, eps, served.choice),
        )  # fmt: skip
        run_and_keep(served.kernel, views, own, tensors, key)

    serve(KERNELS, FORWARD, call, tokens, mixes, launch, tuned_keys, choice)
    return pre, post, comb


def backward(
    dpre: torch.Tensor | None,
    dpost: torch.Tensor | None,
    dcomb: torch.Tensor | None,
    mixes: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    n: int,
    n_iters: int,
    eps: float,
    post_mult: float,
    pre_eps: float,
    post_eps: float,
    comb_order: str,
    choice: Choice | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(dmixes, dbase and dscale one behind the other); an upstream gradient that is None is 0."""
    lead, columns = mixes.shape[:-1], mixes.size(-1)
    mixes, scale, base = rows(mixes), parameter(scale), parameter(base)
    tokens = mixes.size(0)
    whole = dpre is not None and dpost is not None and dcomb is not None
    dmixes = (torch.empty_like if whole else torch.zeros_like)(mixes)
    dpre, dpost = (None if t is None else rows(t) for t in (dpre, dpost))
    dcomb = None if dcomb is None else dcomb.reshape(-1, n, n).contiguous()
    call = call_for(n, n_iters, eps, mixes.dtype)
    device, _, interpret = serving.device_at(serving.index_of(mixes))
    taken = choice or serving.choose(KERNELS[BACKWARD], call, tokens, device)
    tiles = tiles_of(taken, tokens, interpret)
    # room for the default's too, which serves if this choice is refused
    room = max(tiles, tiles_of(default_choice(KERNELS[BACKWARD], call, device), tokens, interpret))
    make = torch.empty if whole else torch.zeros
    # the gates' sums, the logits' and at a 16-byte boundary those of the scale
    width = -(-(columns + 3) // 4) * 4
    sums = make((room, width), dtype=torch.float32, device=mixes.device)
    logits, base_logits, dlogits = mixes[:, 2 * n :], base[2 * n :], dmixes[:, 2 * n :]
    sum_logits, sum_scale = sums[:, 2 * n :], sums[:, columns:]
    tensors = (
        mixes, logits, scale, base, base_logits, dpre, dpost, dcomb, dmixes, dlogits,
        sums, sum_logits, sum_scale,
    )  # fmt: skip
    key = BACKWARD, layout_key(*tensors), n, n_iters, eps, post_mult, comb_order, choice

    def launch(served: Served) -> None:
        nonlocal tiles
        tiles = tiles_of(served.choice, tokens, interpret)
        thread, variant = thread_of(served.choice), dict(served.choice.variant)
        length = variant.get("length", 1)
        flat = any(thread)
        stride = dmixes.stride(0)
        views = (
            mixes.view(tokens, n + 2, n), logits_view(logits, n, thread), scale,
            base.view(n + 2, n), logits_view(base_logits, n, thread, tokens),
            dpre, dpost, None if dcomb is None else loaded(dcomb, thread),
            dmixes.view(tokens, n + 2, n),
            dlogits if flat else dlogits.as_strided((tokens, n, n), (stride, n, 1)),
            sums.as_strided((room, 2, n), (width, n, 1)),
            sum_logits.as_strided((room, n, n), (width, n, 1)), sum_scale,
        )  # fmt: skip
        own = (
            n, n_iters, eps, call.deepseek, post_mult, comb_order == "oi",
            length, max(call.steps - 1, 0) // length, served.reciprocal, *shared(call, eps, served.choice),
            variant.get("lean", False) and lean_is_safe(n, n, eps if call.deepseek else 0.0),
        )  # fmt: skip
        run_and_keep(served.kernel, views, own, tensors, key)

    if not launch_kept(key, *tensors):
        serve(KERNELS, BACKWARD, call, tokens, mixes, launch, tuned_keys, taken if choice else None)
    return dmixes.view(*lead, columns), sums[:tiles].sum(0)[: columns + 3]


def tiles_of(choice: Choice, tokens: int, interpret: bool) -> int:
    """Tiles of a launch, each with a row of sums; what is interpreted has one."""
    return 1 if interpret else -(-tokens // dict(choice.config)["block_sizes"][0])


def describe(mixes: torch.Tensor, n: int, n_iters: int, eps: float) -> tuple[str, str, str]:
    """(device, forward choice, backward choice) for these arguments, in words."""
    call = call_for(n, n_iters, eps, mixes.dtype)
    device, _, _ = serving.device_at(serving.index_of(mixes))
    tokens = mixes.numel() // mixes.size(-1)
    chosen = (str(serving.choose(KERNELS[name], call, tokens, device)) for name in (FORWARD, BACKWARD))
    return f"{device.key} ({mixes.device})", *chosen
