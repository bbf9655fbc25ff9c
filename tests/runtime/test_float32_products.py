"""Products of float32 in PyTorch where the process allows less, by torch.set_float32_matmul_precision."""

from __future__ import annotations

import threading

import pytest
import torch
from autograd_calls import randn
from torch.utils._python_dispatch import TorchDispatchMode

from helion_sinkhorn.ops.dot_compress import eager as dot_compress
from helion_sinkhorn.ops.mhc.mixes import eager as hc_mixes
from helion_sinkhorn.runtime.float32_products import float32_products

BACKENDS = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
X, Y = randn(2, 5, 4), randn(2, 5, 3, seed=1)
B = randn(2, 1, 4, 3, seed=2)
TOKENS, FN, MIXES, NORMS = randn(6, 8), randn(3, 8, seed=1), randn(6, 3, seed=2), randn(6, 2, seed=3)
CALLS = {
    "dot_compress": lambda: dot_compress.forward(X, Y, None, 1),
    "dot_compress, gradient": lambda: dot_compress.backward(Y, X, Y, B),
    "hc_mixes": lambda: hc_mixes.forward(TOKENS, FN, 1e-6, False),
    "hc_mixes, gradient": lambda: hc_mixes.backward(MIXES, TOKENS, FN, MIXES, NORMS),
}


def settings():
    return [backend.fp32_precision for backend in BACKENDS]


@pytest.fixture
def allowed():
    """What the process allows."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield settings()
    torch.set_float32_matmul_precision(before)


class Products(TorchDispatchMode):
    """The settings under which each product is made."""

    def __init__(self):
        super().__init__()
        self.under = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function._schema.name in ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm"):
            self.under.append(settings())
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_product_takes_less_than_float32(call, allowed):
    assert "ieee" not in allowed
    with Products() as products:
        call()
    assert products.under
    assert all(under == ["ieee", "ieee"] for under in products.under)
    assert settings() == allowed
    assert torch.get_float32_matmul_precision() == "medium"


@pytest.mark.parametrize("narrow", ["tf32", "bf16"])
def test_backends_go_on_to_follow_the_setting_of_all(narrow):
    before, own = torch.backends.fp32_precision, settings()
    torch.backends.fp32_precision = narrow
    following = settings()
    with float32_products():
        within = settings()
    after = settings()
    torch.backends.fp32_precision = "none"
    at_last = settings()
    torch.backends.fp32_precision = before
    assert within == ["ieee" if now == narrow else now for now in following]
    assert (after, at_last) == (following, own)


def test_the_last_to_leave_restores_what_the_process_allows(allowed):
    entered, leave = threading.Event(), threading.Event()

    def other():
        with float32_products():
            entered.set()
            leave.wait(30)

    @float32_products()
    def fails():
        thread.start()
        assert entered.wait(30)
        raise ZeroDivisionError

    thread = threading.Thread(target=other)
    with pytest.raises(ZeroDivisionError):
        fails()
    assert settings() == ["ieee", "ieee"]
    leave.set()
    thread.join()
    assert settings() == allowed
