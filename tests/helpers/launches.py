"""Launches that a test makes in another way than the package does."""

from __future__ import annotations

import dataclasses
from contextvars import ContextVar
from typing import Any

import pytest

from helion_sinkhorn.runtime import launch as door


def launching_as(monkeypatch: pytest.MonkeyPatch, **ways: Any) -> None:
    """Make launches with these fields of a Launcher until the test ends, in every thread."""
    launcher = dataclasses.replace(door._launcher.get(), **ways)
    monkeypatch.setattr(door, "_launcher", ContextVar("launcher", default=launcher))
