"""The walks of linear attention with their default configs as machine code for three absent GPUs."""

from __future__ import annotations

import dataclasses

import pytest
from targets import BY_NIGHT

pytest.importorskip("triton")

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Binary, Job
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.linear_attention.chunked.space import ChunkCall
from helion_sinkhorn.ops.linear_attention.recurrent.space import WalkCall
from helion_sinkhorn.runtime.kernel import default_choice

LARGE = WalkCall("dk", "bfloat16", 64, 128, "gk")
# what sides of 5 and 20 are padded to, with every branch of the body
PADDED = WalkCall("dv", "float32", 8, 32, "g g_gamma gk gv")
SMALL = WalkCall("dq", "float32", 8, 8, "")
CALLS = WalkCall("o", "bfloat16", 64, 128, "gk"), LARGE, PADDED, SMALL


def exchanges(binary: Binary) -> int:
    """Loads of the Dk side in eight steps, of a number a thread: threads exchange what one has loaded."""
    call = binary.job.call
    numbers = call.summed // (2 if call.dtype == "bfloat16" else 1)
    vectors = 2 + (call.result in ("o", "dv") and "gk" in call.gates)
    return vectors * 8 // max(1, min(8, binary.threads // numbers))


def complaints(binary: Binary) -> list[str]:
    if not binary.compiled:
        return list(binary.problems)
    found = list(binary.problems)
    forbidden = "atomic", "matrix", "negative offset"
    found += [f"{n} x {name}" for name in forbidden if (n := binary.counts.get(name))]
    if binary.job.call.dk == 64 and binary.hottest.get("barrier", 0) > 2 * exchanges(binary):
        found.append(f"{binary.hottest['barrier']} barriers in eight steps")
    return found


@pytest.mark.parametrize(
    ("key", "calls"),
    [
        *(pytest.param(key, CALLS, id=f"{key} all", marks=BY_NIGHT) for key in ("h200", "mi350", "b200")),
    ],
)
def test_defaults_make_good_machine_code(key, calls, compile_for):
    jobs = [
        Job(call, default_choice(KERNELS["linear_attention_walk"], call, DEVICES[key]), batch=128)
        for call in calls
    ]
    bad = {f"{b.job.call}": found for b in compile_for(key, jobs) if (found := complaints(b))}
    assert not bad


@BY_NIGHT
def test_eight_steps_load_a_number_a_thread_and_fuse_their_products(compile_for):
    """A given state lies as the sums over Dk need it, and who summed a result stores it.

    Loads of fewer numbers than threads Triton leaves to every thread, which made walks 2 to 3 times as long.
    """
    call = CALLS[0]
    choice = default_choice(KERNELS["linear_attention_walk"], call, DEVICES["h200"])
    (b,) = compile_for("h200", [Job(call, choice, 128, (("states", True),))])
    # 32 entries of a state in a thread, as 4 sums of 8, of which the first product of each fuses with nothing
    assert dict(choice.variant) == {"rk": 8, "rv": 4, "count": 8}
    assert b.compiled, b.problems
    assert not b.spill_bytes
    # q, k and gk of four steps at a time, and v of one: 128 threads, and 32 words of two entries a step
    assert exchanges(b) == 6
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
    bad = {f"{b.job.call}": found for b in compile_for(key, jobs) if (found := complaints(b))}
    assert not bad


GATES = (
    (ChunkCall("bfloat16", 64, 128, "gk"), {}),
    (ChunkCall("float32", 8, 16, "g gv"), {"offsets": "int32", "reverse": True}),
)


@BY_NIGHT
@pytest.mark.parametrize("key", ["h200", "mi350"])
def test_the_gradients_of_gates_compile(key, compile_for):
    name = "linear_attention_gates"
    jobs = [
        Job(call, default_choice(KERNELS[name], call, DEVICES[key]), 128, tuple(options.items()))
        for call, options in GATES
    ]
    for binary in compile_for(key, jobs):
        assert binary.compiled, binary.problems
        assert binary.counts["matrix"]
        assert not binary.counts.get("atomic")
        assert binary.shared <= DEVICES[key].shared_limit
        assert "stack pointer as data" not in binary.counts
        assert "assembly behind matrix" not in binary.counts


@BY_NIGHT
def test_an_mi350_waits_for_what_gates_sum_apart(compile_for):
    """The sum of the highest pieces goes on by an instruction that the compiler knows (`chunk.owed`)."""
    name, call = "linear_attention_chunk_gradients", ChunkCall("float32", 8, 12, "g gk")
    (binary,) = compile_for("mi350", [Job(call, default_choice(KERNELS[name], call, DEVICES["mi350"]), 128)])
    assert binary.counts["matrix"]
    assert "assembly behind matrix" not in binary.counts
