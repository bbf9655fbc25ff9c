"""What the operators share: the backends that count, one computation an input, a verdict in the end."""

from __future__ import annotations

import logging
import math
from types import ModuleType

import torch
from tritonbench.utils.triton_op import (
    BASELINE_BENCHMARKS,
    BUILTIN_METRICS,
    REGISTERED_BENCHMARKS,
    REGISTERED_METRICS,
    BenchmarkOperator,
    register_benchmark,
    register_metric,
)

from tritonbench_ops import measure
from tritonbench_ops import verdict as gate

log = logging.getLogger("tritonbench_ops")
COMPARED = {"speedup", "accuracy"}
"""Metrics that tritonbench leaves empty without a baseline."""
CPU_MILLISECONDS = {"warmup": 25, "rep": 100, "iter": 100}
"""Where tritonbench would ask a CUDA device for an estimate."""


def baselines(name: str) -> list[str]:
    """Names of the baselines: one string in tritonbench of August 2025, a list in that of 2026."""
    found = BASELINE_BENCHMARKS[name]
    return [found] if isinstance(found, str) else list(found)


def detached(out):
    """What a backend returned, a tensor or several, without its graph."""
    return out.detach() if isinstance(out, torch.Tensor) else [t.detach() for t in out]


def flat(results):
    """The tensors of (out, gradients), detached; either may be None, a tensor or several."""
    several = [(part,) if isinstance(part, torch.Tensor) else part for part in results if part is not None]
    return [tensor.detach() for part in several for tensor in part if tensor is not None]


def say_missing(backends):
    """Which backends are left out, and why."""
    for name, backend in backends.items():
        if backend.missing:
            log.warning("left out: %s: %s", name, backend.missing)


class Judged(BenchmarkOperator):
    """An operator whose run fails when a backend that counts raised or is inaccurate."""

    is_compute_bound = False
    reset_dynamo = True

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        draw = cls.__dict__.get("get_input_iter")
        if draw is not None:

            def drawn(self):
                for inputs in draw(self):
                    # on the CPU, so that a GPU's memory is that of the backends
                    self.drawn = [
                        t.detach().to("cpu", copy=True) if isinstance(t, torch.Tensor) else t for t in inputs
                    ]
                    yield inputs

            cls.get_input_iter = drawn

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.seen = {}
        self.accurate = {}
        self.spoiled = set()
        self.tb_args.keep_going = True
        if self.device == "cpu":
            for name, value in CPU_MILLISECONDS.items():
                if getattr(self.tb_args, name, value) is None:
                    setattr(self.tb_args, name, value)
        known = {*BUILTIN_METRICS, *REGISTERED_METRICS[self.name]}
        unknown = [name for name in self.required_metrics if name not in known]
        if unknown:
            raise ValueError(f"--metrics names {', '.join(unknown)}; metrics are {', '.join(sorted(known))}")
        only = list(self._only or [])
        exact = getattr(self.tb_args, "only_match_mode", "exact") == "exact"
        self.named, self.prefixes = (only, ()) if exact else ([], tuple(only))
        registered = REGISTERED_BENCHMARKS[self.name]
        unknown = [name for name in self.named if name not in registered]
        unknown += [
            start for start in self.prefixes if not any(name.startswith(start) for name in registered)
        ]
        if unknown:
            raise ValueError(f"--only names {', '.join(unknown)}; backends are {', '.join(registered)}")
        if self.named and COMPARED & set(self.required_metrics):
            self._only = list(dict.fromkeys([*baselines(self.name), *only]))

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
        return getattr(self, name)(*self.example_inputs)

    def restore_inputs(self, fn):
        """Give the next backend the inputs as they were drawn; one that changed them is not right."""
        for tensor, copy in zip(self.example_inputs, self.drawn, strict=True):
            if isinstance(tensor, torch.Tensor) and not torch.equal(tensor.detach().cpu(), copy):
                # not by tensor.copy_, which would invalidate graphs that saved it
                tensor.data.copy_(copy)
                self.spoil(fn, "changes its inputs in place")

    def spoil(self, fn, why):
        """This backend is not right at this input, whatever its results are."""
        x_value = self.get_x_val(self.example_inputs)
        log.warning("%s %s at %s", fn._name, why, x_value)
        self.spoiled.add((x_value, fn._name))

    def is_right(self, fn, share):
        """Whether a result is within its error budget, of which it takes this share; kept for the verdict."""
        self.restore_inputs(fn)
        right = share <= 1 and (self.get_x_val(self.example_inputs), fn._name) not in self.spoiled
        self.accurate[self.get_x_val(self.example_inputs), fn._name] = right
        return right

    def required(self) -> tuple[list[str], set[str]]:
        """(backends that must be there and not raise, those of them whose result must be right)."""
        raise NotImplementedError

    def run(self, *arguments, **options):
        try:
            super().run(*arguments, **options)
        finally:
            must, judged = self.required()
            judged = judged if "accuracy" in self.required_metrics else set()
            if self.prefixes:
                matched = [
                    name for name in REGISTERED_BENCHMARKS[self.name] if name.startswith(self.prefixes)
                ]
                must = [name for name in matched if name in must] or matched
            gate.report(
                gate.failures(
                    self.output.result, self._num_inputs, must, judged, baselines(self.name), self.accurate
                )
            )


