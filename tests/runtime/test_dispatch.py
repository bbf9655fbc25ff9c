"""Which calls use one compiled program."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from launches import launching_as

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS, TRIALS, kernel_calls
from helion_sinkhorn.lab.workloads import WORKLOADS
from helion_sinkhorn.runtime import choices, generated
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.dispatch import signature, specialisation
from helion_sinkhorn.runtime.kernel import Choice, default_choice
from helion_sinkhorn.runtime.views import INT32_ELEMENTS

pytestmark = pytest.mark.usefixtures("fresh_caches")
# linear attention lays its sequences out by the heads of a call, and the history has a place for each program
OTHERS = ("linear_attention_", "sinkhorn_backward_history")
CALLS = {call for w in WORKLOADS.values() if "tune" in w.tags for call in kernel_calls(w)}


@pytest.fixture
def launches(monkeypatch):
    """The arguments of every launch, which here works on meta tensors and runs nothing."""
    made = []
    launching_as(monkeypatch, run=lambda kernel, *arguments: made.append((kernel, arguments)))
    return made


@pytest.mark.parametrize("name", [name for name in KERNELS if not name.startswith(OTHERS)])
def test_one_program_serves_every_batch(name, launches):
    """A server's first call of a size waits for no compiler."""
    trial = TRIALS[name]
    for call in (call for kernel, call in CALLS if kernel == name):
        choice = default_choice(KERNELS[name], call, DEVICES["h200"])
        for batch in (1, 2, 17, 64, 699):
            operands = trial.operands(call, batch, "meta")
            # beyond, indices have 64 bits
            if all(t is None or t.numel() < INT32_ELEMENTS for t in operands):
                made = trial.run(call, choice, *operands)
                # the tuner's clock adds up their bytes
                assert all(t is not None for t in (made if isinstance(made, tuple) else (made,)))
        # numbers at run time are arguments of the program
        programs = {
            (kernel, tuple(generated.of_any(kernel, arguments, signature(arguments))))
            for kernel, arguments in launches
        }
        assert len(programs) == 1, call
        launches.clear()


def test_constants_of_a_binary_are_told_apart_by_their_value(monkeypatch):
    """Other integers count as Triton specialises on them: by being 1, by 16, and by their width.

    Tensors count by their type and by 16 bytes.
    """
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    parameters = [SimpleNamespace(num=k, is_constexpr=k == 2) for k in range(3)]
    function = type("Function", (), {"params": parameters})()
    x = torch.empty(64)

    def key(size: int, constant: int, pointer: torch.Tensor = x):
        return specialisation(function, (pointer, size, constant))

    assert key(33, 128) == key(35, 128)
    others = key(32, 128), key(1, 128), key((1 << 31) + 1, 128), key(33, 256)
    others += key(33, 128, torch.empty(65)[1:]), key(33, 128, torch.empty(64, dtype=torch.float16))
    assert len({key(33, 128), *others}) == 7


CALL = SimpleNamespace(key=("a call",))
STORED = Choice("a kernel", (("num_warps", 4),), (), "a file", True)


@pytest.mark.parametrize(
    "refusal",
    [
        torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: an illegal memory access was encountered"), OSError("No space left"),
    ],
    ids=str,
)  # fmt: skip
def test_a_config_is_not_blamed_for_what_any_would_raise(refusal):
    with pytest.raises(type(refusal), match=str(refusal)[:4]):
        choices.refuse(STORED, CALL, DEVICES["h200"], refusal)
    assert not choices.refused


@pytest.fixture
def capture(monkeypatch):
    """The capture of a graph."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


@pytest.mark.usefixtures("capture")
def test_nor_in_the_capture_of_a_graph():
    with pytest.raises(RuntimeError, match="not permitted"):
        choices.refuse(STORED, CALL, DEVICES["h200"], RuntimeError("operation not permitted"))
    assert not choices.refused


def test_a_refusal_is_of_one_call_and_device(caplog):
    """Other calls use the same config, and nothing is known of them."""
    for _ in range(2):
        choices.refuse(STORED, "a call", DEVICES["h200"], RuntimeError("out of resource: shared memory"))
    assert choices.refused == {(STORED, "a call", DEVICES["h200"])}
    assert sum("is refused" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.usefixtures("capture")
def test_a_stale_entry_stops_no_capture(monkeypatch):
    """What is outside of its kernel's space is not tried at all, so nothing can be to blame for it."""
    stale = SimpleNamespace(
        config=(("num_warps", 64),), variant=(), source="a file", evidence="measured", path="/a/b"
    )
    monkeypatch.setattr(choices, "lookup", lambda device, name, key, batch: stale)
    kernel = KERNELS["sinkhorn_forward"]
    call = next(call for name, call in CALLS if name == "sinkhorn_forward")
    default = default_choice(kernel, call, DEVICES["h200"])
    assert [door.choose(kernel, call, batch, DEVICES["h200"]) for batch in (128, 4096)] == [default] * 2
