"""The version of Triton, by whatever name it was installed, and what is tried and tested under one alone."""

from __future__ import annotations

import sys

import pytest

from ci.gate.choices import choices
from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime.kernel import candidates

KERNEL, CALL, H100 = KERNELS["sinkhorn_backward"], SinkhornCall(True, 1, "float32", 4, 4, 20), DEVICES["h100"]
IN_ORDER = {"lean": True, "length": 19, "ordered": True, "paired": True, "pivoted": True, "thread": (4, 4)}


@pytest.mark.parametrize(
    ("distribution", "version", "minor", "numbers"),
    [
        ("triton", "3.9.0", "3.9", (3, 9)),
        ("pytorch_triton_rocm", "3.5.1+gitbfeb0668", "3.5", (3, 5)),
        ("triton_rocm", "3.10.0", "3.10", (3, 10)),
        # what cannot be imported counts for nothing
        ("triton", "", "", ()),
    ],
)
def test_any_distribution_that_has_triton_is_found(distribution, version, minor, numbers, tmp_path):
    about = tmp_path / f"{distribution}-{version or '3.9.0'}.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text(f"Name: {distribution}\nVersion: {version or '3.9.0'}\n")
    about.joinpath("top_level.txt").write_text("triton\n")
    if version:
        (tmp_path / "triton.py").touch()
    store.installed_triton.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(tmp_path)])
        patch.delitem(sys.modules, "triton", raising=False)
        versions = store.installed_triton(), store.triton_minor(), store.triton_version()
    store.installed_triton.cache_clear()
    assert versions == (version, minor, numbers)


@pytest.fixture
def running(monkeypatch, fresh_caches):
    """A function that makes a version the running one."""
    return lambda minor: monkeypatch.setattr(store, "triton_minor", lambda: minor)


@pytest.mark.parametrize(("minor", "tried"), [("3.8", False), ("3.9", True)])
def test_pairs_that_add_in_order_are_left_to_later_versions_than_3_8(running, minor, tried):
    """On an H100 3.8 gives matrices of 4 x 4 other bits there if 16 does not divide the batch."""
    running(minor)
    variants = [dict(choice.variant) for choice in candidates(KERNEL, CALL, H100)]
    assert (IN_ORDER in variants) == tried
    assert IN_ORDER | {"ordered": False} in variants
    assert IN_ORDER | {"paired": False} in variants


@pytest.mark.parametrize("minor", ["3.6", "3.9"])
def test_the_gate_judges_what_calls_get_under_the_running_version(running, minor):
    running(minor)
    judged = choices(KERNEL.name, CALL, 4096, H100)
    assert [served for _, served in judged].count(True) == 1
    stored = [choice.source for choice, _ in judged if choice.stored]
    assert len(stored) > 1
    assert all(f"Triton {minor}" in source for source in stored), stored
