"""Stored configs whose values no kernel takes: valid JSON, and a launch would not notice."""

from __future__ import annotations

import json
import logging
import re

import pytest
from stored import write

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.tuning import check as cache
from helion_sinkhorn.runtime import launch as door

pytestmark = pytest.mark.usefixtures("fresh_caches")
DEVICE = DEVICES["h200"]
SHIPPED = store.folders()[-1]
OPTIONAL = {"loop_orders", "load_eviction_policies"}
"""Settings without which a config is another one of its space."""
WRONG = (-4, 0, 11, 1 << 40, True, 4.0, 0.5, "4", None, [], [5])


def shipped(kernel):
    """What the file of a kernel holds."""
    return json.loads((SHIPPED / DEVICE.key / f"{kernel}.json").read_text())


def changes(given):
    """Copies of an entry with one value wrong, missing or unknown."""
    for part in ("config", "variant"):
        right = given[part]
        yield {**given, part: {**right, "unknown": 1}}
        for name, value in right.items():
            if name not in OPTIONAL:
                yield {**given, part: {k: v for k, v in right.items() if k != name}}
            for wrong in WRONG:
                # a flag the other way round is another config of the space
                another_flag = isinstance(value, bool) and wrong is True
                if not another_flag and (type(wrong), wrong) != (type(value), value):
                    yield {**given, part: {**right, name: wrong}}


@pytest.mark.parametrize("kernel", sorted({p.stem for p in (SHIPPED / "h200").glob("*.json")} & {*KERNELS}))
def test_a_value_outside_of_the_kernel_s_space_is_one_warning_and_the_default(
    kernel, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(store, "folders", lambda: [tmp_path])
    first = shipped(kernel)["entries"][0]
    call, batch = KERNELS[kernel].call.of(store.key_of(first["key"])), first["key"]["batch"]

    def served():
        door.forget()
        return [door.choose(KERNELS[kernel], call, b, DEVICE) for b in (batch, batch + 1, batch)]

    path = write(tmp_path, [first], kernel=kernel)
    assert all(choice.stored for choice in served())
    for wrong in changes(first):
        write(tmp_path, [wrong], kernel=kernel)
        caplog.clear()
        assert {choice.source for choice in served()} == {"the kernel's default"}, wrong
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert str(path) in record.getMessage()
        assert "`make tune` tries no such config" in record.getMessage()


@pytest.mark.parametrize(
    ("kernel", "part", "change", "said"),
    [
        ("linear_attention_chunk_walk", "variant", {"columns": -4}, r"tries no such config .*\bcolumns=-4\b"),
        ("sinkhorn_forward", "key", {"rows": 4}, "sinkhorn_forward is not looked up by"),
        ("sinkhorn_forward", "key", {"form": None}, "sinkhorn_forward is not looked up by"),
        ("dot_compress_apply", "key", {"n": 4}, "dot_compress_apply is not looked up by"),
        ("linear_attention_chunk_walk", "key", {"gates": None}, "chunk_walk is not looked up by"),
    ],
)
def test_check_names_what_is_wrong_with_an_entry(kernel, part, change, said, tmp_path):
    data = shipped(kernel)
    values = {**data["entries"][0][part], **change}
    data["entries"][0][part] = {name: value for name, value in values.items() if value is not None}
    write(tmp_path, [], kernel=kernel).write_text(json.dumps(data))
    assert sum(re.search(said, line) is not None for line in cache.complaints(tmp_path)) == 1
