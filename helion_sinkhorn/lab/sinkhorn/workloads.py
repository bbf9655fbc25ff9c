"""The calls of `sinkhorn`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from helion_sinkhorn.lab.draws import SHORT, make_cotangents
from helion_sinkhorn.lab.row import Sized
from helion_sinkhorn.lab.sinkhorn.logits import make_logits

LARGEST_ENTRIES = 1 << 26
"""The most entries of a tuned batch, 256 MiB in float32, with far more blocks than a device runs at once."""


@dataclass(frozen=True)
class SinkhornWorkload(Sized):
    """One row of WORKLOADS: a call of `sinkhorn`, what it stands for, and who loops over it."""

    SIZES = ("n", "m")

    name: str
    n: int
    m: int
    batch: int
    tags: frozenset[str]
    """ci: accuracy gate; tune: has a tuned config; bench: tritonbench and reports; stress: extreme inputs;
    implicit: the approximate gradient, tested against the equations of a fixed point."""
    source: str
    n_iters: int = 20
    form: str = "deepseek"
    first: str = "rows"
    dtype: torch.dtype = torch.float32
    eps: float = 1e-6
    logits: str = "randn_1"
    backward: str = "exact"

    @property
    def arguments(self) -> tuple[int, float, str, str]:
        """(n_iters, eps, form, first), as the operators take them."""
        return self.n_iters, self.eps, self.form, self.first

    @property
    def options(self) -> dict[str, object]:
        """The arguments as keywords of `sinkhorn`."""
        own = {} if self.backward == "exact" else {"backward": self.backward}
        return {"n_iters": self.n_iters, "eps": self.eps, "form": self.form, "first": self.first, **own}

    def make_inputs(
        self, seed: int = 0, device: torch.device | str = "cpu"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits, upstream gradient), each (batch, n, m) of `dtype`, bit for bit the same everywhere."""
        x = make_logits(self.logits, self.batch, self.n, self.m, seed=seed, dtype=self.dtype)
        return x.to(device), make_cotangents(x, seed=seed + 1).to(device)


TUNED_SIZES = (4, 8, 16, 32, 64)

TUNED_BATCHES = tuple(1 << k for k in (7, 10, 13, 17, 20))

FORMS = ("deepseek", "log")


def _square(n: int, batch: int, dtype: torch.dtype, form: str, tags: str, source: str) -> SinkhornWorkload:
    name = f"{form}_{n}x{n}_{SHORT[dtype]}_b{batch}"
    return SinkhornWorkload(name, n, n, batch, frozenset(tags.split()), source, form=form, dtype=dtype)


def _tuned_batches(n: int) -> list[int]:
    """TUNED_BATCHES up to LARGEST_ENTRIES, and the largest batch that fits, which larger batches use too."""
    most = LARGEST_ENTRIES // (n * n)
    return sorted({min(batch, most) for batch in TUNED_BATCHES})


_TUNED = [
    _square(n, batch, dtype, form, "tune bench" if form == "deepseek" else "tune", source)
    for source in ("mHC: a matrix a token and layer (arXiv 2512.24880); n > 4: wider streams, routing",)
    for n in TUNED_SIZES
    for batch in _tuned_batches(n)
    for dtype in (torch.float32, torch.bfloat16)
    for form in FORMS
]


def _gate(
    name: str, n: int, m: int, source: str, tags: str = "ci", batch: int = 4096, **options
) -> SinkhornWorkload:
    return SinkhornWorkload(name, n, m, batch, frozenset(tags.split()), source, **options)


_MHC = "mHC layer, the default call"

