"""Steps that no sequence of cu_seqlens has: zeros, and all other steps as without them."""

from __future__ import annotations

import pytest
from padded_packs import check_padding

from helion_sinkhorn.ops.linear_attention import eager, reference
from helion_sinkhorn.ops.linear_attention.recurrent import launch


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("path", ["eager", "kernels", "specification"])
def test_steps_of_no_sequence_are_zeros(path, reverse):
    if path == "specification":
        check_padding(lambda case: case.run(reference.recurrent_linear_attention), reverse)
        return
    if path == "kernels":
        pytest.importorskip("triton", reason="the bodies import Triton")
    check_padding(lambda case: case.run_module({"eager": eager, "kernels": launch}[path]), reverse)
