"""Whether all timed runs of a backend compute the same bits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
Tensors = Sequence[torch.Tensor]


def differ(a: Tensors, b: Tensors) -> bool | torch.Tensor:
    """Whether any bit does; on a GPU a tensor that nobody has waited for."""
    if [(t.shape, t.dtype) for t in a] != [(t.shape, t.dtype) for t in b]:
        return True
    differs: bool | torch.Tensor = False
    for one, other in zip(a, b, strict=True):
        whole = INTEGERS[one.itemsize]
        differs = (one.detach().view(whole) != other.detach().view(whole)).any() | differs
    return differs


class Runs:
    """The results of a backend's runs, compared with the first of them.

    tritonbench sets `grad` of all that `get_grad_to_none` lists to None before each timed run, outside of
    what it times.  Listed there, this compares what the run before left.
    """

    def __init__(self, results: Callable[[object], list[torch.Tensor]]) -> None:
        """results: what the last run computed, from what its forward returned."""
        self.results = results
        self.out: object = None
        self.first: list[torch.Tensor] = []
        self.other: bool | torch.Tensor = False
        self.captured = self.resting = False

    def around(self, forward: Callable[[], object]) -> Callable[[], object]:
        """The same call, whose last result is kept until the next."""

        @functools.wraps(forward)
        def run() -> object:
            # first, so that there are never two results of it
            self.out = None
            self.out = forward()
            return self.out

        return run

    @property
    def grad(self) -> None:
        return None

    @grad.setter
    def grad(self, value: None) -> None:
        self.compare()

    def detach_(self) -> None:
        """Nothing: tritonbench calls it of what it lists when it measures memory in a CUDA graph."""

    def requires_grad_(self, value: bool) -> None:
        """Nothing, likewise."""

    def compare(self) -> None:
        """Look at the last run; of a CUDA graph that is captured, at its last replay in the end."""
        if self.resting:
            return
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            self.captured = True
            return
        results = self.results(self.out)
        if results and not self.first:
            self.first = [t.detach().clone() for t in results]
        elif results:
            self.other = self.other | differ(self.first, results)

    def rest(self) -> None:
        """Look at the last timed run, and leave the device's memory to other backends."""
        if not self.resting:
            if self.first or self.captured:
                self.compare()
            self.resting = True
            self.first = [t.cpu() for t in self.first]
            self.other = bool(self.other)
        self.out = None
