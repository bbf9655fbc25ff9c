"""What is compared: workloads of each operator, and the classes that the ring distinguishes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from helion_sinkhorn.runtime.kernel import Choice

STEPS = 1 << 9
"""Entries times iterations of a workload: in the ring a few matrices show as much as many."""
NOT_EMULATED = (
    "attention_unused_end:dq,dk,dv,dg,dgk,dinitial_state",
    "attention_unused_end:chunked o,chunked end",
)
"""For a GPU alone: the kernel of the gates' gradients has 66,470 lines for gfx950, over 4 minutes of work."""
WORKLOADS: dict[str, tuple[str, ...]] = {
    "sinkhorn": ("two_matrices", "other_eps", "mhc_one_iteration", "beyond_exp_log"),
    "implicit": ("implicit_two",),
    # PyTorch finishes gradients in floats: those of marginals are its sums; dX of one iteration has products
    # by one, which leave all elements but those that look like NaN as they are
    "sinkhorn_large": (
        "large_one_iteration:P,dX",
        "large_rows:P,sinkhorn_large_first,sinkhorn_large_step,sinkhorn_large_columns,"
        "sinkhorn_large_columns_of_logs,sinkhorn_large_write",
    ),
    "linear_attention": (
        "attention_unused_end:o,end",
        *NOT_EMULATED,
        "attention_ungated:dq,dk,dv",
    ),
    # and so is dfn
    "hc_mixes": ("mixes_narrow:mixes,dx",),
    "hc_post": ("hc_post_odd",),
    "hc_pre": ("hc_pre_odd",),
    # so is dweight
    "hc_pre_normed": ("hc_pre_normed_odd:u,dx,dpre",),
    # and so are dscale and dbase
    "hc_split_sinkhorn": ("hc_one_iteration:pre,post,comb,dmixes",),
    # and dfn, dscale and dbase
    "hc_site": (
        "hc_site_unused_pre:y,post,comb,dx",
        "hc_site_unused_pre:boundary streams,boundary y,boundary pre,boundary post,boundary comb",
        "hc_site_unused_pre:boundary df,boundary dx,boundary dpost,boundary dcomb,boundary dweights",
        "hc_site_unused_pre:hc_boundary_last,hc_boundary_second,hc_boundary_finish",
    ),
    "dot_compress": ("dot_tail",),
    "balance": ("balance_sinkgd", "balance_columns_last"),
    "balance_step": ("balance_step_two_rows",),
    "quantize": ("quantize_fp32", "quantize_mx"),
}
"""By operator of ci/operators, NAME, NAME:RESULT,... or NAME:KERNEL,...; each compiles in minutes."""


@dataclass(frozen=True)
class Class:
    """Kernels that compute the same number in the reals, and another one in the ring."""

    name: str
    holds: Callable[[Any, Choice, dict[str, Any]], bool]
    """(workload, choice, its variant)."""
    reason: str
    sizes: Callable[[Choice, dict[str, Any]], tuple[Any, ...]] = lambda choice, variant: ()
    """What the number depends on too: configs with other sizes are of another class."""

    def label(self, choice: Choice, variant: dict[str, Any]) -> str:
        return " ".join(map(str, (self.name, *self.sizes(choice, variant))))


def has_eps(workload: Any) -> bool:
    """Whether eps is added to every sum of Sinkhorn's iterations."""
    return getattr(workload, "form", "deepseek") == "deepseek" and getattr(workload, "eps", 0.0) > 0


RUNNING = frozenset({"sinkhorn_large_first", "sinkhorn_large_wide_first", "sinkhorn_large_wide_logs"})
"""Kernels that find the largest term of a sum while they add it up, before there are potentials."""
CLASSES = (
    Class(
        "pairs",
        lambda w, c, v: bool(v.get("paired")) and (bool(v.get("lean")) or not has_eps(w)),
        "1/a is b (1/(ab)): an even element has no inverse. With eps all sums are odd, except in lean.",
    ),
    Class(
        "pivot",
        lambda w, c, v: bool(v.get("pivoted")) and c.kernel == "sinkhorn_forward" and has_eps(w),
        "rows and columns divided by their first entries, which cancel but beside eps",
    ),
    Class(
        "lean",
        lambda w, c, v: bool(v.get("lean")) and has_eps(w),
        "u is computed again without its term in eps^2",
    ),
    Class(
        "blocks",
        lambda w, c, v: c.kernel in RUNNING,
        "a sum is scaled anew when a block has a larger term, and e^a e^b is not e^(a + b)",
        lambda c, v: tuple(filter(None, (dict(c.config)["block_sizes"][0], v.get("rows")))),
    ),
)


def classes_of(workload: Any, choice: Choice) -> list[str]:
    """The classes of a launch."""
    variant = dict(choice.variant)
    return [c.label(choice, variant) for c in CLASSES if c.holds(workload, choice, variant)]
