"""Elements of a batch of calls, as they are tested: a sequence each, or a packing of sequences.

All elements are computed by one call, packings one after another.  Only the gradient of g_gamma, a sum over
the batch, belongs to no element: for an element it comes from a call on copies of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

from helion_sinkhorn.lab.linear_attention.budget import Case
from helion_sinkhorn.lab.linear_attention.model import TENSORS, Named
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload

JUDGED = 2
"""The number of tested elements; each has thousands of entries, and gates that sum over all its steps."""
COPIES = (1.0, 2.0, 4.0)
"""Factors of the gradients of an element in the call that gives its dg_gamma, a sum over the batch: the
element is there once with each, so its result is 7 times that of the element alone, with the same rounding
errors, and no wrong subset of the batch sums to that."""
STATES = "end", "dinitial_state"


def names(workload: AttentionWorkload) -> list[str]:
    """Names of the tensors of `inputs`, the gradients "do" and "dend" last."""
    own = [*"qkv", *[name for name in TENSORS if name in workload.gates.split()]]
    return [*own, "initial_state", "do", "dend"] if workload.states else [*own, "do"]


def inputs(workload: AttentionWorkload, steps: int) -> tuple[torch.Tensor, ...]:
    """`names` of every tested element, whatever `steps`; g_gamma is (B, H), the same in each."""
    drawn = [Case.of(workload, seed) for seed in range(JUDGED)]
    parts = []
    for name in names(workload):
        of = [getattr(c, name) if name in ("do", "dend") else c.inputs[name] for c in drawn]
        if name == "g_gamma":
            parts.append(torch.stack([of[0]] * JUDGED))
        elif name in ("initial_state", "dend") and workload.lengths:
            parts.append(torch.stack(of))
        else:
            parts.append(torch.cat([x[:1] for x in of]))
    return tuple(parts)


def one_by_one(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The inputs of every element by itself."""
    return [[x[b : b + 1] for x in tensors] for b in range(len(tensors[0]))]


def case_of(workload: AttentionWorkload, *tensors: torch.Tensor) -> Case:
    """The call that computes these elements together: packings go one after another."""
    named = dict(zip(names(workload), tensors, strict=True))
    if "g_gamma" in named:
        named["g_gamma"] = named["g_gamma"][0]
    if workload.lengths:
        lengths = torch.tensor((0, *workload.lengths * len(tensors[0])), device=tensors[0].device)
        named = {n: x if n == "g_gamma" else x.flatten(0, 1) for n, x in named.items()}
        named = {n: x if n in ("g_gamma", "initial_state", "dend") else x[None] for n, x in named.items()}
        named["cu_seqlens"] = lengths.cumsum(0).int()
    do, dend = named.pop("do"), named.pop("dend", None)
    return Case(named, do, dend, workload.scale, workload.reverse)


def copied(workload: AttentionWorkload, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One element as often as there are COPIES, its gradients times these: powers of two round nothing."""
    return [
        torch.cat([x * c for c in COPIES]) if name in ("do", "dend") else torch.cat([x] * len(COPIES))
        for name, x in zip(names(workload), tensors, strict=True)
    ]


def by_elements(workload: AttentionWorkload, results: Named) -> Named:
    """The results of `case_of`, an element each; what sums over elements is left out."""
    found = {name: x for name, x in results.items() if name != "dg_gamma"}
    if workload.lengths:
        sizes = dict.fromkeys(STATES, (-1, len(workload.lengths)))
        found = {
            n: (x if n in STATES else x[0]).unflatten(0, sizes.get(n, (-1, workload.steps)))
            for n, x in found.items()
        }
    return found


def computed(
    workload: AttentionWorkload,
    compute: Callable[[Case], Named],
    of: Collection[str],
    tensors: Sequence[torch.Tensor],
) -> Named:
    """What computes a case, for the results in `of`: of all elements together, dg_gamma of copies of each."""
    found = {}
    if {*of} - {"dg_gamma"}:
        found = by_elements(workload, compute(case_of(workload, *tensors)))
    if "dg_gamma" in of:
        each = [case_of(workload, *copied(workload, one)) for one in one_by_one(tensors)]
        found["dg_gamma"] = torch.stack([compute(case)["dg_gamma"] for case in each])
    return {name: found[name] for name in of}


def joined(parts: Sequence[Named]) -> Named:
    """The results of several elements from those of each."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def alone(workload: AttentionWorkload, results: Named) -> Named:
    """The results of one element, dg_gamma among them: that of its copies."""
    own = {"dg_gamma": sum(COPIES) * results["dg_gamma"][None]} if "dg_gamma" in results else {}
    return by_elements(workload, results) | own
