"""repeated: the first launch of a loop is `launch`, the others are that one again, by addresses."""

from __future__ import annotations

import pytest
import torch

from helion_sinkhorn.ops.sinkhorn.large.calls import KERNELS, call_for
from helion_sinkhorn.runtime import launch as launches


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("width", [8, 6], ids=["aligned", "not aligned"])
def test_what_a_loop_launches(kept, width, monkeypatch):
    whole, stack = torch.zeros(3, width), torch.arange(5.0 * width).view(5, 1, width)
    first, again = [], []

    def launch(kernel, call, tensors, *values, batch, choice):
        first.append([t.data_ptr() for t in tensors])
        if kept:
            key = launches.launch_key(kernel, launches.layout_key(*tensors), values, choice)
            launches._kept[key] = lambda *addresses: again.append(list(addresses))

    monkeypatch.setattr(launches, "_kept", {})
    monkeypatch.setattr(launches, "launch", launch)
    kernel = KERNELS["sinkhorn_large_step"]
    call = call_for(3, width, torch.float32)
    at = launches.repeated(kernel, call, [stack, whole, stack], [0, 2], "value", batch=1)
    places = [(0, 1), (1, 2), (4, 0)]
    for pair in places:
        at(*pair)
    true = [[stack[a].data_ptr(), whole.data_ptr(), stack[b].data_ptr()] for a, b in places]
    assert first + again == true
    # 6 floats are no whole number of vector loads: such slices are launched one by one
    assert len(again) == (2 if kept and width == 8 else 0)
