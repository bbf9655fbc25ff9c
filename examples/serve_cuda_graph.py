"""Serve mHC layers from a CUDA graph: one launch of the host for all kernels of a step.

    python examples/serve_cuda_graph.py          # on a CPU it runs without the graph and says so

At the batch sizes of decoding, the kernels of a seam take less time than the host needs to launch them.  A
graph records the launches once and replays them on whatever its input tensor holds then.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    name, does = "python examples/serve_cuda_graph.py", __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(name, description=does)
    parser.add_argument("--tokens", type=int, default=64, help="of a step")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--calls", type=int, default=20, help="timed")
    args = parser.parse_args(words)
    for name, value in vars(args).items():
        if value < 1:
            parser.error(f"argument --{name}: {value} is no int of at least 1")
    return args


if __name__ == "__main__":  # before torch is imported, which takes seconds
    parsed()

import torch

from helion_sinkhorn import Out, hc_expand, hc_post, hc_prepare, nn


class Layers(torch.nn.Module):
    """Seams of mHC between linear sublayers with norms, from hidden states to hidden states."""

    def __init__(self, hidden: int, count: int) -> None:
        super().__init__()
        self.sublayers = torch.nn.ModuleList(torch.nn.Linear(hidden, hidden) for _ in range(count))
        self.seams = torch.nn.ModuleList(nn.HyperBoundary(hidden) for _ in range(count))
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(hidden, eps=1e-6) for _ in range(count))
        self.head = nn.HyperHead(hidden)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        streams, f, post, comb, out = hc_expand(h, 4), None, None, None, None
        for seam, norm, sublayer in zip(self.seams, self.norms, self.sublayers, strict=True):
            y, _, post, comb, streams = seam(f, streams, post, comb, y_norm=norm, out=out)
            f = sublayer(y)
            # where nothing needs a gradient, nobody reads the old streams and coefficients again
            out = None if torch.is_grad_enabled() else Out(post=post, comb=comb, residual=streams)
        return self.head(hc_post(f, streams, post, comb))


def captured(model: torch.nn.Module, example: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """The model as a graph for inputs of one shape; its result is overwritten by the next call."""
    given = example.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # compiles the kernels and loads their configs, which a capture must not do
        for _ in range(3):
            model(given)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = model(given)

    def replay(h: torch.Tensor) -> torch.Tensor:
        given.copy_(h)
        graph.replay()
        return result

    return replay


def milliseconds(function: Callable[[torch.Tensor], torch.Tensor], h: torch.Tensor, calls: int) -> float:
    """The mean time of a call, the host's work included."""
    function(h)
    begin = time.perf_counter()
    for _ in range(calls):
        function(h)
    if h.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / calls * 1e3


@torch.no_grad()
def main(words: list[str] | None = None) -> float | None:
    """The largest difference of a graph's results from the model's; None without a graph."""
    args = parsed(words)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = Layers(args.hidden, args.layers).to(device, torch.bfloat16)
    for i, seam in enumerate(model.seams):
        # of weights that no longer change, so that no step splits them again; the first has no update
        hc_prepare(seam.fn, boundary=i > 0)
    first, second = torch.randn(2, args.tokens, args.hidden, device=device, dtype=torch.bfloat16)
    if device == "cpu":
        print("no CUDA or ROCm GPU: the model runs without a graph")
        print(f"model: {milliseconds(model, first, args.calls):.3f} ms a step")
        return None
    serve = captured(model, first)
    print(f"CUDA graph: {milliseconds(serve, first, args.calls):.3f} ms a step")
    print(f"without:    {milliseconds(model, first, args.calls):.3f} ms a step")
    apart = float((serve(second) - model(second)).abs().max())
    print(f"largest difference: {apart}")
    return apart


if __name__ == "__main__":
    main()
