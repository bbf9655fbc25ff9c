"""The gradient of a call, compiled in a thread while its forward, launched for the first time, is compiled.

The thread guesses that each gradient has the layout of its result.  The backward compiles the programs that
are not found without Helion, and those that fail here.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from helion_sinkhorn.runtime.dispatch import compiling, signature
from helion_sinkhorn.runtime.generated import PINNED, generating, stored
from helion_sinkhorn.runtime.kernel import Built
from helion_sinkhorn.runtime.launch import Launcher, device_at, launching_with
from helion_sinkhorn.runtime.upcoming import upcoming

log = logging.getLogger("helion_sinkhorn")
Launch = tuple[Any, ...]
"""A kernel and its arguments."""


@dataclass(frozen=True)
class Described:
    """A tensor without memory for host functions and Triton; its address counts as a multiple of 16."""

    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    device: torch.device

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    def stride(self, axis: int | None = None) -> Any:
        return self.strides if axis is None else self.strides[axis]

    def numel(self) -> int:
        return self.shape.numel()

    def data_ptr(self) -> int:
        return 0

    def ptr_range(self) -> int:
        return 0


class Context:
    """What a Function keeps of a call for its backward."""

    def __init__(self, needed: tuple[bool, ...]):
        self.needs_input_grad = needed
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        pass

    def set_materialize_grads(self, value: bool) -> None:
        pass


def like(t: torch.Tensor) -> torch.Tensor:
    """A tensor without data; `torch.empty_like` would import SymPy."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")


def begin(
    function: type[torch.autograd.Function], run: Callable[..., Any], public: str, arguments: Sequence[Any]
) -> threading.Thread | None:
    """Start the thread for a call that is launched for the first time; None where it would not help.

    `run` is the forward of the function, and `public` its name for users.
    """
    device = next(a.device for a in arguments if isinstance(a, torch.Tensor))
    # ROCm's Triton needs the sizes of buffers, and a capture allows other threads almost nothing
    if torch.version.hip or device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return None
    without_data = [like(a) if isinstance(a, torch.Tensor) else a for a in arguments]
    needed = tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in arguments)

    def work() -> None:
        try:
            # operators on meta tensors import the modules that Helion imports
            with generating:
                noted = launches(function, run, without_data, needed, device)
            compile_all(noted, device)
        except Exception as error:
            log.debug("the gradient of %s is left to it (%s: %s)", public, type(error).__name__, error)

    # not a daemon: a thread that is stopped inside a compiler crashes the process at its end
    thread = threading.Thread(target=work, name=f"compiles the gradient of {public}")
    thread.start()
    return thread


def compile_all(launches: Sequence[Launch], device: torch.device) -> None:
    """Compile the programs of launches, one after another."""
    jobs = {function: job for launch in launches for function, job in compilations(*launch, device=device)}
    own = {function: threading.Event() for function in jobs if function not in compiling}
    compiling.update(own)
    try:
        for function, is_done in own.items():
            # a process that ends waits for this thread
            if threading.main_thread().is_alive():
                with torch.cuda.device(device):
                    jobs[function]()
            is_done.set()
    finally:
        for function, is_done in own.items():
            is_done.set()
            del compiling[function]


def launches(
    function: type[torch.autograd.Function], run: Callable[..., Any], arguments: Sequence[Any],
    needed: tuple[bool, ...], device: torch.device,
) -> list[Launch]:  # fmt: skip
    """The launches that the `needed` gradients would make, found by running them on meta tensors."""
    noted: list[Launch] = []
    upcoming.notes = True
    with launching_with(Launcher(lambda _: device_at(device.index), lambda *launch: noted.append(launch))):
        results = run(*arguments)
        context = Context(needed)
        function.setup_context(context, arguments, results)
        noted.clear()
        results = results if isinstance(results, tuple) else (results,)
        unused = getattr(function, "rarely_used", ())
        function.backward(context, *[None if at in unused else like(r) for at, r in enumerate(results)])
    return noted


def compilations(kernel: Built, *arguments: Any, device: torch.device) -> list[tuple[Any, Callable[[], Any]]]:
    """The Triton functions of a launch, each with the call that compiles it."""
    given = [
        Described(a.dtype, a.shape, a.stride(), device) if isinstance(a, torch.Tensor) else a
        for a in arguments
    ]
    of = [
        (s[0], device, *s[2:]) if isinstance(a, torch.Tensor) else s
        for a, s in zip(arguments, signature(arguments), strict=True)
    ]
    jobs: list[tuple[Any, Callable[[], Any]]] = []

    def launcher(function: Any, grid: tuple[int, ...], *own: Any, **options: Any) -> None:
        jobs.append(
            (function, functools.partial(function.run, *own, grid=grid, warmup=True, **(PINNED | options)))
        )

    if host := stored(kernel, arguments, of):
        host(*given, _launcher=launcher)
    return jobs
