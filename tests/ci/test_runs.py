"""How candidates are run: what writes, reads or changes memory that it should not, and what differs between
runs, is found."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from ci import sanitize
from ci.gate import runs, wrong
from ci.gate.gate import Candidate
from ci.operators import OPERATORS
from helion_sinkhorn.lab.workloads import WORKLOADS, tagged


def candidate(run):
    return Candidate("planted", "P", {}, "", True, run)


def beyond(count):
    """Doubles x into memory of its own and writes `count` entries after it."""

    def run(x):
        out = torch.empty_like(x)
        out.copy_(2 * x)
        out.as_strided((count,), (1,), out.storage_offset() + out.numel()).fill_(1.0)
        return out

    return run


def before(x):
    out = torch.empty(x.shape).copy_(2 * x)
    out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(1.0)
    return out


def reads_beyond(x):
    """A mask forgotten: the sum of the last row takes the entry after it along."""
    wide = x.as_strided((len(x), x.size(1) + 1), (x.size(1), 1))
    return torch.empty(len(x)).copy_(wide.sum(1))


def unwritten_tile(x):
    out = x.new_empty(x.shape)
    out[: len(x) // 32 * 32] = 2 * x[: len(x) // 32 * 32]
    return out


def in_place(x):
    return x.sub_(x.amax(-1, keepdim=True)).exp()


X = torch.randn(70, 8, generator=torch.Generator().manual_seed(0))


def test_a_sound_run_is_sound():
    for run in (lambda x: 2 * x, lambda x: torch.empty_like(x).copy_(2 * x)):
        result, found = runs.in_guarded_memory(candidate(run), [X])
        assert torch.equal(result, 2 * X)
        assert found == {"inside": True, "inputs": True}


@pytest.mark.parametrize("run", [beyond(1), beyond(4096), before])
def test_what_is_written_beyond_an_end_is_found(run):
    _, found = runs.in_guarded_memory(candidate(run), [X])
    assert found == {"inside": False, "inputs": True}


@pytest.mark.parametrize("run", [reads_beyond, unwritten_tile])
def test_what_is_read_beyond_an_end_or_never_written_is_nan(run):
    # twice: what an earlier run left in the same memory must not show
    for _ in range(2):
        result, _ = runs.in_guarded_memory(candidate(run), [X])
        assert result[-1].isnan().all()


def test_changed_inputs_are_found_and_those_of_the_caller_kept():
    given = X.clone()
    _, found = runs.in_guarded_memory(candidate(in_place), [given])
    assert found == {"inside": True, "inputs": False}
    assert torch.equal(given, X)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32])
def test_unwritten_memory_is_nan_in_every_dtype(dtype):
    with runs.Guarded():
        made = [torch.empty(3, 5, dtype=dtype), torch.empty_like(X.to(dtype).mT), X.to(dtype).new_empty(4)]
    assert made[1].stride() == (1, 8)
    assert all(bool((t == -1).all() if dtype == torch.int32 else t.isnan().all()) for t in made)


def test_dtype_shape_and_strides_of_a_result():
    x = torch.zeros(5, 2, 3)
    for result in (x, torch.zeros(5, 4, 2, 3)[:, 1]):
        assert runs.is_of_the_kind(result, 5, (2, 3), torch.float32)
    for result in (x.double(), torch.zeros(5, 3, 2).mT, x[:1].expand(5, 2, 3), x[:4], x.flatten(1)):
        assert not runs.is_of_the_kind(result, 5, (2, 3), torch.float32)


def test_a_race_in_one_run_of_twenty_is_found(monkeypatch):
    calls = itertools.count()

    def racy(x):
        return torch.nextafter(x, 2 * x) if next(calls) % 20 == 19 else x.clone()

    # the count of runs, and not how long they take here
    monkeypatch.setattr(runs, "RERUN_SECONDS", math.inf)
    assert not runs.runs_alike(candidate(racy), [X], X)
    assert runs.runs_alike(candidate(torch.clone), [X], X)


def test_what_an_earlier_launch_leaves_behind_is_found():
    """Scratch of the last launch, of any size, adds to the next."""
    scratch = torch.zeros(1)

    def stale(x):
        result = x + scratch
        scratch.fill_(float(len(x) < 50))
        return result

    assert not runs.runs_alike(candidate(stale), [X], X)


@pytest.mark.parametrize(
    ("count", "apart"), [(70, wrong.entries_apart), (70, wrong.rows_apart), (runs.FEW, wrong.elements_apart)]
)
def test_what_takes_numbers_to_be_adjacent_is_found(count, apart):
    adjacent, x = wrong.as_if_contiguous(lambda _, t: 2 * t, apart), X[:count].view(count, 2, 4)
    found = runs.reproducible(candidate(lambda t: adjacent(None, t)), [x], 2 * x, count)
    assert [name for name, same in found.items() if not same] == ["strided"]
    assert all(runs.reproducible(candidate(lambda t: 2 * t), [x], 2 * x, count).values())


def test_what_is_kept_of_the_first_call_is_found():
    kept = wrong.of_the_first_call(lambda _, t: 2 * t)
    result, _ = runs.in_guarded_memory(candidate(lambda t: kept(None, t)), [X])
    assert not torch.equal(result, 2 * X)


def test_batches_are_split_into_small_pieces():
    sizes = [b - a for a, b in itertools.pairwise(runs.cuts(4096, 400))]
    assert sizes[:5] == [1, 2, 7, 33, 63]
    assert sum(sizes) == 4096
    assert runs.cuts(1, 1) == [0, 1]


def test_sanitizer_runs_every_operator():
    """Racecheck of each, nightly: shared memory is where a race may be that no rerun shows."""
    taken = {name for w in map(WORKLOADS.__getitem__, sanitize.WORKLOADS)
             for name, operator in OPERATORS.items() if operator.takes(w)}  # fmt: skip
    assert taken == OPERATORS.keys()
    assert "racecheck" in sanitize.TOOLS
    assert {w.name for w in tagged("ci", object)} >= set(sanitize.WORKLOADS)
