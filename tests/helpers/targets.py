"""The compilations of every run: machine code for one device of each vendor, one graph of all operators.

For the MI350 that is a product of dot_compress, and what ci/test_emulation.py executes.  At each change
`make machine` compiles the defaults of every kernel for an H200 and an MI350 in the cpu workflow.
"""

from __future__ import annotations

import pytest

BY_NIGHT = pytest.mark.nightly("minutes of compilers; `make machine` compiles these architectures too")
INDUCTOR_BY_NIGHT = pytest.mark.nightly("C++ compilers; runtime/test_inductor.py compiles one graph of all")
