"""The dot compress kernel bodies, run eagerly by Helion's reference mode, against float64."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import randn
from launches import launching_as

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.dot_compress import launch as dot_compress_launch
from helion_sinkhorn.ops.dot_compress import space
from helion_sinkhorn.ops.dot_compress.space import DotCall
from helion_sinkhorn.runtime import choices
from helion_sinkhorn.runtime import launch as door

NAMES = ("dot_compress_product", "dot_compress_apply", "dot_compress_expand")


def test_a_stored_choice_that_is_refused_gives_way_to_the_default(monkeypatch, fresh_caches, caplog):
    x, y = randn(2, 40, 16), randn(2, 40, 8, seed=1)
    expected = dot_compress_launch.forward(x, y, None, 1)[0]
    default = choices.default_choice

    def stored_and_bad(kernel, call, batch, device):
        good = default(kernel, call, device)
        bad = type(good)(kernel.name, (("block_sizes", (0, 0, 0)),), good.variant, "a file", True)
        return good if (bad, call, device) in choices.refused else bad

    stored_and_bad.cache_clear = lambda: None
    monkeypatch.setattr(door, "choose", stored_and_bad)
    launching_as(monkeypatch, device_at=lambda index: (DEVICES["h200"], "full", True))
    runs = door.run

    def run(kernel, *arguments):
        if dict(kernel.config)["block_sizes"] == (0, 0, 0):
            raise ValueError("no such block")
        return runs(kernel, *arguments)

    launching_as(monkeypatch, run=run)
    assert torch.equal(dot_compress_launch.forward(x, y, None, 1)[0], expected)
    assert sum("is refused (no such block)" in r.getMessage() for r in caplog.records) == 2


@pytest.mark.parametrize("kernel", NAMES)
def test_small_batches_get_smaller_programs_and_the_same_bits(kernel):
    call, device = DotCall("bfloat16", 3219, 256, 64, 1), DEVICES["h200"]
    default = dict(choices.default_choice(KERNELS[kernel], call, device).variant)
    variants = {
        b: dict(space.shrunk_to_fill(tuple(default.items()), call, b, device)) for b in (1, 16, 128, 1152)
    }
    assert variants[1152] == default
    shrunk = "rows" if "rows" in default else "block_d"
    sizes = [variants[b][shrunk] for b in (1, 16, 128, 1152)]
    assert sizes == sorted(sizes)
    assert sizes[0] == space.FEWEST[shrunk] < sizes[-1]
    # what a program takes of the whole changes no sum
    x, y = randn(3, 700, 128, dtype=torch.bfloat16), randn(3, 700, 16, seed=1, dtype=torch.bfloat16)
    call = dot_compress_launch.call_of(x, y, 1)
    chosen_of = {}
    for name in NAMES:
        chosen = choices.default_choice(KERNELS[name], call, device)
        small = space.shrunk_to_fill(chosen.variant, call, 1, device)
        chosen_of[name] = type(chosen)(name, chosen.config, small, "a test")
    out, b = dot_compress_launch.forward(x, y, None, 1, chosen_of)
    expected = dot_compress_launch.forward(x, y, None, 1)
    assert torch.equal(out, expected[0])
    assert torch.equal(b, expected[1])
