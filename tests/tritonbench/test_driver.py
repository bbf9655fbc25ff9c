"""helion_driver.json, and the metrics that compare with Inductor: every operator and pass under the stub."""

from __future__ import annotations

import json

import pytest
from planted import ROOT, STUB, under
from shared import once

from tritonbench_ops import driver, flags

CONFIG = json.loads((ROOT / "tritonbench_ops" / "helion_driver.json").read_text())
WITHOUT_GRADIENT = {"sinkhorn_balance"}
NAMES = [name + suffix for name in driver.DRIVEN for suffix in ("", "-bwd")]


@pytest.fixture(scope="module")
def tables():
    return once("driver", run)


def run():
    done = under(STUB, STUB / "each_operator.py", json.dumps(CONFIG["kernel_mappings"]))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_every_operator_is_in_it_forward_and_backward():
    assert list(CONFIG["kernel_mappings"]) == list(CONFIG["kernel_metric_mappings"]) == NAMES
    assert driver.DRIVEN.keys() == {*flags.NAMES} - WITHOUT_GRADIENT
    for name, names in CONFIG["kernel_mappings"].items():
        measured = {key.partition("-")[0] for key in CONFIG["kernel_metric_mappings"][name]}
        assert measured == {"eager", "torch_compile", f"helion_{names['helion_func']}"}
    assert not hasattr(driver, "hc_pre")


@pytest.mark.parametrize("name", NAMES)
def test_what_it_names_is_found_without_a_link_and_right(tables, name):
    assert tables[name]["rows"][tables[name]["driven"]][:2] == [True, None]
    # tritonbench's numeric_check compares exported inputs with assert_close, which takes no strings
    assert not tables[name]["strings"]


@pytest.mark.parametrize("name", NAMES)
def test_errors_are_compared_with_those_of_inductor(tables, name):
    """Eager is in its place, so that the ratio of eager is 1 to the bit."""
    rows = {backend: metrics for backend, (_, _, metrics) in tables[name]["rows"].items()}
    assert rows["eager"]["err_over_inductor"] == rows["torch_compile"]["err_over_inductor"] == 1
    ours, theirs = (rows[backend]["share_of_budget"] for backend in (tables[name]["ours"], "torch_compile"))
    assert theirs > 0
    assert rows[tables[name]["ours"]]["err_over_inductor"] == ours / theirs


@pytest.mark.parametrize("name", ["hc_pre", "sinkhorn"])
def test_without_inductor_there_is_no_ratio(tables, name):
    rows = tables[f"{name} alone"]["rows"]
    assert {metrics["err_over_inductor"] for _, _, metrics in rows.values()} == {None}
