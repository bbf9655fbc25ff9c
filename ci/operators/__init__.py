"""OPERATORS: what the gate tests.  A new operator is its evidence, what is wrong, and a row here."""

from __future__ import annotations

import dataclasses
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
from helion_sinkhorn.lab.balance.evidence import EVIDENCE as BALANCE
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.lab.dot_compress.evidence import EVIDENCE as DOT_COMPRESS
from helion_sinkhorn.lab.evidence import Evidence
from helion_sinkhorn.lab.linear_attention.evidence import EVIDENCE as LINEAR_ATTENTION
from helion_sinkhorn.lab.mixes.evidence import EVIDENCE as HC_MIXES
from helion_sinkhorn.lab.post.evidence import EVIDENCE as HC_POST
from helion_sinkhorn.lab.pre.evidence import EVIDENCE as HC_PRE
from helion_sinkhorn.lab.pre.quantized.evidence import EVIDENCE as QUANTIZE
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload
from helion_sinkhorn.lab.sinkhorn.evidence import EVIDENCE as SINKHORN
from helion_sinkhorn.lab.sinkhorn.large.evidence import EVIDENCE as SINKHORN_LARGE
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.lab.site.evidence import EVIDENCE as HC_SITE
from helion_sinkhorn.lab.split.evidence import EVIDENCE as HC_SPLIT_SINKHORN


def shown(evidence: Evidence, wrong: ModuleType) -> Operator:
    """An operator from its evidence and its module of wrong implementations."""
    return Operator(
        takes=lambda w: isinstance(w, evidence.workload),
        inputs=evidence.inputs,
        truths=evidence.truths,
        candidates=functools.partial(of_evidence, evidence),
        good=wrong.GOOD,
        wrong=wrong.WRONG,
        baseline=wrong.BASELINE,
        right=wrong.right,
        vendors=wrong.VENDORS,
        same_bits=evidence.same_bits,
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
    "sinkhorn": dataclasses.replace(
        shown(SINKHORN, sinkhorn_wrong), takes=sinkhorn_with("exact"), compiled=sinkhorn_steps.compiled
    ),
    "implicit": dataclasses.replace(shown(SINKHORN, implicit_wrong), takes=sinkhorn_with("implicit")),
    "sinkhorn_large": shown(SINKHORN_LARGE, sinkhorn_large_wrong),
    "dot_compress": shown(DOT_COMPRESS, dot_compress_wrong),
    "linear_attention": shown(LINEAR_ATTENTION, linear_attention_wrong),
    "hc_post": shown(HC_POST, hc_post_wrong),
    "hc_mixes": shown(HC_MIXES, hc_mixes_wrong),
    "hc_pre": dataclasses.replace(shown(HC_PRE, hc_pre_wrong), takes=hc_pre_with(False)),
    "hc_pre_normed": dataclasses.replace(shown(HC_PRE, hc_pre_normed_wrong), takes=hc_pre_with(True)),
    "hc_site": shown(HC_SITE, hc_site_wrong),
    "hc_split_sinkhorn": shown(HC_SPLIT_SINKHORN, hc_split_sinkhorn_wrong),
    "sinkhorn_balance": dataclasses.replace(shown(BALANCE, balance_wrong), takes=balance_with(step=False)),
    "sinkhorn_balance_step": dataclasses.replace(
        shown(BALANCE, balance_step_wrong), takes=balance_with(step=True)
    ),
    "quantize": shown(QUANTIZE, quantize_wrong),
}


def operator_of(workload) -> Operator:
    """The row whose workload this is.

    Raises:
        LookupError: none takes it, or several do.
    """
    found = [name for name, operator in OPERATORS.items() if operator.takes(workload)]
    if len(found) != 1:
        raise LookupError(
            f"{workload.name} has the tag ci and is taken by {found or 'no operator'} of ci/operators; "
            "give its operator a row there, and no other, that takes it"
        )
    return OPERATORS[found[0]]
