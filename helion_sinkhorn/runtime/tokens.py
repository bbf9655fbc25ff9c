"""Which dimensions of an operator's tensors are tokens, and the rules of vmap and DTensor that follow."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from helion_sinkhorn.runtime.gradients import NAMESPACE, operator_named
from helion_sinkhorn.runtime.torch_op import may_be_distributed, unknown_to_dtensor

PARAMETER, SPLITS, SUM = "p", "s", "+"


def batch_first(x, dim: int | None, size: int):
    """Move the mapped dimension of a tensor to the front, or expand it there; no tensors pass through."""
    if not isinstance(x, torch.Tensor):
        return x
    return x.movedim(dim, 0) if dim is not None else x.expand(size, *x.shape)


def one_by_one(operator, empty, size: int, arguments) -> list[torch.Tensor]:
    """The stacked results of one call for each element of a mapped dimension, the first of every tensor."""

    def element(of):
        return [of(x) if isinstance(x, torch.Tensor) else x for x in arguments]

    def listed(results):
        return [results] if isinstance(results, torch.Tensor) else results

    if size == 0:
        one = empty(*element(lambda x: x.new_empty(x.shape[1:])))
        return [x.new_empty(0, *x.shape) for x in listed(one)]
    each = [listed(operator(*element(lambda x, i=i: x[i]))) for i in range(size)]
    return [torch.stack(some) for some in zip(*each, strict=True)]


def before(trailing: int, at: int = 0) -> Callable[..., int]:
    """The number of leading dimensions of argument `at`."""
    return lambda *arguments: len(arguments[at].shape) - trailing


def roles(name: str, of: str, empty: Callable[..., Any], leading: Callable[..., int] | None = None) -> None:
    """Let torch.func.vmap and DTensor call helion_sinkhorn::name, whose tokens may have any leading shape.

    vmap folds its dimension into the tokens, or calls the operator for each element where a parameter is
    mapped or a result is a sum.  DTensor may shard every dimension of the tokens; parameters are replicated,
    and sums are partial.

    Args:
        of: a letter for each argument that may be a tensor and for each result, "tp -> t+".  The dimensions
            of t begin with the tokens', and of s with the splits of a sum and then the tokens'; p has no
            tokens, and + is a sum over tokens.
        empty: the operator on tensors without data.
        leading: the number of the tokens' dimensions, by the arguments' shapes; None if no DTensor ever
            reaches the operator.
    """
    given, results = of.split(" -> ")
    operator = operator_named(name)

    @torch.library.register_vmap(f"{NAMESPACE}::{name}")
    def _(info, in_dims, *arguments):
        size, rest = info.batch_size, arguments[len(given) :]
        tensors = list(zip(given, arguments, in_dims, strict=False))
        if SUM in results or any(role == PARAMETER and dim is not None for role, _, dim in tensors):
            first = [batch_first(x, dim, size) for _, x, dim in tensors]
            stacked = one_by_one(operator, empty, size, [*first, *rest])
            return (stacked[0], 0) if len(results) == 1 else (tuple(stacked), (0,) * len(results))
        folded = [x if role == PARAMETER else batch_first(x, dim, size) for role, x, dim in tensors]
        # the splits stay in front of the tokens
        folded = [x.movedim(0, 1) if role == SPLITS else x for role, x in zip(given, folded, strict=True)]
        mapped = tuple([1 if role == SPLITS else 0 for role in results])
        return operator(*folded, *rest), mapped[0] if len(results) == 1 else mapped

    if leading is not None:
        unknown_to_dtensor.append(functools.partial(_shard, operator, given, results, leading))


def _shard(operator, given: str, results: str, leading: Callable[..., int]) -> None:
    """Register one sharding strategy for each dimension of the tokens, and one that replicates everything."""
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def placement(role: str, d: int | None):
        if d is None or role == PARAMETER:
            return Replicate()
        return Partial() if role == SUM else Shard(d + (role == SPLITS))

    @register_sharding(operator.default)
    def _(*arguments):
        tensors, rest = arguments[: len(given)], [None] * (len(arguments) - len(given))

        def strategy(d):
            placed = [
                placement(role, d) if hasattr(x, "shape") else None
                for role, x in zip(given, tensors, strict=True)
            ]
            return [placement(role, d) for role in results], [*placed, *rest]

        return [strategy(d) for d in (None, *range(leading(*arguments)))]


def has_dtensor(*tensors: torch.Tensor | None) -> bool:
    """Whether one of these is a DTensor."""
    if not may_be_distributed(*tensors):
        return False
    from torch.distributed.tensor import DTensor

    return any([isinstance(t, DTensor) for t in tensors])
