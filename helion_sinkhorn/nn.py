"""Modules: HyperSublayer, HyperConnection, HyperBoundary and HyperHead of the residual path, and Sinkhorn,
FusedMHC and SinkhornLaneMixer."""

from __future__ import annotations

from helion_sinkhorn.mhc.boundary import HyperBoundary as HyperBoundary
from helion_sinkhorn.mhc.modules import HyperConnection as HyperConnection
from helion_sinkhorn.mhc.modules import HyperHead as HyperHead
from helion_sinkhorn.mhc.sublayer import HyperSublayer as HyperSublayer
from helion_sinkhorn.ops.sinkhorn.nn import FusedMHC as FusedMHC
from helion_sinkhorn.ops.sinkhorn.nn import Sinkhorn as Sinkhorn
from helion_sinkhorn.ops.sinkhorn.nn import SinkhornLaneMixer as SinkhornLaneMixer
