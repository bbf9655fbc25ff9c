"""What both operators share: the backends that count, one computation an input, a verdict in the end."""

from __future__ import annotations

from tritonbench.utils.triton_op import BASELINE_BENCHMARKS, REGISTERED_BENCHMARKS, BenchmarkOperator

from tritonbench_ops import gate

COMPARED = {"speedup", "accuracy"}
"""Metrics that tritonbench leaves empty without a baseline."""
CPU_MILLISECONDS = {"warmup": 25, "rep": 100, "iter": 100}
"""Where tritonbench would ask a CUDA device for an estimate."""


def baselines(name: str) -> list[str]:
    """Names of the baselines: one string in tritonbench of August 2025, a list in that of 2026."""
    found = BASELINE_BENCHMARKS[name]
    return [found] if isinstance(found, str) else list(found)


class Judged(BenchmarkOperator):
    """An operator whose run fails when a backend that counts raised or is inaccurate."""

    is_compute_bound = False
    reset_dynamo = True

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.seen = {}
        self.accurate = {}
        self.tb_args.keep_going = True
        if self.device == "cpu":
            for name, value in CPU_MILLISECONDS.items():
                if getattr(self.tb_args, name, value) is None:
                    setattr(self.tb_args, name, value)
        self.named = self.names_in_only()
        if self.named and COMPARED & set(self.required_metrics):
            self._only = list(dict.fromkeys([*baselines(self.name), *self._only]))

    def names_in_only(self):
        """The backends of --only; [] without it."""
        registered = REGISTERED_BENCHMARKS[self.name]
        if getattr(self.tb_args, "only_match_mode", "exact") != "exact":
            return [name for name in registered if name.startswith(tuple(self._only))] if self._only else []
        unknown = [name for name in self._only or [] if name not in registered]
        if unknown:
            raise ValueError(f"--only names {', '.join(unknown)}; backends are {', '.join(registered)}")
        return list(self._only or [])

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

    def required(self) -> tuple[list[str], set[str]]:
        """(backends that must be there and not raise, those of them whose result must be right)."""
        raise NotImplementedError

    def run(self, *arguments, **options):
        try:
            super().run(*arguments, **options)
        finally:
            must, judged = self.required()
            judged = judged if "accuracy" in self.required_metrics else set()
            gate.report(
                gate.failures(
                    self.output.result, self._num_inputs, must, judged, baselines(self.name), self.accurate
                )
            )
