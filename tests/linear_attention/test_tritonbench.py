"""Which backends of `--op recurrent_linear_attention` refuse which inputs."""

from __future__ import annotations

import torch
from planted import statuses

from tritonbench_ops.recurrent_linear_attention import cases as parts

SMALL = ["--op", "recurrent_linear_attention", "--device", "cpu", "--warmup", "1", "--rep", "1", "--only"]
SIZES = "--batch 3 --steps 12 --heads 3 --dk 8 --dv 6"
SHAPE = [*SIZES.split(), "--gates", "g g_gamma gk gv"]


def test_what_refuses_an_input_is_not_wanted_unless_named():
    """Chunks refuse gv, and the package of the other is absent."""
    unnamed = [[*SMALL[:-1], "--skip", "torch_compile", *SHAPE, "--mode", mode] for mode in ("fwd", "bwd")]
    named = [[*SMALL, name, *SHAPE] for name in ("helion_chunked", "fla_chunk_gla")]
    assert statuses("", [*unnamed, *named]) == [0, 0, 1, 1]


def inputs(steps, gates="gk", *more):
    flags = ["--batch", "3", "--steps", str(steps), "--gates", gates, *more]
    (row,) = parts.cases(parts.parse(flags), torch.bfloat16)
    return [row.make_inputs()[0].get(name) for name in parts.NAMES]


def test_who_refuses_what():
    short = inputs(8)
    assert {name for name, b in parts.BACKENDS.items() if b.refuses(*short)} == {
        "fla_fused_recurrent_gla",
        "fla_chunk_gla",
    }
    long = inputs(65, "gv")
    assert "T up to 64, this is 65" in parts.BACKENDS["torch_compile"].refuses(*long)
    assert "a decay of the values, gv" in parts.BACKENDS["helion_chunked"].refuses(*long)
    wide = inputs(8, "gk", "--dk", "129")
    assert parts.BACKENDS["helion_chunked"].refuses(*wide) == "chunks take Dk up to 128, this is 129"
