"""Stored configs whose values no kernel takes: valid JSON, and a launch would not notice."""

from __future__ import annotations

import json
import logging

import pytest
import torch

from helion_sinkhorn.configs import lookup, store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.tuning import check as cache
from helion_sinkhorn.ops.dot_compress import launch as dot_compress_launch
from helion_sinkhorn.ops.dot_compress.space import DotCall
from helion_sinkhorn.runtime import choices
from helion_sinkhorn.runtime import launch as door

pytestmark = pytest.mark.usefixtures("fresh_caches")
DEVICE = DEVICES["h200"]
SHIPPED = store.folders()[-1]
OPTIONAL = {"loop_orders", "load_eviction_policies"}
"""Settings without which a config is another one of its space."""
WRONG = (-4, 0, 11, 1 << 40, True, 4.0, 0.5, "4", None, [], [5])


def write(folder, kernel, *entries):
    path = folder / DEVICE.key / f"{kernel}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        json.dumps({"schema": 1, "kernel": kernel, "device": {"key": "h200"}, "entries": entries})
    )
    return path


def shipped_entries(kernel):
    return json.loads((SHIPPED / DEVICE.key / f"{kernel}.json").read_text())["entries"]


def changes(entry):
    """Copies of an entry with one value wrong, missing or unknown."""
    for part in ("config", "variant"):
        right = entry[part]
        yield {**entry, part: {**right, "unknown": 1}}
        for name, value in right.items():
            if name not in OPTIONAL:
                yield {**entry, part: {k: v for k, v in right.items() if k != name}}
            for wrong in WRONG:
                # a flag the other way round is another config of the space
                another_flag = isinstance(value, bool) and wrong is True
                if not another_flag and (type(wrong), wrong) != (type(value), value):
                    yield {**entry, part: {**right, name: wrong}}


@pytest.mark.parametrize(
    "kernel", sorted(p.stem for p in (SHIPPED / "h200").glob("*.json") if p.stem in KERNELS)
)
def test_a_value_outside_of_the_kernel_s_space_is_one_warning_and_the_default(
    kernel, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(store, "folders", lambda: [tmp_path])
    entry = shipped_entries(kernel)[0]
    key = store.key_of(entry["key"])
    call, batch = KERNELS[kernel].call.of(key), entry["key"]["batch"]

    def served():
        for cached in (store.read, lookup.lookup, door.choose):
            cached.cache_clear()
        return [door.choose(KERNELS[kernel], call, b, DEVICE) for b in (batch, batch + 1, batch)]

    path = write(tmp_path, kernel, entry)
    assert all(choice.stored for choice in served())
    for wrong in changes(entry):
        write(tmp_path, kernel, wrong)
        choices.refused.clear()
        caplog.clear()
        assert {choice.source for choice in served()} == {"the kernel's default"}, wrong
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert str(path) in record.getMessage()
        assert "`make tune` tries no such config" in record.getMessage()


@pytest.mark.parametrize("name", ["block_d", "rows"])
def test_a_call_with_a_negative_stored_value_is_right(name, tmp_path, monkeypatch):
    call = DotCall("float32", 64, 16, 16, 1)
    config, variant = KERNELS["dot_compress_apply"].default(call, DEVICE)
    entry = {
        "key": {**dict(call.key), "batch": 2}, "config": dict(config),
        "variant": {**dict(variant), name: -4}, "evidence": "measured",
    }  # fmt: skip
    write(tmp_path, "dot_compress_apply", entry)
    monkeypatch.setattr(store, "folders", lambda: [tmp_path])
    x, y = torch.randn(2, 64, 16), torch.randn(2, 64, 16)
    out, _ = dot_compress_launch.forward(x, y, None, 1)
    torch.testing.assert_close(out, x @ (x.mT @ y), rtol=1e-5, atol=1e-4)


def test_check_names_the_value(tmp_path):
    pytest.importorskip("jsonschema")
    shipped = json.loads((SHIPPED / "h200" / "linear_attention_chunk_walk.json").read_text())
    name = next(iter(shipped["entries"][0]["variant"]), None) or pytest.fail(
        "an entry with a variant is needed"
    )
    shipped["entries"][0]["variant"][name] = -4
    path = tmp_path / "h200" / "linear_attention_chunk_walk.json"
    path.parent.mkdir()
    path.write_text(json.dumps(shipped))
    found = [line for line in cache.complaints(tmp_path) if "tries no such config" in line]
    assert len(found) == 1
    assert f"{name}=-4" in found[0]


@pytest.mark.parametrize(
    ("kernel", "change"),
    [
        ("sinkhorn_forward", {"rows": 4}),
        ("sinkhorn_forward", {"form": None}),
        ("dot_compress_apply", {"n": 4}),
        ("linear_attention_chunk_walk", {"gates": None}),
    ],
)
def test_check_names_a_key_that_is_not_its_kernel_s(kernel, change, tmp_path):
    pytest.importorskip("jsonschema")
    data = json.loads((SHIPPED / "h200" / f"{kernel}.json").read_text())
    key = data["entries"][0]["key"]
    for name, value in change.items():
        key[name] = value
        if value is None:
            del key[name]
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / f"{kernel}.json").write_text(json.dumps(data))
    assert any(f"{kernel} is not looked up by" in line for line in cache.complaints(tmp_path))
