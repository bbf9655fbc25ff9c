"""quantize(u): float8 with scales of groups, beside its specification in float64."""

from __future__ import annotations

import pytest
import torch
from float8_specification import GRID, nearest, scaled, unit
from launches import kernels_on_cpu

from helion_sinkhorn.mhc import quantized
from helion_sinkhorn.mhc.quantized import quantize

FLOOR = 1e-10


def drawn(tokens=7, columns=256, dtype=torch.bfloat16, seed=0):
    """Groups of very different sizes, and entries of many binades in each."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(tokens, columns, generator=generator, dtype=torch.float64)
    u = u * 2.0 ** torch.randint(-12, 1, (tokens, columns), generator=generator)
    return (u * 4.0 ** torch.randint(-3, 4, (tokens, 1), generator=generator)).to(dtype)


def by_groups(values, group):
    return values.double().unflatten(-1, (-1, group))


def test_the_grid_is_torch_s():
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert torch.equal(codes.double(), GRID)


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_powers_of_two_are_exact(dtype, group):
    u = drawn(dtype=dtype)
    values, scales = quantize(u, group=group, scales="e8m0")
    wanted, parts = scaled(u, group, True, FLOOR)
    assert scales.dtype == torch.float8_e8m0fnu
    assert torch.equal(scales.double(), wanted)
    assert torch.equal(by_groups(values, group), nearest(parts / wanted.unsqueeze(-1)))


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_float32_scales_round_once_and_values_to_the_nearest(dtype, group):
    """The quotient is rounded to float32 first, which may turn a tie; a float64 goes through one too."""
    u = drawn(dtype=dtype)
    values, scales = quantize(u, group=group)
    exact, parts = scaled(u, group, False, FLOOR)
    assert torch.equal(scales, exact.float())
    quotient = parts / scales.double().unsqueeze(-1)
    error = (by_groups(values, group) - quotient).abs()
    assert (error <= unit(quotient) / 2 + 2.0**-24 * quotient.abs()).all()
    differ = by_groups(values, group) != nearest(quotient)
    assert int(differ.sum()) <= 2


def test_column_layouts_hold_the_same_scales():
    for tokens in (1, 4, 7):
        u = drawn(tokens, 32 * 6)
        rows, columns = (quantize(u, group=32, layout=layout) for layout in ("row", "column"))
        assert torch.equal(columns.values.view(torch.uint8), rows.values.view(torch.uint8))
        assert torch.equal(columns.scales, rows.scales)
        padded = -(-tokens // 4) * 4
        assert rows.scales.stride() == (6, 1)
        assert columns.scales.stride() == (1, padded)
        rows, packed = (quantize(u, group=32, scales="e8m0", layout=of) for of in ("row", "column"))
        assert packed.scales.dtype == torch.int32
        assert packed.scales.shape == (tokens, 2)
        assert packed.scales.stride() == (1, padded)
        exponents = rows.scales.view(torch.uint8).tolist()
        for token, words in enumerate(packed.scales.tolist()):
            found = [word >> shift & 255 for word in words for shift in (0, 8, 16, 24)]
            assert found == [*exponents[token], 0, 0]
    batch = drawn(6, 64).view(2, 3, 64)
    scales = quantize(batch, group=32, layout="column").scales
    assert scales.stride() == (8, 1, 4)
    assert torch.equal(scales[1], quantize(batch[1], group=32).scales)


def test_the_edges_of_a_power_of_two():
    """Next to 448 times a power of two in every float32 exponent that a scale can have."""
    powers = 2.0 ** torch.arange(-40, 119, dtype=torch.float64)
    at = (448 * powers).float()
    below, above = at.nextafter(torch.tensor(0.0)), at.nextafter(torch.tensor(torch.inf))
    for u, factor in ((below, 1), (at, 1), (above, 2)):
        values, scales = quantize(u.unsqueeze(-1), group=1, scales="e8m0", floor=1e-30)
        assert torch.equal(scales.double(), factor * powers.unsqueeze(-1))
        assert (values.double() == 448 / factor).all()


def test_a_small_group_takes_the_floor_and_zeros_stay():
    u = torch.zeros(2, 64)
    u[1, 0] = 1e-12
    for floor in (1e-10, 1e-4):
        values, scales = quantize(u, group=32, floor=floor)
        assert torch.equal(scales, torch.full((2, 2), torch.tensor(floor, dtype=torch.float32) / 448))
        assert torch.equal(values[0].float(), torch.zeros(64))
        _, powers = quantize(u, group=32, scales="e8m0", floor=floor)
        assert torch.equal(powers.double(), scaled(u, 32, True, floor)[0])
    assert quantize(u, group=32).values[1, 0].float() == nearest(torch.tensor(4.48, dtype=torch.float64))


@pytest.mark.parametrize("path", ["pytorch", "kernel"])
@pytest.mark.parametrize("scales", ["float32", "e8m0"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_in_its_group(scales, bad, path, monkeypatch):
    if path == "kernel":
        kernels_on_cpu(monkeypatch, quantized.__name__)
    u = drawn(3, 96, torch.float32)
    clean = quantize(u, group=32, scales=scales)
    u[1, 40] = bad
    values, factors = quantize(u, group=32, scales=scales)
    assert values[1, 32:64].float().isnan().all()
    assert factors[1, 1].float().isnan()
    keep = torch.ones(3, 3, dtype=torch.bool)
    keep[1, 1] = False
    assert torch.equal(factors.float()[keep], clean.scales.float()[keep])
    assert torch.equal(by_groups(values, 32)[keep], by_groups(clean.values, 32)[keep])


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"group": 48}, ValueError, r"u has shape \(2, 64\); for layout='row' and group=48 pass"),
        ({"group": 0}, ValueError, "group is 0"), ({"group": 2.0}, TypeError, "group is 2.0"),
        ({"scales": "e8mo"}, ValueError, "'e8m0'"), ({"layout": "col"}, ValueError, "layout is 'col'"),
        ({"floor": 0.0}, ValueError, "floor is 0.0; pass a float from 1e-30"),
        ({"floor": "1"}, TypeError, "floor is '1'"),
        ({"u": torch.zeros(2, 64).int()}, TypeError, "u has dtype"),
        ({"u": torch.zeros(64), "layout": "column"}, ValueError, r"pass \(\.\.\., T, C\)"),
        ({"u": torch.zeros(2, 64, requires_grad=True)}, RuntimeError, r"torch\.no_grad\(\)"),
    ],
)  # fmt: skip
def test_bad_arguments(options, kind, message):
    given = {"u": torch.zeros(2, 64), "group": 32, **options}
    with pytest.raises(kind, match=message):
        quantize(given.pop("u"), **given)
