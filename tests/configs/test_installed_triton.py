"""The version of Triton, by whatever name its distribution was installed."""

from __future__ import annotations

import sys

import pytest

from helion_sinkhorn.configs import store


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
        found = store.installed_triton(), store.triton_minor(), store.triton_version()
    store.installed_triton.cache_clear()
    assert found == (version, minor, numbers)
