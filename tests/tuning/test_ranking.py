"""Ranking without the device: the score, what is picked by it, what is written, and whether that pays."""

from __future__ import annotations

import json
import statistics

import pytest
import stored

from helion_sinkhorn.__main__ import main
from helion_sinkhorn.configs import lookup, store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Binary, Job
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.tuning import compilation, ranking, writer
from helion_sinkhorn.lab.tuning.groups import Group, choice_of, groups_of, jsonable, same
from helion_sinkhorn.lab.tuning.options import Options
from helion_sinkhorn.lab.tuning.provenance import device_block, provenance
from helion_sinkhorn.lab.tuning.ranking import calibration, offline
from helion_sinkhorn.lab.tuning.ranking.score import chosen, executed, loops_of, pick, score
from helion_sinkhorn.lab.workloads import WORKLOADS
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime.kernel import Choice, candidates

CALL = SinkhornCall(True, 1, "float32", 4, 4, 20)
VARIANT = (("thread", (4, 4)), ("paired", False))
LOOP = {"instructions": 49, "fma": 40, "reciprocal": 8, "branch": 1}
COUNTS = {
    "instructions": 250, "fma": 80, "mul": 40, "reciprocal": 20, "exp": 16, "global load": 4,
    "global load 128": 4, "global store": 4, "global store 128": 4,
}  # fmt: skip


def binary(block=32, warps=1, device="h200", call=CALL, kernel="sinkhorn_forward", variant=VARIANT, **fields):
    config = ("block_sizes", (block,)), ("num_warps", warps)
    row = {"threads": warps * DEVICES[device].warp_size, "occupancy": 32, "registers": 46, "counts": COUNTS}
    return Binary(
        device, Job(call, Choice(kernel, config, variant, "")), **{**row, "loops": (LOOP,), **fields}
    )


def test_unrolling_by_the_compiler_changes_nothing():
    # two iterations in the body and the one left over outside: the same 19
    twice = {name: 2 * number for name, number in LOOP.items()}
    counts = {name: number + 2 * LOOP.get(name, 0) for name, number in COUNTS.items()}
    rolled = executed(binary(), 16)
    unrolled = executed(binary(counts=counts, loops=(twice,)), 16)
    assert unrolled["fma"] == rolled["fma"]
    assert unrolled["reciprocal"] == rolled["reciprocal"]


def test_reciprocals_of_a_compiled_kernel_are_those_of_the_equations(compile_for):
    """4 rows and 4 columns in the first iteration, 8 in each of the other 19, however loops are unrolled."""
    pytest.importorskip("triton")
    variant = (*VARIANT, ("pivoted", False), ("ordered", False))
    (compiled,) = compile_for("h200", [binary(variant=variant).job])
    assert executed(compiled, entries=16)["reciprocal"] == 8 * 20


@pytest.mark.parametrize("batch", [128, 1 << 20])
@pytest.mark.parametrize("device", ["h200", "b200", "mi350"])
@pytest.mark.parametrize(
    ("of", "count"), [("instructions", 5000), ("cross-lane", 900), ("exp", 900), ("barrier", 400)]
)
def test_more_work_never_scores_better(of, count, device, batch):
    good = binary(device=device, block=64)
    bad = binary(device=device, block=64, counts={**COUNTS, of: count})
    if of == "barrier" and batch > 128:
        assert score(bad, batch) >= score(good, batch)
    else:
        assert score(bad, batch) > score(good, batch)


def test_few_warps_at_a_time_do_not_hide_their_latency():
    assert score(binary(occupancy=1), 1 << 20) > 2 * score(binary(occupancy=32), 1 << 20)


def test_cycles_grow_with_the_batch():
    scores = [score(binary(), 1 << k) for k in (7, 13, 17, 20)]
    assert scores == sorted(scores)
    assert scores[3] / scores[2] == pytest.approx(8, rel=0.05)


def test_the_pick_is_sound_and_clearly_better():
    slow, fast = {**COUNTS, "instructions": 2000}, {**COUNTS, "instructions": 100}
    default, better = binary(counts=slow), binary(64, counts=fast)
    spilling = binary(64, counts={**fast, "instructions": 1}, problems=("spills 4",))
    assert pick([default, spilling, better], 1 << 20)[0] is better
    # within the margin the default stays
    barely = binary(counts={**slow, "instructions": 1950})
    kept, own, reference = pick([default, barely], 1 << 20)
    assert kept is default
    assert own == reference


