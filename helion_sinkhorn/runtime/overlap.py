"""Launches that begin while the launch before them ends: CUDA's programmatic dependent launch.

Between two launches of a stream a GPU idles for a microsecond or less, in which it ends the first one and
places the programs of the second.  With this option the programs of the second are placed while those of the
first end, and wait for its results.  It is for kernels of a few to some ten microseconds that follow each
other.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools

import torch

CAPABILITY = 9, 0
"""Hopper, the first GPU with the instructions."""
DRIVER = 12030
"""CUDA 12.3, the first driver that captures such launches in a graph."""
IMPORT = "from triton.language.extra.cuda import gdc_wait"
BEGIN = "gdc_wait()"
"""A program waits until the launch before it has ended and its stores are visible, before it reads or
writes.  The programs of the next launch are placed when those of this one end: placed at their beginning,
they take room from programs that have not begun (docs/dev/tried.md).
"""


@functools.cache
def has_overlap(device: torch.device) -> bool:
    """Whether launches on a device can overlap, in a stream and in a CUDA graph."""
    if device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(device) < CAPABILITY:
        return False
    import triton

    # Triton's interpreter does not know the instructions
    return driver() >= DRIVER and not triton.knobs.runtime.interpret


def driver() -> int:
    """The CUDA version of the driver, such as 12030; 0 if it does not say."""
    version = ctypes.c_int()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value


def wait(module: ast.Module) -> None:
    """Make the kernels of a standalone module wait for the launch before them."""
    for s in module.body:
        if isinstance(s, ast.FunctionDef) and s.name.startswith("_helion_"):
            s.body[:0] = ast.parse(BEGIN).body
    module.body[:0] = ast.parse(IMPORT).body
