"""The torch operators of hc_split_sinkhorn.

`helion_sinkhorn::hc_split_sinkhorn` returns (pre, post, comb); its backward (dmixes, dbase and dscale one
behind the other, in the computing dtype).  Both take any leading shape; `implementation` is "helion" or
"pytorch".
"""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn.ops.hc_split_sinkhorn import eager
from helion_sinkhorn.runtime.gradients import NAMESPACE
from helion_sinkhorn.runtime.torch_op import (
    batch_first,
    define,
    differentiable,
    differentiates,
    last,
    on_device,
    operator_named,
)

FORWARD, BACKWARD = "hc_split_sinkhorn", "hc_split_sinkhorn_backward"
ARGUMENTS = (
    "Tensor mixes, Tensor scale, Tensor base, int n, int n_iters, float eps, float post_mult, float pre_eps, "
    "float post_eps, str comb_order, str implementation"
)


@functools.cache
def _launch():
    """The launcher, and with it Helion, on the first call that needs it."""
    from helion_sinkhorn.ops.hc_split_sinkhorn import launch

    return launch


def forward(mixes, scale, base, n, *arguments):
    """(pre, post, comb); see api.hc_split_sinkhorn."""
    *arguments, implementation, out_dtype = arguments
    if implementation == "pytorch" or mixes.numel() == 0:
        with torch.autocast(mixes.device.type, enabled=False):
            return eager.forward(mixes, scale, base, n, *arguments, out_dtype)
    with on_device(mixes):
        return _launch().forward(mixes, scale, base, n, *arguments, out_dtype)


def backward(dpre, dpost, dcomb, mixes, scale, base, n, *arguments):
    """(dmixes, dbase and dscale) from the arguments of `forward` alone."""
    *arguments, implementation = arguments
    run = eager.backward
    if implementation == "pytorch" or mixes.numel() == 0:
        with torch.autocast(mixes.device.type, enabled=False):
            return run(dpre, dpost, dcomb, mixes, scale, base, n, *arguments)
    with on_device(mixes):
        return _launch().backward(dpre, dpost, dcomb, mixes, scale, base, n, *arguments)


def _empty_results(mixes, scale, base, n, *arguments):
    lead, dtype = mixes.shape[:-1], arguments[-1]
    return tuple(mixes.new_empty(*lead, *shape, dtype=dtype) for shape in ((n,), (n,), (n, n)))


def _empty_gradients(dpre, dpost, dcomb, mixes, *arguments):
    wide = torch.float64 if mixes.dtype == torch.float64 else torch.float32
    return mixes.new_empty(mixes.shape), mixes.new_empty(mixes.size(-1) + 3, dtype=wide)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3])
    ctx.arguments = inputs[3:11]
    ctx.set_materialize_grads(False)


def _gradient(ctx, dpre, dpost, dcomb):
    mixes, scale, base = ctx.saved_tensors
    given = [t for t in (dpre, dpost, dcomb) if t is not None]
    if not given:
        return (None,) * 12
    run = HcSplitSinkhornBackward.apply if differentiates(*given, mixes, scale, base) else call_backward
    dmixes, sums = run(dpre, dpost, dcomb, mixes, scale, base, *ctx.arguments)
    dbase, dscale = sums.split((mixes.size(-1), 3), -1)
    return dmixes, dscale.to(scale.dtype), dbase.to(base.dtype), *[None] * 9


call = define(
    FORWARD, f"({ARGUMENTS}, ScalarType out_dtype) -> (Tensor, Tensor, Tensor)", forward, _empty_results, 3
)
call_backward = define(
    BACKWARD,
    f"(Tensor? dpre, Tensor? dpost, Tensor? dcomb, {ARGUMENTS}) -> (Tensor, Tensor)",
    backward, _empty_gradients, 6,
)  # fmt: skip
HcSplitSinkhorn = differentiable(FORWARD, FORWARD, call, _keep, _gradient)
HcSplitSinkhornBackward = last(BACKWARD, FORWARD, call_backward)


def _register_vmap(name: str, mixes: int, results: int) -> None:
    """Fold the mapped dimension into the tokens; one by one where parameters are mapped or sums are made."""
    operator = operator_named(name)

    @torch.library.register_vmap(f"{NAMESPACE}::{name}")
    def _(info, in_dims, *arguments):
        size, parameters = info.batch_size, in_dims[mixes + 1 : mixes + 3]
        if mixes == 0 and parameters == (None, None):
            return operator(batch_first(arguments[0], in_dims[0], size), *arguments[1:]), (0,) * results
        given = [batch_first(x, d, size) for x, d in zip(arguments, in_dims, strict=True)]
        if size == 0:
            shapes = _empty_gradients if mixes else _empty_results
            empty = shapes(*[x.new_empty(x.shape[1:]) if isinstance(x, torch.Tensor) else x for x in given])
            return tuple(x.new_empty(0, *x.shape) for x in empty), (0,) * results
        each = [[x[i] if isinstance(x, torch.Tensor) else x for x in given] for i in range(size)]
        found = zip(*[operator(*one) for one in each], strict=True)
        return tuple(map(torch.stack, found)), (0,) * results


_register_vmap(FORWARD, 0, 3)
_register_vmap(BACKWARD, 3, 2)


@functools.cache
def _register_sharding() -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def strategies(tensors: int, results, *arguments):
        """Tokens shard freely; parameters are replicated, and sums over tokens are partial."""
        there = [hasattr(x, "shape") for x in arguments[:tensors]]
        mixes = arguments[tensors - 3]
        rest = [None] * (len(arguments) - tensors)
        found = []
        for of_mixes in (Replicate(), *(Shard(d) for d in range(len(mixes.shape) - 1))):
            sums = Partial() if of_mixes.is_shard() else Replicate()
            given = [*[of_mixes] * (tensors - 2), Replicate(), Replicate()]
            placed = [p if is_there else None for p, is_there in zip(given, there, strict=True)]
            found.append(([{"token": of_mixes, "sum": sums}[r] for r in results], [*placed, *rest]))
        return found

    for name, tensors, results in (
        (FORWARD, 3, ("token", "token", "token")),
        (BACKWARD, 6, ("token", "sum")),
    ):
        register_sharding(operator_named(name).default)(functools.partial(strategies, tensors, results))


def register_sharding() -> None:
    """Tell DTensor of the operators, once."""
    _register_sharding()


# as in runtime.torch_op.sharding: Dynamo need not trace the registration
register_sharding._dynamo_marked_constant = True


def describe(mixes, n, n_iters, eps) -> tuple[str, str, str]:
    """(device, forward choice, backward choice) of the kernels for these arguments."""
    return _launch().describe(mixes, n, n_iters, eps)
