"""Small AMD programs, and single instructions on given registers, for the emulator's own tests."""

from __future__ import annotations

import numpy as np

from ci.emulator import machine, text
from ci.emulator.arithmetic import Functions
from ci.emulator.hazards import Hazards
from ci.emulator.machine import Model, World
from ci.emulator.memory import Arena
from ci.emulator.registers import LANES, SCALARS, Waves, operand
from ci.emulator.waits import Waits

HEAD = """\t.amdgcn_target "amdgcn-amd-amdhsa-unknown-gfx950"
\t.globl\tkernel
kernel:
"""
TAIL = """
\t.section\t.rodata
\t.amdhsa_kernel kernel
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_user_sgpr_kernarg_preload_length 0
\t\t.amdhsa_system_sgpr_workgroup_id_x 1
\t\t.amdhsa_private_segment_fixed_size {scratch}
\t\t.amdhsa_next_free_vgpr 64
\t\t.amdhsa_accum_offset 32
\t\t.amdhsa_kernarg_size 16
"""
PROLOGUE = """
\ts_load_dwordx4 s[4:7], s[0:1], 0x0
\ts_waitcnt lgkmcnt(0)
\ts_and_b32 s5, s5, 0xffff
\ts_mov_b32 s6, 0x7ffffffe
\ts_mov_b32 s7, 0x27000
\tv_lshlrev_b32_e32 v1, 2, v0
"""
"""s[4:7] becomes the buffer of the one argument, v1 the byte offset of a lane's word; s2 is the workgroup."""


def program(body: str, scratch: int = 0) -> text.Program:
    """The body after PROLOGUE, s_endpgm after it."""
    stripped = (line.strip() for line in body.split("\n"))
    lines = "\n".join(line if line.endswith(":") else f"\t{line}" for line in stripped)
    return text.parse(f"{HEAD}{PROLOGUE}{lines}\n\ts_endpgm\n{TAIL.format(scratch=scratch)}")


def run(body: str, content: np.ndarray, *, waves=1, grid=1, lds=0, scratch=0, model: Model | None = None):
    """What a program makes of a buffer."""
    loaded = machine.load(program(body, scratch))

    def arguments(arena: Arena, empty: bytes) -> bytes:
        return arena.address("buffer").to_bytes(8, "little") + empty[8:]

    regions, sizes = {"buffer": np.ascontiguousarray(content).view(np.uint8)}, {"buffer": content.itemsize}
    arena = machine.launched(loaded, grid, waves, lds, regions, model or Model(), arguments, sizes)
    return arena.content("buffer").view(content.dtype)


def step(line: str, vectors: dict[int, np.ndarray], scalars=None, active=None) -> Waves:
    """The registers of one wave after one instruction; those that are not given hold quiet NaNs."""
    v = np.full((64, 1, LANES), 0x7FC0_0123, np.uint32)
    s = np.full((SCALARS, 1), 0x7FC0_0456, np.uint32)
    for at, value in vectors.items():
        v[at, 0] = np.asarray(value).view(np.uint32) if np.asarray(value).itemsize == 4 else value
    for at, value in (scalars or {}).items():
        s[at, 0] = value & 0xFFFF_FFFF
    active = np.ones((1, LANES), bool) if active is None else np.asarray(active)[None]
    world = World(Arena({}), Functions(), "nearest", 1, 0, machine.ORDERS["highest"])
    zero = np.zeros(1, int)
    w = Waves(
        v, s, np.zeros(1, bool), active, zero, zero, world, 0, bool(active.all()), Waits(), Hazards("gfx950")
    )
    ins = text.instruction("\t" + line, 1)
    with np.errstate(all="ignore"):
        machine.TABLE[ins.op](ins, [operand(o, 32) for o in ins.operands])(w)
    return w


def result(line: str, **given) -> np.ndarray:
    """v0 of every lane after one instruction; v1, v2, ... are given as v1=..., scalars as s2=..."""
    active = given.pop("active", None)
    vectors = {int(k[1:]): np.broadcast_to(x, LANES) for k, x in given.items() if k[0] == "v"}
    scalars = {int(k[1:]): int(x) for k, x in given.items() if k[0] == "s"}
    return step(line, vectors, scalars, active).v[0, 0]
