"""benchmarks.studies.sources: the numbers of the sources, and ours beside theirs."""

from __future__ import annotations

import argparse

import pytest
import torch

from benchmarks.studies import sources


def test_the_numbers_are_theirs():
    expected = torch.tensor([[[1.0, 2.0], [0.0, 4.0]], [[1.0, 1.0], [1.0, 1.0]]], dtype=torch.float64)
    wrong = torch.tensor([[[0.5, 0.0], [0.0, 1.0]], [[0.1, 0.1], [0.1, 0.3]]], dtype=torch.float64)
    found = sources.metrics(expected - wrong, expected)
    assert found == pytest.approx((1.5 / 4, 1.0, 0.75 / 4, 0.5), rel=1e-9)


def test_ours_is_beside_theirs_at_the_iterations_that_were_asked_for(capsys):
    sources.main(argparse.Namespace(iter=3, tokens=8, device="cpu"))
    tables = capsys.readouterr().out.split("\n\n")
    assert [part for part in tables if "3 iterations" in part] == [
        f"{'' if k else chr(10)}{setting.name}: 8 matrices, 3 iterations"
        for k, setting in enumerate(sources.SETTINGS)
    ]
    rows = [
        {line[:36].strip(): [float(x) for x in line[36:].split()] for line in table.splitlines()[1:]}
        for table in tables
        if "Max MAE" in table
    ]
    for table in rows:
        # three iterations are far from the fixed point that theirs assume
        assert table["sinkhorn"][1] < 1e-6
    for table in rows[:2]:
        assert min(table[name][1] for name in sources.SOURCES) > 100 * table["sinkhorn"][1]
    assert not set(sources.SOURCES) & set(rows[2])
