"""What Triton compiles meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """The names of the kernels that are compiled in the block, or read from Triton's cache."""
    from triton import knobs

    names: list[str] = []
    before = knobs.runtime.jit_post_compile_hook
    knobs.runtime.jit_post_compile_hook = lambda **said: names.append(said["fn"].name)
    try:
        yield names
    finally:
        knobs.runtime.jit_post_compile_hook = before
