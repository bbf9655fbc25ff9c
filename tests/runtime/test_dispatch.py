"""Which calls one compiled program serves."""

from __future__ import annotations

import pytest

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.operators import KERNELS, TRIALS, kernel_calls
from helion_sinkhorn.runtime import serving
from helion_sinkhorn.runtime.dispatch import signature
from helion_sinkhorn.runtime.kernel import default_choice
from helion_sinkhorn.workloads import WORKLOADS

# linear attention lays its sequences out by the heads of a call, and the history has a place for each program
OTHERS = ("linear_attention_", "sinkhorn_backward_history")
CALLS = {call for w in WORKLOADS.values() if "tune" in w.tags for call in kernel_calls(w)}


@pytest.fixture
def launches(monkeypatch):
    """The arguments of every launch, which here works on meta tensors and runs nothing."""
    made = []
    monkeypatch.setattr(serving, "run", lambda kernel, *arguments: made.append((kernel, arguments)))
    monkeypatch.setattr(serving, "_kept", {})
    return made


@pytest.mark.parametrize("name", [name for name in KERNELS if not name.startswith(OTHERS)])
def test_one_program_serves_every_batch(name, launches):
    """A server's first call of a size waits for no compiler."""
    trial = TRIALS[name]
    for call in (call for kernel, call in CALLS if kernel == name):
        choice = default_choice(KERNELS[name], call, DEVICES["h200"])
        for batch in (1, 2, 17, 64, 699):
            trial.run(call, choice, *trial.operands(call, batch, "meta"))
        assert len({(kernel, signature(arguments)) for kernel, arguments in launches}) == 1, call
        launches.clear()
