"""The residual path of mHC and Sinkhorn-Knopp in Helion kernels, with exact gradients, tuned per device."""

import sys

if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv) :][0] == "helion_sinkhorn":
    # `python -m helion_sinkhorn` imports this module before its own: a wrong command line is refused before
    # torch is imported, which takes seconds
    from helion_sinkhorn.arguments import parse

    parse(sys.argv[1:])

from helion_sinkhorn import nn as nn
from helion_sinkhorn import reference as reference
from helion_sinkhorn.mhc.boundary import hc_boundary as hc_boundary
from helion_sinkhorn.mhc.functional import hc_coeffs as hc_coeffs
from helion_sinkhorn.mhc.functional import hc_expand as hc_expand
from helion_sinkhorn.mhc.functional import hc_head as hc_head
from helion_sinkhorn.mhc.recompute import recompute_streams as recompute_streams
from helion_sinkhorn.ops.balance.api import sinkhorn_balance as sinkhorn_balance
from helion_sinkhorn.ops.dot_compress.api import dot_compress as dot_compress
from helion_sinkhorn.ops.linear_attention.api import recurrent_linear_attention as recurrent_linear_attention
from helion_sinkhorn.ops.mhc.mixes.api import hc_mixes as hc_mixes
from helion_sinkhorn.ops.mhc.out import Out as Out
from helion_sinkhorn.ops.mhc.post.api import hc_post as hc_post
from helion_sinkhorn.ops.mhc.pre.api import hc_pre as hc_pre
from helion_sinkhorn.ops.mhc.site.api import hc_site as hc_site
from helion_sinkhorn.ops.mhc.site.prepare import hc_prepare as hc_prepare
from helion_sinkhorn.ops.mhc.split.api import hc_split_sinkhorn as hc_split_sinkhorn
from helion_sinkhorn.ops.mhc.split.partials import Reduce as Reduce
from helion_sinkhorn.ops.sinkhorn.api import sinkhorn as sinkhorn
from helion_sinkhorn.ops.sinkhorn.implicit.systems import Implicit as Implicit
from helion_sinkhorn.ops.sinkhorn.implicit.systems import marginal_error as marginal_error
from helion_sinkhorn.ops.sinkhorn.plan import Plan as Plan
from helion_sinkhorn.ops.sinkhorn.plan import plan as plan
from helion_sinkhorn.ops.sinkhorn.potentials import sinkhorn_potentials as sinkhorn_potentials

__version__ = "0.1.0"
__all__ = [
    "Implicit",
    "Out",
    "Plan",
    "Reduce",
    "dot_compress",
    "hc_boundary",
    "hc_coeffs",
    "hc_expand",
    "hc_head",
    "hc_mixes",
    "hc_post",
    "hc_pre",
    "hc_prepare",
    "hc_site",
    "hc_split_sinkhorn",
    "marginal_error",
    "nn",
    "plan",
    "recompute_streams",
    "recurrent_linear_attention",
    "reference",
    "sinkhorn",
    "sinkhorn_balance",
    "sinkhorn_potentials",
]
