"""The second attack (ci/attack.py): each bug is found, or its row says why nothing could tell.

Every sixth bug of an operator here, of those whose workload is quick; `make attack` runs all of them.
"""

from __future__ import annotations

import pytest

from ci import attack
from ci.gate import runs

SLOW = {"implicit_64", "attention_packed_reverse", "dot_reported", "dot_wide", "dot_fp16"}
FEW = [
    pytest.param(bug, id=f"{operator}: {bug.name}")
    for operator, bugs in attack.BUGS.items()
    for bug in [b for b in bugs if b.on not in SLOW][::6]
]


@pytest.fixture(autouse=True)
def few_reruns(monkeypatch):
    monkeypatch.setattr(runs, "RERUN_SECONDS", 0.02)


@pytest.mark.parametrize("bug", FEW)
def test_a_bug_is_found(bug):
    assert bool(attack.verdicts(bug.run, bug.on, bug.of)) != bool(bug.hidden)


@pytest.mark.parametrize(
    ("on", "of"),
    [
        ("tail_5x3", ("P", "dX")),
        ("implicit_tail_5x3", ("implicit dX (direct)",)),
        ("dot_tail", ("out", "dz")),
    ],
)
def test_what_bugs_are_planted_in_is_right(on, of):
    operator = next(o for o in attack.BUGS if attack.operator_of(attack.WORKLOADS[on]) is attack.OPERATORS[o])
    assert attack.verdicts(attack.RIGHT[operator], on, of) == []


def test_there_are_thirty_bugs_of_every_operator_and_few_that_nothing_can_tell():
    assert attack.BUGS.keys() == attack.OPERATORS.keys()
    for bugs in attack.BUGS.values():
        assert len({(b.name, b.on) for b in bugs}) == len(bugs) >= 48
        assert sum(bool(b.hidden) for b in bugs) <= 4
