"""The step from text to machine code: an ELF decoded by another program has the instructions that were
read.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("triton")
from ci.emulator import text
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Job
from helion_sinkhorn.lab.machine.compiler import compile_for
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime.kernel import default_choice

OPTIONAL = "tinygrad, which decodes AMD code objects, is optional and needs Python 3.11"
SPELLED = {"v_accvgpr_read_b32": "v_accvgpr_read", "v_accvgpr_write_b32": "v_accvgpr_write",
           "v_fma_mix_f32": "v_mad_mix_f32", "v_fma_mixlo_f16": "v_mad_mixlo_f16",
           "v_fma_mixhi_f16": "v_mad_mixhi_f16"}  # fmt: skip
"""Names that the decoder spells otherwise."""


def code_of(elf: bytes) -> bytes:
    """The .text section."""
    offset, size, count, names = (
        int.from_bytes(elf[a:b], "little")
        for a, b in ((0x28, 0x30), (0x3A, 0x3C), (0x3C, 0x3E), (0x3E, 0x40))
    )
    headers = [elf[offset + size * k : offset + size * (k + 1)] for k in range(count)]

    def content(header: bytes) -> bytes:
        begin, length = (int.from_bytes(header[a : a + 8], "little") for a in (0x18, 0x20))
        return elf[begin : begin + length]

    strings = content(headers[names])
    called = {strings[int.from_bytes(h[:4], "little") :].split(b"\0")[0]: h for h in headers}
    return content(called[b".text"])


@pytest.mark.parametrize("key", ["mi350", "mi300x"])
def test_an_elf_decodes_to_the_text_that_is_executed(key, tmp_path):
    decoder = pytest.importorskip("tinygrad.renderer.amd", reason=OPTIONAL)
    call = SinkhornCall(True, 1, "float32", 4, 4, 20)
    job = Job(call, default_choice(KERNELS["sinkhorn_forward"], call, DEVICES[key]))
    (binary,) = compile_for(key, [job], cache=tmp_path)
    assert binary.compiled
    (listing,) = (p.read_text() for p in Path(tmp_path).rglob("*.amdgcn"))
    (elf,) = (p.read_bytes() for p in Path(tmp_path).rglob("*.hsaco"))
    code, at, decoded = code_of(elf), 0, []
    while at < len(code):
        ins = decoder.decode_inst(code[at:], "cdna")
        decoded.append(re.sub(r"_(e32|e64|dpp|sdwa)$", "", ins.op.name.lower()))
        at += ins.size()
    expected = [SPELLED.get(ins.op, ins.op) for ins in text.parse(listing).code]
    # the code object is padded between the two entries and after the end
    padded = ("s_nop", "s_code_end")
    assert [op for op in decoded if op not in padded] == [op for op in expected if op not in padded]
