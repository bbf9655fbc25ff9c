"""Examples of docs/mhc.md and of the README run, and say what they print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from autograd_calls import randn

from helion_sinkhorn import hc_post, nn

ROOT = Path(__file__).parents[2]
MHC = (ROOT / "docs" / "mhc.md").read_text()


def examples(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page, re.S | re.M)


def commented(example: str) -> str:
    """The lines of a comment at the end."""
    lines = example.rstrip().splitlines()
    first = max(i for i, line in enumerate(lines) if not line.startswith("# ")) + 1
    return "\n".join(line[2:] for line in lines[first:])


@pytest.mark.parametrize("page", ["docs/mhc.md", "README.md"])
def test_the_first_example_prints_what_it_says(page, capsys):
    example = examples((ROOT / page).read_text())[0]
    exec(compile(example, page, "exec"), {})
    assert capsys.readouterr().out.strip() == commented(example)


def test_other_examples_compile():
    assert len(examples(MHC)) == 4
    for example in examples(MHC):
        compile(example, "docs/mhc.md", "exec")


def test_bytes_kept_for_a_token_are_those_of_the_table():
    n, c, tokens = 4, 64, 512
    site = nn.HyperConnection(c, n)
    x, f = (randn(tokens, *shape, dtype=torch.bfloat16).requires_grad_() for shape in ((n, c), (c,)))
    kept = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        post, comb, _ = site(x)
        hc_post(f, x, post, comb)
    for parameter in site.parameters():
        kept.pop(parameter.untyped_storage().data_ptr())
    assert sum(kept.values()) / tokens == 2 * n * c + 2 * c + 96 + 8 + 96