def test_neither_more_warps_for_a_matrix_are_chosen_nor_less_than_a_quarter_less():
    alone = {"num_warps": 1, "thread": (0, 0)}
    assert chosen([100.0, 10.0, 60.0], [alone, {**alone, "num_warps": 4}, alone]) == 2
    assert chosen([100.0, 10.0, 60.0], [alone, {"num_warps": 4, "thread": (4, 4)}, alone]) == 1
    assert chosen([100.0, 10.0], [{**alone, "num_warps": 8}, {**alone, "num_warps": 4}]) == 1
    assert chosen([100.0, 76.0], [alone] * 2) == 0
    assert chosen([100.0, 74.0], [alone] * 2) == 1


def test_a_default_that_spills_gives_way_to_any_sound_candidate():
    slow = {**COUNTS, "instructions": 5000}
    default, other = binary(problems=("spills 4",)), binary(64, counts=slow)
    kept, own, reference = pick([default, other], 1 << 20)
    assert kept is other
    assert own > reference


def test_a_default_that_does_not_compile_is_an_error():
    with pytest.raises(RuntimeError, match="does not compile for h200: why"):
        pick([Binary("h200", binary().job, ("why",))], 128)


class Made:
    """Binaries by rule: the second candidate has a fifth of the instructions; those numbered spill."""

    def __init__(self, spilling=()):
        self.spilling = spilling

    def __call__(self, device, groups, workers, cache):
        self.device = device
        return self

    def binaries(self, group):
        made = []
        for number, choice in enumerate(candidates(KERNELS[group.kernel], group.call, self.device)):
            problems = ("spills 4 (8 bytes a thread)",) if number in self.spilling else ()
            counts = {**COUNTS, "instructions": 1000 if number == 1 else 5000 + number}
            fields = {"problems": problems, "counts": counts, "occupancy": 32}
            threads = dict(choice.config)["num_warps"] * self.device.warp_size
            made.append(Binary(self.device.key, Job(group.call, choice), threads=threads, **fields))
        return made

    def stop(self):
        pass


def ranked(out, device, *groups, compilation=None, say=lambda line: None, **options):
    """What comes of ranking the candidates of these groups, with the binaries of `Made` by default."""
    given = Options(device, out, workers=1, commit="0" * 40, command="test", **options)
    return list(offline.tune_offline(groups, given, compilation=compilation or Made(), say=say))


@pytest.mark.nightly("17 s of compilers; picks from given binaries run always")
def test_ranking_for_an_mi350_that_is_not_here(tmp_path, monkeypatch):
    """Real machine code from its enumeration to a stored entry, which is the one in the repository."""
    (group,) = groups_of([WORKLOADS["deepseek_4x4_fp32_b128"]], "sinkhorn_forward")
    shipped = store.folders()[-1]
    entry = lookup.find(DEVICES["mi350"], group.kernel, group.call.key, 128, [shipped])
    every = candidates(KERNELS[group.kernel], group.call, DEVICES["mi350"])
    tried = [c for c in every if c is every[0] or same(c, choice_of(group, entry))]
    assert len(tried) == 2
    monkeypatch.setattr(compilation, "candidates", lambda *of: tried)
    (outcome,) = ranked(tmp_path, "mi350", group, compilation=compilation.Compilation)
    assert same(outcome.choice, tried[1])
    (new,) = json.loads((tmp_path / "mi350" / "sinkhorn_forward.json").read_text())["entries"]
    old = next(e for e in json.loads((shipped / "mi350" / "sinkhorn_forward.json").read_text())["entries"]
               if store.key_of(e["key"]) == group.call.key and e["key"]["batch"] == 128)  # fmt: skip
    assert (new["config"], new["variant"], new["evidence"]) == (old["config"], old["variant"], "compiled")
    if store.triton_minor() == old["key"]["triton"]:
        assert (new["score"], new["default_score"]) == (old["score"], old["default_score"])
    assert ranked(tmp_path, "mi350", group) == []


