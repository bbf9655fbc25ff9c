"""Equality without a tolerance: machine code of gfx950 and gfx942 in Triton's FPSan mode, emulated."""

from __future__ import annotations

import json
import lzma
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from forked import of_ci, printed

pytest.importorskip("triton", minversion="3.9")

from ci.equal import __main__ as command
from ci.equal import compare, ring, rows, run, stored, table
from ci.equal.compare import Row
from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.workloads import WORKLOADS
from helion_sinkhorn.runtime.kernel import Choice, default_choice

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = sorted((ROOT / "docs" / "equal").glob("*.json"))


def test_an_architecture_is_equal_in_every_bit_to_what_is_committed_of_both():
    """The update of the streams; the nightly workflow compares every kernel of each device."""
    words = "--devices", "mi350", "--used", "--workloads", "hc_post_odd:out"
    said = printed("-m", "ci.equal", *words, **of_ci())
    for key in ("mi350", "mi300x"):
        assert f"mi350, emulated and {key}, emulated, committed: 1 of 1 results are equal" in said
    assert "mi350, emulated: 1 results; all equal" in said


@pytest.mark.nightly("runs the gate on a hundred faults")
def test_every_fault_is_found_by_equality_or_by_the_gate():
    printed("-m", "ci.equal.faults", **of_ci())


def test_one_digest_that_differs_is_named():
    a, b = (Row("w", "P", (), digest, 2) for digest in "ab")
    other = Row("w", "P", ("pivot",), "c", 1)
    assert compare.differences({"one": [a, other], "two": [a]}) == []
    (sentence,) = compare.differences({"one": [a, other], "two": [b]})
    assert sentence == "w: P differs: a by one (2 configs); b by two (2 configs)"
    # two configs of one device, none of which is in a class of its own
    assert len(compare.differences({"one": [a, b]})) == 1


def test_a_result_that_is_one_number_everywhere_is_no_evidence():
    varied, zeros = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.zeros(2, 2)
    digests = [run.digest(t) for t in (varied, varied.mT.contiguous(), torch.zeros(1))]
    assert len({*digests, run.ONE_NUMBER}) == 4
    assert run.digest(zeros) == run.digest(torch.full((2, 2), torch.nan)) == run.ONE_NUMBER
    made = [run.Made("w", of, (), run.digest(t), ()) for of, t in (("u", zeros), ("v", varied))]
    with (
        mock.patch.object(rows.run, "on_gpu", return_value=nullcontext("cpu")),
        mock.patch.object(rows, "device_of", return_value=None),
        mock.patch.object(rows, "of_workload", return_value=iter(made)),
    ):
        recorded, failed, _ = rows.of_part(None, "w", True, Path())
    assert recorded == made
    assert [sentence[:24] for sentence in failed] == ["w: u is one number every"]


