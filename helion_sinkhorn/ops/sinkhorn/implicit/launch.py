"""From tensors to launches of the implicit kernels."""

from __future__ import annotations

import functools
from typing import Any

import torch

from helion_sinkhorn.ops.sinkhorn.implicit import space
from helion_sinkhorn.ops.sinkhorn.implicit.systems import cg_steps, solver_for
from helion_sinkhorn.ops.sinkhorn.launch import describe
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.ops.sinkhorn.views import lanes_first, loaded, thread_of, written_view
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import Chosen, Tensors, chosen_for, launch
from helion_sinkhorn.runtime.views import matrices, matrices_of, pieces

ROOM = "helion_sinkhorn.ops.sinkhorn.implicit"


def direct_facts(chosen: Chosen, call: SinkhornCall, system: str, *_: Any) -> tuple[Any, ...]:
    packed = is_packed(chosen.choice) and system == "corrected"
    return call.n, call.m, system == "corrected", chosen.reciprocal, packed


def cg_facts(
    chosen: Chosen, call: SinkhornCall, system: str, steps: int, tall: bool, *_: Any
) -> tuple[Any, ...]:
    by_lanes = holds_blocks(chosen.choice, tall) and lanes_first(call, chosen.choice)
    return call.n, call.m, steps, system, chosen.reciprocal, by_lanes


def holds_blocks(choice: Choice, tall: bool) -> bool:
    """Whether a thread holds a block of a matrix, whose rows lie in memory as they are."""
    return tall and any(thread_of(choice))


def is_packed(choice: Choice) -> bool:
    """Whether a thread of an implicit kernel holds a whole matrix, read in pieces."""
    return dict(choice.variant).get("packed", False)


KERNELS = {
    name: Kernel(name, f"{ROOM}.{body}:{name}", SinkhornCall, *own, traits=frozenset({"normalises"}))
    for name, body, *own in (
        (
            "sinkhorn_implicit_direct", "direct",
            space.implicit_direct_default, space.implicit_direct_space, direct_facts,
        ),
        ("sinkhorn_implicit_cg", "cg", space.implicit_cg_default, space.implicit_cg_space, cg_facts),
    )
}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def implicit_call(n: int, m: int, dtype: torch.dtype, n_iters: int) -> SinkhornCall:
    """The key of the implicit kernels for P (..., n, m).

    They depend neither on form nor on first, take at most as many columns as rows, and count the steps of
    conjugate gradients as iterations.
    """
    return SinkhornCall(False, 1, str(dtype)[6:], max(n, m), min(n, m), cg_steps("corrected", n, m, n_iters))


def implicit_kernel(solver: str, call: SinkhornCall) -> str:
    return f"sinkhorn_implicit_{solver_for(solver, call.n, call.m)}"


def implicit_backward(
    dy: torch.Tensor, p: torch.Tensor, n_iters: int, system: str, solver: str, dtype: torch.dtype,
    choice: Choice | None = None,
) -> torch.Tensor:  # fmt: skip
    """dX for cotangents dy at P (..., n, m), as if P were a fixed point; dX has the given dtype."""
    dx = torch.empty(p.shape, dtype=dtype, device=p.device)
    if not p.numel():
        return dx
    n, m = p.shape[-2:]
    call = implicit_call(n, m, p.dtype, n_iters)
    kernel = KERNELS[choice.kernel if choice else implicit_kernel(solver, call)]

    def views(chosen: Chosen) -> Tensors:
        if is_packed(chosen.choice) and system == "corrected":
            return pieces(matrices(p)), pieces(matrices(dy)), written_view(dx, call, True)
        if holds_blocks(chosen.choice, n >= m):
            return loaded(p, chosen.choice), loaded(dy, chosen.choice), written_view(dx, call, True)
        whole = matrices(p), matrices(dy), dx.view(-1, n, m)
        return whole if n >= m else tuple(t.mT for t in whole)

    launch(
        kernel, call, (p, dy, dx), system, cg_steps(system, n, m, n_iters), n >= m, n_iters,
        batch=matrices_of(p), choice=choice, views=views,
        layouts=(p.shape, p.stride(), p.dtype, p.device, dy.stride(), dy.dtype, dtype),
    )  # fmt: skip
    return dx


def describe_implicit(
    x: torch.Tensor, n_iters: int, eps: float, form: str, first: str, solver: str
) -> tuple[str, str, str]:
    """The result of `describe` with the choice of the implicit backward."""
    where, forward_choice, _ = describe(x, n_iters, eps, form, first)
    call = implicit_call(*x.shape[-2:], x.dtype, n_iters)
    chosen = chosen_for(KERNELS[implicit_kernel(solver, call)], call, matrices_of(x), x)
    return where, forward_choice, str(chosen)
