"""`--op recurrent_linear_attention`: its parts, and all of it under a stub of tritonbench."""

from __future__ import annotations

import itertools
import math

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
    tensors, do, _ = row.make_inputs()
    return tuple(tensors.get(name) for name in parts.NAMES), do


def test_who_refuses_what():
    short, _ = inputs(8)
    assert {name for name, b in parts.BACKENDS.items() if b.refuses(*short)} == {
        "fla_fused_recurrent_gla",
        "fla_chunk_gla",
    }
    long, _ = inputs(65, "gv")
    assert "T up to 64, this is 65" in parts.BACKENDS["torch_compile"].refuses(*long)
    assert "a decay of the values, gv" in parts.BACKENDS["helion_chunked"].refuses(*long)
    wide, _ = inputs(8, "gk", "--dk", "129")
    assert parts.BACKENDS["helion_chunked"].refuses(*wide) == "chunks take Dk up to 128, this is 129"


def test_every_sequence_and_head_is_tested():
    given, do = inputs(8, "g_gamma", "--heads", "3", "--dk", "8", "--dv", "6")
    exact, allowed = parts.exact_results(given, do), parts.budgets(given, do, "recurrent")
    o = parts.eager(*given)
    assert parts.share_of_budget(given, exact, allowed, o, None) <= 1
    for sequence, head in itertools.product(range(3), range(o.size(2))):
        for change in (0.0, math.nan, 1.05):
            wrong = o.clone()
            wrong[sequence, 3, head, 5] *= change
            assert parts.share_of_budget(given, exact, allowed, wrong, None) > 1


def test_pieces_are_joined(monkeypatch):
    given, do = inputs(8, "g_gamma", "--heads", "3", "--dk", "8", "--dv", "6")
    whole, allowed = parts.exact_results(given, do), parts.budgets(given, do, "recurrent")
    monkeypatch.setattr(parts, "PIECE_STATES", 1)
    for name, x in parts.exact_results(given, do).items():
        torch.testing.assert_close(x, whole[name])
    for name, x in parts.budgets(given, do, "recurrent").items():
        # other draws; a deviation from 16 is known to a fifth
        assert 0.8 < x.mean() / allowed[name].mean() < 1.25, name


def test_bytes_moved_once():
    flags = "--batch 2 --steps 3 --heads 4 --dk 8 --dv 5"
    (case,) = parts.cases(parts.parse([*flags.split(), "--gates", "gv gk"]), torch.bfloat16)
    read, o = 2 * 24 * (8 + 8 + 5 + 8 + 5), 2 * 24 * 5
    moved = {mode: parts.bytes_moved(case, mode) for mode in ("fwd", "fwd_no_grad", "bwd", "fwd_bwd")}
    forward, backward = read + o, 2 * read + o
    assert moved == {"fwd": forward, "fwd_no_grad": forward, "bwd": backward, "fwd_bwd": forward + backward}
    assert parts.x_value(case) == "2x3x4x8 5 gk+gv"
