"""Bugs of recurrent linear attention, each planted into a right implementation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from ci.gate import gate
from ci.gate.arithmetic import bfloat16, keep_bits
from ci.gate.bugs import Bug, anywhere, at, edited, later
from ci.operators.linear_attention.truths import by_elements, case_of, copied
from helion_sinkhorn.lab.linear_attention.budget import Case
from helion_sinkhorn.lab.linear_attention.model import Named
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.ops.linear_attention import eager as linear_attention_eager

EVERY, PACKED, SCALED, NARROW = (
    "attention_every_gate", "attention_packed_reverse", "attention_scaled", "attention_retention"
)  # fmt: skip
Compute = Callable[[AttentionWorkload, Case], Named]


def right_case(w: AttentionWorkload, case: Case) -> Named:
    return case.run_module(linear_attention_eager)


def computing(compute: Compute) -> gate.Run:
    """An implementation of a call, as the gate asks for it: elements of a batch, dg_gamma of their copies."""

    def run(w: AttentionWorkload, *tensors: torch.Tensor) -> gate.Results:
        found = by_elements(w, compute(w, case_of(w, *tensors)))
        if "g_gamma" in w.gates.split():
            each = [[x[b : b + 1] for x in tensors] for b in range(len(tensors[0]))]
            own = [compute(w, case_of(w, *copied(w, one)))["dg_gamma"] for one in each]
            found["dg_gamma"] = torch.stack(own)
        return found

    return run


right = computing(right_case)


def call(**change) -> gate.Run:
    """A call with other options."""
    return computing(lambda w, case: right_case(w, dataclasses.replace(case, **change)))


def given(**tensors: Callable[[torch.Tensor], torch.Tensor]) -> gate.Run:
    """Other inputs, by name; "do" and "dend" are gradients."""

    def compute(w: AttentionWorkload, case: Case) -> Named:
        inputs = {n: tensors.get(n, lambda t: t)(x) for n, x in case.inputs.items()}
        do = tensors.get("do", lambda t: t)(case.do)
        dend = None if case.dend is None else tensors.get("dend", lambda t: t)(case.dend)
        return right_case(w, dataclasses.replace(case, inputs=inputs, do=do, dend=dend))

    return computing(compute)


def after(change: Callable[[AttentionWorkload, Case, Named], Named]) -> gate.Run:
    """Right results, of which some are computed again, wrongly."""

    def compute(w: AttentionWorkload, case: Case) -> Named:
        found = right_case(w, case)
        return found | change(w, case, found)

    return computing(compute)


def one_sequence(n: int) -> Callable[[AttentionWorkload, Case, Named], Named]:
    """dg_gamma of one sequence of a batch."""

    def change(w, case, found):
        only = [slice(n, n + 1) if n >= 0 else slice(n, None)]
        inputs = {k: x if k == "g_gamma" else x[only[0]] for k, x in case.inputs.items()}
        dend = None if case.dend is None else case.dend[only[0]]
        alone = dataclasses.replace(case, inputs=inputs, do=case.do[only[0]], dend=dend)
        return {"dg_gamma": right_case(w, alone)["dg_gamma"]}

    return change


def first_packed(w, case, found):
    """dg_gamma of the tokens of the first packing."""
    inputs = {
        k: x if k in ("g_gamma", "cu_seqlens", "initial_state") else x[:, : w.steps]
        for k, x in case.inputs.items()
    }
    count = len(w.lengths)
    inputs["cu_seqlens"], inputs["initial_state"] = (
        inputs["cu_seqlens"][: count + 1],
        inputs["initial_state"][:count],
    )
    alone = dataclasses.replace(case, inputs=inputs, do=case.do[:, : w.steps], dend=case.dend[:count])
    return {"dg_gamma": right_case(w, alone)["dg_gamma"]}


def forwards_if_packed(w, case):
    return right_case(w, dataclasses.replace(case, reverse=case.reverse and "cu_seqlens" not in case.inputs))


def in_one_head(change: Callable[[torch.Tensor], torch.Tensor], axis: int = 2) -> Callable:
    def changed(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x.select(axis, -1).copy_(change(x.select(axis, -1)))
        return x

    return changed


def gates_swapped(w, case):
    found = right_case(w, case)
    dg = found["dgk"].sum(-1)
    return found | {"dg": dg + 2.0**-10 * found["dgv"].sum(-1)}


def exclusive(w, case, found):
    """A gate's gradient without that of its own step."""
    own = (case.inputs["q"] * found["dq"] - case.inputs["k"] * found["dk"]).float()
    return {"dgk": found["dgk"] - own}


