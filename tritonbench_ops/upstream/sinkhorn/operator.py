"""Sinkhorn-Knopp: exp(X) of (B, n, n) logits, scaled until rows and columns sum to one.

Manifold-constrained hyper-connections (arXiv 2512.24880, section 4.2) ask for it once a
token and sublayer: one 4 x 4 matrix, 20 iterations.
"""

import argparse
import os
import tempfile
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
SIZES = (
    [(4, 2**k) for k in range(10, 21, 2)]
    + [(8, 2**k) for k in range(10, 19, 2)]
    + [(16, 2**16)]
)


def deepseek(logits: torch.Tensor, iterations: int) -> torch.Tensor:
    """P = softmax(X) + eps, a column step, then iterations - 1 row and column steps."""
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
    parser.add_argument(
        "--form", choices=FORMS, default="deepseek", help="definition of the iteration"
    )
    parser.add_argument("--n-iters", type=int, default=20, help="iterations")
    parser.add_argument(
        "--n", type=int, help="rows and columns; default: each of SIZES"
    )
    return parser.parse_args(args)


class Operator(BenchmarkOperator):
    DEFAULT_PRECISION = "fp32"
    DEFAULT_METRICS = ["latency", "speedup", "gbps", "accuracy"]  # noqa: RUF012

    def __init__(
        self, tb_args: argparse.Namespace, extra_args: list[str] | None = None
    ):
        super().__init__(tb_args, extra_args)
        options = parse_args(self.extra_args)
        self.form, self.iterations = options.form, options.n_iters
        self.sizes = [size for size in SIZES if options.n in (None, size[0])] or [
            (options.n, 2**14)
        ]

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
        return lambda: helion_sinkhorn(
            logits, self.iterations, form=self.form, **options
        )

    @register_x_val(label="(B, n, n, iterations)")
    def get_x_val(self, example_inputs) -> tuple[int, ...]:
        # without the form, so that --side-a "--form deepseek" and another --side-b join
        return (*example_inputs[0].shape, self.iterations)

    def get_grad_to_none(self, args) -> list[torch.Tensor]:
        return [args[0]]

    def get_bwd_fn(self, fwd_fn: Callable) -> Callable:
        p = fwd_fn()
        generator = torch.Generator(p.device).manual_seed(0)
        grad = torch.randn(p.shape, dtype=p.dtype, device=p.device, generator=generator)
        return lambda: p.backward(grad, retain_graph=True)

    def results(self, fn: Callable) -> list[torch.Tensor | None]:
        """What a mode computes: P, the gradient of the logits, or both."""
        logits = self.example_inputs[0]
        if self.mode == Mode.FWD_NO_GRAD:
            # the timed closure returns nothing
            with torch.no_grad():
                return [getattr(self, fn._name)(logits)()]
        logits.grad = None
        out = fn()
        if self.mode == Mode.FWD:
            return [out]
        return [logits.grad] if self.mode == Mode.BWD else [out[0], logits.grad]

    def accuracy(self, fn: Callable, baseline_fn: Callable) -> bool:
        """Whether P, the gradient, or both are close to the baseline's."""
        try:
            for result, expected in zip(
                self.results(fn), self.results(baseline_fn), strict=True
            ):
                torch.testing.assert_close(
                    result, expected, rtol=self.tb_args.rtol, atol=self.tb_args.atol
                )
        except (AssertionError, TypeError):
            return False
        return True

    @register_metric()
    def gbps(
        self, fn: Callable, example_inputs, metrics: BenchmarkOperatorMetrics
    ) -> float | None:
        """Logits and result, or upstream gradient, logits and gradient."""
        (logits,) = example_inputs
        if metrics.latency is None:
            return None
        tensors = {Mode.FWD: 2, Mode.BWD: 3, Mode.FWD_BWD: 5}.get(self.mode, 2)
        return tensors * logits.numel() * logits.element_size() / metrics.latency * 1e-6

    @register_metric()
    def flops(
        self, fn: Callable, example_inputs, metrics: BenchmarkOperatorMetrics
    ) -> float:
        """Two an entry for each row and column step; twice that for the adjoint."""
        (logits,) = example_inputs
        forward = 4.0 * logits.numel() * self.iterations
        return {
            Mode.FWD: forward,
            Mode.BWD: 2 * forward,
            Mode.FWD_BWD: 3 * forward,
        }.get(self.mode, forward)

    def plot(self):
        """The speedup over eager of each size."""
        result = self.output.result
        if "speedup" not in self.required_metrics or not result:
            raise NotImplementedError(
                "the plot is of the speedup; pass --metrics speedup"
            )
        providers = [name for name in result[0][1] if name != "eager"]

        @triton.testing.perf_report(
            triton.testing.Benchmark(
                x_names=["B", "n", "m", "iterations"],
                x_vals=self.output.x_vals,
                line_arg="provider",
                line_vals=providers,
                line_names=providers,
                ylabel="speedup over eager",
                plot_name=f"sinkhorn-{self.form}",
                args={},
            )
        )
        def _plot(B, n, m, iterations, provider):
            return self.output.get_y_vals((B, n, m, iterations), provider, "speedup")

        folder = os.path.join(tempfile.gettempdir(), "test_sinkhorn")
        os.makedirs(folder, exist_ok=True)
        _plot.run(show_plots=False, print_data=True, save_path=folder)
