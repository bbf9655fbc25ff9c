"""Wrong implementations, run as kernels are (ci/attack.py): each is found, or its row says why none can tell.

Every 24th of an operator here, of linear attention every 72nd, of those whose workload is quick;
`make attack` runs all of them.
"""

from __future__ import annotations

import pytest
import torch

from ci import attack
from ci.gate import runs
from helion_sinkhorn.lab.operators import operator_for

SLOW = {"implicit_64", "attention_packed_reverse", "dot_reported", "dot_wide", "dot_fp16"}
EVERY = {"linear_attention": 72}
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


@pytest.mark.parametrize(
    ("on", "of"),
    [
        ("tail_5x3", ("P", "dX")),
        ("implicit_tail_5x3", ("implicit dX (direct)",)),
        ("dot_tail", ("out", "dz")),
        ("hc_pre_fp32", ("y", "dx", "dpre")),
        ("attention_scaled", ("o", "dk", "dg_gamma")),
    ],
)
def test_what_is_made_wrong_is_right(on, of):
    assert attack.verdicts(attack.operator_of(attack.WORKLOADS[on]).right, on, of) == []


LONG = pytest.mark.nightly("5 to 13 s; the rows of test_accuracy.py pass always")


@pytest.mark.parametrize(
    "operator",
    [pytest.param(o, marks=[LONG] * (o in ("linear_attention", "implicit"))) for o in attack.OPERATORS],
)
def test_what_is_computed_in_float64_is_right(operator):
    """Most wrong implementations are made of it: nothing of its own is found."""
    row = attack.OPERATORS[operator]
    name, run = next(iter(row.good.items()))
    assert name == "rounded once from float64"
    on = next(w.name for w in attack.tagged("ci", object) if row.takes(w) and w.dtype == torch.float32)
    assert attack.verdicts(run, on, ()) == []


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