class JudgedByLeaves(Judged):
    """An operator whose input is its tensors, None for those left out, and last the upstream gradient."""

    parts: ModuleType
    """Its module `cases`."""

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.cases = self.parts.cases(self.parts.parse(self.extra_args or []), self.dtype)

    def required(self):
        must = self.named or [name for name in self.parts.BACKENDS if name not in (self._skip or [])]
        return must, set(must) - set(self.parts.UNJUDGED)

    def timed(self, function, *inputs):
        """The call of a backend's function that is timed."""
        return lambda: function(*inputs[:-1])

    def get_grad_to_none(self, inputs):
        return [x for x in inputs[:-1] if x is not None]

    def leaves(self):
        return self.get_grad_to_none(self.example_inputs)

    def get_bwd_fn(self, forward):
        """The gradients for one upstream gradient, left in the leaves."""
        leaves, upstream, out = self.leaves(), self.example_inputs[-1], forward()

        def run():
            found = torch.autograd.grad(out, leaves, upstream, retain_graph=True)
            for leaf, gradient in zip(leaves, found, strict=True):
                leaf.grad = gradient
            return leaves

        return run

    def results(self, fn):
        """(out, gradients) of the mode's closure; None for what the mode does not compute.

        They are computed twice, the first ones overwritten with NaN, and have to have the same bits: memory
        that a kernel leaves untouched, or a result that is right in some calls alone, cannot pass.
        """
        self.restore_inputs(fn)
        inputs = {t.untyped_storage().data_ptr() for t in self.example_inputs if isinstance(t, torch.Tensor)}
        first = flat(self.computed(fn))
        copies = [t.clone() for t in first]
        for tensor in first:
            if tensor.untyped_storage().data_ptr() not in inputs:
                tensor.fill_(math.nan)
        found = self.computed(fn)
        if not all(map(torch.equal, copies, flat(found))):
            self.spoil(fn, "computes other bits when it is called again")
        return found

    def computed(self, fn):
        """The results of one call."""
        if self.mode.value == "fwd_no_grad":
            with torch.no_grad():
                return self.forward(fn._name)(), None
        for leaf in self.leaves():
            leaf.grad = torch.full_like(leaf, math.nan)
        found = fn()
        gradients = tuple(leaf.grad for leaf in self.leaves())
        if self.mode.value == "fwd":
            return detached(found), None
        return (detached(found[0]) if self.mode.value == "fwd_bwd" else None), gradients

    def moved(self):
        """Bytes that this mode reads and writes at least."""
        raise NotImplementedError

    def operations(self, inputs):
        """Floating-point operations of forward."""
        raise NotImplementedError

    def x_floor(self, fn, inputs, metrics):
        return None if metrics.latency is None else metrics.latency / self.floor()

    def gbps(self, fn, inputs, metrics):
        return measure.gigabytes_a_second(self.moved(), metrics.latency)

    def flops(self, fn, inputs, metrics):
        return self.operations(inputs) * measure.PASSES[self.mode.value]

    def floor(self):
        """Milliseconds of a copy of the bytes of this mode, measured in this run."""
        device = self.example_inputs[0].device

        def measured():
            source = torch.empty(self.moved() // 2, dtype=torch.uint8, device=device)
            target = torch.empty_like(source)
            graph = bool(getattr(self.tb_args, "cudagraph", False))
            return measure.milliseconds(lambda: target.copy_(source), device, graph)

        return self.once("floor", measured)


def add_metrics(operator: type[JudgedByLeaves]) -> None:
    """Register what all operators measure: tritonbench finds a metric's operator by its function's module."""
    for shared in (JudgedByLeaves.x_floor, JudgedByLeaves.gbps, JudgedByLeaves.flops):

        def metric(self, fn, inputs, metrics, shared=shared):
            return shared(self, fn, inputs, metrics)

        metric.__name__, metric.__module__ = shared.__name__, operator.__module__
        setattr(operator, shared.__name__, register_metric()(metric))


def add_backends(operator: type[JudgedByLeaves], name: str) -> None:
    """Give an operator a method for each of its backends, by the name that tritonbench knows it under."""
    for backend, build in operator.parts.BACKENDS.items():

        def method(self, *inputs, build=build):
            return self.timed(build(), *inputs)

        method.__name__ = backend
        baseline = backend == operator.parts.BASELINE
        register = register_benchmark(operator_name=name, func_name=backend, baseline=baseline)
        setattr(operator, backend, register(method))