def last_step_of(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[:, -1] = x[:, -2]
    return x


def steps_in_pairs(x: torch.Tensor) -> torch.Tensor:
    """An odd step takes the gate of the one before."""
    x = x.clone()
    x[:, 1::2] = x[:, 0 : 2 * (x.size(1) // 2) : 2]
    return x


def bug(name: str, run: gate.Run, *of: str, on: str = EVERY, hidden: str = "") -> Bug:
    return Bug(name, on, run, of or ("o", "dq", "dk", "dv"), hidden)


BUGS = [
    *anywhere(right, EVERY, "o", -2),
    bug("dg_gamma of the first sequence", after(one_sequence(0)), "dg_gamma"),
    bug("dg_gamma of the last sequence", after(one_sequence(-1)), "dg_gamma", on=SCALED),
    bug("dg_gamma of the first packing", after(first_packed), "dg_gamma", on=PACKED),
    bug(
        "dg_gamma a mean over the batch",
        after(lambda w, c, f: {"dg_gamma": f["dg_gamma"] / len(c.do)}),
        "dg_gamma",
        on=SCALED,
    ),
    bug(
        "dg_gamma with heads exchanged",
        after(lambda w, c, f: {"dg_gamma": f["dg_gamma"].flip(0)}),
        "dg_gamma",
    ),
    bug(
        "dg_gamma summed in bfloat16",
        after(lambda w, c, f: {"dg_gamma": f["dg"].bfloat16().sum((0, 1)).float()}),
        "dg_gamma",
        on=SCALED,
    ),
    bug("reverse ignored where sequences are packed", computing(forwards_if_packed), on=PACKED),
    bug(
        "reverse ignored in the gradients",
        after(
            lambda w, c, f: {
                k: x
                for k, x in right_case(w, dataclasses.replace(c, reverse=False)).items()
                if k not in ("o", "end")
            }
        ),
        "dq",
        "dk",
        on="attention_reverse",
    ),
    bug(
        "scale of the default whatever the caller's",
        computing(lambda w, c: right_case(w, dataclasses.replace(c, scale=w.dk**-0.5))),
        on=SCALED,
    ),
    bug("scale by the other side of the state", call(scale=12**-0.5)),
    bug("size of the scale without its sign", call(scale=0.7), "o", "dq", on=PACKED),
    bug("scale left out of dq", after(lambda w, c, f: {"dq": f["dq"] / w.scale}), "dq", on=SCALED),
    bug("scale twice in dk", after(lambda w, c, f: {"dk": f["dk"] * w.scale}), "dk", on=SCALED),
    bug(
        "first state of the first head for all",
        given(initial_state=lambda x: x[:, :1].expand_as(x)),
        "o",
        "end",
    ),
    bug(
        "first state transposed in its square part",
        given(initial_state=edited(lambda x: x[..., :8, :8].copy_(x[..., :8, :8].mT.clone()))),
        "o",
        "dq",
    ),
    bug(
        "first state of the sequence before",
        given(initial_state=lambda x: x.roll(1, 0)),
        "o",
        "end",
        on=PACKED,
    ),
    bug("first state in bfloat16", given(initial_state=bfloat16), "o", "end"),
    bug(
        "gradient of the last state of one head left out",
        given(dend=in_one_head(torch.zeros_like, 1)),
        "dk",
        "dinitial_state",
    ),
    bug("gradient of the last state not decayed", given(dend=lambda x: x * 1.02), "dv", "dinitial_state"),
    bug(
        "last state one step early",
        computing(
            lambda w, c: right_case(
                w,
                dataclasses.replace(
                    c, inputs={**c.inputs, "k": edited(lambda k: k[:, -1].zero_())(c.inputs["k"])}
                ),
            )
        ),
        "end",
    ),
    bug(
        "state of the second last step returned at the end of short sequences",
        later(right, "end", at((..., 0, 0), lambda t: t.roll(1, -1)[..., 0, 0])),
        "end",
        on=PACKED,
    ),
    bug("gates of the last step repeated", given(gk=last_step_of), "o", "dq"),
    bug("gates in pairs of steps", given(gk=steps_in_pairs), "o", "dgk"),
    bug("gates in bfloat16", given(gk=bfloat16), "o", "dk"),
    bug("gates to the base 2", given(gk=lambda x: x * 0.6931471805599453), "o", "dk"),
    bug("gates clamped at -5", given(gk=lambda x: x.clamp_min(-5.0)), "o", "dk", on="attention_forgetting"),
    bug(
        "gates clamped at -110",
        given(gk=lambda x: x.clamp_min(-110.0)),
        "o",
        "dk",
        on="attention_forgetting",
        hidden="exp(-110) is 0 in float32",
    ),
    bug("gate of one head ignored", given(g=in_one_head(torch.zeros_like)), "o", "dg"),
    bug("g_gamma counted twice", given(g_gamma=lambda x: 2 * x), "o", "dq"),
    bug(
        "gv on the rows where sizes allow",
        given(gv=edited(lambda x: x[..., :8].copy_(x[..., :8].flip(-1)))),
        "o",
        "dgv",
    ),
    bug("gradients of gates without their own step", after(exclusive), "dgk"),
    bug("a part of dgv in dg", computing(gates_swapped), "dg"),
    bug(
        "dg of the last head's channels only", after(lambda w, c, f: {"dg": f["dgk"][..., :-1].sum(-1)}), "dg"
    ),
    bug(
        "last token of every sequence without a key", given(k=edited(lambda k: k[:, -1].zero_())), "o", "end"
    ),
    bug("first token read for the last", given(q=edited(lambda q: q[:, -1].copy_(q[:, 0]))), "o"),
    bug("tokens beyond 64 not walked", given(v=edited(lambda v: v[:, 64:].zero_())), "o", "dq", on=SCALED),
    bug("heads exchanged in v", given(v=lambda v: v.flip(2)), "o", "dv"),
    bug("last lane of k taken for padding", given(k=edited(lambda k: k[..., -1].zero_())), "o", "dq"),
    bug("state of 14 bits between spans", given(initial_state=lambda x: keep_bits(x, 13)), "o", "dq"),
    bug("keys in half precision", given(k=lambda k: k.half().float()), "o", "dq"),
    bug("upstream gradient in bfloat16", given(do=bfloat16), "dq", "dk", "dv"),
    bug("upstream gradient one token late", given(do=lambda x: x.roll(1, 1)), "dq", "dk", "dv"),
    bug(
        "an empty sequence takes the state behind it",
        later(right, "end", lambda t: torch.cat([t[:, 1:2], t[:, 1:]], 1)),
        "end",
        on=PACKED,
    ),
    bug(
        "boundary of sequences one token late",
        given(cu_seqlens=edited(lambda x: x.view(-1)[2:-1:3].add_(1))),
        "o",
        "dk",
        on=PACKED,
    ),
    bug(
        "rounded down at the store",
        later(right, "o", lambda t: torch.nextafter(t, torch.full_like(t, -torch.inf))),
        "o",
        on=NARROW,
    ),
]
