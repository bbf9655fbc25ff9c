"""ci/sass: whether threads of NVIDIA's machine code compute the same formula of their own numbers."""

from __future__ import annotations

import numpy as np
import pytest

from ci.sass.formulas import Formulas
from ci.sass.machine import Block, Unknown
from ci.sass.memory import Memory
from ci.sass.text import float_bits, parse

THREADS, ROW = 16, 16
X, OUT = 0x10000, 0x20000

LOADED = """
S2R R0, SR_TID.X ;
MOV R4, 0x10 ;
MOV R5, 0x4 ;
IMAD.WIDE R2, R0, R4, c[0x0][0x210] ;
IMAD.WIDE R6, R0, R5, c[0x0][0x218] ;
LDG.E.128 R8, desc[UR4][R2.64] ;
"""
STORED = """
STG.E desc[UR4][R6.64], R12 ;
EXIT ;
"""
FUSED = "FMUL R12, R8, R9 ;\nFFMA R12, R10, R11, R12 ;"


def entries(formulas):
    """The half at an address of x (threads, 4), whose rows are alike."""

    def before(address):
        offset = (address - X) % ROW
        return formulas.of("half", offset // 2 % 2, formulas.of("entry", offset // 4))

    return before


def followed(lines, formulas=None):
    """The formula that each thread stores, of a row of four numbers."""
    formulas = formulas or Formulas()
    memory = Memory(formulas, entries(formulas))
    code = [line for line in (LOADED + lines + STORED).splitlines() if line]
    listing = "\n".join(f"        /*{16 * k:04x}*/                   {line}" for k, line in enumerate(code))
    bank = bytes(0x210) + X.to_bytes(8, "little") + OUT.to_bytes(8, "little")
    Block(parse(listing), bank, (0, 0, 0), THREADS, memory, formulas).run()
    halves = [(memory.half_at(OUT + 4 * t), memory.half_at(OUT + 4 * t + 2)) for t in range(THREADS)]
    return np.array([memory.joined(*pair) for pair in halves])


def test_threads_that_do_the_same_have_one_formula():
    found = followed(FUSED)
    assert len(set(found.tolist())) == 1
    assert found[0] < 0


def test_another_product_fused_in_some_threads_is_found():
    """x0 x1 + x2 x3 is rounded otherwise where the first product is the fused one."""
    found = followed(f"""ISETP.GE.AND P0, PT, R0, 0x8, PT ;
{FUSED}
@P0 FMUL R12, R10, R11 ;
@P0 FFMA R12, R8, R9, R12 ;""")
    assert len(set(found[:8].tolist())) == len(set(found[8:].tolist())) == 1
    assert found[0] != found[8]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("FADD R12, R8, R9 ;", "FADD R12, R9, R8 ;", True),
        ("FADD R12, R8, -R9 ;", "FADD R13, R9, -R8 ;\nFADD R12, -R13, -RZ ;", False),
        ("FMUL R12, R8, R9 ;", "FMUL R12, -R9, -R8 ;", True),
        ("FFMA R12, R8, R9, R10 ;", "FFMA R12, R9, R8, R10 ;", True),
        ("FFMA R12, R8, 1, R10 ;", "FADD R12, R8, R10 ;", True),
        ("FFMA R12, R8, -1, R10 ;", "FADD R12, R10, -R8 ;", True),
        # x + 0 is x, but for -0, which no power of two is
        ("MUFU.EX2 R13, R8 ;\nFADD R12, R13, RZ ;", "MUFU.EX2 R12, R8 ;", True),
        ("MUFU.EX2 R13, R8 ;\nFFMA R12, R13, R13, RZ ;", "MUFU.EX2 R13, R8 ;\nFMUL R12, R13, R13 ;", True),
        ("MUFU.EX2 R13, R8 ;\nFADD R12, -R13, RZ ;", "MUFU.EX2 R13, R8 ;\nFADD R12, -R13, -RZ ;", False),
        ("FADD R12, R8, RZ ;", "FADD R12, R8, -RZ ;", False),
        ("FFMA R12, R8, R9, RZ ;", "FMUL R12, R8, R9 ;", False),
        ("FFMA R12, R8, R9, R10 ;", "FMUL R12, R8, R9 ;\nFADD R12, R12, R10 ;", False),
        ("FADD R12, R8, R9 ;\nFADD R12, R12, R10 ;", "FADD R12, R9, R10 ;\nFADD R12, R12, R8 ;", False),
        ("FMUL R12, R8, R9 ;", "FMUL.FTZ R12, R8, R9 ;", False),
        ("MUFU.RCP R12, R8 ;", "MUFU.RSQ R12, R8 ;", False),
        ("FMNMX R12, R8, R9, PT ;", "FMNMX R12, R8, R9, !PT ;", False),
    ],
)
def test_what_counts_as_the_same_arithmetic(one, other, same):
    formulas = Formulas()
    assert (followed(one, formulas)[0] == followed(other, formulas)[0]) == same