@pytest.mark.parametrize(
    ("digests", "code", "verdict"),
    [
        (["a"], 0, "1 results; all equal"),
        (["a", "b"], 1, "1 results; 1 are wrong"),
        (["one number"], 1, "0 results; nothing was compared"),
        (["a", "one number"], 1, "1 results; 1 are wrong"),
        ([], 1, "0 results; nothing was compared"),
    ],
)
def test_the_exit_status_is_the_verdict(digests, code, verdict, tmp_path, monkeypatch, capsys):
    made = [Row("stored n=4", "P", (), digest, 1) for digest in digests]
    words = ["ci.equal", "--devices", "mi350", "--stored", "hc_post_forward", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    with mock.patch.object(command.rows, "of_device", return_value=(made, [])):
        assert command.main() == code
    assert capsys.readouterr().out.endswith(f"mi350, emulated: {verdict}\n")


def test_other_results_stay_in_a_file(tmp_path):
    path = tmp_path / "h100.json"
    old, new = Row("w", "P", ("pivot",), "a", 2), Row("w", "P", (), "c", 3)
    kept = [Row("v", "dX", ("lean",), "b", 1), Row("w", "dX", (), "d", 1)]
    compare.write(path, {"device": {"key": "h100"}}, [old, *kept])
    compare.write(path, {"device": {"key": "h100"}}, [new])
    assert compare.read(path) == ({"device": {"key": "h100"}}, [kept[0], new, kept[1]])


def test_a_result_that_no_kernel_made_is_refused():
    # on the tensors of a CPU, where nothing is emulated, hc_boundary's public function takes its own path
    with (
        mock.patch("ci.equal.run.as_called", return_value={}),
        pytest.raises(ValueError, match="no kernel was launched for boundary post"),
    ):
        next(run.made(WORKLOADS["hc_site_unused_pre"], frozenset({"boundary post"}), "cpu", used=True))


def test_a_config_does_not_see_what_another_wrote_over_and_all_that_it_wrote_is_compared():
    operands = [torch.arange(8.0), None, torch.zeros(8)]
    choice = SimpleNamespace(kernel="balance_columns")

    def digests(factor, constant):
        def launched(call, choice, t, absent, result):
            t.mul_(factor)
            return result.fill_(constant)

        trial = SimpleNamespace(run=launched)
        return {m.of: m.digest for m in stored.of_choice(trial, None, None, choice, "", operands)}

    assert digests(2, 1.0) == digests(2, 1.0)
    # the returned tensor is one number, and what was written beside it shows the kernel
    assert digests(2, 1.0).keys() == {"balance_columns operands"}
    assert digests(2, 1.0) != digests(3, 1.0)
    assert digests(2, 1.0) != digests(2, 4.0)
    assert digests(1, 0.0) == {"balance_columns": "one number"}


def test_every_stored_config_and_the_default_are_run_in_the_calls_they_are_stored_for():
    for key, name in (("h200", "hc_pre_forward"), ("mi350", "sinkhorn_forward")):
        device, kernel = DEVICES[key], KERNELS[name]
        choices = stored.choices(name, device)
        entries = [e for folder in store.folders() for e in store.read(folder, key, name)]
        assert {(e.key, e.config, e.variant) for e in entries} <= {
            (call, c.config, c.variant) for call, configs in choices.items() for c in configs
        }
        for call, configs in choices.items():
            assert configs[0] == default_choice(kernel, kernel.call.of(call), device)
            assert len({(c.config, c.variant) for c in configs}) == len(configs)


def test_configs_whose_parts_or_blocks_are_others_are_not_compared():
    """On an H200 17 results differed by these alone: parts of 4 or 8 rows, fn of all streams or of each."""

    def choice(kernel, block, **variant):
        return Choice(kernel, (("block_sizes", (block,)),), tuple(variant.items()), "")

    key = (("n", 4),)
    for kernel, variants in (
        ("hc_boundary_backward", ({"together": True}, {"together": False})),
        ("sinkhorn_large_step", ({"rows": 4}, {"rows": 8})),
    ):
        assert len({stored.named(key, choice(kernel, 64, **v)) for v in variants}) == 2
        assert len({stored.named(key, choice(kernel, block, **variants[0])) for block in (32, 64)}) == 1
    assert stored.named(key, choice("sinkhorn_forward", 64, paired=True)) == stored.named(key)
    wide = "sinkhorn_large_wide_first"
    assert table.classes_of(None, choice(wide, 1024)) != table.classes_of(None, choice(wide, 2048))
    first = "sinkhorn_large_first"
    assert table.classes_of(None, choice(first, 2, rows=8)) == ["blocks 2 8"]
    assert table.classes_of(None, choice("sinkhorn_large_step", 2, rows=8)) == []


@pytest.mark.parametrize("path", COMMITTED, ids=lambda p: p.stem)
def test_committed_results_are_equal_and_say_what_is_emulated(path):
    by_device = {p.stem: compare.read(p) for p in COMMITTED}
    assert compare.differences({key: results for key, (_, results) in by_device.items()}) == []
    about, results = by_device[path.stem]
    assert about["device"]["emulated"] is (path.stem in ("mi350", "mi300x"))
    assert about["versions"]["triton"].startswith("3.9")
    names = {text.partition(":")[0] for of in table.WORKLOADS.values() for text in of}
    assert {r.workload for r in results} <= names <= WORKLOADS.keys()
    assert {c.split()[0] for r in results for c in r.classes} <= {c.name for c in table.CLASSES}


def test_no_kernel_has_an_instruction_or_a_function_that_the_mode_does_not_see():
    instructions, functions = set(), set()
    for path in (ROOT / "helion_sinkhorn" / "programs").glob("*.xz"):
        for text in json.loads(lzma.decompress(path.read_bytes()))["texts"]:
            instructions |= set(re.findall(r"inline_asm_elementwise\(['\"](\S+)", text))
            functions |= set(re.findall(r"libdevice\.(\w+)\(", text))
    assert instructions
    assert [i for i in instructions if not any(re.fullmatch(known, i) for known in ring.INSTRUCTIONS)] == []
    assert functions == {*ring.EXTERNAL}


def test_an_unknown_instruction_is_refused():
    with pytest.raises(ValueError, match="does not see through the inline instruction 'ex2"):
        ring.visible("ex2.approx.f32 $0, $1;", "=f,f", [None], None, True, 1)


def test_a_mass_of_one_leaves_elements_that_look_like_nan_as_they_are():
    """NVIDIA's addition makes any NaN 0x7fffffff, a CPU's keeps its payload and makes it quiet; and neither
    keeps the sign of zero.  One of 132 elements in large_rows is NaN."""
    bits = torch.tensor([0x7F812345, -0x80000000, 0x3F800000], dtype=torch.int32)
    f, zero = bits.view(torch.float32), torch.zeros(3)
    assert not torch.equal((f + zero).view(torch.int32), bits)
    for mass in (None, zero, -zero):
        assert torch.equal(ring.times_one(f, mass).view(torch.int32), bits)
    with pytest.raises(ValueError, match=r"the logarithm of the mass is tensor\(\[1., 0., 0.\]\)"):
        ring.times_one(f, torch.tensor([1.0, 0.0, 0.0]))
