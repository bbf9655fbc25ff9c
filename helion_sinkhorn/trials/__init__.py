"""TRIALS: how each kernel is run by itself, by the tuner on a GPU and by the offline compiler on nothing."""

from __future__ import annotations

from helion_sinkhorn.trials import dot_compress, linear_attention, sinkhorn
from helion_sinkhorn.trials.trial import Programs as Programs
from helion_sinkhorn.trials.trial import Tensors as Tensors
from helion_sinkhorn.trials.trial import Trial as Trial
from helion_sinkhorn.trials.trial import bytes_of as bytes_of
from helion_sinkhorn.trials.trial import programs as programs

TRIALS = {**sinkhorn.TRIALS, **dot_compress.TRIALS, **linear_attention.TRIALS}