def test_an_exchange_within_a_warp_takes_the_other_threads_word():
    """A butterfly changes nothing where rows are alike, and exchanges what differs."""
    assert len(set(followed("SHFL.BFLY PT, R12, R8, 0x1, 0x1f ;").tolist())) == 1
    formulas = Formulas()
    mixed = followed("SEL R12, R8, R9, P1 ;\nSHFL.BFLY PT, R12, R12, 0x1, 0x1f ;", formulas)
    assert len(set(mixed.tolist())) == 1
    odd = "LOP3.LUT R13, R0, 0x1, RZ, 0xc0, !PT ;\nISETP.NE.AND P1, PT, R13, RZ, PT ;"
    found = followed(f"{odd}\nSEL R12, R8, R9, P1 ;\nSHFL.BFLY PT, R12, R12, 0x1, 0x1f ;", formulas)
    direct = followed(f"{odd}\nSEL R12, R9, R8, P1 ;", formulas)
    assert (found == direct).all()


def test_numbers_are_computed():
    """The result of an instruction with known operands is a number, bit by bit."""
    found = followed("MOV R12, 0x40490fdb ;")
    assert set(found.tolist()) == {float_bits(3.1415927410125732)}


@pytest.mark.parametrize(
    ("number", "by"), [(1000, 7), (6, 7), (4294967294, 3), (65535, 1), (12345678, 12345)]
)
def test_whole_numbers_are_divided_as_ptxas_divides_them(number, by):
    """Without a sign: a reciprocal, two multiplications of 64 bits, two corrections."""
    found = followed(f"""MOV R14, {number:#x} ;
        MOV R15, {by:#x} ;
        I2F.U32.RP R16, R15 ;
        MUFU.RCP R16, R16 ;
        IADD3 R17, R16, 0xffffffe, RZ ;
        F2I.FTZ.U32.TRUNC.NTZ R13, R17 ;
        IADD3 R18, RZ, -R13, RZ ;
        IMAD R18, R18, R15, RZ ;
        MOV R12, RZ ;
        IMAD.HI.U32 R13, R13, R18, R12 ;
        IMAD.HI.U32 R12, R13, R14, RZ ;
        IADD3 R18, -R12, RZ, RZ ;
        IMAD R18, R15, R18, R14 ;
        ISETP.GE.U32.AND P1, PT, R18, R15, PT ;
        @P1 IADD3 R18, R18, -R15, RZ ;
        @P1 IADD3 R12, R12, 0x1, RZ ;
        ISETP.GE.U32.AND P1, PT, R18, R15, PT ;
        @P1 IADD3 R12, R12, 0x1, RZ ;""")
    assert set(found.tolist()) == {number // by}


AT = "SHF.L.U32 R20, R0, 0x2, RZ ;\n"
"""R20: a word of shared memory for each thread."""
GREATER = "FSETP.GT.AND P1, PT, R8, R9, PT ;\n"
CHOSEN = "SEL R12, R8, R9, P1 ;"


@pytest.mark.parametrize(
    ("lines", "same"),
    [
        # a word by its halves, which are loaded alone too
        (AT + "PRMT R13, R8, 0x7632, RZ ;\nSTS.U16 [R20], R8 ;\nSTS.U16 [R20+0x2], R13 ;\nLDS R12, [R20] ;",
         "MOV R12, R8 ;"),
        (AT + "STS [R20], R8 ;\nLDS.U16 R12, [R20+0x2] ;\nLDS R12, [R20] ;", "MOV R12, R8 ;"),
        ("MOV R13, 0x5 ;\nR2P PR, R13, 0x5 ;\nSEL R12, R8, R9, P2 ;", "MOV R12, R8 ;"),
        ("MOV R13, 0x1 ;\nR2P PR, R13, 0x5 ;\nSEL R12, R8, R9, P2 ;", "MOV R12, R9 ;"),
        (GREATER + "P2R R13, PR, RZ, 0x2 ;\nR2P PR, R13, 0x2 ;\n" + CHOSEN, GREATER + CHOSEN),
        # 64 bits: the low words decide where the high ones are equal
        ("ISETP.NE.AND P0, PT, R4, R5, PT ;\nISETP.NE.AND.EX P1, PT, R4, R4, PT, P0 ;\n" + CHOSEN,
         "MOV R12, R8 ;"),
        ("ISETP.LT.AND P0, PT, R4, R5, PT ;\nISETP.LT.AND.EX P1, PT, R4, R4, PT, P0 ;\n" + CHOSEN,
         "MOV R12, R9 ;"),
        ("ISETP.LT.AND P0, PT, R4, R5, PT ;\nISETP.LT.AND.EX P1, PT, R5, R4, PT, P0 ;\n" + CHOSEN,
         "MOV R12, R8 ;"),
        ("MOV R13, 0xfffffffd ;\nI2FP.F32.S32 R12, R13 ;", "MOV R12, 0xc0400000 ;"),
        ("MOV R13, 0xfffffffd ;\nIABS R12, R13 ;", "MOV R12, 0x3 ;"),
        ("F2F.BF16.F32 R12, R8 ;", "F2FP.BF16.F32.PACK_AB R12, RZ, R8 ;"),
        ("BREAK B0 ;\nMOV R12, R8 ;", "MOV R12, R8 ;"),
    ],
)  # fmt: skip
def test_what_instructions_do(lines, same):
    formulas = Formulas()
    assert (followed(lines, formulas) == followed(same, formulas)).all()


def test_what_is_not_known_is_refused():
    with pytest.raises(Unknown, match="FROBNICATE"):
        followed("FROBNICATE R12, R8 ;")


def test_a_branch_on_a_float_is_refused():
    lines = "FSETP.GT.AND P0, PT, R8, R9, PT ;\n@P0 EXIT ;"
    with pytest.raises(Unknown, match="guard that is no number"):
        followed(lines)
