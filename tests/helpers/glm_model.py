"""A GLM-5.3 of transformers small enough for a CPU."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Glm5NextForConditionalGeneration

from examples.patch_transformers import glm


def make_model(vocabulary: int, **options: Any) -> Glm5NextForConditionalGeneration:
    """The example's model, the same at every call."""
    torch.manual_seed(0)
    return glm(32, vocab_size=vocabulary, **options)
