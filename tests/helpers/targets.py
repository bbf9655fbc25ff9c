"""Devices that the machine-code tests compile for: one of each vendor in every run, the others by night."""

from __future__ import annotations

import pytest

BY_NIGHT = pytest.mark.nightly("minutes of compilers; `make machine-terms` compiles these architectures too")
TARGETS = ("h200", "mi350", pytest.param("b200", marks=BY_NIGHT))
ONE_TARGET = ("h200", pytest.param("mi350", marks=BY_NIGHT))
EVERY_TARGET = (*TARGETS, pytest.param("mi300x", marks=BY_NIGHT))
