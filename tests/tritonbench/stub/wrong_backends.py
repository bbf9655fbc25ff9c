"""Run every operator beside backends that are wrong in one way each; prints which of them failed as JSON.

python wrong_backends.py '["fwd", ...]' ['["dot_compress", ...]']
"""

import contextlib
import dataclasses
import functools
import importlib
import io
import json
import sys

import torch

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

    last = 0
    """The place of the last argument that has a gradient."""

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


def middle_row(wrong, key, call, t):
    """A row in the middle is 5 % off."""
    t = t.clone()
    t[len(t) // 2] *= 1.05
    return t


def last_gradient(wrong, key, call, t):
    """The last one of several gradients is 5 % off in a row."""
    is_right = key.startswith("d") and key != f"d{wrong.last}"
    return t.clone() if is_right else middle_row(wrong, key, call, t)


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
SPOILED = (other_bits, unwritten_rows, timed_run, middle_row, last_gradient, one_entry)
WRONG = {
    "zeroed_and_raises": functools.partial(Wrong, before=zeroed_and_raises),
    BY_ATOMICS: functools.partial(Wrong, other_bits),
    "zeroed_inputs": functools.partial(Wrong, before=zeroed),
    "zeroed_and_uniform": functools.partial(Wrong, lambda *of: torch.full_like(of[-1], 0.25), zeroed),
    **{function.__name__: functools.partial(Wrong, function) for function in SPOILED},
    "even_calls": functools.partial(Wrong, some_calls(2, 0)),
    "odd_calls": functools.partial(Wrong, some_calls(2, 1)),
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
            wrong.last = leaves[-1]
            for k in leaves:
                inputs[k] = Leaf.apply(inputs[k], wrong, f"d{k}")
        out = function(*inputs, **options)
        if gradients:
            return out
        several = (out,) if isinstance(out, torch.Tensor) else out
        found = tuple(Result.apply(t, wrong, str(k)) for k, t in enumerate(several))
        return found[0] if isinstance(out, torch.Tensor) else found

    return call


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


def failed(name, mode, wrong):
    """The backends that the verdict of a run names."""
    said = io.StringIO()
    arguments = ["--op", name, "--device", "cpu", "--mode", mode, "--num-inputs", "1"]
    arguments += ["--only", ",".join([RIGHT[name], *wrong]), "--warmup", "1", "--rep", "1"]
    arguments += ["--precision", "fp32"]
    with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        run([*arguments, *SIZES[name].split()])
    lines = [line for line in said.getvalue().splitlines() if line.startswith("FAILED: ")]
    print(*lines, sep="\n", file=sys.stderr)
    return sorted({line.removeprefix("FAILED: ").split()[0] for line in lines})


if __name__ == "__main__":
    modes, *names = map(json.loads, sys.argv[1:])
    Judged.ATOMICS[BY_ATOMICS] = "adds in any order"
    found, current = {}, [None]
    with contextlib.redirect_stdout(sys.stderr):
        for name in names[0] if names else SIZES:
            plant(name, WRONG, current)
            for mode in modes:
                current[0] = mode
                wrong = [other for other in WRONG if mode != "bwd" or other not in FORWARD_ALONE]
                found[f"{name} {mode}"] = failed(name, mode, wrong)
    print(json.dumps(found))
