"""The version of Triton, by whatever name its distribution was installed."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

from helion_sinkhorn.configs import store


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function that puts a Triton of this distribution and version in the place of the installed one."""

    def install(distribution: str, version: str) -> None:
        (tmp_path / "triton").mkdir()
        (tmp_path / "triton" / "__init__.py").write_text("")
        about = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        about.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        about.joinpath("top_level.txt").write_text("triton\n")

    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    store.installed_triton.cache_clear()
    yield install
    monkeypatch.undo()
    store.installed_triton.cache_clear()


@pytest.mark.parametrize(
    ("distribution", "version", "minor", "numbers"),
    [
        ("triton", "3.9.0", "3.9", (3, 9)),
        ("pytorch-triton-rocm", "3.5.1+gitbfeb0668", "3.5", (3, 5)),
        ("triton-rocm", "3.10.0", "3.10", (3, 10)),
    ],
)
def test_any_distribution_that_has_triton_is_found(installed, distribution, version, minor, numbers):
    installed(distribution, version)
    assert store.installed_triton() == version
    assert store.triton_minor() == minor
    assert store.triton_version() == numbers


def test_there_is_none_where_it_cannot_be_imported(installed, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: pytest.fail(name))
    assert (store.installed_triton(), store.triton_minor(), store.triton_version()) == ("", "", ())
