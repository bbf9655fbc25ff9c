"""The launch of a built kernel, with the results of Helion's and Triton's look-ups kept.

On the host of an H200 a Helion call takes 25 to 120 us, and `x * 2` takes 10.  Two dictionaries replace most
of that: the host function of each signature, and the binary of each specialisation.  `repeat` makes only the
launch, for calls whose tensors differ in nothing but their addresses.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Hashable
from typing import Any

import torch

from helion_sinkhorn.runtime.generated import PINNED, host_function
from helion_sinkhorn.runtime.kernel import Built
from helion_sinkhorn.runtime.upcoming import upcoming
from helion_sinkhorn.runtime.views import INT32_ELEMENTS

_programs: dict[Hashable, Callable[..., None]] = {}
_binaries: dict[Hashable, Any] = {}
compiling: dict[Any, threading.Event] = {}
"""Triton functions that `runtime.ahead` is compiling, each with the event that it sets afterwards."""


def signature(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """All that generated code depends on; of the batch, only whether there are 2^31 elements."""
    return tuple(
        [
            (a.dtype, a.device, a.shape[1:], a.stride(), a.numel() >= INT32_ELEMENTS)
            if isinstance(a, torch.Tensor)
            else a
            for a in args
        ]
    )


def run(kernel: Built, *args: Any) -> None:
    """Call a built kernel through the host function compiled for these arguments."""
    key = kernel, signature(args)
    program = _programs.get(key)
    if program is None:
        if upcoming.call:
            from helion_sinkhorn.runtime.ahead import begin

            call, upcoming.call = upcoming.call, None
            begin(*call)
        program = _programs[key] = compiled(kernel, args)
    program(*args)


def compiled(kernel: Built, args: tuple[Any, ...]) -> Callable[..., None]:
    """The host function of a kernel for these arguments; an interpreted kernel is its own."""
    if kernel.interpret:
        return kernel.helion
    host = host_function(kernel, args, signature(args))
    if isinstance(host, functools.partial):
        return host
    # under ROCm Triton specialises on buffer sizes too: Triton itself looks up there
    on_gpu = any(isinstance(a, torch.Tensor) and a.is_cuda for a in args)
    if torch.version.hip or not on_gpu:
        return functools.partial(host, _launcher=launch)
    return functools.partial(host, _launcher=launch_binary)


def kept_launch(kernel: Built, *args: Any) -> Callable[..., None] | None:
    """The launch that `run(kernel, *args)` just made, as a function of its tensors; None where unknown.

    It takes all tensors among `args`, in their order; they must have the device, dtypes, shapes, strides and
    16-byte alignment of these.  It takes addresses in the place of tensors too.
    """
    program = _programs.get((kernel, signature(args)))
    if not isinstance(program, functools.partial) or program.keywords["_launcher"] is not launch_binary:
        return None
    import triton

    launches: list[tuple[Any, ...]] = []
    program.func(*args, _launcher=lambda function, grid, *a, **_: launches.append((function, grid, a)))
    ((function, grid, launched),) = launches
    binary = _binaries.get(specialisation(function, launched))
    count = sum(isinstance(a, torch.Tensor) for a in launched)
    given = [a for a in args if isinstance(a, torch.Tensor)]
    parameters = list(inspect.signature(program.func).parameters)[: len(args)]
    names = [name for name, a in zip(parameters, args, strict=True) if isinstance(a, torch.Tensor)]
    # Helion names the tensors first, those that the generated code reads or writes, as the body does
    places = [names.index(name) for name in function.arg_names[:count] if name in names]
    as_given = [given[i] for i in places]
    if (
        binary is None
        or binary.packed_metadata is None
        or list(map(id, as_given)) != list(map(id, launched[:count]))
    ):
        return None
    rest = launched[count:]
    grid = (*grid, 1, 1)
    device = given[0].device.index
    launch, function, metadata = binary.run, binary.function, binary.packed_metadata
    stream_of = triton.runtime.driver.active.get_current_stream
    hooks = triton.knobs.runtime

    def again(*tensors: torch.Tensor) -> None:
        stream = stream_of(device)
        tensors = [tensors[i] for i in places]
        enter, leave, described = hooks.launch_enter_hook, hooks.launch_exit_hook, None
        if listens(enter) or listens(leave):
            described = binary.launch_metadata(grid, stream, *tensors, *rest)
        else:
            enter = leave = None
        launch(*grid[:3], stream, function, metadata, described, enter, leave, *tensors, *rest)

    return again


def listens(hook: Any) -> bool:
    """Whether Triton has a launch hook; Triton describes each launch even if the chain of hooks is empty."""
    return bool(getattr(hook, "calls", hook))


def specialisation(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What decides which binary Triton compiles of one text, such as the values of its constants."""
    constants = constexprs(function)
    return (
        function,
        torch.cuda.current_device(),
        *[
            (a.dtype, a.data_ptr() % 16 == 0)
            if isinstance(a, torch.Tensor)
            else a
            if place in constants
            # Triton specialises other integers on being one, on divisibility by 16 and on their width
            else (a == 1, a % 16 == 0, a >= 1 << 31)
            for place, a in enumerate(args)
        ],
    )


@functools.cache
def constexprs(function: Any) -> frozenset[int]:
    """The places of the arguments that are constants of a binary; an interpreted function has none."""
    return frozenset(p.num for p in getattr(function, "params", ()) if p.is_constexpr)


def launch(function, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """A `_launcher` of generated code that lets Triton look up the binary."""
    function.run(*args, grid=grid, warmup=False, **(PINNED | options))


def launch_binary(function, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """A `_launcher` of generated code that takes the binary of an earlier launch with this specialisation."""
    key = specialisation(function, args)
    binary = _binaries.get(key)
    if binary is None:
        import triton

        if under_way := compiling.get(function):
            under_way.wait()
        launch(function, grid, *args, **options)
        if isinstance(function, triton.runtime.JITFunction):
            _binaries[key] = function.run(*args, grid=grid, warmup=True, **(PINNED | options))
        return
    binary[(*grid, 1, 1)](*args)
