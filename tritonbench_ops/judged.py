"""What the operators share: the backends that count, one computation an input, a verdict in the end."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import torch

from tritonbench_ops import measure
from tritonbench_ops import verdict as gate
from tritonbench_ops.flags import BASELINE, INDUCTOR
from tritonbench_ops.runs import Runs, differ

log = logging.getLogger("tritonbench_ops")
COMPARED = {"speedup", "accuracy"}
"""Metrics that tritonbench leaves empty without a baseline."""
CPU_MILLISECONDS = {"warmup": 25, "rep": 100, "iter": 100}
"""Where tritonbench would ask a CUDA device for an estimate."""
METRICS = ["latency", "speedup", "accuracy", "share_of_budget", "err_over_inductor", "x_floor"]
"""What is shown where --metrics names none."""
Backends = dict[str, Callable[[], Callable[..., Any]]]
"""Name -> what builds the function, which takes the leaves of an input and, where an operator has them, the
options of a workload.
"""
CALLS = 3
"""Calls whose results are compared, besides the results of the timed runs."""


def compiled(function: Callable[..., Any], mode: str | None = None) -> Callable[..., Any]:
    """The function, compiled for one shape; its backward may run again and again on one forward pass."""
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False
    return torch.compile(function, dynamic=False, mode=mode)


def of_pytorch(function: Callable[..., Any]) -> Backends:
    """BASELINE and INDUCTOR, each with what builds its function."""
    return {BASELINE: lambda: function, INDUCTOR: functools.partial(compiled, function)}


def detached(out):
    """What a backend returned, a tensor or several, without its graph."""
    return out.detach() if isinstance(out, torch.Tensor) else [t.detach() for t in out]


def flat(*parts):
    """The tensors among these, each a tensor, several (and what else there is) or None, detached."""
    several = ((part,) if isinstance(part, torch.Tensor) else part or () for part in parts)
    return [t.detach() for part in several for t in part if isinstance(t, torch.Tensor)]


def kind(inputs):
    """What tells the inputs of an operator apart: shapes of tensors, and numbers."""
    return tuple(getattr(x, "shape", x) for x in inputs if x is not None)


def given(inputs):
    """All tensors of an input, also inside tuples."""
    return [t for part in inputs if isinstance(part, torch.Tensor | tuple) for t in flat(part)]


class Judged:
    """An operator whose run fails when a backend that counts raised or is inaccurate.

    An input is the leaves of a case, None for those left out, and last the upstream gradients.  With
    tritonbench's BenchmarkOperator as the next class (register.class_of) it is what tritonbench runs.
    """

    triton_op: ModuleType
    """tritonbench's module of BenchmarkOperator, and of what is registered."""
    parts: ModuleType
    """Its module `cases`.  `inputs` of a case are LEAVES leaves, and the upstream gradients.
    `share_of_budget` takes these inputs, what forward returned and the gradients, None for what the mode does
    not compute; it tests each entry against a budget of its own, on the device of the tensors.
    """
    label = ""
    """Its inputs, in the header of a table."""
    own_metrics: ClassVar[tuple[str, ...]] = ()
    """Methods that are metrics, besides those of every operator."""
    DEFAULT_METRICS = METRICS
    DEFAULT_PRECISION = "bf16"
    is_compute_bound = False
    reset_dynamo = True
    with_options: ClassVar[bool] = False
    """Whether backends take the options of a workload."""
    UNJUDGED: ClassVar[tuple[str, ...]] = (BASELINE, INDUCTOR)
    """Backends that need not keep the budget: PyTorch rounds terms of gradients, its products may be TF32."""
    ATOMICS: ClassVar[dict[str, str]] = {}
    """backend -> why the bits of its results may change from call to call; of all others they may not."""

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.cases = self.parts.cases(self.parts.parse(self.extra_args or []), self.dtype)
        self.seen, self.accurate, self.spoiled = {}, {}, set()
        self.runs, self.builds, self.case_of_kind = {}, {}, {}
        self.tb_args.keep_going = True
        if self.device == "cpu":
            for name, value in CPU_MILLISECONDS.items():
                if getattr(self.tb_args, name, value) is None:
                    setattr(self.tb_args, name, value)
        known = {*self.triton_op.BUILTIN_METRICS, *self.triton_op.REGISTERED_METRICS[self.name]}
        unknown = [name for name in self.required_metrics if name not in known]
        if unknown:
            raise ValueError(f"--metrics names {', '.join(unknown)}; metrics are {', '.join(sorted(known))}")
        only = list(self._only or [])
        exact = getattr(self.tb_args, "only_match_mode", "exact") == "exact"
        self.named, self.prefixes = (only, ()) if exact else ([], tuple(only))
        registered = self.registered
        unknown = [name for name in self.named if name not in registered]
        unknown += [
            start for start in self.prefixes if not any(name.startswith(start) for name in registered)
        ]
        if unknown:
            raise ValueError(f"--only names {', '.join(unknown)}; backends are {', '.join(registered)}")
        if self.named and COMPARED & set(self.required_metrics):
            self._only = list(dict.fromkeys([*self.baselines, *only]))
        for name, row in self.parts.BACKENDS.items():
            if missing := getattr(row, "missing", ""):
                log.warning("left out: %s: %s", name, missing)

    @property
    def registered(self):
        """Backends that tritonbench knows, by their names."""
        return self.triton_op.REGISTERED_BENCHMARKS[self.name]

    @property
    def baselines(self):
        """Names of the baselines: tritonbench has one string in August 2025, and a list in 2026."""
        names = self.triton_op.BASELINE_BENCHMARKS[self.name]
        return [names] if isinstance(names, str) else list(names)

    def get_input_iter(self):
        for case in self.cases:
            tensors, count = self.parts.inputs(case, self.device), self.parts.LEAVES
            for t in tensors[:count]:
                if isinstance(t, torch.Tensor):
                    t.requires_grad_(self.requires_grad)
            inputs = *tensors[:count], tensors[count:]
            # on the CPU, so that only the backends use a GPU's memory
            self.drawn = [t.to("cpu", copy=True) for t in given(inputs)]
            self.case_of_kind[kind(tensors[:count])] = case
            yield inputs

    def case_of(self, inputs):
        """The workload of an input: no two have leaves of the same shapes and the same numbers."""
        return self.case_of_kind[kind(inputs[:-1])]

    @property
    def case(self):
        return self.case_of(self.example_inputs)

    def get_x_val(self, inputs):
        return self.parts.x_value(self.case_of(inputs))

    def given(self):
        """The leaves and the upstream gradients, as `inputs` of a case has them."""
        *leaves, upstream = self.example_inputs
        return *leaves, *upstream

    def count_example_inputs(self):
        """How many there are, without drawing them; tritonbench asks by either name."""
        return len(self.cases)

    get_available_num_inputs = count_example_inputs

    def enable_bf16(self):
        """Nothing: inputs come in their dtypes, and tritonbench would narrow float32 weights and leaves."""

    enable_fp16 = enable_bf16

    def once(self, name, make):
        """make(), computed at most once for an input."""
        if self.seen.get("input") is not self.example_inputs[0]:
            self.seen = {"input": self.example_inputs[0]}
        if name not in self.seen:
            self.seen[name] = make()
        return self.seen[name]

    def forward(self, name):
        """The closure of a backend, built anew."""
        return self.builds[name](*self.example_inputs)

    def watched(self, name):
        """The method that builds a backend's closure, whose runs are then compared."""

        def build(*inputs, **named):
            for others in self.runs.values():
                others.rest()
            if self.runs:
                # of one that raised, or that nothing tests
                self.restore_inputs(next(reversed(self.runs)))
            for leaf in self.leaves():
                leaf.grad = None
            self.runs.pop(name, None)
            self.runs[name] = Runs(self.of_last_run)
            forward = self.builds[name](*inputs, **named)
            return None if forward is None else self.runs[name].around(forward)

        return build

    def of_last_run(self, out):
        """What a run of this mode computed: what its forward returned, and gradients in the leaves."""
        forward = None if self.mode.value == "bwd" else out
        return flat(forward, [leaf.grad for leaf in self.leaves()] if "bwd" in self.mode.value else None)

    def get_grad_to_none(self, inputs):
        """The leaves, and before them what looks at the run that left gradients there."""
        last = next(reversed(self.runs.values()), None)
        if last is None or last.first:
            # memory is measured in runs of its own, without copies of results
            for runs in self.runs.values():
                runs.rest()
            return self.leaves()
        return [last, *self.leaves()]

    def leaves(self):
        """The tensors of an input that have gradients."""
        return [x for x in self.example_inputs[:-1] if isinstance(x, torch.Tensor)]

    def upstreams(self):
        """The upstream gradients, each of the shape and dtype of its result."""
        return flat(self.example_inputs[-1])

    def get_bwd_fn(self, forward):
        """The gradients for one upstream gradient, left in the leaves."""
        leaves, upstream = self.leaves(), self.example_inputs[-1]
        adjoint = getattr(forward, "adjoint", None)
        if adjoint is None:
            out = forward()
            if isinstance(out, torch.Tensor) and not out.requires_grad:
                raise NotImplementedError("has no gradient")
            adjoint = functools.partial(torch.autograd.grad, out, leaves, upstream, retain_graph=True)

        def backward():
            returned = adjoint()
            gradients = [returned] if isinstance(returned, torch.Tensor) else returned
            for leaf, gradient in zip(leaves, gradients, strict=True):
                leaf.grad = gradient
            return leaves

        return backward

    def restore_inputs(self, name):
        """Give the next backend the inputs as they were drawn; one that changed them is not right."""
        for copy, tensor in zip(self.drawn, given(self.example_inputs), strict=True):
            if differ([tensor.cpu()], [copy]):
                # not by tensor.copy_, which would invalidate graphs that saved it
                tensor.data.copy_(copy)
                self.spoil(name, "changes its inputs in place")

    def results(self, fn):
        """(out, gradients) of the mode's closure; None for what the mode does not compute.

        They are computed CALLS times and have to have the bits of the timed runs.  Each is overwritten with
        NaN and freed before the next: memory that a kernel leaves untouched cannot pass.

        Raises:
            ValueError: a result has not the shape and dtype of its upstream gradient.
        """
        self.restore_inputs(fn._name)
        for others in self.runs.values():
            # before this backend writes gradients to the leaves
            others.rest()
        runs = self.runs[fn._name]
        other, bits = runs.other, [t.to(self.device) for t in runs.first]
        inputs = {t.untyped_storage().data_ptr() for t in given(self.example_inputs)}
        for _ in range(CALLS - 1):
            tensors = flat(*self.computed(fn))
            other = other or bool(differ(bits, tensors)) if bits else False
            bits = bits or [t.clone() for t in tensors]
            for tensor in tensors:
                if tensor.untyped_storage().data_ptr() not in inputs:
                    tensor.fill_(math.nan)
            tensors = tensor = runs.out = None
        out, gradients = self.computed(fn)
        runs.out = None
        if other or differ(bits, flat(out, gradients)):
            if fn._name in self.ATOMICS:
                log.warning("%s: other bits in other calls: %s", fn._name, self.ATOMICS[fn._name])
            else:
                why = "computes other bits when it is called again (if it may, name it in ATOMICS)"
                self.spoil(fn._name, why)
        self.check_results(out)
        return out, gradients

    def check_results(self, out):
        """Raises where a result has another shape or dtype than its upstream gradient."""
        if out is None:
            return
        shapes, expected = (
            [(tuple(t.shape), t.dtype) for t in tensors] for tensors in (flat(out), self.upstreams())
        )
        if shapes != expected:
            raise ValueError(f"returned {shapes}, not {expected}")

    def computed(self, fn):
        """The results of one call."""
        for leaf in self.leaves():
            leaf.grad = torch.full_like(leaf, math.nan) if "bwd" in self.mode.value else None
        fn()
        out = None if self.mode.value == "bwd" else detached(self.runs[fn._name].out)
        return out, tuple(leaf.grad for leaf in self.leaves()) if "bwd" in self.mode.value else None

    def spoil(self, name, why):
        """This backend is not right at this input, whatever its results are."""
        x_value = self.get_x_val(self.example_inputs)
        log.warning("%s %s at %s", name, why, x_value)
        self.spoiled.add((x_value, name))
        if (x_value, name) in self.accurate:
            self.accurate[x_value, name] = False

    def is_right(self, fn, share):
        """Whether a result is within its error budget, of which it takes this share; kept for the verdict."""
        self.restore_inputs(fn._name)
        right = share <= 1 and (self.get_x_val(self.example_inputs), fn._name) not in self.spoiled
        self.accurate[self.get_x_val(self.example_inputs), fn._name] = right
        return right

    def errors_of(self, name, *results):
        """How far results are from float64, by the budget that this backend is held to."""
        return self.parts.share_of_budget(self.case, self.given(), *results)

    def worst(self, errors):
        """The largest error in units of that budget."""
        return errors

    def held_to(self, name):
        """What tells the budgets of backends apart."""

    def errors(self, fn):
        """How far a backend's results are from float64, tested once an input."""

        def judge():
            errors = self.errors_of(fn._name, *self.results(fn))
            self.is_right(fn, self.worst(errors))
            return errors

        return self.once(("errors", fn._name), judge)

    def share(self, fn):
        """The share that a backend's results take of their error budget."""
        return self.worst(self.errors(fn))

    def accuracy(self, fn, baseline_fn):
        """Whether the results are within the error budget against float64; no baseline decides."""
        self.share(fn)
        return self.accurate[self.get_x_val(self.example_inputs), fn._name]

    def share_of_budget(self, fn, inputs, metrics):
        return self.share(fn)

    def err_over_inductor(self, fn, inputs, metrics):
        """This backend's share over Inductor's of the same budget; None where Inductor does not run."""
        theirs = self.once(("inductor", self.held_to(fn._name)), lambda: self.share_of_inductor(fn._name))
        if theirs is None:
            return None
        return self.share(fn) / theirs if theirs else math.inf

    def share_of_inductor(self, name):
        results = self.results_of_inductor()
        return None if results is None else self.worst(self.errors_of(name, *results))

    def results_of_inductor(self):
        """(out, gradients) of this mode as torch.compile computes them; None where this run leaves it out."""
        only = tuple(self._only or ())
        chosen = not only or INDUCTOR in only or (self.prefixes and INDUCTOR.startswith(self.prefixes))
        if not chosen or INDUCTOR in (self._skip or ()):
            return None
        mode, gradients = self.mode.value, None
        try:
            with torch.set_grad_enabled(mode != "fwd_no_grad"):
                out = self.forward(INDUCTOR)()
            if "bwd" in mode:
                several = [out] if isinstance(out, torch.Tensor) else out
                gradients = torch.autograd.grad(several, self.leaves(), self.upstreams())
        except Exception as error:
            log.warning("no ratio to Inductor: %s: %s", type(error).__name__, error)
            return None
        return None if mode == "bwd" else detached(out), gradients

    @property
    def moved(self):
        """Bytes that this mode reads and writes at least."""
        return self.parts.bytes_moved(self.case, self.mode.value)

    def copy(self):
        """A closure that moves the bytes of this mode."""
        source = torch.empty(self.moved // 2, dtype=torch.uint8, device=self.example_inputs[0].device)
        return functools.partial(torch.empty_like(source).copy_, source)

    def floor(self):
        """Milliseconds of a copy of the bytes of this mode, measured in this run."""
        device, graph = self.example_inputs[0].device, bool(getattr(self.tb_args, "cudagraph", False))
        return self.once("floor", lambda: measure.milliseconds(self.copy(), device, graph))

    def x_floor(self, fn, inputs, metrics):
        return None if metrics.latency is None else metrics.latency / self.floor()

    def gbps(self, fn, inputs, metrics):
        return None if metrics.latency is None else 1e-6 * self.moved / metrics.latency

    def flops(self, fn, inputs, metrics):
        return self.parts.operations(self.case_of(inputs)) * measure.PASSES[self.mode.value]

    def built(self, name, backend, *inputs):
        """The closure of a backend's row of BACKENDS that is timed."""
        options = self.case_of(inputs).options if self.with_options else {}
        return functools.partial(backend(), *inputs[:-1], **options)

    def required(self) -> tuple[list[str], set[str]]:
        """(backends that must run without an error, which of them must give a right result)."""
        must = self.named or [name for name in self.parts.BACKENDS if name not in (self._skip or [])]
        return must, set(must).difference(self.UNJUDGED)

    def run(self, *arguments, **options):
        for name in self.registered:
            build = getattr(self, name, None)
            if build is not None and name not in self.builds:
                self.builds[name] = build
                setattr(self, name, self.watched(name))
        try:
            super().run(*arguments, **options)
        finally:
            must, judged = self.required()
            judged = judged if "accuracy" in self.required_metrics else set()
            if self.prefixes:
                matched = [name for name in self.registered if name.startswith(self.prefixes)]
                must = [name for name in matched if name in must] or matched
            gate.report(
                gate.failures(
                    self.output.result, self._num_inputs, must, judged, self.baselines, self.accurate
                )
            )
