"""Results of an operator's kernels beside their truths: by any choices, and by tiles that are small."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

import torch

from helion_sinkhorn.lab.evidence import EVERY_STEP
from helion_sinkhorn.lab.operators import operator_for
from helion_sinkhorn.lab.truth import Truth
from helion_sinkhorn.runtime.kernel import Choice


@functools.lru_cache(maxsize=2)
def problem(workload: Any) -> Any:
    """The operator of a workload, its inputs and their truths, for each path that is tested by them."""
    operator = operator_for(workload)
    inputs = operator.inputs(workload, EVERY_STEP)
    return operator, inputs, operator.truths(workload, *inputs)


def computed(
    workload: Any, device: str = "cpu", choices: Mapping[str, Choice] | None = None, of: Collection[str] = ()
) -> list[tuple[str, Truth, torch.Tensor]]:
    """(name, truth, result) of each result, by kernels with these choices or by the path of a CPU."""
    operator, inputs, truths = problem(workload)
    results = of or operator.results(workload)
    tensors = operator.run(workload, choices, results, *(t.to(device) for t in inputs))
    return [(name, truths[name], t) for name, t in tensors.items()]


def assert_within(workload: Any, choices: Mapping[str, Choice], of: Collection[str] = ()) -> None:
    """The results of a workload by kernels with these choices, all results if `of` names none."""
    for name, truth, result in computed(workload, "cpu", choices, of):
        assert truth.judge(result).reasons == [], name


def tiles(blocks: Mapping[str, tuple[int, ...]], **variants: tuple[Any, ...]) -> dict[str, Choice]:
    """By kernel, the config with these blocks and one warp; a kernel's variant by its name."""
    return {
        name: Choice(name, (("block_sizes", sizes), ("num_warps", 1)), variants.get(name, ()), "a test")
        for name, sizes in blocks.items()
    }