_GATED = [
    _gate("mhc_fp32", 4, 4, _MHC),
    _gate("mhc_bf16", 4, 4, _MHC, dtype=torch.bfloat16),
    _gate("mhc_fp16", 4, 4, _MHC, dtype=torch.float16),
    _gate("mhc_one_iteration", 4, 4, "first trail step alone", n_iters=1),
    _gate("mhc_five_iterations", 4, 4, "not converged: the exact gradient is another than the implicit one",
          n_iters=5),
    _gate("log_4", 4, 4, "log form of triton-sinkhorn and TransformerEngine", form="log"),
    _gate("log_4_columns_first", 4, 4, "columns first", form="log", first="cols"),
    _gate("sharp_4", 4, 4, "peaky logits", "ci stress", logits="randn_8"),
    _gate("identity_like_4", 4, 4, "slow convergence", "ci stress", logits="identity_like", form="log"),
    _gate("masked_8", 8, 8, "masked matching", "ci stress", logits="masked", form="log"),
    _gate("tail_5x3", 5, 3, "padded in both axes, a batch that fills no tile", batch=1021),
    _gate("wide_4x8", 4, 8, "rectangular routing"),
    _gate("driver_8", 8, 8, "randn 4096 x 8 x 8, ten iterations", n_iters=10),
    _gate("uniform_8", 8, 8, "uniform(0, 4), ten iterations", n_iters=10, logits="uniform_4"),
    _gate("mid_16", 16, 16, "implicit-differentiation study: 100 iterations", n_iters=100, batch=512),
    _gate("mid_16_deepseek", 16, 16, "register history, two warps a matrix or fewer", batch=1024),
    _gate("lane_32", 32, 32, "history in memory", batch=512),
    _gate("matching_64", 64, 64, "Gumbel-Sinkhorn matching", form="log", batch=256),
    _gate("largest_128", 128, 128, "the largest matrix the kernels take", batch=64),
    _gate("mid_16_log", 16, 16, "restarts beside the history in registers", form="log", batch=1024),
    _gate("lane_32_log", 32, 32, "history in memory, restarts", form="log", batch=512),
    _gate("other_eps", 4, 4, "an eps of a caller's own", batch=63, eps=1e-3, n_iters=3),
    _gate("columns_first_6x3", 6, 3, "columns first, a large eps", batch=33, first="cols", eps=5e-2,
          n_iters=5),
    _gate("two_matrices", 4, 4, "a batch of two", batch=2, n_iters=3),
    _gate("seven_bf16", 8, 8, "a batch of seven, a tile of which is not full", batch=7, n_iters=3,
          dtype=torch.bfloat16),
    _gate("beyond_exp", 4, 8, "logits whose exponentials are no float32", "ci stress", 63, n_iters=3,
          logits="one_up_100"),
    _gate("beyond_exp_log", 3, 5, "the same in both axes", "ci stress", 21, logits="lines_apart", form="log",
          n_iters=5),
    _gate("vanishing_column", 4, 4, "a column 1000 below its rows", "ci stress", 63, logits="column_below",
          form="log", n_iters=5),
    _gate("offsets_7", 7, 9, "rows far apart", "ci stress", 33, n_iters=3, logits="rows_apart"),
    _gate("wide_100_bf16", 100, 72, "columns first in a narrow log form, between two powers of two",
          batch=4, n_iters=2, form="log", first="cols", dtype=torch.bfloat16),
    _gate("subnormal_fp16", 4, 4, "entries below half precision's normal numbers, a small eps", "ci stress",
          batch=63, n_iters=3, eps=1e-9, logits="randn_8", dtype=torch.float16),
]  # fmt: skip


def _peaked(name: str, n: int, m: int, logits: str, batch: int = 512, **options) -> SinkhornWorkload:
    source = "near a permutation, where mHC starts and training goes"
    return _gate(f"peaked_{name}", n, m, source, "ci stress", batch, logits=logits, **options)


