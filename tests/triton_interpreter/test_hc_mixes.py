"""The Triton code generated from the bodies of hc_mixes, tile by tile, against float64."""

from __future__ import annotations

import pytest
import torch

from helion_sinkhorn.lab.mixes.budget import RESULTS, evaluated
from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.ops.mhc.mixes import launch
from helion_sinkhorn.ops.mhc.mixes.space import CHUNK

# two tiles of the defaults and a tail, of tokens; of columns the calls below have several and a tail
TOKENS = 133


def problem(n, c, m, tokens=TOKENS, **options):
    """A workload, and its inputs as the budget takes them."""
    workload = MixesWorkload("asked", 1, frozenset(), "a test", n, c, m, tokens, **options)
    x, fn, _, dmixes = workload.make_inputs()
    return workload, (x, dmixes, fn[None])


def results(workload, x, dmixes, fn):
    """mixes, dx and dfn of one element."""
    arguments = workload.norm_eps, workload.eps_outside, workload.precision
    mixes, norms = launch.forward(x, fn, *arguments)
    return mixes, *launch.backward(dmixes, x, fn, mixes, norms, workload.precision)


def check(workload, inputs):
    limits = evaluated(workload, *inputs)
    found = dict(zip(RESULTS, results(workload, *(t[0] for t in inputs)), strict=True))
    shares = {name: worst(t[None], limits[name].value, limits[name].budget) for name, t in found.items()}
    assert max(shares.values()) <= 1, shares


@pytest.mark.parametrize(
    ("n", "c", "m", "options"),
    [
        (3, 111, 15, {}),
        (4, 40, 24, {"dtype": torch.float32}),
        (2, 97, 8, {"dtype": torch.float16}),
        (1, 130, 1, {"dtype": torch.float32, "precision": "tf32"}),
        (4, 24, 80, {}),
        (3, 20, 24, {"norm_eps": 1e-3, "eps_outside": True, "values": "zero token"}),
    ],
    ids=lambda v: "-".join(map(str, v.values())) if isinstance(v, dict) else str(v),
)
def test_values_and_gradients(n, c, m, options):
    check(*problem(n, c, m, **options))


@pytest.mark.parametrize("c", [CHUNK + 1, 2 * CHUNK + 70])
def test_chunks_of_columns(c):
    """The last one has one column, and there are several."""
    check(*problem(1, c, 3, tokens=5))


@pytest.mark.parametrize("tokens", [1, 2, 300])
def test_shares_of_tokens(tokens):
    """Some are empty of a few tokens; of 300 each has several tiles."""
    check(*problem(2, 20, 24, tokens=tokens))


def test_other_rows_of_as_many_columns():
    """A head has fewer rows than a site: neither runs the other's program."""
    for m in (24, 4, 24):
        check(*problem(2, 25, m, tokens=5))


def test_a_token_has_the_same_bits_alone():
    workload, (x, dmixes, fn) = problem(3, 67, 15)
    whole = results(workload, x[0], dmixes[0], fn[0])
    for at in (slice(0, 1), slice(20, 21), slice(5, 101)):
        part = results(workload, x[0, at], dmixes[0, at], fn[0])
        assert torch.equal(part[0], whole[0][at])
        assert torch.equal(part[1], whole[1][at])
