"""The compilations of every run: machine code for one device of each vendor, one graph of all operators.

For the MI350 that is dot_compress, and what ci/test_emulation.py executes.  At each change `make machine`
compiles the defaults of every kernel for an H200 and an MI350 in the cpu workflow.
"""

from __future__ import annotations

import pytest

BY_NIGHT = pytest.mark.nightly("minutes of compilers; `make machine` compiles these architectures too")
INDUCTOR_BY_NIGHT = pytest.mark.nightly("C++ compilers; runtime/test_inductor.py compiles one graph of all")
ONE_TARGET = ("h200", pytest.param("mi350", marks=BY_NIGHT))
TARGETS = (*ONE_TARGET, pytest.param("b200", marks=BY_NIGHT))
