"""Run every operator beside backends that are wrong in one way each; prints which of them failed as JSON."""

import contextlib
import dataclasses
import functools
import importlib
import io
import json
import sys

import torch

from tritonbench_ops import bounds
from tritonbench_ops.judged import Judged
from tritonbench_ops.launch import run

SIZES = {
    "dot_compress": "--batch 4 --m 24 --d 8 --k 6 --with-z",
    "hc_mixes": "--tokens 9 --hidden 16",
    "hc_post": "--tokens 9 --hidden 16",
    "hc_pre": "--tokens 9 --hidden 16",
    "hc_site": "--tokens 9 --hidden 16",
    "hc_split_sinkhorn": "--tokens 9 --n-iters 4",
    "recurrent_linear_attention": "--batch 3 --steps 6 --heads 3 --dk 4 --dv 5",
    "sinkhorn": "--batch 9 --n 4 --n-iters 3",
    "sinkhorn_balance": "--rows 9 --columns 16",
}
"""Operator -> an input that takes little time, of several rows."""
RIGHT = {name: f"helion_{name}" for name in SIZES} | {"recurrent_linear_attention": "helion_recurrent"}
TIMED = {"do_bench", "_do_bench_cpu"}
"""Functions of the stub and of tritonbench that time a backend on a CPU."""


def in_the_timed_run():
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name not in TIMED:
        frame = frame.f_back
    return frame is not None


class Wrong:
    """One way to be wrong: what is done to inputs before a call and to each result, gradients among them."""

    keys = ()
    """Names of what it spoils in each call, in order."""

    def __init__(self, spoiled=lambda wrong, key, call, t: t, before=lambda inputs: None):
        self.spoiled, self.before, self.calls, self.memory = spoiled, before, {}, {}

    def of(self, key, t):
        """A result as the backend returns it, one tensor for each key in each call."""
        self.calls[key] = self.calls.get(key, 0) + 1
        return self.spoiled(self, key, self.calls[key], t)


def zeroed(inputs):
    for t in inputs:
        t.data.zero_()


def zeroed_and_raises(inputs):
    """The next backend is not to blame."""
    zeroed(inputs)
    raise RuntimeError("planted")


def unwritten_rows(wrong, key, call, t):
    """Right the first time; later calls leave the last rows of the same memory as they are."""
    memory = wrong.memory.setdefault((key, t.shape), t.clone())
    memory[:-1] = t[:-1]
    return memory


def some_calls(every, which):
    """One call of so many, counted from this one."""
    return lambda wrong, key, call, t: 1.05 * t if call % every == which else t.clone()


def timed_run(wrong, key, call, t):
    return 1.05 * t if in_the_timed_run() else t.clone()


def other_bits(wrong, key, call, t):
    """Right within every budget, as with sums by atomics."""
    # hc_site's fourth result is x, no sum
    return t.clone() if key == "3" else t * (1 + 2.0**-23 * (call % 2))


