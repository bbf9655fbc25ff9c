"""The specification: each operator written as its equations, in eager PyTorch, for any float dtype.

Slow and differentiable by autograd.  Tests, benchmarks and the accuracy gate run it in
float64; nothing in the package computes with it.
"""

from __future__ import annotations

from helion_sinkhorn.ops.balance.reference import sinkhorn_balance as sinkhorn_balance
from helion_sinkhorn.ops.dot_compress.reference import dot_compress as dot_compress
from helion_sinkhorn.ops.linear_attention.reference import (
    recurrent_linear_attention as recurrent_linear_attention,
)
from helion_sinkhorn.ops.mhc.mixes.reference import hc_mixes as hc_mixes
from helion_sinkhorn.ops.mhc.post.reference import hc_post as hc_post
from helion_sinkhorn.ops.mhc.pre.reference import hc_pre as hc_pre
from helion_sinkhorn.ops.mhc.site.reference import hc_boundary as hc_boundary
from helion_sinkhorn.ops.mhc.site.reference import hc_site as hc_site
from helion_sinkhorn.ops.mhc.split.reference import hc_split_sinkhorn as hc_split_sinkhorn
from helion_sinkhorn.ops.sinkhorn.reference import potentials as potentials
from helion_sinkhorn.ops.sinkhorn.reference import sinkhorn as sinkhorn
