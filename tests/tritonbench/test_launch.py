"""How a command of tritonbench_ops ends, under the stub: refused at once, run in turn, with what status."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from planted import ROOT, STUB, statuses, under

from helion_sinkhorn.ops.sinkhorn import api
from tritonbench_ops import flags, launch
from tritonbench_ops import verdict as gate

SMALL = "--op sinkhorn --device cpu --batch 50 --n 4 --n-iters 3 --warmup 1 --rep 1"
MODULE = "-m", "tritonbench_ops"
HERE = {"cwd": STUB, "path": [STUB, ROOT]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--op sinkhron", "is it sinkhorn?"),
        ("--op sinkhorn --mode fdw", "fwd_no_grad"),
        ("--op sinkhorn --n 0", "int of at least 1"),
        ("--op sinkhorn --formm log", "is it --form?"),
        ("--op Sinkhorn --input-idd 3", "is it --input-id?"),
        ("--op sinkhorn --plugin a.b", "--plugin is a flag neither of the operator nor of this tritonbench"),
        ("--op sinkhorn,dot_compress --n 4", "--op dot_compress: error: --n is"),
        ("--op recurrent_linear_attention --gates gq", "g g_gamma gk gv"),
        *((f"--op {name} --nonsense 1", "--nonsense is a flag neither") for name in flags.NAMES),
    ],
)
def test_a_typo_is_said_before_torch_is_imported(words, said, without_torch):
    done = without_torch(*MODULE, *words.split(), **HERE)
    assert "torch was imported" not in done.stderr
    assert said in done.stderr
    assert done.returncode == 2


def test_what_a_command_may_say_reaches_torch(without_torch):
    """Flags of run.py, of either year, values that begin with a flag, and the operator's own."""
    words = [*SMALL.split(), "--iter=3", "--side-a", "--form deepseek", "--side-b", "--form log"]
    assert without_torch(*MODULE, *words, **HERE).stderr == "torch was imported\n"


def test_an_absent_or_old_tritonbench_is_said_in_one_sentence(tmp_path, without_torch):
    old = tmp_path / "old" / "tritonbench" / "utils"
    old.mkdir(parents=True)
    (old / "parser.py").write_text('parser.add_argument("--op")\n')
    for folder, said in ((tmp_path, "there is no tritonbench"), (old.parents[1], "before 14 August 2025")):
        done = without_torch(*MODULE, "--op", "sinkhorn", cwd=tmp_path, path=[folder, ROOT])
        assert done.returncode == 1
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


def test_the_forms_are_those_of_the_function():
    assert (flags.FORMS, flags.FIRSTS) == (api.FORMS, api.FIRSTS)


@pytest.mark.parametrize(("year", "chosen"), [("2025", "--input-id 99"), ("2026", "--input-id 1")])
def test_a_run_without_an_input_fails(year, chosen):
    words = f"{SMALL} --only helion_sinkhorn {chosen}".split()
    done = under(STUB, *MODULE, *words, **{f"STUB_OF_{year}": "1"})
    assert done.returncode == 1
    assert "no input was chosen" in done.stdout + done.stderr


WRONG = """
import dataclasses
from tritonbench_ops.sinkhorn.backends import BACKENDS
row = BACKENDS["helion_sinkhorn"]
wrong = lambda *call: (lambda forward=row.build(*call): 1.1 * forward())
BACKENDS["wrong_value"] = dataclasses.replace(row, build=wrong)
"""


def test_a_prefix_names_what_can_run_here():
    """helion_default is for GPUs alone, and the implicit gradients are others on purpose."""
    begins = {"helion": 0, "eager,helion_sinkhorn": 0, "helion_default": 1, "wrong": 1, "helion,wrong": 1}
    mode = ["--only-match-mode", "prefix-with-baseline", "--mode", "bwd"]
    assert statuses(WRONG, [[*SMALL.split(), "--only", only, *mode] for only in begins]) == [*begins.values()]


def test_a_baseline_that_is_tested_late_spoils_no_other():
    """Without a metric of eager alone it is tested when the next backend has left its last gradients."""
    words = [*SMALL.split(), "--mode", "bwd", "--only", "helion_sinkhorn", "--metrics", "latency,accuracy"]
    assert statuses("", [words]) == [0]


def test_counting_inputs_draws_none():
    """Inputs of dot_compress are gigabytes: what is drawn is what runs."""
    code = "import sys; from tritonbench_ops.dot_compress import cases as parts; drawn = []\n"
    code += "make = parts.DotWorkload.make_inputs\n"
    code += "parts.DotWorkload.make_inputs = lambda self, **o: drawn.append(self.batch) or make(self, **o)\n"
    code += "from tritonbench_ops.launch import run; run(sys.argv[1:]); print('drawn', drawn)"
    words = "--op dot_compress --device cpu --m 20 --d 16 --k 16 --num-inputs 1 --only helion_dot_compress"
    for year in ("STUB_OF_2025", "STUB_OF_2026"):
        done = under(STUB, "-c", code, *words.split(), "--metrics", "latency,accuracy", **{year: "1"})
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].count(",") == 0, done.stdout


@pytest.mark.parametrize("name", flags.NAMES)
def test_a_cpu_gets_sizes_that_it_finishes_and_none_for_operators_of_tritonbench(name):
    words = launch.sizes_on_a_cpu([name], ["--op", name, "--mode", "bwd"])
    own = flags.parser(name)
    assert own.parse_args(words) != own.parse_args([])
    assert launch.sizes_on_a_cpu([name], [f"{words[0]}=3"]) == ()
    assert launch.sizes_on_a_cpu(["softmax"], []) == launch.sizes_on_a_cpu([], []) == ()


def test_operators_run_in_turn_and_each_counts(monkeypatch):
    ends = {"sinkhorn": 0, "hc_pre": -9, "hc_post": 3}
    began = []

    def call(command, env):
        began.append(command)
        assert env["PYTHONPATH"].split(os.pathsep)[:2] == [str(STUB), str(ROOT)]
        return ends[command[command.index("--op") + 1]]

    monkeypatch.setattr(launch.subprocess, "call", call)
    monkeypatch.syspath_prepend(str(STUB))
    words = ["--device", "cpu", "--op=sinkhorn, HC_pre,hc_post", "--isolate"]
    with pytest.raises(SystemExit, match=r"^--op hc_pre was killed by SIGKILL, --op hc_post ended with 3$"):
        launch.run(words)
    common = [sys.executable, "-m", "tritonbench_ops", "--op"]
    assert began == [[*common, name, "--device", "cpu"] for name in ends]
    launch.run(["--op", "sinkhorn", "--isolate"])


@pytest.mark.parametrize(
    ("text", "runs", "why"),
    [
        ("", 1, "reported no result"),
        ("ended 0\n", 1, ""),
        ("ended 2\n", 1, "2 failures"),
        ("ended 0\n", 2, "1 of the runs"),
        ("begun\nbegun\nended 0\n", 1, "1 of the runs"),
        ("begun\nbegun\nended 0\nended 1\n", 1, "1 failures"),
        ("begun\nbegun\nended 0\nended 0\n", 1, ""),
    ],
)
def test_every_run_has_to_report(tmp_path: Path, text, runs, why):
    path = tmp_path / "verdicts"
    path.write_text(text)
    verdict = gate.verdict(str(path), runs)
    assert why in verdict
    assert bool(verdict) is bool(why)
