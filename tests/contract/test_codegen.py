"""Kernels with their default configs as machine code for GPUs that need not be here.

Those of linear attention, dot_compress and sinkhorn have files of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from targets import BY_NIGHT

pytest.importorskip("triton")

from ci import machine_rules
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Job
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.balance import launch as balance
from helion_sinkhorn.ops.balance.space import BalanceCall
from helion_sinkhorn.ops.mhc.mixes import launch as mixes
from helion_sinkhorn.ops.mhc.mixes.space import MixesCall
from helion_sinkhorn.ops.mhc.post import launch as post
from helion_sinkhorn.ops.mhc.post.space import PostCall
from helion_sinkhorn.ops.mhc.pre import launch as pre
from helion_sinkhorn.ops.mhc.pre.quantized import launch as quantized
from helion_sinkhorn.ops.mhc.pre.quantized.space import QuantizeCall
from helion_sinkhorn.ops.mhc.pre.space import PreCall
from helion_sinkhorn.ops.mhc.site import launch as site
from helion_sinkhorn.ops.mhc.site.boundary import launch as boundary
from helion_sinkhorn.ops.mhc.site.boundary.backward import launch as backward
from helion_sinkhorn.ops.mhc.site.boundary.head import launch as head
from helion_sinkhorn.ops.mhc.site.boundary.last.launch import LAST
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.ops.mhc.split import launch as split
from helion_sinkhorn.ops.mhc.split.space import HcCall
from helion_sinkhorn.runtime.kernel import candidates, default_choice


class Wanted(NamedTuple):
    """What the code of aligned rows has; spills but those that are known, and forbidden code, no call has."""

    loads: int = 0
    """16 bytes a thread at a time, at least."""
    stores: int = 0
    exchanges: int | None = None
    """Between lanes, at most."""
    matrix: bool = False
    """Products by the matrix unit, of rows that are not aligned too."""


def wanted(kernel: str, n: int) -> Wanted:
    """For n streams: how often they are read and written, and sums over up to 64 lanes and 4 warps."""
    return {
        post.FORWARD: Wanted(n + 1, n, 0),
        post.BACKWARD: Wanted(2 * n + 1, n + 1, (n**2 + n) * 8),
        pre.FORWARD: Wanted(n, 1, 0),
        pre.BACKWARD: Wanted(n + 1, n, n * 8 if n == 4 else None),
        # eight codes a thread
        quantized.NAME: Wanted(1, exchanges=2),
        mixes.PARTIALS: Wanted(1, matrix=True),
        mixes.BACKWARD: Wanted(1, 1, matrix=True),
        # comb columns are read at once; 27 sums, and a narrow result that changes threads on its way
        split.FORWARD: Wanted(1, exchanges=0),
        split.REDUCED: Wanted(1, exchanges=0),
        split.BACKWARD: Wanted(1, exchanges=27 * 6 + 16),
        site.BACKWARD: Wanted(1, 1, matrix=True),
        boundary.FORWARD: Wanted(1, 1, matrix=True),
        LAST: Wanted(n + 1, 1),
        head.SUMS: Wanted(n + 1, matrix=True),
        head.HEAD: Wanted(n + 1, 1),
        backward.BACKWARD: Wanted(1, 1, 0, matrix=True),
        backward.PROJECTION: Wanted(matrix=True),
        balance.COLUMNS: Wanted(),
        balance.FINISH: Wanted(1, 1),
    }.get(kernel, Wanted(1) if kernel in (*site.KERNELS, *balance.KERNELS) else Wanted())


SPILLING = boundary.FORWARD, *backward.KERNELS
"""As far as the rules know."""
MODEL = SiteCall("bfloat16", 4, 4096, "float32")
SMALLEST = {
    "hc_pre": (PreCall("bfloat16", 4, 7168), (pre.FORWARD, pre.BACKWARD)),
    "hc_post": (PostCall("bfloat16", 4, 7168), (post.FORWARD, post.BACKWARD)),
    "hc_mixes": (MixesCall("bfloat16", 24, 4 * 7168, "float32"), tuple(mixes.KERNELS)),
    # iterations are unrolled: twenty of them compile four times as long, and in `make machine`
    "hc_split_sinkhorn": (HcCall("float32", 4, 2, True), (split.BACKWARD,)),
    "hc_site": (SiteCall("bfloat16", 4, 7168, "float32"), tuple(site.KERNELS)),
    "hc_boundary": (MODEL, (boundary.FORWARD,)),
    "hc_last": (MODEL, (LAST,)),
    "hc_last, head": (MODEL, (head.SUMS, head.HEAD)),
    "balance": (BalanceCall("bfloat16", 7168), tuple(balance.KERNELS)),
    "balance, columns": (BalanceCall("float32", 256), (balance.COLUMNS,)),
    "quantize": (QuantizeCall("bfloat16", 7168, 32, "e8m0", "column"), (quantized.NAME,)),
}
ALWAYS = "hc_pre", "hc_split_sinkhorn"
ROWS = [
    *(
        pytest.param(*row, id=name, marks=() if name in ALWAYS else BY_NIGHT)
        for name, row in SMALLEST.items()
    ),
    pytest.param(
        HcCall("float32", 4, 2, True), tuple(split.KERNELS), id="hc_split_sinkhorn, all", marks=BY_NIGHT
    ),
    pytest.param(MODEL, tuple(backward.KERNELS), id="hc_boundary, backward", marks=BY_NIGHT),
]


@pytest.mark.parametrize(("call", "kernels"), ROWS)
@pytest.mark.parametrize("key", ["h200", pytest.param("mi350", marks=BY_NIGHT)])
def test_defaults_make_good_machine_code(key, call, kernels, compile_for):
    """Sums over columns of a boundary's gradients stay in a thread's registers."""
    aligned = call.n == 4 if isinstance(call, HcCall) else call.columns % 128 == 0
    if isinstance(call, HcCall) and call.dtype != "float32":
        kernels = [name for name in kernels if name != split.REDUCED]
    jobs = [Job(call, default_choice(KERNELS[name], call, DEVICES[key])) for name in kernels]
    bad = []
    for binary in compile_for(key, jobs):
        kernel, counts = binary.job.choice.kernel, binary.counts
        least, found = wanted(kernel, getattr(call, "n", 4)), machine_rules.broken(binary)
        if kernel not in SPILLING:
            found += [*binary.problems, *([f"{binary.spills} spills"] if binary.spills else [])]
        if least.matrix and not counts.get("matrix"):
            found.append(f"no matrix instruction among {dict(counts)}")
        moved = binary.accesses.get("load 128", 0), binary.accesses.get("store 128", 0)
        if aligned and (moved[0] < least.loads or moved[1] < least.stores):
            found.append(f"accesses {binary.accesses}")
        most = None if kernel == backward.BACKWARD and DEVICES[key].vendor != "nvidia" else least.exchanges
        if aligned and most is not None and counts.get("cross-lane", 0) > most:
            found.append(f"{counts['cross-lane']} exchanges between lanes, {most} are enough")
        # of two products that are added LLVM fuses one, not the same one in every program
        if isinstance(call, MixesCall) and counts.get("contested fusion"):
            found.append(f"{counts['contested fusion']} sums of products that may fuse either way")
        bad += [f"{call} {binary.job.choice}: {'; '.join(found)}"] if found else []
    assert not bad, "\n".join(bad)


@pytest.mark.nightly("a minute of compilers for every config of an operator")
def test_no_config_of_a_token_chooses_what_fuses(compile_for):
    """LLVM fuses one of two products that are added, and not the same in programs of one warp and of two."""
    call = HcCall("float32", 4, 20, True)
    jobs = [
        Job(call, choice)
        for name in split.KERNELS
        for choice in candidates(KERNELS[name], call, DEVICES["h200"])
    ]
    for binary in compile_for("h200", jobs):
        assert binary.compiled, binary.problems
        assert "contested fusion" not in binary.counts, binary.job.choice


@BY_NIGHT
def test_an_mi350_waits_for_a_product_before_it_is_read(compile_for):
    """dx takes the product in by an instruction that the compiler knows, and not by inline assembly."""
    call = MixesCall("bfloat16", 24, 4 * 1024, "float32")
    choice = default_choice(KERNELS[mixes.BACKWARD], call, DEVICES["mi350"])
    (binary,) = compile_for("mi350", [Job(call, choice)])
    assert binary.counts["matrix"]
    assert "assembly behind matrix" not in binary.counts
