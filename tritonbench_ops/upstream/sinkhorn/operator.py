"""Sinkhorn-Knopp normalisation: exp(X) of (B, n, n) logits with rows and columns that sum to one.

Manifold-constrained hyper-connections (arXiv 2512.24880, section 4.2) ask for it once a token and sublayer:
one 4 x 4 matrix, 20 iterations.
"""

import argparse
from collections.abc import Callable, Generator

import torch
import triton
from tritonbench.utils.triton_op import (
    BenchmarkOperator,
    BenchmarkOperatorMetrics,
    Mode,
    register_benchmark,
    register_metric,
    register_x_val,
)

try:
    from helion_sinkhorn import sinkhorn as helion_sinkhorn
except ModuleNotFoundError:
    helion_sinkhorn = None

EPS = 1e-6
SIZES = [(4, 2**k) for k in range(10, 21, 2)] + [(8, 2**k) for k in range(10, 19, 2)] + [(16, 2**16)]


def deepseek(logits: torch.Tensor, iterations: int) -> torch.Tensor:
    """P = softmax(X) + eps, a column step, then iterations - 1 times a row and a column step."""
    p = logits.float().softmax(-1) + EPS
    p = p / (p.sum(-2, keepdim=True) + EPS)
    for _ in range(iterations - 1):
        p = p / (p.sum(-1, keepdim=True) + EPS)
        p = p / (p.sum(-2, keepdim=True) + EPS)
    return p.to(logits.dtype)


def log(logits: torch.Tensor, iterations: int) -> torch.Tensor:
    """X <- X - logsumexp of rows, then of columns; exp(X)."""
    x = logits.float()
    for _ in range(iterations):
        x = x - x.logsumexp(-1, keepdim=True)
        x = x - x.logsumexp(-2, keepdim=True)
    return x.exp().to(logits.dtype)


FORMS = {"deepseek": deepseek, "log": log}


def parse_args(args: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("--op sinkhorn", allow_abbrev=False)
    parser.add_argument("--form", choices=FORMS, default="deepseek", help="definition of the iteration")
    parser.add_argument("--n-iters", type=int, default=20, help="iterations")
    parser.add_argument("--n", type=int, help="rows and columns; default: each of SIZES")
    return parser.parse_args(args)


class Operator(BenchmarkOperator):
    DEFAULT_PRECISION = "fp32"
    DEFAULT_METRICS = ["latency", "speedup", "gbps", "accuracy"]  # noqa: RUF012

    def __init__(self, tb_args: argparse.Namespace, extra_args: list[str] | None = None):
        super().__init__(tb_args, extra_args)
        options = parse_args(self.extra_args)
        self.form, self.iterations = options.form, options.n_iters
        self.sizes = [size for size in SIZES if options.n in (None, size[0])] or [(options.n, 2**14)]

    def get_input_iter(self) -> Generator:
        for n, batch in self.sizes:
            logits = torch.randn((batch, n, n), dtype=self.dtype, device=self.device)
            yield (logits.requires_grad_(self.requires_grad),)

    @register_benchmark(baseline=True)
    def eager(self, logits: torch.Tensor) -> Callable:
        return lambda: FORMS[self.form](logits, self.iterations)

    @register_benchmark()
    def torch_compile(self, logits: torch.Tensor) -> Callable:
        compiled = torch.compile(FORMS[self.form], dynamic=False)
        return lambda: compiled(logits, self.iterations)

    @register_benchmark(enabled=helion_sinkhorn is not None)
    def helion(self, logits: torch.Tensor) -> Callable:
        # of the log form it has no eps
        options = {"eps": EPS} if self.form == "deepseek" else {}
        return lambda: helion_sinkhorn(logits, self.iterations, form=self.form, **options)

    @register_x_val(label="(B, n, n, iterations)")
    def get_x_val(self, example_inputs) -> tuple[int, ...]:
        # without the form, so that --side-a "--form deepseek" --side-b "--form log" join their rows
        return (*example_inputs[0].shape, self.iterations)

    def get_grad_to_none(self, args) -> list[torch.Tensor]:
        return [args[0]]

    def get_bwd_fn(self, fwd_fn: Callable) -> Callable:
        p = fwd_fn()
        generator = torch.Generator(p.device).manual_seed(0)
        grad = torch.randn(p.shape, dtype=p.dtype, device=p.device, generator=generator)
        return lambda: p.backward(grad, retain_graph=True)

    def accuracy(self, fn: Callable, baseline_fn: Callable) -> bool:
        """Whether P, or where a backward runs the gradient of the logits, is close to the baseline's."""
        logits = self.example_inputs[0]

        def result(run: Callable) -> torch.Tensor:
            logits.grad = None
            p = run()
            return logits.grad if self.mode in (Mode.BWD, Mode.FWD_BWD) else p

        tolerances = {"rtol": self.tb_args.rtol, "atol": self.tb_args.atol}
        try:
            torch.testing.assert_close(result(fn), result(baseline_fn), **tolerances)
        except AssertionError:
            return False
        return True

    @register_metric()
    def gbps(self, fn: Callable, example_inputs, metrics: BenchmarkOperatorMetrics) -> float:
        """Logits and result, or upstream gradient, logits and gradient: what has to move."""
        (logits,) = example_inputs
        tensors = {Mode.FWD: 2, Mode.BWD: 3, Mode.FWD_BWD: 5}.get(self.mode, 2)
        return tensors * logits.numel() * logits.element_size() / metrics.latency * 1e-6

    @register_metric()
    def flops(self, fn: Callable, example_inputs, metrics: BenchmarkOperatorMetrics) -> float:
        """An addition and a product an entry for each row and column step; twice that for its adjoint."""
        (logits,) = example_inputs
        forward = 4.0 * logits.numel() * self.iterations
        return {Mode.FWD: forward, Mode.BWD: 2 * forward, Mode.FWD_BWD: 3 * forward}.get(self.mode, forward)

    def plot(self):
        providers = list(self.output.result[0][1]) if self.output.result else []

        @triton.testing.perf_report(
            triton.testing.Benchmark(
                x_names=["x"],
                x_vals=self.output.x_vals,
                line_arg="provider",
                line_vals=providers,
                line_names=providers,
                ylabel="speedup over eager",
                plot_name=f"sinkhorn-{self.form}",
                args={},
            )
        )
        def _plot(x, provider):
            return self.output.get_y_vals(x, provider, "speedup")

        _plot.run(show_plots=False, print_data=True, save_path="/tmp/test_sinkhorn")
