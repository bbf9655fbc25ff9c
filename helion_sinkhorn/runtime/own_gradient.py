"""Gradients that a backward of this package made and that only the next backward of the same pass holds.

Such a gradient may be written over.  Autograd says of no tensor who else has it, so one is taken only if it
is the very tensor that was noted, not a sum with others nor a view, and if nobody but the engine refers to
it: a hook that keeps it is a reference in Python, a gradient that the caller requested too is one in C++, and
a hook that keeps `gradient.detach()` is one to its memory alone.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref

import torch

_use_count = getattr(torch.Tensor, "_use_count", None)
_storage_use_count = getattr(torch._C, "_storage_Use_Count", None)
"""How many references a tensor has in C++, and its memory; older versions of torch do not tell."""


class _Noted(threading.local):
    """The gradient that a thread of autograd has made last."""

    made: weakref.ref[torch.Tensor] | None = None


_noted = _Noted()


def note(gradient: torch.Tensor | None) -> None:
    """Say that a backward made this gradient, in memory of its own."""
    if torch.compiler.is_compiling():
        return
    _noted.made = None if gradient is None else weakref.ref(gradient)


def is_own(gradient: torch.Tensor | None) -> bool:
    """Whether a gradient that a backward was given, as its own argument, is nobody else's; asked once."""
    if torch.compiler.is_compiling():
        return False
    made, _noted.made = _noted.made, None
    if gradient is None or made is None or made() is not gradient:
        return False
    if _use_count is None or _storage_use_count is None:
        return False
    # with a graph of its own the backward may be differentiated, and made again
    if torch.is_grad_enabled() or not gradient.is_contiguous():
        return False
    # what traces functions may hold what they have
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return False
    return _holders(gradient) == _of_nobody_else()


class _Probe(torch.autograd.Function):
    """A backward that counts as `is_own` does, the holders of a gradient that is nobody else's."""

    @staticmethod
    def forward(ctx, x, found):
        ctx.found = found
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.found.append(_counted(gradient))
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
    """How many refer to a tensor in Python, to it in C++, and to its memory."""
    memory = _storage_use_count(gradient.untyped_storage()._cdata)
    return sys.getrefcount(gradient), _use_count(gradient), memory


@functools.cache
def _of_nobody_else() -> tuple[int, int, int]:
    """The holders of a gradient that nobody else has: their numbers differ between versions.

    They are counted in a thread of its own, which no mode of the first caller reaches.
    """
    found: list[tuple[int, int, int]] = []

    def count() -> None:
        x = torch.zeros(1, requires_grad=True, device="cpu")
        _Source.apply(_Probe.apply(x, found)).sum().backward()

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    return found[0]
