"""Out: tensors that a call writes its results into, and the checks of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from helion_sinkhorn.ops.mhc.pre.quantized.layouts import Quantized, check_quantized, kind_of, wanted_of
from helion_sinkhorn.ops.mhc.pre.quantized.space import GROUPS
from helion_sinkhorn.runtime.checks import DTYPES, check_same_device, check_tensor, refuse_shape, type_of
from helion_sinkhorn.runtime.pieces import COMPUTING
from helion_sinkhorn.runtime.tokens import has_dtensor
from helion_sinkhorn.runtime.torch_op import are_eager
from helion_sinkhorn.runtime.views import VECTOR_BYTES


class Out(NamedTuple):
    """Tensors that results of `hc_boundary` or `hc_site` are written into; what is None is allocated."""

    y: torch.Tensor | None = None
    """(..., C), in the dtype of x."""
    pre: torch.Tensor | None = None
    """(..., n), float32, float64 for float64 x; only for `hc_boundary`; it may be pre_next itself."""
    post: torch.Tensor | None = None
    """(..., n), the dtype of pre; it may be the argument post of `hc_boundary` itself."""
    comb: torch.Tensor | None = None
    """(..., n, n), the dtype of pre; it may be the argument comb of `hc_boundary` itself."""
    residual: torch.Tensor | None = None
    """(..., n, C), the new streams, in the dtype of x; only for `hc_boundary`; it may be x itself."""
    mean: torch.Tensor | None = None
    """(..., C), the mean of the new streams, in the dtype of x; only for `hc_boundary`; None: not made."""
    quantized: Quantized | None = None
    """y in float8 with scales, as `quantize(y)` makes it with a floor of 1e-10; None: not made.  The group,
    the kind of the scales and their layout are those of these tensors, which `quantize` makes once; with
    packed scales the group has 16 to 256 columns.
    """


NONE = Out()
Given = Mapping[str, torch.Tensor | None]
Wanted = Mapping[str, tuple[Any, ...]]


def tensors_of(out: Out) -> tuple[torch.Tensor | None, ...]:
    """The tensors of an Out, those of its quantized among them."""
    return *out[:-1], *(out.quantized or ())


def check_fields(out: object, x: torch.Tensor, over: Mapping[str, str], given: Given) -> bool:
    """Whether kernels may write into the fields of an Out, as `check_out` says.

    Args:
        out: what the caller passed.
        x: (..., n, C), the streams.
        over: the fields that the call makes, and the argument that each may be written over, or "".
        given: the arguments by name.

    Raises:
        TypeError: out is no Out, or has a field that the call does not make, or no Quantized.
        ValueError: the scales are of no group, or of more than one.
    """
    if not isinstance(out, Out):
        raise TypeError(
            f"out is {type_of(out)}; pass helion_sinkhorn.Out(y=.., post=.., ..); what is None is allocated"
        )
    there = {name: t for name, t in zip(Out._fields, out, strict=True) if t is not None}
    for name in there:
        if name not in over:
            raise TypeError(f"out.{name} is given, and this call does not make it; pass {', '.join(over)}")
    *lead, n, c = x.shape
    shapes = (c,), (n,), (n,), (n, n), (n, c), (c,)
    dtypes = x.dtype, *[COMPUTING[x.dtype]] * 3, x.dtype, x.dtype
    wanted = {
        f"out.{name}": ((*lead, *shape), dtype)
        for name, shape, dtype in zip(Out._fields[:-1], shapes, dtypes, strict=True)
    }
    takes, rounded = True, there.pop("quantized", None)
    of = {f"out.{name}": t for name, t in there.items()}
    if rounded is not None:
        check_quantized("out.quantized", rounded)
        of_y = torch.Size((*lead, c))
        kind = kind_of(of_y, rounded)
        takes = kind[0] in GROUPS
        wanted |= wanted_of(of_y, kind, "out.quantized")
        of |= {f"out.quantized.{name}": t for name, t in rounded._asdict().items()}
    may = check_out(of, wanted, x, {f"out.{name}": argument for name, argument in over.items()}, given)
    return may and takes


def check_out(
    out: Mapping[str, torch.Tensor],
    wanted: Wanted,
    x: torch.Tensor,
    over: Mapping[str, str],
    given: Given,
    first: str = "x",
) -> bool:
    """Whether kernels may write into the tensors `out`, as eager calls may; others copy their results.

    Args:
        out: tensors by their names in errors.
        wanted: the shape and dtype of each, and the strides of what is not contiguous.
        x: the first argument, for errors.
        over: the argument that each may be written over.
        given: the arguments by name.
        first: the name of x.

    Raises:
        TypeError: a tensor has another dtype than its result.
        ValueError: a shape, device or layout does not fit, or tensors overlap.
        NotImplementedError: an argument requires a gradient, or is a DTensor.
    """
    for name, t in out.items():
        shape, dtype, *strides = wanted[name]
        if dtype in DTYPES or not isinstance(t, torch.Tensor):
            check_tensor(name, t)
        check_same_device(name, t, first, x)
        if t.dtype != dtype:
            raise TypeError(f"{name} has dtype {t.dtype}, and its result {dtype}; pass {dtype}")
        if tuple(t.shape) != shape:
            refuse_shape(name, t, shape, f"for {first} of shape {tuple(x.shape)} pass {shape}")
        if strides:
            _check_strides(name, t, *strides)
        elif not t.is_contiguous():
            raise ValueError(
                f"{name} has strides {t.stride()}; pass a contiguous tensor, such as the first tokens of one"
            )
    arguments = {name: t for name, t in given.items() if isinstance(t, torch.Tensor)}
    _refuse_gradients({**arguments, **out})
    everything = *out.values(), *arguments.values()
    if has_dtensor(*everything):
        raise NotImplementedError("out takes no DTensor; call without it, or on .to_local()")
    if not are_eager(everything):
        # no tensor here has an address
        return False
    _check_memory(out, over, arguments)
    return True


def _check_strides(name: str, t: torch.Tensor, strides: tuple[int, ...]) -> None:
    """Raise ValueError unless entries lie at these distances."""
    if t.numel() and any(n > 1 and a != b for n, a, b in zip(t.shape, t.stride(), strides, strict=True)):
        raise ValueError(
            f"{name} has strides {t.stride()}; pass {strides}, such as the result of another call"
        )


def _refuse_gradients(tensors: Mapping[str, torch.Tensor]) -> None:
    asking = [name for name, t in tensors.items() if t.requires_grad] if torch.is_grad_enabled() else []
    if asking or forward_ad._current_level >= 0:
        who = f"{asking[0]} requires one" if asking else "this is a block of forward_ad"
        raise NotImplementedError(
            f"a result in out has no gradient, and {who}; call within torch.no_grad() or "
            "torch.inference_mode(), or without out"
        )


def _check_memory(out: Given, over: Mapping[str, str], arguments: Given) -> None:
    """Raise ValueError where kernels could not write, or would overwrite what is still to be read."""
    places = {name: _place(t) for name, t in {**arguments, **out}.items()}
    for name, t in out.items():
        if t.data_ptr() % VECTOR_BYTES:
            raise ValueError(
                f"{name} begins {t.data_ptr() % VECTOR_BYTES} bytes after a multiple of {VECTOR_BYTES}; "
                "pass a tensor that begins at one: kernels store whole vectors"
            )
        for other, place in places.items():
            if other == name or not (places[name][0] < place[1] and place[0] < places[name][1]):
                continue
            may_be = over.get(name) == other
            if may_be and place == places[name] and arguments[other].is_contiguous():
                continue
            rest = f"{other} itself, or memory of its own" if may_be else "memory of its own"
            raise ValueError(f"{name} overlaps {other}; pass {rest}")


def _place(t: torch.Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the one after its last; both 0 if it has no byte."""
    if t.numel() == 0:
        return 0, 0
    return t.data_ptr(), t.data_ptr() + span(t) * t.element_size()


def span(t: torch.Tensor) -> int:
    """The number of entries from the first to the last one of a tensor in its memory."""
    return 1 + sum([(size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True)])


def written(result: torch.Tensor, into: torch.Tensor | None) -> torch.Tensor:
    """The result, copied into the caller's tensor if there is one."""
    return result if into is None or result is into else into.copy_(result)


def count_change(*tensors: torch.Tensor | None) -> None:
    """Tell autograd that a kernel wrote into these tensors: what it saved of them before is invalid."""
    for t in tensors:
        if t is not None and not t.is_inference():
            torch.autograd.graph.increment_version(t)


def room(
    into: torch.Tensor | None, x: torch.Tensor, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """`into`, or new memory on the device of x."""
    return torch.empty(shape, dtype=dtype, device=x.device) if into is None else into
