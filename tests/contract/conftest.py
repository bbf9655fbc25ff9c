"""row: what the table has of an operator, by `name`."""

from __future__ import annotations

import pytest
from contract import ROWS
from launches import SITES, kernels_on_cpu


@pytest.fixture
def row(name, monkeypatch):
    """The row of a name, computed by interpreted kernels where it says so."""
    if ROWS[name].kernels:
        pytest.importorskip("triton", reason="the bodies import Triton")
        kernels_on_cpu(monkeypatch, SITES)
    return ROWS[name]
