"""OPERATORS: what the gate tests.  A new operator is its evidence, what is wrong, and a row here.

In the modules `wrong`, GOOD differs in what an implementation may choose, such as the order of sums, what is
fused or the functions of a vendor; WRONG does what none may do.  Most faults change EXACT of the modules
`steps`, which is rounded once from float64, so that they have no rounding error of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ci.gate.choices import of_evidence
from ci.gate.gate import Operator
from ci.operators.balance import wrong as balance_wrong
from ci.operators.balance_step import wrong as balance_step_wrong
from ci.operators.dot_compress import wrong as dot_compress_wrong
from ci.operators.hc_mixes import wrong as hc_mixes_wrong
from ci.operators.hc_post import wrong as hc_post_wrong
from ci.operators.hc_pre import wrong as hc_pre_wrong
from ci.operators.hc_pre_normed import wrong as hc_pre_normed_wrong
from ci.operators.hc_site import wrong as hc_site_wrong
from ci.operators.hc_split_sinkhorn import wrong as hc_split_sinkhorn_wrong
from ci.operators.implicit import wrong as implicit_wrong
from ci.operators.linear_attention import wrong as linear_attention_wrong
from ci.operators.quantize import wrong as quantize_wrong
from ci.operators.sinkhorn import steps as sinkhorn_steps
from ci.operators.sinkhorn import wrong as sinkhorn_wrong
from ci.operators.sinkhorn_large import wrong as sinkhorn_large_wrong
from helion_sinkhorn.lab import operators
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload


def shown(
    name: str, wrong: ModuleType, takes: Callable[[Any], bool] | None = None, **fields: Any
) -> Operator:
    """An operator from its evidence and its module of wrong implementations.

    Args:
        takes: whether a workload of its type is one of this row's; all are if left out.
    """
    evidence = operators.OPERATORS[name]
    return Operator(
        takes=takes or (lambda w: isinstance(w, evidence.workload)),
        inputs=evidence.inputs,
        truths=evidence.truths,
        candidates=functools.partial(of_evidence, evidence),
        good=wrong.GOOD,
        wrong=wrong.WRONG,
        baseline=wrong.BASELINE,
        right=wrong.right,
        vendors=wrong.VENDORS,
        same_bits=evidence.same_bits,
        **fields,
    )


def sinkhorn_with(backward: str) -> Callable[[Any], bool]:
    """Takes the workloads of Sinkhorn with this gradient."""
    return lambda w: isinstance(w, SinkhornWorkload) and w.backward == backward


def hc_pre_with(y_norm: bool) -> Callable[[Any], bool]:
    """Takes the workloads of hc_pre with a norm, or without."""
    return lambda w: isinstance(w, HcPreWorkload) and w.y_norm == y_norm


def balance_with(step: bool) -> Callable[[Any], bool]:
    """Takes the workloads of an optimizer's step, or of sinkhorn_balance itself."""
    return lambda w: isinstance(w, BalanceWorkload) and (w.average is not None) == step


OPERATORS = {
    "sinkhorn": shown("sinkhorn", sinkhorn_wrong, sinkhorn_with("exact"), compiled=sinkhorn_steps.compiled),
    "implicit": shown("sinkhorn", implicit_wrong, sinkhorn_with("implicit")),
    "sinkhorn_large": shown("sinkhorn_large", sinkhorn_large_wrong),
    "dot_compress": shown("dot_compress", dot_compress_wrong),
    "linear_attention": shown("linear_attention", linear_attention_wrong),
    "hc_post": shown("hc_post", hc_post_wrong),
    "hc_mixes": shown("hc_mixes", hc_mixes_wrong),
    "hc_pre": shown("hc_pre", hc_pre_wrong, hc_pre_with(False)),
    "hc_pre_normed": shown("hc_pre", hc_pre_normed_wrong, hc_pre_with(True)),
    "hc_site": shown("hc_site", hc_site_wrong),
    "hc_split_sinkhorn": shown("hc_split_sinkhorn", hc_split_sinkhorn_wrong),
    "sinkhorn_balance": shown("sinkhorn_balance", balance_wrong, balance_with(step=False)),
    "sinkhorn_balance_step": shown("sinkhorn_balance", balance_step_wrong, balance_with(step=True)),
    "quantize": shown("quantize", quantize_wrong),
}


def operator_of(workload) -> Operator:
    """The row whose workload this is.

    Raises:
        LookupError: none takes it, or several do.
    """
    names = [name for name, operator in OPERATORS.items() if operator.takes(workload)]
    if len(names) != 1:
        raise LookupError(
            f"{workload.name} has the tag ci and is taken by {names or 'no operator'} of ci/operators; "
            "give its operator a row there, and no other, that takes it"
        )
    return OPERATORS[names[0]]