@pytest.mark.parametrize(
    ("evidence", "spilling", "kept"),
    [("measured", (), True), ("measured", (3,), False), ("compiled", (), False), ("compiled", (3,), False)],
)
@pytest.mark.usefixtures("fresh_caches")
def test_what_another_triton_measured_stays_unless_it_spills_here(tmp_path, evidence, spilling, kept):
    """A prediction does not take the place of a time, but of a time of other code."""
    (group,) = groups_of([WORKLOADS["deepseek_4x4_fp32_b131072"]], "sinkhorn_forward")
    tried = candidates(KERNELS["sinkhorn_forward"], group.call, DEVICES["h200"])
    of_old = dict(group.call.key), jsonable(tried[3].config), jsonable(tried[3].variant), evidence
    entry = {**stored.entry(131072, *of_old, triton="2.1"), "default_us": 1.0, "err": 0.5}
    run = {**provenance("sinkhorn_forward", evidence, Options("h200", tmp_path)), "triton": "2.1.0"}
    writer.merge(tmp_path, "sinkhorn_forward", device_block(DEVICES["h200"], "test"), run, [entry])
    (outcome,) = ranked(tmp_path, "h200", group, compilation=Made(spilling))
    store.read.cache_clear()
    served = lookup.find(DEVICES["h200"], "sinkhorn_forward", group.call.key, 131072, [tmp_path])
    (row,) = offline.report([outcome])
    if kept:
        assert (served.triton, served.evidence) == ("2.1", "measured")
        assert row[2] == row[3]
        assert row[-1].startswith("as measured: ")
    else:
        assert (served.triton, served.evidence) == (store.triton_minor(), "compiled")
        assert served.config == tuple(sorted(tried[1].config))
        assert same(outcome.choice, tried[1])
        assert row[-1] == "h200/sinkhorn_forward.json"
        # a config that spills predicts nothing
        assert (row[2] == "inf") == bool(spilling)
    name = json.loads((tmp_path / "h200" / "sinkhorn_forward.json").read_text())["device"]["name"]
    assert name == ("test" if evidence == "measured" else "not present")


BATCHES = 128, 1024, 8192, 131072, 262144


@pytest.mark.parametrize(
    ("picked", "written"),
    [
        ((), ()),
        ((128,), (128, 1024)),
        ((128, 1024, 8192), (128, 1024, 8192, 131072)),
        ((8192,), (8192, 131072)),
        # within reach of a pick for more
        ((262144,), (131072, 262144)),
        (BATCHES, BATCHES),
    ],
)
@pytest.mark.usefixtures("fresh_caches")
def test_a_default_is_stored_only_where_calls_would_get_something_else(
    picked, written, tmp_path, monkeypatch
):
    """The config of the largest tuned batch is for all larger ones: a pick ends where a default is stored."""
    group = Group("sinkhorn_forward", CALL, BATCHES)
    default, other = candidates(KERNELS[group.kernel], CALL, DEVICES["mi350"])[:2]

    def rank(*batches):
        monkeypatch.setattr(offline, "pick", lambda made, batch: (made[batch in batches], 50.0, 100.0))
        return ranked(tmp_path, "mi350", group, force=True)

    def given(batch):
        store.read.cache_clear()
        entry = lookup.find(DEVICES["mi350"], group.kernel, CALL.key, batch, [tmp_path])
        return choice_of(group, entry) if entry else default

    outcomes = rank(*picked)
    assert sorted(r.batch for r in outcomes) == [*BATCHES]
    assert sorted(r.batch for r in outcomes if r.path) == [*written]
    store.read.cache_clear()
    assert [e.batch for e in store.read(tmp_path, "mi350", group.kernel)] == [*written]
    for batch in BATCHES:
        assert same(given(batch), other if batch in picked else default), batch
    # another score later: what is stored for a key makes way
    rank()
    assert all(same(given(batch), default) for batch in BATCHES)


