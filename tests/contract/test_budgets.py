"""Operators against float64: workloads, sizes and configs, each result within its budget."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton", reason="the bodies import Triton")

from reference_mode import of_each_variant
from tiles import computed

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS, OPERATORS, TRIALS, kernel_calls
from helion_sinkhorn.lab.site.budget import RESULTS as OF_SITE
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload
from helion_sinkhorn.lab.workloads import WORKLOADS, tagged
from helion_sinkhorn.ops.mhc.mixes import launch as mixes
from helion_sinkhorn.ops.mhc.mixes.space import CHUNK, MixesCall
from helion_sinkhorn.ops.mhc.post import launch as post
from helion_sinkhorn.ops.mhc.pre import launch as pre
from helion_sinkhorn.ops.mhc.pre.quantized import launch as quantized
from helion_sinkhorn.ops.mhc.site import launch as site
from helion_sinkhorn.ops.mhc.site.boundary.head import launch as head
from helion_sinkhorn.ops.mhc.site.boundary.last.launch import LAST
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.ops.mhc.split import launch as split
from helion_sinkhorn.ops.sinkhorn.large import calls as large
from helion_sinkhorn.runtime.kernel import candidates, default_choice

NAMES = (
    "hc_mixes", "hc_split_sinkhorn", "hc_pre", "hc_post", "hc_site", "quantize", "sinkhorn_balance",
    "dot_compress",
)  # fmt: skip
MOST = pytest.mark.nightly("half a second to 6 s each, interpreted; every third or fifth runs always")
FLOATS = torch.float32, torch.bfloat16, torch.float16
COEFFICIENTS = *FLOATS, torch.float64


def paths_of(name, place, workload):
    """eager: PyTorch.  A site has no path of its own there; a GPU is judged by `make accuracy`."""
    every = {"hc_site": 3}.get(name, 5 if getattr(workload, "y_norm", False) else 1)
    yield "kernels", MOST if place % every else ()
    if name != "hc_site":
        yield "eager", ()


@pytest.mark.parametrize(
    ("workload", "path"),
    [
        pytest.param(w, path, id=f"{w.name} {path}", marks=marks)
        for name in NAMES
        for place, w in enumerate(tagged("ci", OPERATORS[name].workload))
        for path, marks in paths_of(name, place, w)
    ],
)
def test_every_workload_is_within_its_budget(workload, path):
    of = OF_SITE if isinstance(workload, HcSiteWorkload) else ()
    for name, truth, result in computed(workload, "cpu", None if path == "eager" else {}, of):
        assert truth.judge(result).reasons == [], name
        # codes and scales come as float32, which has them exactly
        assert result.dtype == truth.dtype, name
        if "tf32" not in workload.name and result.dtype.is_floating_point:
            wrong = result * (1 + (2**-6 if result.dtype.itemsize < 4 else 2**-12))
            assert truth.judge(wrong).reasons, f"the budget of {name} is too wide"


def of_each(**options):
    """Each combination of values of the options."""
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


def of_normed(*shapes):
    """Collapses of so many tokens, streams and columns with their norm, in each dtype."""
    return [
        {"tokens": tokens, "n": n, "c": c, "dtype": dtype, "y_norm": True}
        for tokens, n, c in shapes
        for dtype in FLOATS
    ]


EACH_N = [(n, dtype) for n in range(1, 17) for dtype in dict.fromkeys((torch.float32, FLOATS[n % 3]))]
ON_CPU = {
    "hc_pre": [
        *({"n": n, "c": 40, "tokens": 7, "dtype": dtype} for n, dtype in EACH_N),
        *of_each(c=[33], tokens=[5], dtype=FLOATS, coefficients=COEFFICIENTS),
        *of_normed((5, 4, 96), (3, 1, 7), (2, 16, 33), (300, 2, 8), (1, 3, 2)),
    ],
    "hc_post": [
        {
            "n": n, "c": 24, "tokens": 3, "dtype": dtype, "comb_order": ("io", "oi")[n % 2],
            "has_bias": n % 2 == 0, "coefficients": COEFFICIENTS[n % 4], "f_dtype": COEFFICIENTS[n // 4 % 4],
        }
        for n, dtype in EACH_N
    ],
    # dfn is summed in shares, some of which may be empty; of more than 32 rows dx is shared out too
    "hc_mixes": [
        *of_each(n=[1], c=[20], m=[24, 80], tokens=[1, 63, 64, 65, 256, 257, 300], dtype=[torch.float32]),
        *of_each(n=range(1, 17), c=[7], tokens=[6], dtype=[torch.float32]),
    ],
    "hc_split_sinkhorn": of_each(n=range(2, 17), tokens=[6], n_iters=[6]),
    "sinkhorn_balance": of_each(
        n=[2, 3, 31, 64, 130], batch=[2], tokens=[37], dtype=FLOATS, values=["normal"]
    ),
    "dot_compress": [
        {**sizes, **options}
        for sizes in (
            {"batch": 2, "m": 37, "d": 20, "k": 5}, {"m": 129, "d": 64, "k": 16},
            {"m": 50, "d": 300, "k": 64}, {"batch": 3, "m": 1, "d": 7, "k": 1},
        )
        for options in of_each(dtype=FLOATS, has_z=[False, True], precise=[False, True])
        if not (options["precise"] and options["dtype"] == torch.float32)
    ],
}  # fmt: skip
ON_GPU = {
    "hc_pre": [
        *of_each(n=range(1, 17), c=[200], tokens=[37]),
        *of_each(c=[1, 2, 3, 7, 8, 63, 64, 65, 1000, 4099, 7168], tokens=[9]),
        *of_each(c=[72], tokens=[1, 2, 31, 33, 1000, 4097]),
        *of_each(c=[136], tokens=[10], dtype=FLOATS, coefficients=COEFFICIENTS),
        *of_normed(
            (1, 4, 4096), (5, 4, 2), (9, 4, 7), (33, 1, 64), (31, 3, 65), (300, 2, 130), (257, 4, 1000),
            (3, 16, 520), (1025, 4, 4096), (17, 4, 4099), (64, 4, 5120), (513, 4, 7168), (3, 2, 16384),
        ),
    ],
    "hc_post": [
        *of_each(n=range(1, 17), c=[200], tokens=[37], comb_order=["io", "oi"], has_bias=[False, True]),
        *of_each(n=[2, 4], c=[2, 3, 4, 7, 8, 16, 63, 64, 65, 1000, 4099, 7168], tokens=[9], has_bias=[True]),
        *of_each(c=[72], tokens=[1, 2, 31, 33, 1000, 4097], has_bias=[True]),
        *of_each(
            c=[136], tokens=[10], dtype=FLOATS, f_dtype=COEFFICIENTS, coefficients=COEFFICIENTS,
            has_bias=[True],
        ),
    ],
    "hc_mixes": [
        *({"n": n, "c": 48, "m": n * n + 2 * n, "tokens": 37} for n in range(1, 17)),
        *of_each(c=[1, 7, 64, 511, 512, 513, 1031], tokens=[33], dtype=FLOATS),
        # the last chunk whole, or of one column
        *of_each(n=[1], c=[2047, 2048, 2049, 4097], m=[3], tokens=[33]),
        *of_each(c=[40], tokens=[1, 2, 15, 16, 63, 64, 65, 255, 257, 1000, 4097]),
    ],
    "hc_split_sinkhorn": [
        *of_each(n=range(2, 17), tokens=[37], n_iters=[7]),
        *of_each(tokens=[1, 2, 31, 33, 1000, 4097], n_iters=[3]),
        *(
            {**sizes, **options}
            for sizes in of_each(
                tokens=[1, 33, 1000], eps_outside=[False, True], n_iters=[3], norm_eps=[1e-2]
            )
            for options in ({"splits": 1}, {"splits": 8}, {"splits": 7}, {"n": 3, "splits": 6},
                            {"n": 8, "splits": 4})
        ),
        {"tokens": 65, "eps": 0.0, "pre_eps": 0.0},
    ],
    "hc_site": [
        *of_each(n=range(2, 17), c=[48], tokens=[19], n_iters=[5]),
        *of_each(c=[2, 7, 64, 513, 1031], tokens=[17], dtype=FLOATS),
        *of_each(c=[40], tokens=[1, 2, 15, 63, 64, 65, 257, 1000]),
    ],
    "sinkhorn_balance": [
        *of_each(n=[2, 31, 256, 1000, 4099, 16384], batch=[2], tokens=[70], dtype=FLOATS[:2]),
        *of_each(n=[40], batch=[2], tokens=[1, 2, 17, 5001]),
    ],
    # one element alone takes the code of several
    "dot_compress": [
        *of_each(batch=[1, 3], m=[3219], d=[256], k=[64]),
        *of_each(batch=[1, 2], m=[37], d=[20], k=[5], has_z=[True]),
        *of_each(batch=[1, 2], m=[300], d=[64], k=[16], dtype=[torch.float16], has_z=[True]),
        *of_each(batch=[1, 2], m=[129], d=[1000], k=[64]),
        *of_each(batch=[1, 2], m=[70], d=[300], k=[128], dtype=[torch.float32]),
        *of_each(batch=[1, 2], m=[600], d=[256], k=[64], dtype=[torch.float16], has_z=[True], precise=[True]),
    ],
}  # fmt: skip


def asked(name, **options):
    """A workload of an operator with these fields."""
    return OPERATORS[name].workload(
        **{"name": "asked", "batch": 1, "tags": frozenset(), "source": "a test", **options}
    )


def spelled(options):
    return " ".join(f"{name}={value}" for name, value in options.items())


@pytest.mark.parametrize(
    ("name", "options", "device"),
    [
        pytest.param(name, options, device, id=f"{name} {spelled(options)} {device}", marks=marks)
        for device, marks, table in (("cpu", (), ON_CPU), ("cuda", pytest.mark.gpu, ON_GPU))
        for name, rows in table.items()
        for options in rows
    ],
)
def test_kernels_take_any_size(name, options, device):
    """And on CPU tensors so does the path of a CPU."""
    for choices in ({}, None) if device == "cpu" else ({},):
        for of, truth, result in computed(asked(name, **options), device, choices):
            assert truth.worst(result) <= 1, of
            assert result.dtype == truth.dtype, of
            # at a size of another operator errors are too few for their means
            assert name != "sinkhorn_balance" or truth.judge(result).reasons == [], of


SIZES, FEW = st.integers(1, 40), st.integers(1, 3)
STREAMS = {"n": st.integers(1, 16), "c": SIZES, "batch": FEW, "tokens": SIZES}
DRAWN = {
    "hc_pre": {**STREAMS, **dict.fromkeys(("dtype", "coefficients"), st.sampled_from(COEFFICIENTS))},
    "hc_post": {
        **STREAMS, **dict.fromkeys(("dtype", "coefficients", "f_dtype"), st.sampled_from(COEFFICIENTS)),
        "has_bias": st.booleans(), "comb_order": st.sampled_from(("io", "oi")),
    },
    "hc_mixes": {
        **STREAMS, "m": SIZES, "dtype": st.sampled_from(FLOATS), "spread": st.sampled_from((1e-3, 1.0, 30.0)),
        "norm_eps": st.sampled_from((1e-20, 1e-6, 0.1)), "eps_outside": st.booleans(),
    },
    "dot_compress": {
        "batch": FEW, "m": SIZES, "d": st.integers(1, 20), "k": st.integers(1, 20),
        "dtype": st.sampled_from(FLOATS), "has_z": st.booleans(), "precise": st.booleans(),
    },
}  # fmt: skip
"""Fields of workloads."""


@pytest.mark.parametrize("name", DRAWN)
@given(st.data())
def test_any_call_by_the_path_of_a_cpu(name, data):
    for of, truth, result in computed(asked(name, **data.draw(st.fixed_dictionaries(DRAWN[name])))):
        assert truth.worst(result) <= 1, of
        assert result.dtype == truth.dtype, of


def distinct(choices):
    """A choice of each block and variant: where shares of tokens have sums of their own."""
    return list({(dict(choice.config)["block_sizes"], choice.variant): choice for choice in choices}.values())


NIGHTLY = pytest.mark.nightly("the bodies in reference mode, 30 s")
CALLS = [
    *((name, pre.call_for(*size, torch.bfloat16), of_each_variant)
      for name in pre.KERNELS for size in ((4, 512), (4, 67), (1, 1), (16, 33))),
    *((name, post.call_for(*size, torch.bfloat16), of_each_variant)
      for name in post.KERNELS for size in ((4, 512), (4, 67), (1, 2), (16, 34))),
    *((name, call, of_each_variant)
      for name in mixes.KERNELS
      for call in (
          MixesCall("bfloat16", 24, 4 * 96, "float32"), MixesCall("float32", 24, 4 * 96, "float32"),
          MixesCall("float16", 80, 633, "float32"), MixesCall("bfloat16", 3, CHUNK + 3, "tf32"),
      )),
    *((name, split.call_for(*size, torch.float32), of_each_variant)
      for name in split.KERNELS for size in ((4, 20, 1e-6), (8, 5, 1e-6), (3, 5, 1e-6), (4, 20, 0.0))),
    *((name, SiteCall("bfloat16", 4, 96, "float32"), distinct) for name in site.KERNELS),
    *(pytest.param(name, SiteCall("float32", 3, 67, "tf32"), distinct, marks=NIGHTLY)
      for name in site.KERNELS),
    *((name, call, of_each_variant)
      for name, call in kernel_calls(WORKLOADS["balance_bf16_n7168_b129280"])),
    *((name, large.call_for(48, 300 if "_wide_" in name else 64, torch.float32), of_each_variant)
      for name in large.KERNELS),
]  # fmt: skip


# the address of a function is another one in each process
@pytest.mark.parametrize(("name", "call", "different"), CALLS, ids=lambda v: getattr(v, "__name__", str(v)))
def test_every_config_that_is_tried_is_within_its_budget(name, call, different):
    """One of those that are alike in reference mode, which knows neither warps nor stages."""
    for choice in different(candidates(KERNELS[name], call, DEVICES["h200"])):
        assert TRIALS[name].error(call, choice, "cpu") <= 1, choice


@pytest.mark.parametrize(
    ("name", "call"),
    [
        *(
            (name, site.call_for(n, 130, dtype, "float32"))
            for name in (LAST, head.SUMS, head.HEAD)
            for n, dtype in ((4, torch.float32), (3, torch.bfloat16))
        ),
        (quantized.NAME, quantized.call_for(torch.bfloat16, 256, 32, "e8m0", "column")),
    ],
    ids=str,
)
def test_the_default_config_is_within_its_budget(name, call):
    assert TRIALS[name].error(call, default_choice(KERNELS[name], call, DEVICES["h200"]), "cpu") <= 1
