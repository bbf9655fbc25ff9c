"""From a built kernel and its arguments to a launch, with what Helion and Triton look up each time kept.

On an H200 host a Helion call costs 25 to 120 us, `x * 2` 10.  Two dictionaries replace most of it:
the host function per signature, and the compiled binary per specialisation.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import helion
import torch
import triton
from helion.runtime import default_launcher

INT32_ELEMENTS = 1 << 31
"""From this many elements on Helion generates 64-bit indices."""

_programs: dict[Hashable, Callable[..., None]] = {}
_binaries: dict[Hashable, Any] = {}


def run(kernel: helion.Kernel, *args: Any) -> None:
    """Call a built kernel through the host function compiled for these arguments.

    The key is all that generated code depends on: not the batch, except that 2^31 elements
    are a case of their own.
    """
    signature = tuple(
        [
            (a.dtype, a.device, a.shape[1:], a.stride(), a.numel() >= INT32_ELEMENTS)
            if isinstance(a, torch.Tensor)
            else a
            for a in args
        ]
    )
    key = kernel, signature
    program = _programs.get(key)
    if program is None:
        program = _programs[key] = compiled(kernel, args)
    program(*args)


def compiled(kernel: helion.Kernel, args: tuple[Any, ...]) -> Callable[..., None]:
    """The host function of a kernel for these arguments; an interpreted kernel is its own."""
    if kernel.settings.ref_mode == helion.RefMode.EAGER:
        return kernel
    host = kernel.bind(tuple(map(as_several, args))).compile_config(kernel.configs[0])
    # under ROCm Triton specialises on buffer sizes too: there its own look-up stays
    if torch.version.hip or not args[0].is_cuda:
        return host
    return lambda *a: host(*a, _launcher=launch_binary)


def as_several(a: Any) -> Any:
    """A stand-in of two matrices for one: Helion stores a whole tile, unmasked, to a batch of size 1."""
    if not isinstance(a, torch.Tensor) or a.size(0) != 1:
        return a
    return torch.empty_strided((2, *a.shape[1:]), a.stride(), dtype=a.dtype, device=a.device)


def launch_binary(function, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """A `_launcher` of Helion's: by the binary that Triton chose for the same specialisation before."""
    key = (
        function,
        torch.cuda.current_device(),
        *[
            (a.dtype, a.data_ptr() % 16 == 0)
            if isinstance(a, torch.Tensor)
            # Triton specialises integers on being one, on divisibility by 16 and on their width
            else (a == 1, a % 16 == 0, a >= 1 << 31)
            for a in args
        ],
    )
    binary = _binaries.get(key)
    if binary is None:
        default_launcher(function, grid, *args, **options)
        if isinstance(function, triton.runtime.JITFunction):
            options = {k: v for k, v in options.items() if not k.startswith("_")}
            _binaries[key] = function.run(*args, grid=grid, warmup=True, **options)
        return
    binary[(*grid, 1, 1)](*args)
