"""Which kernels are one expression to Triton's FPSan, by target: their code is compared, and not run."""

import re

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.language.extra import libdevice

TARGETS = {"sm90": GPUTarget("cuda", 90, 32), "gfx950": GPUTarget("hip", "gfx950", 64)}
MODE = {"instrumentation_mode": "fpsan"}


@triton.jit
def own_exp2(x, y):
    i = tl.arange(0, 64)
    tl.store(y + i, tl.exp2(tl.load(x + i)))


@triton.jit
def external_exp2(x, y):
    i = tl.arange(0, 64)
    tl.store(y + i, libdevice.exp2(tl.load(x + i)))


@triton.jit
def own_maximum(x, y):
    i = tl.arange(0, 64)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(y + i, tl.maximum(a, b, tl.PropagateNan.ALL))


@triton.jit
def compared_maximum(x, y):
    i = tl.arange(0, 64)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(y + i, tl.where((a > b) | (a != a), a, b))


@triton.jit
def product(x, y):
    i = tl.arange(0, 64)
    tl.store(y + i, tl.load(x + i) * tl.load(y + i))


@triton.jit
def inline_product(x, y, INSTRUCTION: tl.constexpr, CONSTRAINTS: tl.constexpr):
    i = tl.arange(0, 64)
    args = [tl.load(x + i), tl.load(y + i)]
    tl.store(y + i, tl.inline_asm_elementwise(INSTRUCTION, CONSTRAINTS, args, tl.float32, True, 1))


PAIRS = (
    (own_exp2, external_exp2),
    (own_maximum, compared_maximum),
    (product, inline_product),
)
INLINE = {"cuda": ("mul.rn.f32 $0, $1, $2;", "=r,r,r"), "hip": ("v_mul_f32 $0, $1, $2", "=v,v,v")}


def code(kernel, target):
    """A kernel's LLVM IR without names and numbers of metadata."""
    names = {"x": "*fp32", "y": "*fp32"}
    given = {}
    if kernel is inline_product:
        given = dict(zip(("INSTRUCTION", "CONSTRAINTS"), INLINE[target.backend], strict=True))
        names |= dict.fromkeys(given, "constexpr")
    source = triton.compiler.ASTSource(kernel, names, given)
    text = triton.compile(source, target=target, options=dict(MODE)).asm["llir"]
    body = text[text.index("define") :].split("\n}", 1)[0]
    return re.sub(r"@\w+|,? !\w+ !\d+|,? !\d+| #\d+", "", body)


if __name__ == "__main__":
    for arch, target in TARGETS.items():
        for a, b in PAIRS:
            is_same = code(a, target) == code(b, target)
            print(arch, a.__name__, b.__name__, "same code" if is_same else "other code", sep=", ")
