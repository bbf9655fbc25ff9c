"""Text in Triton's language that kernel bodies share, as the versions of Triton read it."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compiled
from triton.language.semantic import TritonSemantic

from helion_sinkhorn.configs import store
from helion_sinkhorn.runtime import device_math

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def kernel(p):
    i = tl.arange(0, 4)
    tl.store(p + i, tl.where(i == 3, 1.0, {}))
"""


def constants(text, folder):
    """The lines of Triton's IR of a kernel with this expression that make a constant of zero."""
    path = folder / "kernel.py"
    path.write_text(KERNEL.format(text))
    spec = importlib.util.spec_from_file_location("kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    source = ASTSource(fn=module.kernel, signature={"p": "*fp32"}, constexprs={})
    ir = compiled(source, target=GPUTarget("cuda", 90, 32)).asm["ttir"]
    return [line for line in ir.splitlines() if "0.000000e+00" in line and "1.0" not in line]


@pytest.mark.parametrize("minor", ["3.6", "3.8", "3.9"])
def test_negative_zero_keeps_its_sign(minor, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "triton_minor", lambda: minor)
    if minor != "3.9":
        made = TritonSemantic.scalar_constant
        # as these versions do
        monkeypatch.setattr(
            TritonSemantic, "scalar_constant", lambda self, value, dtype: made(self, value or 0.0, dtype)
        )
    (line,) = constants(device_math.negative_zero(), tmp_path)
    assert "-0.000000e+00" in line
