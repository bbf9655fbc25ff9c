"""Linear attention with its default configs as machine code for GPUs that need not be here."""

from __future__ import annotations

import dataclasses

import pytest
from targets import BY_NIGHT

pytest.importorskip("triton")

from ci import machine_rules
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Binary, Job
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.linear_attention.chunked.space import ChunkCall
from helion_sinkhorn.ops.linear_attention.recurrent.space import WalkCall
from helion_sinkhorn.runtime.kernel import default_choice


def complaints(binary: Binary) -> list[str]:
    problems = [*binary.problems, *machine_rules.broken(binary)]
    return [*problems, "a matrix instruction"] if binary.counts.get("matrix") else problems


@BY_NIGHT
def test_eight_steps_load_a_number_a_thread_and_fuse_their_products(compile_for):
    """A given state lies as the sums over Dk need it, and who summed a result stores it.

    Loads of fewer numbers than threads Triton leaves to every thread, which made walks 2 to 3 times as long.
    """
    call = WalkCall("o", "bfloat16", 64, 128, "gk")
    choice = default_choice(KERNELS["linear_attention_walk"], call, DEVICES["h200"])
    (b,) = compile_for("h200", [Job(call, choice, 128, (("states", True),))])
    # 32 entries of a state in a thread, as 4 sums of 8, of which the first product of each fuses with nothing
    assert dict(choice.variant) == {"rk": 8, "rv": 4, "count": 8}
    assert b.compiled, b.problems
    assert not b.spill_bytes
    # q, k and gk of four steps at a time, and v of one: 128 threads, and 32 words of two entries a step
    assert b.hottest["global load"] == 6 + 8
    # a thread stores the word it has loaded, and loads four words of each step
    assert b.hottest["shared"] == 6 * (1 + 4)
    assert b.hottest["barrier"] <= 2 * 6
    assert b.hottest["fma"] == 8 * (32 + 32 - 4)


OPTIONS = (
    ("o", "gk", {"offsets": "int32", "states": True}),
    ("dq", "g gk", {"offsets": "int64", "reverse": True}),
    ("dk", "g gk", {"offsets": "int32", "states": True, "reverse": True}),
    ("dv", "gv", {"offsets": "int64", "states": True}),
    ("dk", "g_gamma gv", {"states": True, "reverse": True}),
)


@pytest.mark.parametrize(
    ("key", "rows"),
    [
        pytest.param("h200", OPTIONS[2:3], id="h200"),
        *(pytest.param(key, OPTIONS, id=f"{key} all", marks=BY_NIGHT) for key in ("h200", "mi350")),
    ],
)
def test_packed_sequences_states_and_reverse_compile(key, rows, compile_for):
    jobs = []
    for result, gates, options in rows:
        call = WalkCall(result, "bfloat16", 8, 16, gates)
        choice = default_choice(KERNELS["linear_attention_walk"], call, DEVICES[key])
        # two steps at a time are every branch of the body and compile in half the time of eight
        choice = dataclasses.replace(choice, variant=tuple({**dict(choice.variant), "count": 2}.items()))
        jobs.append(Job(call, choice, 128, tuple(options.items())))
    bad = {f"{b.job.call}": problems for b in compile_for(key, jobs) if (problems := complaints(b))}
    assert not bad


DEVICES_OF_EACH_ARCHITECTURE = "h200", "b200", "mi350", "mi300x"
PTXAS = pytest.mark.nightly("five seconds of ptxas a device, the only compiler that is known to do so")


def rows(keys, *row, marks=BY_NIGHT):
    return [pytest.param(key, *row, marks=marks) for key in keys]


@pytest.mark.parametrize(
    ("key", "part", "call", "options"),
    [
        # with two steps in flight it needs 224 KiB of shared memory, where a block has 160
        *rows(["mi350"], "chunk_walk", ChunkCall("float32", 72, 8, "g g_gamma"), {}, marks=()),
        # ptxas 12.8 takes the stack pointer for data where a tile is not padded to 64 (docs/dev/helion.md)
        *rows(DEVICES_OF_EACH_ARCHITECTURE, "chunk_gradients", ChunkCall("float32", 5, 3, "g_gamma"), {},
              marks=PTXAS),
        # what gates sum apart goes on by an instruction that the compiler knows (`chunk.owed`)
        *rows(["mi350"], "chunk_gradients", ChunkCall("float32", 8, 12, "g gk"), {}),
        *rows(["h200", "mi350"], "gates", ChunkCall("float32", 8, 16, "g gv"),
              {"offsets": "int32", "reverse": True}),
    ],
)  # fmt: skip
def test_chunks_and_gates_use_matrix_units_and_break_no_rule(key, part, call, options, compile_for):
    choice = default_choice(KERNELS[f"linear_attention_{part}"], call, DEVICES[key])
    (binary,) = compile_for(key, [Job(call, choice, 128, tuple(options.items()))])
    assert binary.counts.get("matrix"), binary.problems
    assert machine_rules.broken(binary) == []
