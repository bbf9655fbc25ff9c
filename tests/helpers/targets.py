"""What is compiled in every run: machine code for one device of each vendor, one graph of all operators."""

from __future__ import annotations

import pytest

BY_NIGHT = pytest.mark.nightly("minutes of compilers; `make machine-terms` compiles these architectures too")
INDUCTOR_BY_NIGHT = pytest.mark.nightly("C++ compilers; runtime/test_inductor.py compiles one graph of all")
TARGETS = ("h200", "mi350", pytest.param("b200", marks=BY_NIGHT))
ONE_TARGET = ("h200", pytest.param("mi350", marks=BY_NIGHT))
CHUNK_TARGETS = ("mi350", *(pytest.param(key, marks=BY_NIGHT) for key in ("h200", "b200", "mi300x")))
