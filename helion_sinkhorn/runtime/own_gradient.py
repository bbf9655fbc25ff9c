"""Gradients that a backward of this package made, and that nobody but the next backward refers to.

Such a gradient may be overwritten.  Autograd does not say who else has a tensor.  So it must be the tensor
that was noted, neither a sum nor a view, and nobody but the engine may refer to it: a hook that keeps it
refers to it in Python, a caller who requested this gradient in C++, and a hook that keeps `gradient.detach()`
to its memory.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref

import torch

_use_count = getattr(torch.Tensor, "_use_count", None)
_storage_use_count = getattr(torch._C, "_storage_Use_Count", None)
"""The numbers of references in C++ to a tensor and to its memory; older versions of torch lack them."""


class _Noted(threading.local):
    """The last gradient that each thread of autograd made."""

    made: weakref.ref[torch.Tensor] | None = None


_noted = _Noted()


def note(gradient: torch.Tensor | None) -> None:
    """Note that a backward made this gradient in memory of its own."""
    if torch.compiler.is_compiling():
        return
    _noted.made = None if gradient is None else weakref.ref(gradient)


def is_own(gradient: torch.Tensor | None) -> bool:
    """Whether nobody else has a gradient that a backward was given as an argument; answers once for each."""
    if torch.compiler.is_compiling():
        return False
    made, _noted.made = _noted.made, None
    if gradient is None or made is None or made() is not gradient:
        return False
    if _use_count is None or _storage_use_count is None:
        return False
    # a backward with a graph may be differentiated, and run again
    if torch.is_grad_enabled() or not gradient.is_contiguous():
        return False
    # a tracer of functions may refer to their variables
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return False
    return _holders(gradient) == _of_nobody_else()


class _Probe(torch.autograd.Function):
    """A backward that counts, as `is_own` does, the references to a gradient that nobody else has."""

    @staticmethod
    def forward(ctx, x, counts):
        ctx.counts = counts
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.counts.append(_counted(gradient))
        return gradient, None


class _Source(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clone()


def _counted(gradient: torch.Tensor) -> tuple[int, int, int]:
    return _holders(gradient)


def _holders(gradient: torch.Tensor) -> tuple[int, int, int]:
    """The numbers of references to a tensor in Python, to it in C++, and to its memory."""
    memory = _storage_use_count(gradient.untyped_storage()._cdata)
    return sys.getrefcount(gradient), _use_count(gradient), memory


@functools.cache
def _of_nobody_else() -> tuple[int, int, int]:
    """The references to a gradient that nobody else has, which depend on the versions of torch and Python.

    They are counted in a new thread, where no mode of the first caller is active.
    """
    counts: list[tuple[int, int, int]] = []

    def count() -> None:
        x = torch.zeros(1, requires_grad=True, device="cpu")
        _Source.apply(_Probe.apply(x, counts)).sum().backward()

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    return counts[0]
