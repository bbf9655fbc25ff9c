"""What computes a call of an operator: its launcher, or PyTorch."""

from __future__ import annotations

import pytest
import torch

from helion_sinkhorn.runtime.torch_op import Implementations


def test_a_launcher_that_cannot_be_imported_says_why(tmp_path, monkeypatch):
    (tmp_path / "a_launcher.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        _ = Implementations("a_launcher").launcher


def test_an_unknown_implementation_is_not_pytorch():
    q = torch.zeros(1, 2, 1, 4)
    call = torch.ops.helion_sinkhorn.recurrent_linear_attention
    with pytest.raises(KeyError, match="chunkd"):
        call(q, q, q, None, None, None, None, 1.0, None, False, None, "chunkd")
