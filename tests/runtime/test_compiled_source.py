"""A changed gradient of ours reaches users whose cache of torch.compile is warm."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from autograd_calls import randn, value_and_gradient
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from helion_sinkhorn import sinkhorn
from helion_sinkhorn.ops.sinkhorn import torch_op
from helion_sinkhorn.runtime import compiled_source


def test_another_source_takes_nothing_from_the_cache(monkeypatch):
    """The old gradient is found again by the old source alone."""
    x, dp = randn(3, 4, 4), randn(3, 4, 4, seed=1)
    expected = value_and_gradient(sinkhorn, x, dp)[1]
    backward = torch_op.apply_backward

    def compiled():
        torch._dynamo.reset()
        counters.clear()
        gradient = value_and_gradient(torch.compile(sinkhorn, fullgraph=True), x, dp)[1]
        return gradient, counters["aot_autograd"]["autograd_cache_hit"]

    # no C++ compiler is asked for its instruction sets: the graph is of our operators alone
    with fresh_cache(), torch._inductor.config.patch({"compile_threads": 1, "cpp.vec_isa_ok": False}):
        gradient, hits = compiled()
        assert torch.equal(gradient, expected)
        assert hits == 0
        assert compiled()[1] == 1
        monkeypatch.setattr(torch_op, "apply_backward", lambda *given: 2 * backward(*given))
        monkeypatch.setattr(compiled_source, "sources", lambda: "another")
        gradient, hits = compiled()
    torch.testing.assert_close(gradient, 2 * expected)
    assert hits == 0


def test_the_digest_is_of_every_source_that_makes_a_gradient(monkeypatch, tmp_path):
    package = Path(compiled_source.__file__).parent.parent
    for folder in ("ops", "runtime"):
        shutil.copytree(package / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.json", "*.pyc"))
    monkeypatch.setattr(compiled_source, "_PACKAGE", tmp_path)
    digests = [compiled_source.sources(), compiled_source.sources.__wrapped__()]
    assert digests[0] == digests[1]
    for changed in ("ops/mhc/post/torch_op.py", "ops/mhc/site/boundary/torch_op.py", "runtime/gradients.py"):
        (tmp_path / changed).write_text("# another\n")
        digests.append(compiled_source.sources.__wrapped__())
    assert len({*digests}) == 4