_PEAKED = [
    _peaked("identity_4_log", 4, 4, "identity_like_4", form="log"),
    _peaked("identity_8", 4, 4, "identity_like"),
    _peaked("identity_8_one_iteration", 4, 4, "identity_like", form="log", n_iters=1),
    _peaked("identity_12_log", 4, 4, "identity_like_12", form="log", first="cols"),
    _peaked("identity_16_log", 4, 4, "identity_like_16", form="log"),
    _peaked("identity_16_wide", 16, 16, "identity_like_16", 128, first="cols"),
    _peaked("permutation_4_log", 4, 4, "noisy_permutation", form="log"),
    _peaked("permutation_8", 8, 8, "noisy_permutation", 256, n_iters=3),
    _peaked("sharp_2", 2, 2, "randn_3"),
    _peaked("sharp_3_log", 3, 3, "randn_8", form="log"),
    _peaked("sharp_8", 8, 8, "randn_8", 256),
    _peaked("sharp_33_log", 33, 33, "randn_8", 16, form="log"),
    _peaked("sharpest_4_log", 4, 4, "randn_30", form="log"),
    _peaked("sharpest_4_long", 4, 4, "randn_30", 256, form="log", n_iters=104),
    _peaked("sharpest_16", 16, 16, "randn_30", 64, n_iters=60),
    _peaked("one_up_8_log", 4, 6, "one_up_8", form="log", first="cols"),
    _peaked("one_up_20", 2, 2, "one_up_20"),
    _peaked("one_up_40", 8, 8, "one_up_40", 256, n_iters=3),
    _peaked("one_down_40_log", 3, 3, "one_down_40", form="log"),
    _peaked("column", 4, 4, "one_column", n_iters=60),
    _peaked("column_8_log", 8, 8, "shared_column", 16, n_iters=100, form="log"),
    _peaked("masked_3_log", 3, 3, "masked", form="log"),
]

_JUDGED = "ci implicit"

_IMPLICIT = [
    *(
        _gate(f"implicit_{n}_{SHORT[dtype]}_b{batch}", n, n, "implicit differentiation, beside exact",
              "tune", batch, form="log", dtype=dtype, backward="implicit")
        for n in TUNED_SIZES
        for batch in _tuned_batches(n)
        for dtype in (torch.float32, torch.bfloat16)
    ),
    *(
        _gate(f"implicit_{n}_b{batch}", n, n, "implicit differentiation, beside exact", "implicit", batch,
              form="log", backward="implicit")
        for n in (4, 8, 16)
        for batch in (1 << 16, 1 << 20)
    ),
    *(
        _gate(f"implicit_{n}", n, n, "the calls above, as many as are tested", _JUDGED, (1 << 16) // (n * n),
              form="log", backward="implicit")
        for n in (4, 8, 16, 32)
    ),
    _gate("implicit_mhc", 4, 4, _MHC, _JUDGED, backward="implicit"),
    _gate("implicit_bf16", 4, 4, _MHC, _JUDGED, dtype=torch.bfloat16, backward="implicit"),
    _gate("implicit_five_iterations", 4, 4, "not converged: exact and implicit gradients differ", _JUDGED,
          n_iters=5, backward="implicit"),
    _gate("implicit_driver_8", 8, 8, "randn 4096 x 8 x 8, ten iterations", _JUDGED, n_iters=10, form="log",
          first="cols", backward="implicit"),
    _gate("implicit_uniform_16", 16, 16, "uniform(0, 4), 4096 x 16 x 16, 100 iterations", _JUDGED,
          n_iters=100, form="log", first="cols", logits="uniform_4", backward="implicit"),
    _gate("implicit_tail_5x3", 5, 3, "padded in both axes, a batch that fills no tile", _JUDGED, 1021,
          backward="implicit"),
    _gate("implicit_wide_4x8", 4, 8, "rectangular routing", _JUDGED, backward="implicit"),
    _gate("implicit_masked_8", 8, 8, "masked matching", _JUDGED, logits="masked", form="log",
          backward="implicit"),
    _gate("implicit_sharp_4", 4, 4, "peaky logits, far from a fixed point", _JUDGED, logits="randn_8",
          backward="implicit"),
    _gate("implicit_identity_like", 4, 4, "nearly disconnected: no digit may be lost", _JUDGED,
          logits="identity_like", form="log", backward="implicit"),
    _gate("implicit_two", 4, 4, "a batch of two", _JUDGED, 2, n_iters=5, backward="implicit"),
    _gate("implicit_seven_8", 8, 8, "a batch of seven, five iterations", _JUDGED, 7, n_iters=5,
          backward="implicit"),
    _gate("implicit_64", 64, 64, "conjugate gradients", _JUDGED, 256, form="log", backward="implicit"),
]  # fmt: skip

ROWS = (*_TUNED, *_GATED, *_PEAKED, *_IMPLICIT)
