"""Wrong implementations, run as kernels are (ci/attack.py): each is found, or its row says why none can tell.

All of one operator here, among them what is wrong with any kernel's memory and runs; of linear attention
every 72nd and of the others every 24th, of those whose workload is quick.  `make attack` runs all of them.
"""

from __future__ import annotations

import pytest
import torch

from ci import attack
from ci.gate import runs
from helion_sinkhorn.lab.operators import operator_for

SLOW = {"implicit_64", "attention_packed_reverse", "dot_reported", "dot_wide", "dot_fp16"}
EVERY = {"hc_pre": 1, "linear_attention": 72}
"""Two to seven seconds each; test_accuracy.py shows most of them to a row of the gate always."""
FEW = [
    pytest.param(wrong, on, id=f"{operator}: {wrong.name}")
    for operator in attack.WRONG
    for wrong, on in [row for row in attack.placed(operator) if row[1] not in SLOW][
        :: EVERY.get(operator, 24)
    ]
]


@pytest.fixture(autouse=True)
def few_reruns(monkeypatch):
    monkeypatch.setattr(runs, "RERUN_SECONDS", 0.02)


@pytest.mark.parametrize(("wrong", "on"), FEW)
def test_what_is_wrong_is_found(wrong, on):
    assert bool(attack.verdicts(wrong.run, on, wrong.of)) != bool(wrong.hidden)


LONG = pytest.mark.nightly("5 to 13 s; the rows of test_accuracy.py pass always")


@pytest.mark.parametrize(
    "operator",
    [pytest.param(o, marks=[LONG] * (o in ("linear_attention", "implicit"))) for o in attack.OPERATORS],
)
def test_what_is_made_wrong_is_right(operator):
    """Nothing is found in what wrong implementations change: the right one, or float64."""
    row = attack.OPERATORS[operator]
    on = next(w.name for w in attack.tagged("ci", object) if row.takes(w) and w.dtype == torch.float32)
    here = attack.ground(on)
    for run in (row.right, row.good["rounded once from float64"]):
        assert attack.verdicts(run, on, tuple(run(here.workload, *here.full))) == []


def test_each_is_tested_by_results_that_there_are():
    for operator in attack.WRONG:
        taken = [w for w in attack.tagged("ci", object) if attack.OPERATORS[operator].takes(w)]
        results = {w.name: {*operator_for(w).results(w)} for w in taken}
        for wrong, on in attack.placed(operator):
            assert {*wrong.of} <= set().union(*results.values()), wrong.name
            assert not wrong.of or {*wrong.of} & results[on], wrong.name


def test_there_are_many_of_every_operator_and_few_that_nothing_can_tell():
    assert attack.WRONG.keys() == attack.OPERATORS.keys()
    for rows in attack.WRONG.values():
        assert len({(w.name, w.of) for w in rows}) == len(rows) >= 30
        assert sum(bool(w.hidden) for w in rows) <= 4
