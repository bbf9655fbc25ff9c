"""The operator as tritonbench imports it, under the name tritonbench.operators.sinkhorn.operator."""

from __future__ import annotations

import logging

import torch
from tritonbench.utils.triton_op import register_metric

from helion_sinkhorn.lab.draws import make_cotangents
from helion_sinkhorn.lab.sinkhorn.logits import make_logits
from tritonbench_ops import measure
from tritonbench_ops.judged import METRICS, Judged, say_missing
from tritonbench_ops.sinkhorn import compare
from tritonbench_ops.sinkhorn.backends import BACKENDS, has_other_gradient, wanted
from tritonbench_ops.sinkhorn.cases import bytes_moved, cases, operations, parse, x_value

log = logging.getLogger("tritonbench_ops")


class Operator(Judged, label="BxNxM T", backends=BACKENDS):
    """Sinkhorn-Knopp; an input is (logits (B, n, m), n_iters); a run has one form and one `first`."""

    DEFAULT_PRECISION = "fp32"
    DEFAULT_METRICS = [*METRICS, "max_abs_err"]  # noqa: RUF012

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.options = parse(self.extra_args or [])
        self.cases = cases(self.options, self.dtype)
        if self.device == "cpu":
            self._skip = [*(self._skip or []), *(name for name, row in BACKENDS.items() if not row.on_cpu)]
        if not self.named:
            # another gradient on purpose: timed when requested
            self._skip = [*(self._skip or []), *filter(has_other_gradient, BACKENDS)]
        if any(getattr(self.tb_args, name, None) for name in ("rtol", "atol", "bitwise")):
            log.warning("the error budget decides accuracy: --rtol, --atol and --bitwise do nothing")
        say_missing(BACKENDS)

    def get_input_iter(self):
        for case in self.cases:
            logits = make_logits(case.logits, case.batch, case.n, case.m, dtype=case.dtype)
            logits = logits.to(self.device).requires_grad_(self.requires_grad)
            yield logits, case.n_iters

    def get_x_val(self, inputs):
        return x_value(*inputs)

    def leaves(self):
        return [self.example_inputs[0]]

    def upstreams(self):
        return [self.upstream()]

    def drawn_and_now(self):
        yield from super().drawn_and_now()
        yield make_cotangents(self.drawn[0]), self.upstream()

    def get_bwd_fn(self, forward):
        """dX for one upstream gradient, left in logits.grad."""
        logits = self.example_inputs[0]
        adjoint = getattr(forward, "adjoint", None)
        if adjoint is None:
            p, dy = forward(), self.upstream()
            if not p.requires_grad:
                raise NotImplementedError("has no gradient")

            def adjoint():
                return torch.autograd.grad(p, logits, dy, retain_graph=True)[0]

        def run():
            logits.grad = adjoint()
            return [logits]

        return run

    def upstream(self):
        logits = self.example_inputs[0]
        return self.once("upstream", lambda: make_cotangents(logits).to(logits.device))

    def arguments(self):
        # no strings among the inputs: tritonbench's numeric_check compares those that it exported
        _, n_iters = self.example_inputs
        return {"n_iters": n_iters, "form": self.options.form, "first": self.options.first}

    def errors_of(self, p, gradients):
        logits, dx = self.example_inputs[0], None if gradients is None else gradients[0]
        allowed = self.once("budget", lambda: compare.budget(logits, self.upstream(), **self.arguments()))
        return compare.errors(logits, self.upstream(), p, dx, allowed, **self.arguments())

    def share_of(self, name, p, gradients):
        return self.errors_of(p, gradients).share

    def errors(self, fn):
        def judge():
            found = self.errors_of(*self.results(fn))
            self.is_right(fn, found.share)
            return found

        return self.once(("errors", fn._name), judge)

    def share(self, fn):
        return self.errors(fn).share

    def accuracy(self, fn, baseline_fn):
        """Whether the result of this mode is within the error budget against float64; the baseline's too."""
        self.errors(baseline_fn)
        return super().accuracy(fn, baseline_fn)

    def best_config(self, fn):
        backend = BACKENDS.get(fn._name)
        call = self.example_inputs[0], *self.arguments().values()
        return backend.config(*call, self.mode.value) if backend else ""

    def operations(self, inputs):
        return operations(*inputs)

    def moved(self):
        return bytes_moved(self.example_inputs[0], self.mode.value)

    def copy(self):
        return measure.floor(self.example_inputs[0], self.mode.value)

    @register_metric()
    def max_abs_err(self, fn, inputs, metrics):
        return self.errors(fn).max_abs

    @register_metric()
    def grad_rel_err(self, fn, inputs, metrics):
        return self.errors(fn).gradient

    @register_metric()
    def marginal_err(self, fn, inputs, metrics):
        return self.errors(fn).marginal

    @register_metric()
    def host_us(self, fn, inputs, metrics):
        return measure.host_microseconds(fn, inputs[0].device)

    @register_metric()
    def kept_bytes(self, fn, inputs, metrics):
        return measure.kept_bytes(self.forward(fn._name), inputs[0])

    def required(self):
        must = wanted(self.named, self._skip or [], self.device)
        return must, {n for n in must if not (has_other_gradient(n) and "bwd" in self.mode.value)}

    def built(self, name, backend, logits, n_iters):
        if backend.missing:
            raise NotImplementedError(backend.missing)
        if not (backend.on_cpu or logits.is_cuda):
            raise NotImplementedError("runs on GPUs only")
        return backend.build(logits, self.upstream(), *self.arguments().values())
