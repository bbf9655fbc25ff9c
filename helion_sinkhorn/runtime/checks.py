"""Checks that all public functions share: tensors, options and the choice of the implementation."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Collection

import torch

from helion_sinkhorn.nearest import suggestion

IMPLEMENTATIONS = ("auto", "helion", "pytorch")
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DTYPES = (*KERNEL_DTYPES, torch.float64)
LARGEST_FLOAT = int(torch.finfo(torch.float64).max)
_is_tracing = torch.jit.is_tracing


def check_tensor(name: str, x: object, shape: str = "") -> None:
    """Raise TypeError unless x is a strided tensor of one of DTYPES."""
    if not isinstance(x, torch.Tensor):
        of_shape = f" of shape {shape}" if shape else ""
        raise TypeError(f"{name} is {type_of(x)}; pass a torch.Tensor{of_shape}{_converted(name, x)}")
    if x.is_nested:
        raise TypeError(
            f"{name} is a nested tensor; pass one of a single shape: convert with .to_padded_tensor(0.0), "
            "or call once for each part of .unbind()"
        )
    if x.layout is not torch.strided:
        raise TypeError(f"{name} has layout {x.layout}; pass torch.strided: convert with .to_dense()")
    if x.dtype not in DTYPES:
        accepted = ", ".join(map(str, DTYPES))
        how = ".real or .abs()" if x.is_complex() else ".float()"
        raise TypeError(f"{name} has dtype {x.dtype}; accepted are {accepted}: convert with {how}")


def type_of(x: object) -> str:
    """What an argument is, for a message: "a list"."""
    name = type(x).__name__
    return f"{'an' if name == 'ndarray' or name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _converted(name: str, x: object) -> str:
    """The part of a message that says how an array of another package becomes a tensor."""
    if (type(x).__module__, type(x).__name__) == ("numpy", "ndarray"):
        return f": torch.from_numpy({name})"
    return f": torch.from_dlpack({name})" if hasattr(x, "__dlpack__") else ""


def as_int(value: object) -> object:
    """An integer of another package, such as numpy, as an int; anything else unchanged."""
    # __index__ of a tensor would wait for its device
    if type(value) in (int, bool) or isinstance(value, torch.Tensor):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def check_same_dtype(name: str, x: torch.Tensor, first: str, other: torch.Tensor) -> None:
    """Raise TypeError unless x has the dtype of the argument named first."""
    if x.dtype != other.dtype:
        raise TypeError(
            f"{name} has dtype {x.dtype}, {first} {other.dtype}; convert one, so that all are alike"
        )


def check_same_device(name: str, x: torch.Tensor, first: str, other: torch.Tensor) -> None:
    """Raise ValueError unless x is on the device of the argument named first."""
    if x.device != other.device:
        raise ValueError(
            f"{name} is on {x.device}, {first} on {other.device}; move one, so that all are together"
        )


def refuse_shape(name: str, x: torch.Tensor, expected: tuple[int, ...], accepted: str, why: str = "") -> None:
    """Raise ValueError for a shape that is not the expected one.

    Args:
        accepted: what to pass, in words.
        why: the end of the message, unless x has too many axes.
    """
    for axis in range(-1, -x.dim() - 1, -1):
        without = list(x.shape)
        if without.pop(axis) == 1 and tuple(without) == expected:
            why = f": convert with .squeeze({axis})"
            break
    raise ValueError(f"{name} has shape {tuple(x.shape)}; {accepted}{why}")


def check_option(name: str, value: object, accepted: Collection[str]) -> None:
    """Raise ValueError unless the option has one of these values."""
    if value not in accepted:
        listed = ", ".join(map(repr, accepted))
        raise ValueError(f"{name} is {value!r}; use one of {listed}{suggestion(value, accepted)}")


def check_number(name: str, value: object, accepted: str) -> None:
    """Raise TypeError unless value is an int or a float, ValueError unless a float can hold it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}; pass {accepted}")
    if isinstance(value, int) and abs(value) > LARGEST_FLOAT:
        raise ValueError(f"{name} is beyond the range of a float; pass {accepted}")


def check_finite(name: str, value: object, accepted: str = "a finite float") -> None:
    """Raise TypeError unless value is an int or a float, ValueError unless it is finite."""
    check_number(name, value, accepted)
    # math.isfinite fails on the symbol that a compiler with dynamic shapes has here
    if not -math.inf < value < math.inf:
        raise ValueError(f"{name} is {float(value)}; pass {accepted}")


def check_int(name: str, value: object, least: int, most: int | None = None, what: str = "") -> int:
    """value as an int; raise TypeError unless it is one, ValueError unless it is from `least` to `most`.

    `what` says what the int counts if its name does not.
    """
    accepted = f"an int of at least {least}" if most is None else f"an int from {least} to {most}"
    accepted += f", {what}" if what else ""
    number = as_int(value)
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{name} is {value!r}; pass {accepted}")
    if number < least or (most is not None and number > most):
        # a compiler's symbol has to be converted to be printed
        raise ValueError(f"{name} is {int(number)}; pass {accepted}")
    return number


def check_out_dtype(value: object) -> None:
    """Raise TypeError unless the dtype of a result is one of DTYPES, or None."""
    if value is not None and value not in DTYPES:
        raise TypeError(f"out_dtype is {value}; use one of {', '.join(map(str, DTYPES))}, or None")


def check_group(group: object) -> str:
    """The name of a process group; raise TypeError unless it is one."""
    name = getattr(group, "group_name", None)
    if not isinstance(name, str):
        raise TypeError(f"group is {group!r}; pass a torch.distributed.ProcessGroup")
    return name


def check_flag(name: str, value: object) -> None:
    """Raise TypeError unless the option is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; pass True or False")


def check_implementation(value: object) -> str:
    """One of IMPLEMENTATIONS, "pytorch" for its old name "reference"; raise ValueError for another.

    Every function calls it first, so it also refuses torch.jit.trace, by NotImplementedError.
    """
    if _is_tracing():
        raise NotImplementedError(
            "torch.jit.trace, which torch.onnx.export(dynamo=False) uses too, would make constants of this "
            "call's sizes and leave results of other sizes wrong; use torch.export.export or torch.compile"
        )
    if value in IMPLEMENTATIONS:
        return value
    if value == "reference":
        warnings.warn(
            "implementation='reference' is now called 'pytorch': helion_sinkhorn.reference is the "
            "specification, another thing",
            DeprecationWarning,
            stacklevel=4,
        )
        return "pytorch"
    check_option("implementation", value, IMPLEMENTATIONS)


def implementation_for(
    asked: str, name: str, x: torch.Tensor, beyond: Callable[[], str] | None = None
) -> str:
    """ "helion" or "pytorch" for a call on x.

    Args:
        beyond: says which limit of the kernels the call exceeds, if any.  It is called only for an error,
            because a compiler that traces for many sizes would fix a size that a sentence names.

    Raises:
        NotImplementedError: "helion" was requested, and the kernels do not take the call.
    """
    if asked == "pytorch":
        return "pytorch"
    if x.is_cuda and x.dtype in KERNEL_DTYPES and beyond is None:
        return "helion"
    if asked == "helion":
        if not x.is_cuda:
            reason = f"the kernels run on CUDA and ROCm GPUs, {name} is on {x.device}"
        elif x.dtype not in KERNEL_DTYPES:
            reason = f"the kernels compute in float32, {name} is {x.dtype}"
        else:
            reason = beyond()
        raise NotImplementedError(
            f"implementation='helion': {reason}; use implementation='auto', which takes PyTorch here"
        )
    return "pytorch"


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured on the current stream."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
