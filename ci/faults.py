"""Correct implementations and wrong ones, emulated in PyTorch: the gate must pass these and catch those.

GOOD differs in what vendors, compilers and kernels are free to choose, FAULTS in what none may do.  Each
takes (workload, x, dy) and returns (P, dX) of the workload's dtype.

    python ci/faults.py [--write docs/accuracy.md]    the tables of what is caught, by which rule
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import gate
import report
import torch

from helion_sinkhorn import eager, reference, testing
from helion_sinkhorn.workloads import WORKLOADS, Workload, tagged

Pair = tuple[torch.Tensor, torch.Tensor]
Run = Callable[[Workload, torch.Tensor, torch.Tensor], Pair]


def through(x: torch.Tensor, emulated: torch.Tensor) -> torch.Tensor:
    """The value `emulated` with the gradient of x."""
    return x + (emulated - x).detach()


def keep_bits(x: torch.Tensor, bits: int) -> torch.Tensor:
    """x with its significand cut to `bits` explicit bits, as a table or a cast by shift gives it."""
    mask = -(1 << (23 - bits))
    return through(x, (x.detach().view(torch.int32) & mask).view(torch.float32))


def bfloat16(x: torch.Tensor) -> torch.Tensor:
    """x rounded to bfloat16, still float32."""
    return through(x, x.detach().bfloat16().float())


def off_by(x: torch.Tensor, ulps: float) -> torch.Tensor:
    """x wrong by up to `ulps` units in the last place, the same for the same x as in a function unit."""
    if not ulps:
        return x
    value = x.detach()
    hashed = (value.view(torch.int32).long() * 2654435761) & 0xFFFFFFFF
    unit = hashed.double() / 2.0**31 - 1.0
    last_place = torch.exp2(torch.frexp(value).exponent.double() - 24.0)
    return through(x, torch.where(value == 0, value, (value + ulps * unit * last_place).float()))


@dataclass(frozen=True)
class Arithmetic:
    """How one implementation computes in float32; also the `rounding` of testing.scaling_form.

    exp_ulps, reciprocal_ulps: largest error of the functions, beside one rounding to nearest.
    multiplies: a / b is a times the reciprocal of b; else it is rounded correctly.
    """

    sums: str = "sequential"
    fused: bool = False
    exp_ulps: float = 0.0
    reciprocal_ulps: float = 0.0
    multiplies: bool = False
    operand: Callable[[torch.Tensor], torch.Tensor] = lambda x: x
    partial: Callable[[torch.Tensor], torch.Tensor] = lambda x: x
    inverse: Callable[[torch.Tensor], torch.Tensor] = lambda x: x

    ARGUMENT = 3.0
    EXP = "exp"
    RECIPROCAL = "reciprocal"

    def next_iteration(self) -> None:
        """Nothing is drawn at random."""

    def adjoint(self, a, size=1.0):
        return a

    def __call__(self, x, forward=1.0, backward=None):
        if forward == self.EXP:
            return off_by(x, self.exp_ulps)
        if forward == self.RECIPROCAL:
            return self.inverse(off_by(x, self.reciprocal_ulps))
        return x

    def sum(self, terms: torch.Tensor, axis: int) -> torch.Tensor:
        parts = list(terms.split(1, axis))
        if self.sums == "backwards":
            parts.reverse()
        if self.sums == "tree":
            while len(parts) > 1:
                half = (len(parts) + 1) // 2
                parts = [a + b for a, b in zip(parts, parts[half:], strict=False)] + parts[
                    len(parts) - half : half
                ]
            return parts[0]
        total = parts[0]
        for part in parts[1:]:
            total = self.partial(total + part)
        return total

    def dot(self, a: torch.Tensor, w: torch.Tensor, axis: int) -> torch.Tensor:
        a, w = self.operand(a), self.operand(w)
        if not self.fused:
            return self.sum(a * w, axis)
        total = 0.0
        other = -1 if axis == -2 else -2
        pairs = zip(a.split(1, axis), w.split(1, axis), strict=True)
        for x, y in reversed(list(pairs)) if self.sums == "backwards" else pairs:
            total = (x.double() * y.double() + total).float()
        assert total.size(other) == a.size(other)
        return total

    def divide(self, a: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return a * self(1.0 / total, self.RECIPROCAL) if self.multiplies else a / total


PLAIN = Arithmetic()
# PTX ISA: ex2.approx 2^-22 relative (2 ulp), rcp.approx 1 ulp, div.full a product with it (2 ulp in all)
NVIDIA = Arithmetic(fused=True, exp_ulps=2.0, reciprocal_ulps=1.0, multiplies=True)
# AMD ISA: v_exp_f32 and v_rcp_f32 1 ulp; division by v_div_scale ... v_div_fixup, rounded correctly
AMD = Arithmetic(fused=True, sums="tree", exp_ulps=1.0, reciprocal_ulps=1.0)
VENDORS = {"nvidia": NVIDIA, "amd": AMD}


def in_place(x: torch.Tensor, workload: Workload, arithmetic: Arithmetic, **change) -> torch.Tensor:
    """The matrix itself divided by its sums: no scaling vectors.

    change: faults.  start_eps, eps: of the softmax and of the denominators; after: of what is added to the
    quotient; iterate: applied to the matrix after each step; steps: half-steps left out at the end.
    """
    if workload.first == "cols":
        return in_place(x.mT, replace(workload, first="rows"), arithmetic, **change).mT
    deepseek = workload.form == "deepseek"
    own = workload.eps if deepseek else 0.0
    eps, start_eps = change.get("eps", own), change.get("start_eps", own)
    after = change.get("after", 0.0)
    iterate = change.get("iterate", lambda p: p)

    def step(p, axis):
        return iterate(arithmetic.divide(p, arithmetic.sum(p, axis) + eps) + after)

    p = arithmetic((x - x.detach().amax(-1, keepdim=True)).exp(), arithmetic.EXP)
    if deepseek:
        p = arithmetic.divide(p, arithmetic.sum(p, -1)) + start_eps
    axes = [-1, -2] * workload.n_iters
    for axis in axes[1 if deepseek else 0 : len(axes) - change.get("steps", 0)]:
        p = step(p, axis)
    return p


def differentiated(function: Callable[[torch.Tensor], torch.Tensor], workload: Workload, x, dy) -> Pair:
    """(P, dX) of a function of the logits in float32, each rounded once to the workload's dtype."""
    compute = torch.promote_types(workload.dtype, torch.float32)
    leaf = x.to(compute, copy=True).requires_grad_()
    p = function(leaf)
    (dx,) = torch.autograd.grad(p, leaf, dy.to(compute))
    return p.detach().to(workload.dtype), dx.to(workload.dtype)


