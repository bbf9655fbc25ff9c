"""A Program with its arguments, run: waves in step, split where branches part them, joined at barriers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ci.emulator import division, irregular, matrix, memory, packed, scalar, shared, vector, waits
from ci.emulator.arithmetic import Functions
from ci.emulator.effects import Effects, effects
from ci.emulator.hazards import Hazards
from ci.emulator.memory import Arena, Finding
from ci.emulator.registers import EXEC, LANES, M0, SCALARS, Waves, joined, operand
from ci.emulator.text import Instruction, Program

Array = np.ndarray
WAVES_TOGETHER = 128
"""Waves that run at once, as whole workgroups: enough to hide the cost of a call."""
QUIET_NAN = 0x7FC0_0000
CONTROL = ("s_waitcnt", "s_nop", "s_barrier", "s_endpgm", "s_setprio")
USER_SGPRS = (
    ("private_segment_buffer", 4), ("dispatch_ptr", 2), ("queue_ptr", 2), ("kernarg_segment_ptr", 2),
    ("dispatch_id", 2), ("flat_scratch_init", 2), ("private_segment_size", 1),
)  # fmt: skip
"""What hardware puts into the first scalar registers, in this order, if a descriptor requests it."""


ORDERS = {"highest": memory.FORWARD, "lowest": slice(None, None, -1)}


class Unknown(Exception):
    """A program has instructions that are not known here: it is not run."""


@dataclass(frozen=True)
class Model:
    """The choices that the ISA leaves open, and the order in which waves run."""

    functions: str = "nearest"
    products: str = "nearest"
    seed: int = 0
    """Seed of the NaNs that registers and LDS hold before they are written."""
    winner: str = "highest"
    """Lane of a wave whose value remains where several store to one place: highest or lowest."""
    order: str = "together"
    """Waves of a workgroup: together, or one after the other, the first or the last first."""
    most: int = 20_000_000
    """Instructions of a launch, over all groups of waves, after which it is said not to end."""


@dataclass(frozen=True)
class Step:
    """An instruction, ready to run."""

    ins: Instruction
    effects: Effects
    touched: tuple[int, ...]
    run: Callable[[Waves], None] | None = None
    taken: Callable[[Waves], Array] | None = None
    """A branch: which waves take it."""
    target: int = 0
    wait: dict[str, int] | None = None


@dataclass
class World:
    """What all waves of a launch share."""

    memory: Arena
    functions: Functions
    products: str
    waves: int
    scratch_bytes: int
    order: slice
    """In which lanes store."""
    shared: shared.Shared | None = None


@dataclass(frozen=True)
class Loaded:
    """A program whose every instruction is known."""

    program: Program
    steps: tuple[Step, ...]
    unit: int = field(default=4)
    """Bytes of the smallest store to LDS."""


TABLE = {
    **vector.TABLE,
    **irregular.TABLE,
    **division.TABLE,
    **packed.TABLE,
    **scalar.TABLE,
    **memory.TABLE,
    **matrix.TABLE,
    **shared.TABLE,
}
"""Opcode -> what makes an instruction, with its operands, runnable."""


def unknown(program: Program) -> list[str]:
    """Opcodes of a program that are not known here."""
    ops = dict.fromkeys(ins.op for ins in program.code)
    return sorted(op for op in ops if not (op in CONTROL or op in scalar.CONDITIONS or op in TABLE))


def load(program: Program) -> Loaded:
    """Make every instruction runnable.

    Raises:
        Unknown: some are not known.
    """
    if opcodes := unknown(program):
        raise Unknown(
            f"{program.name} for {program.arch} has instructions that ci/emulator does not know: "
            f"{', '.join(opcodes)}; "
            "docs/dev/emulation.md says how to add one"
        )
    offset = program.descriptor["accum_offset"]
    steps, problems = [], []
    for ins in program.code:
        try:
            steps.append(prepared(program, ins, offset))
        except ValueError as problem:
            problems.append(str(problem))
    if problems:
        raise Unknown(f"{program.name} for {program.arch}: {'; '.join(dict.fromkeys(problems))}")
    narrow = [ins.op for ins in program.code if ins.op.startswith("ds_write_b")]
    unit = min([4, *(int(op.split("_")[2][1:]) // 8 for op in narrow)])
    return Loaded(program, tuple(steps), unit)


def prepared(program: Program, ins: Instruction, accumulators: int) -> Step:
    effect = effects(ins, accumulators)
    if ins.op in scalar.CONDITIONS:
        return Step(ins, effect, (), taken=scalar.CONDITIONS[ins.op], target=program.labels[ins.operands[0]])
    if ins.op == "s_waitcnt":
        return Step(ins, effect, (), wait=waits.wanted(ins))
    if ins.op in CONTROL:
        return Step(ins, effect, ())
    # "off" stands where an address could
    operands = [operand(t if t != "off" else "0", accumulators) for t in ins.operands]
    return Step(ins, effect, effect.touched, run=TABLE[ins.op](ins, operands))


# ------------------------------------------------------------------------------------------------ running


def advance(loaded: Loaded, w: Waves, budget: list[int]) -> tuple[str, list[Waves]]:
    """Run until waves part, wait at a barrier or end."""
    steps, labels = loaded.steps, len(loaded.steps)
    while True:
        if w.at >= labels:
            raise Finding("end", steps[-1].ins, "the program runs past its end")
        step = steps[w.at]
        w.at += 1
        budget[0] -= 1
        if budget[0] < 0:
            raise Finding("end", step.ins, "the program does not end")
        w.hazards.use(step.ins, step.effects)
        if step.run is not None:
            w.waits.use(step.ins, step.effects, step.touched)
            step.run(w)
        elif step.taken is not None:
            taken = step.taken(w)
            if taken.all():
                w.at = step.target
            elif taken.any():
                jumping, staying = w.chosen(taken), w.chosen(~taken)
                jumping.at = step.target
                return "parted", [jumping, staying]
        elif step.wait is not None:
            w.waits.wait(step.wait)
            if w.late:
                for number, landing in w.late:
                    if number <= w.waits.done["vm"]:
                        w.world.shared.land(landing)
                w.late = [late for late in w.late if late[0] > w.waits.done["vm"]]
        elif step.ins.op == "s_barrier":
            w.waits.barrier(step.ins)
            return "barrier", [w]
        elif step.ins.op == "s_endpgm":
            return "end", []


def run_together(loaded: Loaded, start: list[Waves], world: World, model: Model, budget: list[int]) -> None:
    """Waves of some workgroups, to their end."""
    ready, waiting = start, []
    while ready or waiting:
        while ready:
            state, parts = advance(loaded, ready.pop(0), budget)
            if state == "parted":
                ready[:0] = parts
            elif state == "barrier":
                waiting += parts
        if waiting:
            if world.shared is not None:
                world.shared.barrier(np.unique(np.concatenate([w.group for w in waiting])))
            ready, waiting = merged(waiting) if model.order == "together" else waiting, []


def merged(waiting: list[Waves]) -> list[Waves]:
    """Waves that wait at the same barrier, with the same loads out, go on as one."""
    groups: list[list[Waves]] = []
    for w in waiting:
        same = next(
            (g for g in groups if g[0].at == w.at and g[0].waits == w.waits and not (g[0].late or w.late)),
            None,
        )
        if same is None:
            groups.append([w])
        else:
            same.append(w)
    return [joined(group) for group in groups]


def launched(
    loaded: Loaded,
    grid: int,
    waves: int,
    shared_bytes: int,
    regions: dict[str, Array],
    model: Model,
    addresses: Callable[[Arena, bytes], bytes],
    elements: dict[str, int] | None = None,
) -> Arena:
    """Run a grid of workgroups and return the memory after it.

    addresses: makes the kernel's argument segment, of so many bytes, from where the regions lie.
    elements: bytes of the smallest element of a region.
    """
    program = loaded.program
    arguments = bytes(-(-max(program.descriptor.get("kernarg_size", 0), 8) // 8) * 8)
    scratch_bytes = program.descriptor.get("private_segment_fixed_size", 0)
    together = max(1, WAVES_TOGETHER // waves)
    scratch = (
        {"scratch": garbage(together * waves * LANES * scratch_bytes // 4, model.seed).view(np.uint8)}
        if scratch_bytes
        else {}
    )
    # hidden arguments, such as a workgroup's size along an axis, are halfwords
    arena = Arena({**regions, **scratch, "arguments": arguments}, {**(elements or {}), "arguments": 2})
    begin, length = arena.places["arguments"]
    arena.data[begin : begin + length] = np.frombuffer(addresses(arena, arguments), np.uint8)
    world = World(
        arena, Functions(model.functions), model.products, waves, scratch_bytes, ORDERS[model.winner]
    )
    budget = [model.most]
    with np.errstate(all="ignore"):
        for first in range(0, grid, together):
            groups = np.arange(first, min(first + together, grid))
            if shared_bytes:
                fill = garbage(-(-shared_bytes // 4), model.seed + 1)
                world.shared = shared.Shared(len(groups), shared_bytes, loaded.unit, fill, world.order)
            start = started(loaded, groups, waves, world, model)
            run_together(loaded, start, world, model, budget)
    return arena


def garbage(count: int, seed: int) -> Array:
    """Quiet NaNs with any payload."""
    drawn = np.random.default_rng(seed).integers(0, 1 << 22, count, dtype=np.uint32)
    return drawn | np.uint32(QUIET_NAN)


def started(loaded: Loaded, groups: Array, waves: int, world: World, model: Model) -> list[Waves]:
    """The waves of some workgroups as hardware starts them."""
    program, count = loaded.program, len(groups) * waves
    # the register file is allocated in eights
    registers = -(-program.descriptor["next_free_vgpr"] // 8) * 8
    v = np.broadcast_to(garbage(registers, model.seed + 2)[:, None, None], (registers, count, LANES)).copy()
    s = np.broadcast_to(garbage(SCALARS, model.seed + 3)[:, None], (SCALARS, count)).copy()
    wave, group = np.tile(np.arange(waves), len(groups)), np.repeat(np.arange(len(groups)), waves)
    v[0] = wave[:, None] * LANES + np.arange(LANES)
    s[EXEC : EXEC + 2] = 0xFFFF_FFFF
    s[M0] = 0xFFFF_FFFF
    for at, value in initial_scalars(program, world.memory):
        s[at] = value
    at = program.descriptor["user_sgpr_count"]
    for axis, value in (("x", groups[group]), ("y", 0), ("z", 0)):
        if program.descriptor.get(f"system_sgpr_workgroup_id_{axis}"):
            s[at] = value
            at += 1
    everyone = Waves(
        v, s, np.zeros(count, bool), np.ones((count, LANES), bool), group, wave, world, program.entry,
        waits=waits.Waits(), hazards=Hazards(program.arch),
    )  # fmt: skip
    if model.order == "together" or waves == 1:
        return [everyone]
    order = range(waves) if model.order == "first" else reversed(range(waves))
    return [everyone.chosen(wave == k) for k in order]


def initial_scalars(program: Program, arena: Arena) -> list[tuple[int, int]]:
    """(register, value) of what the descriptor requests; pointers without a meaning here are null."""
    scalars, at = [], 0
    segment = arena.address("arguments")
    for name, size in USER_SGPRS:
        if program.descriptor.get(f"user_sgpr_{name}"):
            value = segment if name == "kernarg_segment_ptr" else 0
            scalars += [(at + k, (value >> 32 * k) & 0xFFFF_FFFF) for k in range(size)]
            at += size
    offset = program.descriptor.get("user_sgpr_kernarg_preload_offset", 0)
    begin, _ = arena.places["arguments"]
    for k in range(program.descriptor.get("user_sgpr_kernarg_preload_length", 0)):
        scalars.append((at + k, int(arena.words[begin // 4 + offset + k])))
    expected = program.descriptor["user_sgpr_count"]
    used = at + program.descriptor.get("user_sgpr_kernarg_preload_length", 0)
    if used > expected:
        raise ValueError(f"{program.name} asks for {used} scalar registers and says {expected}")
    return scalars