def test_kernels_that_are_not_ranked_are_named_in_a_sentence(tmp_path, capsys):
    words = "tune --device mi350 --offline --only hc_pre_bf16_c7168_b1024 --out"
    assert main([*words.split(), str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "hc_pre_forward" in said
    assert ": the default config, which no ranking beats, is used until it is tuned on the device" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("fresh_caches")
def test_a_key_whose_default_does_not_compile_leaves_the_others(tmp_path):
    class Failing(Made):
        def binaries(self, group):
            made = super().binaries(group)
            late = Binary(made[0].device, made[0].job, ("not compiled after 60 s",))
            return [late, *made[1:]] if group.call.n == 4 else made

    groups = groups_of(
        [WORKLOADS[f"deepseek_{n}x{n}_fp32_b{b}"] for n, b in ((4, 131072), (16, 128))], "sinkhorn_forward"
    )
    said = []
    outcomes = ranked(tmp_path, "mi350", *groups, compilation=Failing(), say=said.append)
    assert [r.group.call.n for r in outcomes] == [16]
    assert said[0].endswith("not compiled after 60 s; nothing is written for it")


def test_calibration_keeps_times_beside_scores(tmp_path, monkeypatch):
    slow, path = {**COUNTS, "instructions": 5000}, tmp_path / calibration.FILE
    binaries = [binary(32, counts=slow), binary(64), binary(128, counts=slow)]
    assert chosen([score(b, 1 << 20) for b in binaries], [{"num_warps": 1}] * 3) == 1

    def record(triton, batch, *us):
        monkeypatch.setattr(calibration.store, "triton_minor", lambda: triton)
        times = [(b.job.choice, t) for b, t in zip(binaries, us, strict=True)]
        calibration.record(path, "sinkhorn_forward", CALL, binaries, [(batch, times)])
        return next(q for q in calibration.qualities(path) if (q.triton, q.batch) == (triton, batch))

    def kept():
        lines = json.loads(path.read_text())
        return {(x.get("triton", ""), b): row["us"] for x in lines for b, row in x["batches"].items()}

    assert record("3.6", 1 << 20, 12.0, 10.0, 13.0)[3:] == (1.0, 1.2)
    assert record("3.6", 128, 12.0, 11.0, 10.0)[3:] == (1.1, 1.2)
    assert record("3.6", 1 << 20, 10.0, 12.0, 13.0)[3:] == (1.2, 1.0)
    # of one Triton they do not take the place of another's
    record("3.9", 1 << 20, 4.0, 5.0, 6.0)
    of_3_6 = {("3.6", "1048576"): [10.0, 12.0, 13.0], ("3.6", "128"): [12.0, 11.0, 10.0]}
    assert kept() == {**of_3_6, ("3.9", "1048576"): [4.0, 5.0, 6.0]}
    # a line of before, which does not say: what is measured again leaves it
    (old,) = (line for line in json.loads(path.read_text()) if line.pop("triton") == "3.6")
    path.write_text(json.dumps([old]))
    record("3.9", 1 << 20, 7.0, 8.0, 9.0)
    assert kept() == {("", "128"): [12.0, 11.0, 10.0], ("3.9", "1048576"): [7.0, 8.0, 9.0]}
    record("3.9", 128, 7.0, 8.0, 9.0)
    assert kept() == {("3.9", "1048576"): [7.0, 8.0, 9.0], ("3.9", "128"): [7.0, 8.0, 9.0]}


def test_the_score_knows_the_loops_of_a_backward():
    """Segments forward, those taken back; the shortest are unrolled away, and a loop of one trip is none."""
    for count, trips in ((3, [7, 7, 2]), (2, [7, 2]), (1, [2]), (0, []), (4, [7, 7, 1, 2])):
        loops = loops_of("sinkhorn_backward", CALL, {"length": 7}, count)
        assert [loop.trips for loop in loops] == trips


# What pays


@pytest.mark.parametrize("kernel", ranking.KERNELS)
@pytest.mark.parametrize("device", ["h100", "h200"])
def test_what_is_picked_beats_the_default_on_cards_that_timed_both(device, kernel):
    """Under each Triton, in the median: else the kernel is not to be ranked, and keeps its default."""
    qualities = [q for q in calibration.qualities(store.folders()[-1] / device / calibration.FILE)
                 if q.kernel == kernel]  # fmt: skip
    assert qualities
    for triton in {q.triton for q in qualities}:
        of = [q for q in qualities if q.triton == triton]
        assert statistics.median(q.regret for q in of) < statistics.median(q.default for q in of), triton


def test_shipped_entries_that_were_ranked_are_of_ranked_kernels_and_change_what_calls_get():
    """No default is stored where calls get it anyway."""
    for path in store.folders()[-1].glob("*/*.json"):
        entries = store.read(path.parent.parent, path.parent.name, path.stem)
        guessed = [e for e in entries if e.evidence == "compiled"] if path.name != calibration.FILE else []
        assert not guessed or path.stem in ranking.KERNELS
        for entry in guessed:
            call = KERNELS[path.stem].call.of(entry.key)
            default = candidates(KERNELS[path.stem], call, DEVICES[path.parent.name])[0]
            if same(choice_of(Group(path.stem, call, ()), entry), default):
                others = tuple(e for e in entries if e != entry)
                instead = lookup.preferred(others, entry.key, entry.batch, entry.triton)
                assert instead is not None, entry
                assert (instead.config, instead.variant) != (entry.config, entry.variant), entry