def middle_row(which):
    """One of several results is 5 % off in a row, which is much smaller than the first."""

    def spoiled(wrong, key, call, t):
        t = t.clone()
        if key == wrong.keys[which % len(wrong.keys)]:
            t[len(t) // 2] *= 1.05
        return t

    return spoiled


def last_column(wrong, key, call, t):
    """The last column of the last row comes from the row before."""
    t = t.clone()
    t[-1, ..., -1] = t[-2, ..., -1] if len(t) > 1 else t[-1, ..., -2]
    return t


def not_a_number(wrong, key, call, t):
    t = t.clone()
    t[(-1,) * t.dim()] = torch.nan
    return t


def one_entry(wrong, key, call, t):
    """One entry of the row in the middle is 10 % off."""
    t = t.clone()
    row = t[len(t) // 2].reshape(-1)
    row[row.abs().argmax()] *= 1.1
    t[len(t) // 2] = row.view(t[len(t) // 2].shape)
    return t


FORWARD_ALONE = {
    # a wider dtype, which no error budget finds, and a shape that broadcasts
    "other_dtype": functools.partial(Wrong, lambda wrong, key, call, t: t.double()),
    "other_shape": functools.partial(Wrong, lambda wrong, key, call, t: t.unsqueeze(0)),
}
"""Autograd itself refuses these of a gradient."""
BY_ATOMICS = "other_bits_by_atomics"
SPOILED = (other_bits, unwritten_rows, timed_run, last_column, not_a_number, one_entry)
WRONG = {
    "zeroed_and_raises": functools.partial(Wrong, before=zeroed_and_raises),
    BY_ATOMICS: functools.partial(Wrong, other_bits),
    "zeroed_inputs": functools.partial(Wrong, before=zeroed),
    "zeroed_and_uniform": functools.partial(Wrong, lambda *of: torch.full_like(of[-1], 0.25), zeroed),
    **{function.__name__: functools.partial(Wrong, function) for function in SPOILED},
    "even_calls": functools.partial(Wrong, some_calls(2, 0)),
    "odd_calls": functools.partial(Wrong, some_calls(2, 1)),
    **{f"middle_row_{k}": functools.partial(Wrong, middle_row(k)) for k in range(4)},
    **{f"third_calls_{k}": functools.partial(Wrong, some_calls(3, k)) for k in range(3)},
    **FORWARD_ALONE,
}


class Result(torch.autograd.Function):
    """A result as the backend returns it."""

    @staticmethod
    def forward(ctx, t, wrong, key):
        return wrong.of(key, t.detach())

    @staticmethod
    def backward(ctx, grad):
        return grad, None, None


class Leaf(torch.autograd.Function):
    """An argument whose gradient comes as the backend returns it."""

    @staticmethod
    def forward(ctx, t, wrong, key):
        ctx.wrong, ctx.key = wrong, key
        return t.view_as(t)

    @staticmethod
    def backward(ctx, grad):
        return ctx.wrong.of(ctx.key, grad), None, None


def planted(kind, function, mode):
    """A backend's function, wrong in this way: in its results, or of the gradients alone."""
    wrong = kind()
    # "bwd" runs forward once, before anything is timed
    gradients = mode == "bwd"

    def call(*inputs, **options):
        wrong.before([t for t in inputs if isinstance(t, torch.Tensor)])
        if gradients:
            inputs = list(inputs)
            leaves = [k for k, t in enumerate(inputs) if isinstance(t, torch.Tensor) and t.requires_grad]
            wrong.keys = [f"d{k}" for k in leaves]
            for k in leaves:
                inputs[k] = Leaf.apply(inputs[k], wrong, f"d{k}")
        out = function(*inputs, **options)
        if gradients:
            return out
        several = (out,) if isinstance(out, torch.Tensor) else out
        wrong.keys = [str(k) for k in range(len(several))]
        wrapped = tuple(Result.apply(t, wrong, str(k)) for k, t in enumerate(several))
        return wrapped[0] if isinstance(out, torch.Tensor) else wrapped

    return call


def halves(rows, *sizes):
    """Budgets are computed in two pieces, whatever their sizes; the row in the middle is in the first."""
    return slice(rows // 2 + 1), slice(rows // 2 + 1, rows)


def enlarge(name):
    """Make the first row of every input much larger than the others."""
    parts = importlib.import_module(f"tritonbench_ops.{name}.cases")
    parts.PIECE_STATES = 1
    inputs = parts.inputs
    # the values of attention, without what decays, and no logits
    some = {"recurrent_linear_attention": slice(2, 3), "sinkhorn": slice(0)}
    leaves = some.get(name, slice(parts.LEAVES))

    def larger(case, device):
        tensors = inputs(case, device)
        enlarged([*tensors[leaves], *tensors[parts.LEAVES :]])
        return tensors

    parts.inputs = larger


def enlarged(tensors):
    rows = len(tensors[0])
    for t in tensors:
        if t is not None and len(t) == rows:
            t[0] *= 2.0**14
    return tensors


def plant(name, wrong, mode):
    """Add wrong backends to an operator's BACKENDS; `mode` holds the one of the next run."""
    rows = importlib.import_module(f"tritonbench_ops.{name}.{'backends' if name == 'sinkhorn' else 'cases'}")
    rows = rows.BACKENDS
    right = rows[RIGHT[name]]

    def row(kind):
        if name == "sinkhorn":

            def build(logits, *arguments):
                call = planted(kind, lambda x: right.build(x, *arguments)(), *mode)
                return lambda: call(logits)

            return dataclasses.replace(right, build=build)
        if name == "recurrent_linear_attention":
            return dataclasses.replace(right, build=lambda: planted(kind, right.build(), *mode))
        return lambda: planted(kind, right(), *mode)

    rows.update({other: row(kind) for other, kind in wrong.items()})


def failed(name, mode, precision, wrong):
    """The backends that the verdict of a run names."""
    said = io.StringIO()
    arguments = ["--op", name, "--device", "cpu", "--mode", mode, "--num-inputs", "1"]
    arguments += ["--only", ",".join([RIGHT[name], *wrong]), "--warmup", "1", "--rep", "1"]
    arguments += ["--precision", precision]
    with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        run([*arguments, *SIZES[name].split()])
    lines = [line for line in said.getvalue().splitlines() if line.startswith("FAILED: ")]
    print(*lines, sep="\n", file=sys.stderr)
    return sorted({line.removeprefix("FAILED: ").split()[0] for line in lines})


RUNS = {
    "fwd fp32": list(WRONG),
    "bwd fp32": [name for name in WRONG if name not in FORWARD_ALONE],
    "fwd bf16": ["one_entry", "last_column", *(f"middle_row_{k}" for k in range(4))],
}
"""A mode and a precision -> what is planted."""


if __name__ == "__main__":
    # before the modules of operators take it from there
    bounds.pieces = halves
    Judged.ATOMICS[BY_ATOMICS] = "adds in any order"
    failures, current = {}, [None]
    with contextlib.redirect_stdout(sys.stderr):
        for name in SIZES:
            plant(name, WRONG, current)
            enlarge(name)
            for of, wrong in RUNS.items():
                mode, precision = of.split()
                current[0] = mode
                failures[f"{name} {of}"] = failed(name, mode, precision, wrong)
    print(json.dumps(failures))
