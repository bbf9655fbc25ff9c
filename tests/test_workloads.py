"""WORKLOADS: rows that are calls of sinkhorn, inputs that repeat, tags that cover the package."""

from __future__ import annotations

import hashlib
import itertools

import pytest
import torch

from helion_sinkhorn.lab.sinkhorn.logits import LOGITS
from helion_sinkhorn.lab.sinkhorn.workloads import LARGEST_ENTRIES, TUNED_SIZES, SinkhornWorkload
from helion_sinkhorn.lab.workloads import WORKLOADS, tagged


def test_names_are_keys_and_tags_are_known():
    assert all(name == w.name for name, w in WORKLOADS.items())
    assert set().union(*(w.tags for w in WORKLOADS.values())) == {
        "ci", "tune", "bench", "stress", "implicit", "scaled",
    }  # fmt: skip
    assert all(w.source for w in WORKLOADS.values())
    assert all(w.logits in LOGITS for w in WORKLOADS.values() if isinstance(w, SinkhornWorkload))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("form", "backward"), [("deepseek", "exact"), ("log", "exact"), ("log", "implicit")])
@pytest.mark.parametrize("n", TUNED_SIZES)
def test_tuned_batches_reach_from_small_to_a_full_device(n, form, backward, dtype):
    batches = [
        w.batch
        for w in tagged("tune")
        if (w.n, w.m, w.form, w.dtype, w.backward) == (n, n, form, dtype, backward)
    ]
    assert batches[0] == 128
    assert batches[-1] == min(1 << 20, LARGEST_ENTRIES // (n * n))
    assert all(b < c <= 16 * b for b, c in itertools.pairwise(batches))


def test_implicit_rows_and_no_others_ask_for_the_implicit_gradient():
    rows = [w for w in WORKLOADS.values() if isinstance(w, SinkhornWorkload) and w.backward == "implicit"]
    assert all(w.options["backward"] == "implicit" for w in rows)
    assert all(w.tags == {"tune"} or w.tags <= {"ci", "implicit"} for w in rows)
    assert tagged("implicit") == [w for w in rows if "tune" not in w.tags]


@pytest.mark.parametrize(
    ("name", "digest"),
    [("mhc_fp32", "5b87547ce9272417"), ("masked_8", "f66b6f834864af18"), ("dot_fp32", "e55cde83914f9d2c")],
)
def test_inputs_are_the_same_bits_on_every_machine(name, digest):
    # computed with and without vector units; torch.randn gives other bits where there is no AVX2
    tensors = WORKLOADS[name].make_inputs()
    assert hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()[:16] == digest