def dividing(arithmetic: Arithmetic = PLAIN, **change) -> Run:
    return lambda w, x, dy: differentiated(lambda t: in_place(t, w, arithmetic, **change), w, x, dy)


def exactly(**change) -> Run:
    """`dividing` in float64, rounded once: a fault and no rounding error."""
    return in_float64(lambda w, t: in_place(t, w, PLAIN, **change))


def scaling(arithmetic: Arithmetic = PLAIN) -> Run:
    return lambda w, x, dy: differentiated(
        lambda t: testing.scaling_form(t, *w.arguments, arithmetic), w, x, dy
    )


def specification(**change) -> Run:
    """The equations in float64 with other arguments, rounded once: a fault and no rounding error."""

    def run(w, x, dy):
        p, dx = testing.exact(x, dy, **{**w.options, **change})
        return p.to(w.dtype), dx.to(w.dtype)

    return run


def pytorch(w: Workload, x: torch.Tensor, dy: torch.Tensor) -> Pair:
    """The specification as PyTorch evaluates it in float32, and autograd: what kernels are compared with."""
    return differentiated(lambda t: reference.sinkhorn(t, **w.options), w, x, dy)


def own_adjoint(w, x, dy):
    return eager.forward(x, *w.arguments, w.dtype), eager.backward(dy, x, *w.arguments)


GOOD: dict[str, Run] = {
    "rounded once from float64": specification(),
    "PyTorch float32": pytorch,
    "u-v, sequential sums": scaling(),
    "u-v, sums backwards": scaling(Arithmetic(sums="backwards")),
    "u-v, tree sums": scaling(Arithmetic(sums="tree")),
    "u-v, fused": scaling(Arithmetic(fused=True)),
    "u-v, NVIDIA functions": scaling(NVIDIA),
    "u-v, AMD functions": scaling(AMD),
    "u-v, hand-written adjoint": own_adjoint,
    "in place, division rounded": dividing(),
    "in place, tree sums": dividing(Arithmetic(sums="tree")),
    "in place, NVIDIA division": dividing(NVIDIA),
    "in place, AMD division": dividing(AMD),
}


