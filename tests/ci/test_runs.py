"""How candidates are run; test_attack.py has faults that any kernel may have, each run like a kernel."""

from __future__ import annotations

import itertools

import pytest
import torch

from ci import sanitize
from ci.gate import runs, wrong
from ci.gate.gate import Candidate
from ci.operators import OPERATORS
from helion_sinkhorn.lab.workloads import WORKLOADS, tagged


def candidate(run):
    return Candidate("planted", "P", {}, "", True, run)


def before(x):
    out = torch.empty(x.shape).copy_(2 * x)
    out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(1.0)
    return out


def reads_beyond(x):
    """A mask forgotten: the sum of the last row takes the entry after it along."""
    wide = x.as_strided((len(x), x.size(1) + 1), (x.size(1), 1))
    return torch.empty(len(x)).copy_(wide.sum(1))


X = torch.randn(70, 8, generator=torch.Generator().manual_seed(0))


def test_what_is_written_before_a_start_or_read_beyond_an_end_is_found():
    _, checks = runs.in_guarded_memory(candidate(before), [X])
    assert checks == {"inside": False, "inputs": True}
    result, checks = runs.in_guarded_memory(candidate(reads_beyond), [X])
    assert checks == {"inside": True, "inputs": True}
    assert result[-1].isnan()


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


@pytest.mark.parametrize(("count", "apart"), [(70, wrong.rows_apart), (runs.FEW, wrong.elements_apart)])
def test_what_takes_numbers_to_be_adjacent_is_found(count, apart):
    adjacent, x = wrong.as_if_contiguous(lambda _, t: 2 * t, apart), X[:count].view(count, 2, 4)
    reproduced = runs.reproducible(candidate(lambda t: adjacent(None, t)), [x], 2 * x, count)
    assert [name for name, same in reproduced.items() if not same] == ["strided"]
    assert all(runs.reproducible(candidate(lambda t: 2 * t), [x], 2 * x, count).values())


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
