"""What the command line says to no command, and to names that nothing has."""

from __future__ import annotations

import pytest

from helion_sinkhorn.__main__ import main
from helion_sinkhorn.operators import KERNELS


def test_without_a_command_the_commands_are_listed(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out
    for command in ("tune", "show", "check", "readme", "env"):
        assert f"\n    {command} " in listed


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["show", "--device", "h200", "--tags", "nope"], ["'nope'", "bench, ci, implicit, stress, tune"]),
        (["show", "--device", "h200", "--only", "log_4x4_f32"], ["'log_4x4_f32'", "log_4x4_fp32_b128"]),
        (["show", "--device", "h2"], ["'h2'", "h200", "mi355x"]),
        (["tune", "--device", "h200", "--offline", "--tags", "nope"], ["bench, ci, implicit, stress, tune"]),
        (["tune", "--device", "h200", "--offline", "--kernel", "sinkhorn"], list(KERNELS)),
        (
            ["tune", "--device", "h200", "--offline", "--kernel", "hc_pre_forward", "--only", "deepseek"],
            ["hc_pre_forward"],
        ),
    ],
)
def test_an_unknown_name_ends_with_2_and_the_known_ones(words, named, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    said = capsys.readouterr()
    assert not said.out
    assert all(name in said.err for name in named)
