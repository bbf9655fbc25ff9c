import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from types import SimpleNamespace

import torch
from torch.utils._pytree import tree_map_only

YEAR = 2025 if "STUB_OF_2025" in os.environ else 2026
REGISTERED_BENCHMARKS = defaultdict(dict)
BASELINE_BENCHMARKS = defaultdict(list)
REGISTERED_METRICS = defaultdict(list)
BUILTIN_METRICS = {"latency", "speedup", "accuracy", "best_config"}
REGISTERED_X_VALS = {}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def baselines_of(name):
    baselines = BASELINE_BENCHMARKS[name]
    return [baselines] if isinstance(baselines, str) else baselines


class Mode(Enum):
    FWD = "fwd"
    BWD = "bwd"
    FWD_BWD = "fwd_bwd"
    FWD_NO_GRAD = "fwd_no_grad"


@dataclass
class BenchmarkOperatorMetrics:
    latency: float | None = None
    speedup: float | None = None
    accuracy: bool | None = None
    error_msg: str | None = None
    best_config: str | None = None
    extra_metrics: dict = field(default_factory=dict)


def name_of(module):
    prefix = "tritonbench.operators."
    assert prefix in module
    return module.partition(prefix)[2].split(".")[0]


def do_bench(fn, grad_to_none):
    """As tritonbench does on a CPU: calls that are not timed, then some that are."""
    for _ in range(2):
        fn()
    times = []
    for _ in range(3):
        for x in grad_to_none:
            x.grad = None
        begin = time.perf_counter()
        fn()
        times.append(1e3 * (time.perf_counter() - begin))
    return sorted(times)[1]


def register_x_val(label="x_val"):
    def decorator(function):
        REGISTERED_X_VALS[name_of(function.__module__)] = label
        return function

    return decorator


def register_benchmark(
    operator_name=None, func_name=None, baseline=False, enabled=True, fwd_only=False, label=None
):
    def decorator(function):
        name = operator_name or name_of(function.__module__)
        REGISTERED_BENCHMARKS[name][func_name or function.__name__] = SimpleNamespace(enabled=enabled)
        if baseline and YEAR == 2025:
            BASELINE_BENCHMARKS[name] = func_name or function.__name__
        elif baseline:
            BASELINE_BENCHMARKS[name].append(func_name or function.__name__)
        return function

    return decorator


def register_metric(skip_baseline=False, x_only=False):
    def decorator(function):
        REGISTERED_METRICS[name_of(function.__module__)].append(function.__name__)
        return function

    return decorator


@dataclass
class Output:
    result: list

    @property
    def x_vals(self):
        return sorted(x for x, _ in self.result)

    def get_y_vals(self, x_val, provider, metric_name):
        return getattr(dict(self.result)[x_val][provider], metric_name)


class PostInit(type):
    """As in tritonbench, inputs are counted when an operator has been made."""

    def __call__(cls, *arguments, **named):
        made = super().__call__(*arguments, **named)
        made.__post__init__()
        return made


class BenchmarkOperator(metaclass=PostInit):
    DEFAULT_METRICS = ("latency",)

    def __init__(self, tb_args, extra_args=None):
        self.name = name_of(type(self).__module__)
        self.tb_args, self.extra_args = tb_args, extra_args
        self.mode, self.device = Mode(tb_args.mode), tb_args.device
        self.requires_grad = self.mode is not Mode.FWD_NO_GRAD
        self.required_metrics = tb_args.metrics.split(",") if tb_args.metrics else self.DEFAULT_METRICS
        self.precision = self.DEFAULT_PRECISION if tb_args.precision == "bypass" else tb_args.precision
        self.dtype = DTYPES.get(self.precision)
        self._only = tb_args.only.split(",") if tb_args.only else []
        self._skip = tb_args.skip.split(",") if tb_args.skip else []
        self._num_inputs = tb_args.num_inputs

    def __post__init__(self):
        there = self.count_example_inputs() if YEAR == 2025 else self.get_available_num_inputs()
        if self._num_inputs is None:
            self._num_inputs = there - self.tb_args.input_id
        self._num_inputs = min(self._num_inputs, there)

    def count_example_inputs(self):
        return sum(1 for _ in self.get_input_iter())

    get_available_num_inputs = count_example_inputs

    def enable_bf16(self):
        self.narrow(torch.bfloat16)

    def enable_fp16(self):
        self.narrow(torch.float16)

    def narrow(self, dtype):
        """As tritonbench does to every input before a backend gets it: leaves stay no leaves."""

        def cast(x):
            return x.to(dtype) if x.dtype == torch.float32 else x

        self.example_inputs = tree_map_only(torch.Tensor, cast, self.example_inputs)

    def closure(self, name):
        forward = getattr(self, name)(*self.example_inputs)
        if self.mode is Mode.FWD:
            fn = forward
        elif self.mode is Mode.BWD:
            fn = self.get_bwd_fn(forward)
        elif self.mode is Mode.FWD_BWD:
            backward = self.get_bwd_fn(forward)
            fn = lambda: (forward(), backward())  # noqa: E731
        else:
            fn = lambda: torch.no_grad()(forward)()  # noqa: E731
        fn._name = name
        return fn

    def measured(self, name, baseline):
        metrics = BenchmarkOperatorMetrics()
        try:
            fn = self.closure(name)
            if {"latency", "tflops", "gbps", "speedup"} & set(self.required_metrics):
                metrics.latency = do_bench(fn, self.get_grad_to_none(self.example_inputs))
            self.fns[name] = fn
            if "accuracy" in self.required_metrics and not baseline:
                metrics.accuracy = self.accuracy(fn, self.fns[baselines_of(self.name)[0]])
            if "best_config" in self.required_metrics:
                metrics.best_config = self.best_config(fn)
            for metric in REGISTERED_METRICS[self.name]:
                if metric in self.required_metrics:
                    metrics.extra_metrics[metric] = getattr(self, metric)(fn, self.example_inputs, metrics)
        except Exception as error:
            if not self.tb_args.keep_going:
                raise
            metrics.error_msg = str(error)
        return metrics

    def run(self, warmup=None, rep=None):
        everything = REGISTERED_BENCHMARKS[self.name]
        baselines = baselines_of(self.name)
        names = self._only or [name for name in everything if name not in self._skip]
        if self._only and self.tb_args.only_match_mode == "prefix-with-baseline":
            names = [name for name in everything if name.startswith(tuple(self._only))]
            names += [name for name in baselines if name not in names]
        names = sorted(names, key=lambda name: name not in baselines)
        result = []
        first = self.tb_args.input_id
        try:
            for case in islice(self.get_input_iter(), first, first + max(0, self._num_inputs)):
                self.example_inputs, self.fns = case, {}
                if enable := getattr(self, f"enable_{self.precision}", None):
                    enable()
                row = {n: self.measured(n, n in baselines) for n in names if everything[n].enabled}
                result.append((self.get_x_val(self.example_inputs), row))
        finally:
            self.output = Output(result)
