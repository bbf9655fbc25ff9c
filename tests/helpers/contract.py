"""The contract of all operators: their rows, calls with gradients, and what the dispatcher sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import operator_table
import pytest
import torch
from autograd_calls import assert_equal, randn
from operator_table import OF_PYTORCH, OPERATORS, VARIANTS, Row
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

PARTS = (
    "sinkhorn", "sinkhorn, implicit", "dot_compress", "attention, gk", "attention, all gates",
    "hc_split_sinkhorn", "hc_split_sinkhorn, reduced", "hc_mixes", "hc_pre", "hc_pre, norm",
    "hc_post",
)  # fmt: skip
KERNELS = "hc_site, kernels", "hc_boundary, kernels", "hc_boundary, norm, kernels"
ROWS = {**OPERATORS, **VARIANTS, **OF_PYTORCH}
PYTORCH = (*PARTS, *VARIANTS)
"""Calls that PyTorch computes on a CPU."""
COMPOSED = (
    "hc_post, without comb", "hc_coeffs", "hc_head", "hc_site", "hc_boundary", "hc_boundary, norm",
)  # fmt: skip
"""Functions that PyTorch computes on a CPU by several operators, or by none of this package."""
CONTRACT = (*PYTORCH, *KERNELS)

WITHOUT_AOT = "test_schema", "test_faketensor", "test_autograd_registration"
WITH_AOT = *WITHOUT_AOT, "test_aot_dispatch_dynamic"
"""Graphs of one size are compiled with all gradients in test_single_gradients.py."""
LONGEST = pytest.mark.nightly("1 to 7 s a test; opcheck, and its gradients one by one, run always")


def by_day(name: str, *more: str) -> Any:
    """A parameter that the row with the most kernels has by night."""
    return pytest.param(name, *more, marks=LONGEST if name == KERNELS[2] else ())


each_row = pytest.mark.parametrize("name", [by_day(name) for name in CONTRACT])
each_of_pytorch = pytest.mark.parametrize("name", PYTORCH)
each_function = pytest.mark.parametrize("name", [*PYTORCH, *COMPOSED])
DTYPES = {
    "float32": {},
    "narrow": {"streams": torch.bfloat16},
    "float64": {"dtype": torch.float64},
    "narrow coefficients": {"dtype": torch.bfloat16, "streams": torch.float32},
}
each_dtype = pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, dtype) for name in PYTORCH for dtype in ("float32", "narrow", "float64")),
        *((name, dtype) for name in COMPOSED for dtype in ("float32", "narrow")),
        *(by_day(name, dtype) for name in KERNELS for dtype in ("float32", "narrow")),
        *((name, "narrow coefficients") for name in ("hc_split_sinkhorn", "hc_mixes", "hc_pre", "hc_post")),
    ],
)


def of_size(monkeypatch: pytest.MonkeyPatch, n: int, c: int, mixes: int = 24) -> None:
    """Give rows of the table these streams and columns; fn of a projection by itself, this many rows.

    Matrices are n x c then, and products of n x c and n x mixes.
    """
    sizes = {
        "N": n, "C": c, "ROWS": n * (n + 2), "MIXES": mixes, "MATRIX": (n, c), "RECTANGLE": (n, c),
        "PRODUCT": (n, c, mixes),
    }  # fmt: skip
    for constant, value in sizes.items():
        monkeypatch.setattr(operator_table, constant, value)


def listed(results: Any) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def upstream_of(results: Any) -> list[torch.Tensor]:
    """A random gradient of each result."""
    return [
        randn(*y.shape, seed=1000 + k, dtype=y.dtype, device=y.device) for k, y in enumerate(listed(results))
    ]


def called(
    function: Callable[..., Any],
    given: Sequence[torch.Tensor],
    change: Callable[[torch.Tensor], torch.Tensor] = lambda t: t,
    used: slice = slice(None),
) -> list[torch.Tensor]:
    """The results of a call, and its gradients from random upstream gradients in another layout."""
    leaves = [x.detach().requires_grad_() for x in given]
    results = listed(function(*leaves))
    upstream = [change(g) for g in upstream_of(results)]
    some = {} if used == slice(None) else {"allow_unused": True, "materialize_grads": True}
    gradients = torch.autograd.grad(results[used], leaves, upstream[used], **some)
    return [*(y.detach() for y in results), *gradients]


def assert_same(name: str, tensors: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """Equal bits; interpreted kernels sum in an order that depends on the tokens around."""
    if not ROWS[name].kernels:
        assert_equal(tensors, expected)
        return
    for a, b in zip(tensors, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def metadata(t: torch.Tensor) -> tuple[Any, ...]:
    """Strides, or nothing for a tensor without entries, whose strides do not matter."""
    return t.shape, t.stride() if t.numel() else None, t.dtype, t.device


class Recorder(TorchDispatchMode):
    """The operators of this package that the dispatcher sees, their arguments and results."""

    def __init__(self):
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], Any]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        if function.namespace == "helion_sinkhorn":
            self.calls.append((function, args, results))
        return results


def recorded(row: Row, given: Sequence[torch.Tensor], *how: Any) -> list[tuple[Any, Any, Any]]:
    """(operator, arguments, results) of a call and its gradients, of arguments as `called` has them."""
    with Recorder() as recorder:
        called(row.function, given, *how)
    return recorder.calls


def opcheck(operator: Any, arguments: Sequence[Any], tests: Sequence[str] = WITH_AOT) -> None:
    """torch.library.opcheck of a recorded call; what has a gradient is differentiated."""
    leaf = not is_gradient(operator)
    leaves = [
        x.detach().requires_grad_(leaf and x.is_floating_point()) if isinstance(x, torch.Tensor) else x
        for x in arguments
    ]
    torch.library.opcheck(operator, tuple(leaves), test_utils=tests)


def is_gradient(operator: Any) -> bool:
    return operator._opname.endswith("_backward")


def by_torch_ops(row: Row, *lead: int) -> torch.fx.GraphModule:
    """A graph of a call with so many tokens, which calls torch.ops alone."""
    graph = make_fx(lambda *given: row.function(*given))(*row.arguments(*lead).values())
    assert any(str(node.target).startswith("helion_sinkhorn") for node in graph.graph.nodes)
    return graph


def operator_of(name: str) -> Any:
    """The torch operator that computes the results."""
    (operator, *_), *_ = recorded(ROWS[name], [*ROWS[name].arguments().values()])
    return operator
