"""Triton's FPSan mode: every float is an element of an integer ring, where sums and products are exact.

The mode takes an external function or an inline instruction for something unknown, by its name.  Inside
`in_ring`, and nowhere else, Triton reads an operation of its own in their place: kernels and what Helion
makes of them stay as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

INSTRUCTIONS = {
    r"rcp\.approx\.ftz\.f32|v_rcp_f32": lambda s, x: s.truediv(1.0, x),
    r"mul\.rn\.f32|v_mul_f32": lambda s, x, y: s.mul(x, y, False),
    r"fma\.rn\.f32": lambda s, x, y, z: s.add(s.mul(x, y, False), z, False),
    r"mov\.b32|v_mov_b32": lambda s, x: x,
}
"""Inline instructions of the kernels, by Triton's semantic."""
EXTERNAL = ("exp2", "log2")
"""Functions of libdevice, under names that differ by vendor."""
ORDER = ("maximum", "minimum")
"""A comparison where torch makes code for NVIDIA, Triton's own for AMD: elements that are NaN differ."""
LONG, VERY_LONG = 1000, 3000
"""Products in a program of AMD's without a loop, and in any: the emulator runs a loop repeatedly."""


def visible(
    asm: Any, constraints: Any, args: Any, dtype: Any, is_pure: Any, pack: Any, _semantic: Any = None
):
    """tl.inline_asm_elementwise by Triton's own operations.

    Raises:
        ValueError: it is not known what the instruction computes.
    """
    name = str(getattr(asm, "value", asm)).split()[0]
    for known, meaning in INSTRUCTIONS.items():
        if re.fullmatch(known, name):
            return meaning(_semantic, *args)
    raise ValueError(f"FPSan does not see through the inline instruction {name!r}; add it to INSTRUCTIONS")


def quickly(generate: Callable[..., str]) -> Callable[..., str]:
    """LLVM's code generation, of long programs unoptimised: for AMD it takes 10 of 12 s for 1,481 products of
    a Sinkhorn gradient, and minutes for 20 iterations, of 5,552; for NVIDIA 155 s."""

    def generated(listing: str, *args: Any, **options: Any) -> str:
        emulated = "amdgcn" in listing
        if listing.count(" = mul ") > (VERY_LONG if emulated and " = phi " in listing else LONG):
            listing = listing.replace("attributes #0 = {", "attributes #0 = { noinline optnone", 1)
        return generate(listing, *args, **options)

    return generated


def briefly(optimize_module: Callable[..., None], least: Any) -> Callable[..., None]:
    """LLVM's passes, of long programs the least: others take minutes."""

    def optimized(module: Any, level: Any, arch: str = "", *args: Any, **options: Any) -> None:
        brief = str(module).count(" = mul ") > (VERY_LONG if arch.startswith("gfx") else LONG)
        optimize_module(module, least if brief else level, arch, *args, **options)

    return optimized


def times_one(f: Any, log_mass: Any) -> Any:
    """f itself, for a mass of one.

    PyTorch would add log_mass in floats.  One element in 256 looks like NaN, whose bits an addition changes,
    and differently on a GPU and on a CPU.

    Raises:
        ValueError: the mass is another.
    """
    if log_mass is not None and log_mass.any():
        raise ValueError(f"the logarithm of the mass is {log_mass.flatten()}; PyTorch adds it, in floats")
    return f


@contextlib.contextmanager
def in_ring() -> Iterator[None]:
    """Instrument kernels that are compiled inside; their cache must be for this mode only."""
    import triton
    import triton.language as tl
    from torch._inductor.codegen.triton import TritonOverrides
    from triton._C.libtriton import llvm
    from triton.backends.amd import compiler as amd
    from triton.language.extra import cuda, hip, libdevice

    from helion_sinkhorn.ops.mhc.pre.quantized import launch as quantized
    from helion_sinkhorn.ops.sinkhorn.large import launch as large

    @tl.core.builtin
    def dot(*args: Any, _semantic: Any = None, **options: Any):
        # products of parts leave out the smallest, and in the ring nothing is small
        return whole(*args, _semantic=_semantic, **options | {"input_precision": "ieee"})

    @tl.core.builtin
    def where(condition: Any, x: Any, y: Any, _semantic: Any = None):
        # -0.0, which masks NVIDIA's sums in order, is not neutral in the ring
        constant = getattr(y, "value", y)
        zero = isinstance(constant, float) and constant == 0.0
        return select(condition, x, 0.0 if zero else y, _semantic=_semantic)

    whole, select = tl.dot, tl.where
    own = [(module, name, getattr(tl, name)) for module in (libdevice, cuda.libdevice, hip.libdevice)
           for name in EXTERNAL]  # fmt: skip
    if hasattr(amd, "compile_amdgpu"):  # not in Triton 3.8
        own.append((amd, "compile_amdgpu", quickly(amd.compile_amdgpu)))
        own.append((llvm, "translate_to_asm", quickly(llvm.translate_to_asm)))
        own.append((llvm, "optimize_module", briefly(llvm.optimize_module, llvm.OPTIMIZE_O0)))
    own += [
        (TritonOverrides, name, staticmethod(f"triton_helpers.{name}({{}}, {{}})".format)) for name in ORDER
    ]
    # a cast to e4m3 is unknown, and the integers in its place are not
    own.append((quantized, "has_cast", lambda chosen: False))
    own.append((large, "times", times_one))
    own += [(tl, "inline_asm_elementwise", tl.core.builtin(visible)), (tl, "dot", dot), (tl, "where", where)]
    with contextlib.ExitStack() as replaced:
        replaced.enter_context(mock.patch.object(triton.knobs.compilation, "instrumentation_mode", "fpsan"))
        for module, name, function in own:
            replaced.enter_context(mock.patch.object(module, name, function))
        yield


def digest() -> str:
    """Eight hex digits of this module, which Triton's cache does not know."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