@dataclass(frozen=True)
class Fault:
    """One row of FAULTS."""

    name: str
    run: Run
    of: tuple[str, ...] = ("P", "dX")
    """Which results it makes wrong."""
    where: Callable[[Workload], bool] = lambda w: True
    """The workloads whose call has what it breaks."""


def after(change: Callable[[torch.Tensor], torch.Tensor]) -> Run:
    """Right results, then damaged."""

    def run(w, x, dy):
        return tuple(change(t) for t in pytorch(w, x, dy))

    return run


def scaled_element(t):
    matrix = t[-1]
    matrix.view(-1)[matrix.abs().argmax()] *= 1 + 2.0**-6
    return t


def scaled_row(t):
    t[len(t) // 2, -1] *= 1 + 2.0**-6
    return t


def last_dropped(t):
    t[-1] = 0
    return t


def tail_dropped(t):
    t[-(len(t) % 32 or 32) :] = 0
    return t


def stale(t):
    return t.roll(1, 0)


def truncated_result(w, x, dy):
    results = pytorch(replace(w, dtype=torch.float32), x, dy)
    kept = {torch.bfloat16: 7, torch.float16: 10}[w.dtype]
    return tuple(keep_bits(t, kept).to(w.dtype) for t in results)


def narrow_throughout(w, x, dy):
    leaf = x.detach().requires_grad_()
    p = reference.sinkhorn(leaf, **w.options)
    return p.detach(), torch.autograd.grad(p, leaf, dy)[0]


def padding_counted(w, x, dy):
    """A row and a column of exp(0) beside the matrix take part in the sums."""

    def padded(t):
        wide = torch.nn.functional.pad(t, (0, 1, 0, 1))
        return reference.sinkhorn(wide, **w.options)[..., :-1, :-1]

    return differentiated(padded, w, x, dy)


def mask_softened(w, x, dy):
    return pytorch(w, x.masked_fill(x == -math.inf, -10.0), dy)


def other_gradient(gradient: Run) -> Run:
    """The right P with another function's dX."""
    return lambda w, x, dy: (specification()(w, x, dy)[0], gradient(w, x, dy)[1])


def in_float64(function: Callable[[Workload, torch.Tensor], torch.Tensor]) -> Run:
    """(P, dX) of a function of the workload and the logits in float64, rounded once: no rounding error."""

    def run(w, x, dy):
        wide = replace(w, dtype=torch.float64)
        p, dx = differentiated(lambda t: function(wide, t), wide, x, dy)
        return p.to(w.dtype), dx.to(w.dtype)

    return run


def without_first_sums(w: Workload, t: torch.Tensor) -> torch.Tensor:
    """The first normalisation differentiated as if its sums were constants."""
    lead = -1 if w.first == "rows" else -2
    start = t - t.logsumexp(lead, keepdim=True).detach()
    if w.form == "log":
        start = start - start.logsumexp(-3 - lead, keepdim=True)
        return reference.sinkhorn(start, **replace(w, n_iters=w.n_iters - 1).options)
    p = start.exp() + w.eps
    for k in range(2 * w.n_iters - 1):
        p = p / (p.sum((-3 - lead, lead)[k % 2], keepdim=True) + w.eps)
    return p


def second_half(w: Workload, t: torch.Tensor) -> torch.Tensor:
    """The history cut: what the first half of the iterations did to the logits is taken for constant."""
    half = w.n_iters // 2
    middle = reference.sinkhorn(t, half, form="log", first=w.first).log()
    start = t + (middle - t).nan_to_num().detach()
    return reference.sinkhorn(start, w.n_iters - half, form="log", first=w.first)


def stopped_scaling(w, x, dy):
    """dX = dP P: the scaling vectors taken for constants."""
    exact, _ = testing.exact(x, dy, **w.options)
    return exact.to(w.dtype), (exact * dy.double()).to(w.dtype)


def implicit(w, x, dy):
    """The gradient of the fixed point, whether or not it was reached: stationarity at the P that came out."""
    exact, _ = testing.exact(x, dy, **w.options)
    g = dy.double() * exact
    n, m = exact.shape[-2:]
    system = exact.new_zeros(len(exact), n + m, n + m)
    system[:, :n, :n] = torch.diag_embed(exact.sum(-1))
    system[:, n:, n:] = torch.diag_embed(exact.sum(-2))
    system[:, :n, n:] = exact
    system[:, n:, :n] = exact.mT
    sums = torch.cat([g.sum(-1), g.sum(-2)], -1).unsqueeze(-1)
    solved = (torch.linalg.pinv(system, rtol=1e-12, hermitian=True) @ sums).squeeze(-1)
    rows, columns = solved[:, :n].unsqueeze(-1), solved[:, n:].unsqueeze(-2)
    return exact.to(w.dtype), (g - exact * (rows + columns)).to(w.dtype)


def neighbour_leaks(w, x, dy):
    p, dx = pytorch(w, x, dy)
    return p, dx + (2.0**-7 if w.dtype != torch.float32 else 2.0**-10) * dx.roll(1, 0)


def is_deepseek(w: Workload) -> bool:
    return w.form == "deepseek"


def shows_eps(w: Workload) -> bool:
    """A relative change of 1e-6 is a thousandth of the last place of a narrow result."""
    return is_deepseek(w) and is_wide(w)


def is_narrow(w: Workload) -> bool:
    return w.dtype != torch.float32


def is_wide(w: Workload) -> bool:
    return w.dtype == torch.float32


def more_iterations(k: int) -> Run:
    return lambda w, x, dy: specification(n_iters=w.n_iters + k)(w, x, dy)


FAULTS = [
    Fault("one iteration missing", more_iterations(-1), where=lambda w: w.n_iters > 1),
    Fault("last half-step missing", exactly(steps=1)),
    Fault("one iteration too many", more_iterations(1)),
    Fault("columns before rows", lambda w, x, dy: specification(
        first="cols" if w.first == "rows" else "rows")(w, x, dy)),
    Fault("transposed result", lambda w, x, dy: tuple(t.mT for t in specification()(w, x, dy)),
          where=lambda w: w.n == w.m),
    Fault("the other form", lambda w, x, dy: specification(
        form="log" if is_deepseek(w) else "deepseek")(w, x, dy), where=is_wide),
    Fault("eps left out", specification(eps=0.0), where=shows_eps),
    Fault("eps not in the softmax", exactly(start_eps=0.0), where=shows_eps),
    Fault("eps not in the denominators", exactly(eps=0.0), where=shows_eps),
    Fault("eps after the division", exactly(eps=0.0, after=1e-6), where=shows_eps),
    Fault("eps ten times too large", specification(eps=1e-5), where=shows_eps),
    Fault("last matrix dropped", after(last_dropped)),
    Fault("tail of the batch dropped", after(tail_dropped)),
    Fault("stale output", after(stale)),
    Fault("padding counted", padding_counted, where=lambda w: w.name == "tail_5x3"),
    Fault("mask softened", mask_softened, where=lambda w: w.logits == "masked"),
    Fault("one element scaled by 1 + 2^-6", after(scaled_element)),
    Fault("one row scaled by 1 + 2^-6", after(scaled_row)),
    Fault("bfloat16 accumulator", dividing(Arithmetic(partial=bfloat16)), where=is_wide),
    Fault("bfloat16 iterates", dividing(iterate=bfloat16), where=is_wide),
    Fault("logits rounded to bfloat16", lambda w, x, dy: pytorch(w, x.bfloat16().float(), dy), where=is_wide),
    Fault("TF32 products", scaling(Arithmetic(operand=lambda t: keep_bits(t, 10))),
          where=lambda w: is_wide(w) and w.n_iters > 1),
    Fault("reciprocal of 8 bits", dividing(Arithmetic(
        multiplies=True, inverse=lambda t: keep_bits(t, 8))), where=is_wide),
    Fault("exponential of 12 bits", dividing(Arithmetic(exp_ulps=2.0**11)), where=is_wide),
    Fault("result truncated", truncated_result, where=is_narrow),
    Fault("narrow arithmetic throughout", narrow_throughout, where=is_narrow),
    Fault("gradient without the eps terms", other_gradient(specification(eps=0.0)), ("dX",), shows_eps),
    Fault("first sums taken for constants", in_float64(without_first_sums), ("dX",)),
    Fault("gradient through stopped scaling vectors", stopped_scaling, ("dX",)),
    Fault("implicit gradient passed off as exact", implicit, ("dX",)),
    Fault("gradient of the second half only", other_gradient(in_float64(second_half)), ("dX",),
          lambda w: w.n_iters > 1),
    Fault("a neighbour's gradient leaks in", neighbour_leaks, ("dX",)),
]  # fmt: skip


@dataclass(frozen=True)
class Opinion:
    """What the gate and the rules in common use say of one implementation on one workload."""

    gate: bool
    """Accepted by the gate."""
    statistics: dict[str, gate.Statistics]
    assert_close: bool
    cosine: bool
    twice: bool

    def within(self, most: dict[str, tuple[float, ...]]) -> bool:
        """No statistic above the largest that a correct implementation shows on the same inputs."""
        return all(
            v <= limit for q, s in self.statistics.items() for v, limit in zip(size(s), most[q], strict=True)
        )


def size(s: gate.Statistics) -> tuple[float, ...]:
    return s.worst, s.rms, abs(s.bias)


def opinion(truth: dict[str, gate.Truth], results: Pair, baseline: Pair, of: tuple[str, ...]) -> Opinion:
    """Of the results named in `of`; the other rules compare with `baseline`, PyTorch in float32."""
    statistics, close, cosine, twice = {}, True, True, True
    for name, result, other in zip(("P", "dX"), results, baseline, strict=True):
        if name not in of:
            continue
        statistics[name] = truth[name].judge(result)
        try:
            torch.testing.assert_close(result, other)
        except AssertionError:
            close = False
        a, b = result.double().flatten(), other.double().flatten()
        cosine &= torch.nn.functional.cosine_similarity(a, b, dim=0).item() >= 0.99
        exact = truth[name].exact.flatten()
        twice &= (a - exact).abs().max().item() <= 2 * (b - exact).abs().max().item()
    accepted = all(s.passes for s in statistics.values())
    return Opinion(accepted, statistics, close, cosine, twice)


def opinions(workload: Workload, steps: int) -> tuple[dict[str, Opinion], dict[str, Opinion], set[str]]:
    """Of every GOOD and every FAULT on a workload, and the faults that rounding hides there."""
    k = gate.judged(workload, steps)
    x, dy = (t[:k] for t in workload.make_inputs())
    truth, baseline = gate.truths(workload, x, dy), pytorch(workload, x, dy)
    good = {name: opinion(truth, run(workload, x, dy), baseline, ("P", "dX")) for name, run in GOOD.items()}
    most = {
        q: tuple(map(max, zip(*(size(o.statistics[q]) for o in good.values()), strict=True))) for q in truth
    }
    faulty = {
        f.name: opinion(truth, f.run(workload, x, dy), baseline, f.of) for f in FAULTS if f.where(workload)
    }
    return good, faulty, {name for name, o in faulty.items() if o.gate and o.within(most)}


def tables(steps: int) -> str:
    """The two tables of docs/accuracy.md."""
    everything = {w.name: opinions(w, steps) for w in tagged("ci")}
    rules = "gate", "assert_close", "cosine", "twice"
    titles = "this gate", "`assert_close`", "cosine >= 0.99", "2 x baseline"
    good = []
    for name in GOOD:
        found = {w: g[name] for w, (g, _, _) in everything.items()}
        wide = [size(s) for w, o in found.items() if is_wide(WORKLOADS[w]) for s in o.statistics.values()]
        largest = dict(zip(("worst", "rms", "bias"), map(max, zip(*wide, strict=True)), strict=True))
        rejected = (sum(not getattr(o, r) for o in found.values()) for r in rules)
        good.append({
            "correct implementation": name, **{k: f"{v:.3f}" for k, v in largest.items()},
            **{t: f"{v} of {len(found)}" for t, v in zip(titles, rejected, strict=True)},
        })  # fmt: skip
    faulty = []
    for fault in FAULTS:
        found = [f[fault.name] for _, f, hidden in everything.values() if fault.name in f.keys() - hidden]
        hidden = sum(fault.name in h for _, _, h in everything.values())
        caught = (sum(not getattr(o, r) for o in found) for r in rules)
        by = [r for o in found for s in o.statistics.values() for r in s.reasons]
        faulty.append({
            "fault": fault.name, "workloads": len(found), "hidden": hidden,
            **{t: c for t, c in zip(titles, caught, strict=True)},
            "found by": ", ".join(f"{r} {by.count(r)}" for r in ("worst", "rms", "bias") if r in by),
        })  # fmt: skip
    counts = ("workloads", "hidden", *titles)
    faulty.append({"fault": "all together", **{c: sum(row[c] for row in faulty) for c in counts}})
    return report.table(good) + "\n\n" + report.table(faulty)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1 << 18, help="entries times iterations for a workload")
    parser.add_argument("--write", type=Path, help="put the tables between the marks of this file")
    options = parser.parse_args()
    text = tables(options.steps)
    if options.write:
        report.insert(options.write, "faults", text)
    print(text)
