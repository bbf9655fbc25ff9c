"""The errors of the command line for a missing command and unknown names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helion_sinkhorn.__main__ import main
from helion_sinkhorn.lab.operators import KERNELS

COMMANDS = "tune, show, check, readme, warm, env"
TAGS = "one of bench, ci, implicit, scaled, stress, tune"


def test_without_a_command_the_commands_are_listed(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out
    for command in COMMANDS.split(", "):
        assert f"\n    {command} " in listed
    assert "Find the fastest configs" in listed


@pytest.mark.parametrize("command", COMMANDS.split(", "))
def test_help_explains(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"usage: python -m helion_sinkhorn {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("show --device h200 --tags nope", ["'nope'", TAGS]),
        ("show --device h200 --only log_4x4_f32", ["'log_4x4_f32'", "\n  log_4x4_fp32_b128"]),
        ("show --device h200 --only _4x4_fp32,nope", ["'nope'"]),
        ("show --device h2", ["'h2'", "h200", "mi355x"]),
        ("tune --device h200 --tags nope", [TAGS]),
        ("tune --device h200 --offline --kernel sinkhorn", ["\n  sinkhorn_forward\n"]),
        ("tune --device h200 --kernel hc_pre_foward", ["\n  hc_pre_forward\n"]),
        ("show --tags tuen", [f"use {TAGS}; the nearest is tune"]),
        ("shwo", [f"'shwo' is not known; use one of {COMMANDS}; the nearest is show"]),
        ("tune --device h200 --offline --kernel hc_pre_forward --only deepseek", ["hc_pre_forward"]),
        # names before the GPU that is not here
        ("show --tags nope", ["'nope'"]),
        ("tune --kernel nope", ["'nope'", *[f"\n  {name}" for name in KERNELS]]),
        ("warm --op nope", ["'nope'", "hc_site"]),
        # and the GPU then
        ("show", ["show: no GPU here", "--device", "mi355x"]),
        ("warm --op sinkhorn", ["warm: no GPU here", "--device", "mi355x"]),
        ("tune --device h200 --budget -3", ["--budget is -3; pass seconds > 0"]),
        ("tune --device h200 --budget nan", ["--budget is nan; pass seconds > 0"]),
        ("tune --device h200 --workers -1", ["--workers is -1; pass an int of at least 1"]),
        (f"tune --device h200 --out {__file__}", [f"--out is {__file__}, which is no folder"]),
        ("check --workers 0", ["--workers is 0; pass an int of at least 1"]),
        ("check --out /nonexistent", ["--out is /nonexistent, which is no folder"]),
        (f"check --out {Path(__file__).parent}", ["holds no tuning file"]),
        ("readme --out /nonexistent", ["--out is /nonexistent, which is no folder"]),
        ("show --device h200 --only nothing", ["names look like deepseek_4x4_fp32_b128 and "]),
    ],
)
def test_what_it_does_not_take_ends_with_2_and_what_it_takes(words, named, monkeypatch, refused):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = refused(*words.split())
    assert all(name in said for name in named)
    # nothing is near a name that resembles none
    assert "nothing" not in words or "nearest" not in said


def test_several_parts_of_names_are_asked_for_with_commas(capsys):
    names = ["deepseek_4x4_fp32_b128", "hc_pre_bf16_c4096_b128"]
    assert main(["show", "--device", "h200", "--only", ",".join(names)]) == 0
    shown = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if "_b128: " in line]
    assert sorted({*shown}) == names
