"""From tensors to launches of the implicit kernels."""

from __future__ import annotations

from typing import Any

import torch

from helion_sinkhorn.ops.sinkhorn.implicit.space import (
    implicit_cg_default,
    implicit_cg_space,
    implicit_direct_default,
    implicit_direct_space,
)
from helion_sinkhorn.ops.sinkhorn.implicit.systems import cg_steps, solver_for
from helion_sinkhorn.ops.sinkhorn.launch import describe
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.ops.sinkhorn.views import lanes_first, loaded, thread_of, written_view
from helion_sinkhorn.runtime import serving
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.serving import Served, launch_kept, run_and_keep, serve
from helion_sinkhorn.runtime.views import matrices, matrices_of, pieces

ROOM = "helion_sinkhorn.ops.sinkhorn.implicit"
KERNELS = {
    name: Kernel(
        name, f"{ROOM}.{body}:{name}", SinkhornCall, default, space, traits=frozenset({"normalises"})
    )
    for name, body, default, space in (
        ("sinkhorn_implicit_direct", "direct", implicit_direct_default, implicit_direct_space),
        ("sinkhorn_implicit_cg", "cg", implicit_cg_default, implicit_cg_space),
    )
}


def implicit_constants(
    call: SinkhornCall, steps: int, system: str, packed: bool, by_lanes: bool, served: Served
) -> tuple[Any, ...]:
    """`constants` of the implicit kernels."""
    own = {
        "sinkhorn_implicit_direct": (system == "corrected", served.reciprocal, packed),
        "sinkhorn_implicit_cg": (steps, system, served.reciprocal, by_lanes),
    }[served.choice.kernel]
    return call.n, call.m, *own


def is_packed(choice: Choice) -> bool:
    """Whether a thread of an implicit kernel holds a whole matrix, read in pieces."""
    return dict(choice.variant).get("packed", False)


def implicit_call(n: int, m: int, dtype: torch.dtype, n_iters: int) -> SinkhornCall:
    """The key of the implicit kernels for P (..., n, m): they see neither form nor first, no more columns
    than rows, and as many iterations as conjugate gradients take steps."""
    return SinkhornCall(False, 1, str(dtype)[6:], max(n, m), min(n, m), cg_steps("corrected", n, m, n_iters))


def implicit_kernel(solver: str, call: SinkhornCall) -> str:
    """The kernel of an implicit gradient."""
    return f"sinkhorn_implicit_{solver_for(solver, call.n, call.m)}"


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
    if launch_kept(key, p, dy, dx) or not p.numel():
        return dx
    n, m = p.shape[-2:]
    call, steps = implicit_call(n, m, p.dtype, n_iters), cg_steps(system, n, m, n_iters)

    def launch(served: Served) -> None:
        packed = is_packed(served.choice) and system == "corrected"
        # a thread's block of a matrix is one of rows as they lie in memory
        threads = n >= m and any(thread_of(served.choice))
        if packed:
            views = pieces(matrices(p)), pieces(matrices(dy)), written_view(dx, call, True)
        elif threads:
            views = loaded(p, served.choice), loaded(dy, served.choice), written_view(dx, call, True)
        else:
            views = matrices(p), matrices(dy), dx.view(-1, n, m)
            if n < m:
                views = tuple(t.mT for t in views)
        by_lanes = threads and lanes_first(call, served.choice)
        own = implicit_constants(call, steps, system, packed, by_lanes, served)
        run_and_keep(served.kernel, views, own, (p, dy, dx), key)

    serve(KERNELS, implicit_kernel(solver, call), call, matrices_of(p), p, launch, choice)
    return dx


def describe_implicit(
    x: torch.Tensor, n_iters: int, eps: float, form: str, first: str, solver: str
) -> tuple[str, str, str]:
    """`describe` with the choice of the implicit backward."""
    where, forward_choice, _ = describe(x, n_iters, eps, form, first)
    device, _, _ = serving.device_at(serving.index_of(x))
    call = implicit_call(*x.shape[-2:], x.dtype, n_iters)
    chosen = serving.choose(KERNELS[implicit_kernel(solver, call)], call, matrices_of(x), device)
    return where, forward_choice, str(chosen)
