"""A step captured in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Results = TypeVar("Results")


def capture(step: Callable[[], Results]) -> tuple[torch.cuda.CUDAGraph, Results]:
    """(graph, what its replays fill) of a step, after one run of it on a stream beside the current one."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    return graph, captured
