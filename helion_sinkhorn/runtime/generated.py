"""The host function of a kernel for the arguments of a call: shipped, kept on disk, or made by Helion."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from helion_sinkhorn.runtime import program_cache, shipped
from helion_sinkhorn.runtime.kernel import Built
from helion_sinkhorn.runtime.standalone import load, standalone

PINNED = {"enable_fp_fusion": True}
"""Options of every launch: products fuse with sums, whatever Triton's default is, and all get equal bits."""
log = logging.getLogger("helion_sinkhorn")
_codes: dict[Any, str | None] = {}
"""The code of each of Helion's programs, which serve many signatures; None: it needs Helion."""
generating = threading.RLock()
"""Held by the thread that imports Helion or generates code.  Of two threads that generate at once, one may
miss what it set (KeyError: 'location'); where one imports torch._dynamo and another torch._inductor first,
one fails."""


def host_function(kernel: Built, args: Sequence[Any], signature: Sequence[Any]) -> Callable[..., None]:
    """A function of these arguments and `_launcher`, which it calls with a function for Triton and a grid.

    Args:
        kernel: with its config.
        args: of the call.
        signature: what of them generated code depends on.
    """
    if known := found(kernel, args, signature):
        return known
    name = program_cache.file_name(kernel.name, *decisions(kernel, args, signature))
    return generated(kernel, args, functools.partial(program_cache.keep, name))


def found(kernel: Built, args: Sequence[Any], signature: Sequence[Any]) -> Callable[..., None] | None:
    """The host function that came with the package or was kept, for which Helion is not imported."""
    decided, device = decisions(kernel, args, signature)
    if came := shipped.program(kernel.kernel, kernel.name, decided, device):
        return came
    # after it: the name has a digest of every module
    return program_cache.kept(program_cache.file_name(kernel.name, decided, device), kernel.name)


def decisions(
    kernel: Built, args: Sequence[Any], signature: Sequence[Any]
) -> tuple[tuple[object, ...], torch.device]:
    """What decides the code of a program, beside its source and versions: as text, and by its device."""
    device = next(s[1] for a, s in zip(args, signature, strict=True) if isinstance(a, torch.Tensor))
    # entries have their configs sorted, spaces as they are written
    config = tuple(sorted(kernel.config))
    return (config, kernel.kernel.products, of_any(kernel, args, signature)), device


def of_any(kernel: Built, args: Sequence[Any], signature: Sequence[Any]) -> list[Any]:
    """A signature for every GPU of an architecture, and for every value of numbers that stay arguments."""
    # they stand before the record of constants, which is the last
    plain = range(len(args) - 1 - kernel.kernel.numbers, len(args) - 1)
    return [
        (s[0], s[1].type, *s[2:]) if isinstance(a, torch.Tensor) else type(a) if at in plain else s
        for at, (a, s) in enumerate(zip(args, signature, strict=True))
    ]


def generated(
    kernel: Built, args: Sequence[Any], keep: Callable[[str], object] = lambda code: None
) -> Callable[..., None]:
    """What Helion generates for these arguments; its text is given to `keep`.

    Where it cannot be made to run without Helion it is Helion's own host function, with its own launcher.
    """
    with generating:
        # before the kernel is imported, and after Helion has read its source
        before = program_cache.is_unchanged()
        program = bound(kernel, args)
        code = code_of(kernel, program)
        if code is not None:
            # one text may serve several signatures, each of which has a name of its own
            if before and program_cache.is_unchanged():
                keep(code)
            return load(code, kernel.name)
        from helion.runtime import default_launcher

        (config,) = kernel.helion.configs
        launcher = functools.partial(default_launcher, **PINNED)
        with under_float32():
            host = program.compile_config(config)
        return functools.partial(host, _launcher=launcher)


@contextlib.contextmanager
def under_float32() -> Iterator[None]:
    """Make float32 torch's default dtype meanwhile: Helion gives it to the scalars of a body.

    Kept code must not depend on it.  The setting is the process's, so other threads see float32 too.
    """
    before = torch.get_default_dtype()
    # left alone where it is the usual one: another thread may set it meanwhile
    if before is torch.float32:
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@under_float32()
def bound(kernel: Built, args: Sequence[Any]) -> Any:
    """Helion's program of a kernel for these arguments."""
    return kernel.helion.bind(tuple(stand_ins(args)))


@under_float32()
def code_of(kernel: Built, program: Any) -> str | None:
    """The text of one of Helion's programs; None where it needs Helion."""
    if program not in _codes:
        (config,) = kernel.helion.configs
        code = _codes[program] = standalone(program.to_triton_code(config), kernel.name)
        if code is None:
            log.info("%s: its generated code needs Helion, and is not kept", kernel.name)
    return _codes[program]


def stand_ins(args: Sequence[Any]) -> Iterator[Any]:
    """Arguments for which Helion generates the code of every call with their signature.

    Helion makes one parameter of a tensor that is passed twice, and a call with two tensors would read the
    first for both: so the second is a view of the first.  Helion stores a whole tile, unmasked, to a batch of
    one: so two matrices take the place of one.  These share no memory, so no kernel may be given a batch of
    one that it stores to by one argument and reads by another.
    """
    seen: set[int] = set()
    for a in args:
        if isinstance(a, torch.Tensor):
            if a.size(0) == 1:
                a = torch.empty_strided((2, *a.shape[1:]), a.stride(), dtype=a.dtype, device=a.device)
            elif id(a) in seen:
                a = a.as_strided(a.shape, a.stride(), a.storage_offset())
            seen.add(id(a))
        yield a
