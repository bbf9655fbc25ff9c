"""bench.csv as plots and a Markdown report; nothing here measures."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.sinkhorn.peers import FLOOR, FUNCTIONS, OURS
from helion_sinkhorn.lab.tuning import markdown

PASSES = ("forward", "backward", "both")
CALLED = {"graph": "in a CUDA graph", "eager": "single calls"}
"""The timers in a legend.  One by one, small batches show the time and the noise of the host."""
KEY = ["n", "dtype", "batch", "pass", "timer"]
COLUMNS = (
    *KEY, "function", "note", "quantity", "bytes", "error", "gradient_error", "config", "us",
    "us_20", "us_80", "package_version",
)  # fmt: skip
"""Those that are read, whether a run had them or not."""
TIMER = {"eager": "eager, L2 cleared", "graph": "in a CUDA graph"}
HOW = """\
This page is made of bench.csv, which has every row. Unless a table says otherwise, T = 20, the dtype is
float32, the form is deepseek, backward is the exact gradient, and logits and upstream gradients are randn.

- *us*: the median, with the 20 % and 80 % quantiles.
- *eager*: one call at a time, with the L2 cache cleared before it. At small batches this is the time of the
  host.
- *in a CUDA graph*: one of up to 50 calls in a graph. Operands are in L2 where they fit.
- *floor*: a copy of the same bytes in the same process: `y.copy_(x)` for forward, `torch.add(x, dy, out=dx)`
  for backward, and both in turn for both. Eager calls are compared with an eager copy. Calls in a graph are
  compared with the faster of the two copies, because on an H200 a copy of a gigabyte takes 1.5 times as long
  in a graph.
"""
BESIDE = """\
In brackets: the time over that of helion_sinkhorn in the deepseek form. A package that computes another form
is timed in its own form. The picture has n = 4 at the smallest and the largest batch; bars of packages that
compute another form are hatched.
"""
TIME = (
    "Solid lines are calls in a CUDA graph. Dotted lines are single calls with the L2 cache cleared; at "
    "small batches they show the time of the host and its noise."
)
CHECKED = """\
Every function is checked before it is timed, against float64 of the definition named, on logits of 3 randn,
for which 20 iterations do not converge. A function whose error exceeds 1e-5 in P or 1e-4 in dX (bfloat16:
1e-2 and 2e-2) computes something else, and is listed under *Left out* instead of being timed.
"""
LANES = """\
This is the loop of triton-sinkhorn's benchmark, `layer(x).sum().backward()`. It is a timing only, because the
gradient of that sum is zero up to rounding. *eager* is exp and then T times rows and columns with eps. Memory
is the peak of one step above its start.
"""
LAYERS = {
    "torch.ops, forward": "sinkhorn's registered operator, forward",
    "kernels.launch.forward": "launch of its kernel alone, forward",
    "torch.ops, backward": "sinkhorn's registered operator, backward",
    "backward through autograd": "backward of sinkhorn through autograd",
}
"""Layers of a call in words, where the name in the CSV is one of the source."""
KEPT = ("sm_mhz", "memory_mhz", "celsius")
"""Conditions that change within a run."""


def power(batch: float) -> str:
    exponent = int(batch).bit_length() - 1
    return f"2^{exponent}" if batch == 1 << exponent and batch >= 1024 else str(int(batch))


def figure(value: float) -> str:
    """Three significant digits, no exponent."""
    if pandas.isna(value):
        return ""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def times(ratio: float) -> str:
    """How many times as long."""
    return f"{ratio:.1f}x" if ratio < 10 else f"{ratio:,.0f}x"


def spread(row: pandas.Series) -> str:
    return f"{figure(row.us)} ({figure(row.us_20)} to {figure(row.us_80)})"


class Results:
    """The timed rows, each beside its floor, with look-ups by function, shape and pass."""

    def __init__(self, path: Path):
        # a commit may have digits alone
        table = pandas.read_csv(path, dtype={"commit": str})
        self.all = table.reindex(columns=[*table.columns, *(c for c in COLUMNS if c not in table)])
        self.all[["n", "batch"]] = self.all[["n", "batch"]].astype("Int64")
        timed = self.section("sweep")
        floors = timed[timed.function == FLOOR][[*KEY, "us"]].rename(columns={"us": "floor"})
        # beyond 1 GB the copy in a graph is another operation, half as slow again
        faster = floors.groupby(KEY[:-1]).floor.transform("min")
        floors["floor"] = floors.floor.where(floors.timer != "graph", faster)
        self.timed = timed.merge(floors, on=KEY, how="left")
        self.timed["x_floor"] = self.timed.us / self.timed.floor
        self.found = {(r.function, *r[KEY]): r for _, r in self.timed.iterrows()}

    def section(self, name: str) -> pandas.DataFrame:
        return self.all[self.all.section == name]

    @property
    def memory(self) -> dict[str, dict[str, float]]:
        """Bytes a matrix by function and then by quantity."""
        each = self.section("memory").groupby("function", sort=False)
        return {name: dict(zip(of.quantity, of.bytes, strict=True)) for name, of in each}

    def of(self, function: str, dtype: str = "float32", **where: object) -> pandas.DataFrame:
        rows = self.timed[(self.timed.function == function) & (self.timed.dtype == dtype)]
        for column, value in where.items():
            rows = rows[rows["pass" if column == "which" else column] == value]
        return rows.sort_values("batch", kind="stable")

    def one(
        self, function: str, *, n: int, batch: int, which: str, timer: str, dtype: str = "float32"
    ) -> pandas.Series | None:
        return self.found.get((function, n, dtype, batch, which, timer))

    def ratio(self, name: str, **at: object) -> float:
        """How many times as long as ours a function takes."""
        record, own = self.one(name, **at), self.one(OURS, **at)
        return numpy.nan if record is None or own is None else record.us / own.us

    def cells(self, name: str, digits: int | None = None, **at: object) -> dict[str, str]:
        """Time of every timer and pass; with digits, its ratio to ours in float32 too."""
        row = {}
        for (timer, title), which in itertools.product(TIMER.items(), PASSES):
            place = {**at, "which": which, "timer": timer}
            record, own = self.one(name, **place), self.one(OURS, **{**place, "dtype": "float32"})
            text = "" if record is None else figure(record.us)
            if digits and record is not None and own is not None:
                text += f" ({record.us / own.us:.{digits}f} x)"
            row[f"{which}, {title}"] = text
        return row


def conditions(results: Results) -> list[str]:
    table = results.all.dropna(axis=1, how="all")
    versions = [c for c in table if c.endswith("_version") and c != "package_version"]
    lines = []
    for column in ("device", "driver", "runtime", *versions, "mode", "commit", "utc"):
        if column in table:
            values = ", ".join(str(v) for v in table[column].dropna().unique())
            lines.append(f"- {column.removesuffix('_version')}: {values}")
    for column in KEPT:
        if column in table:
            values = pandas.to_numeric(table[column], errors="coerce").dropna()
            lines.append(f"- {column}: {values.min():.0f} to {values.max():.0f} during the run")
    return lines


def sweep_tables(results: Results) -> list[str]:
    lines = []
    for n, series in results.of(OURS).groupby("n"):
        rows = []
        for batch, of in series.groupby("batch"):
            row = {"batch": power(batch)}
            eager, graph = (of[of.timer == timer].set_index("pass") for timer in TIMER)
            for which, record in eager.iterrows():
                row |= {f"{which}, us": spread(record), f"{which} / floor": figure(record.x_floor)}
            rows.append(row | {f"{which} in a graph, us": figure(us) for which, us in graph.us.items()})
        lines += [f"### n = {n}", "", markdown.of_records(rows), ""]
    return lines


def configs(results: Results) -> list[str]:
    rows = results.of(OURS).dropna(subset=["config"]).sort_values(["n", "batch"])
    return [
        f"- n = {n}, {', '.join(dict.fromkeys(map(power, group.batch)))}: {config}"
        for (n, config), group in rows.groupby(["n", "config"], sort=False)
    ]


def variant_rows(results: Results) -> list[dict[str, object]]:
    return [
        {"": name, "dtype": dtype, "n": n, "batch": power(batch),
         **results.cells(name, 2, dtype=dtype, n=n, batch=batch)}
        for name, dtype in ((OURS, "bfloat16"), (f"{OURS} log", "float32"))
        for (n, batch), _ in results.of(name, dtype).groupby(["n", "batch"])
    ]  # fmt: skip


def compared(results: Results) -> list[str]:
    """Every function that is neither ours nor the floor, in the order of FUNCTIONS."""
    present = set(results.timed.function)
    return [name for name in FUNCTIONS if name in present and name != FLOOR and not name.startswith(OURS)]


def beside_ours(results: Results) -> pandas.DataFrame:
    """The cells of other functions, each with ours beside it."""
    timed = results.timed
    others = timed[timed.function.isin(compared(results))]
    return others.merge(timed[timed.function == OURS], on=KEY, suffixes=("", "_own"))


def faster_than_ours(results: Results) -> tuple[pandas.DataFrame, dict[str, str]]:
    """The cells in which another function takes less time, and their share by timer, in words."""
    both = beside_ours(results)
    slower = both[both.us < both.us_own]
    shares = {
        timer: f"{int((slower.timer == timer).sum())} of {int((both.timer == timer).sum())} comparisons"
        for timer in ("graph", "eager")
    }
    return slower, shares


def where_others_are_faster(results: Results) -> str:
    """The cells in which another package was faster, in a sentence or two."""
    slower, shares = faster_than_ours(results)
    said = f"In a CUDA graph another package was faster in {shares['graph']}."
    called = slower[slower.timer == "eager"]
    if called.empty:
        return f"{said} Timed as single calls, it was so in {shares['eager']}."
    ratios = (called.us_own / called.us).groupby(called.function.str.partition(",")[0], sort=False).max()
    packages = ", ".join(f"{name} by up to {ratio:.3g} times" for name, ratio in ratios.items())
    sizes = " and ".join(power(batch) for batch in sorted(set(called.batch)))
    return (
        f"{said} Timed as single calls, another package was faster in {shares['eager']}, all at {sizes} "
        f"matrices: {packages}."
    )


def definition(name: str) -> str:
    function = FUNCTIONS[name]
    return function.form + (", columns first" if function.first == "cols" else "")


def peer_tables(results: Results) -> list[str]:
    lines, names = [], compared(results)
    shapes = results.timed[results.timed.function.isin(names)]
    for n, batch in shapes.groupby(["n", "batch"]).groups:
        rows = [
            {"": name, "form": definition(name),
             **results.cells(name, 1 if name in names else None, n=n, batch=batch)}
            for name in (FLOOR, OURS, *names)
            if not results.of(name, n=n, batch=batch).empty
        ]  # fmt: skip
        lines += [f"### n = {n}, B = {power(batch)}", "", markdown.of_records(rows), ""]
    return lines


def checks(results: Results) -> str:
    checked, errors = results.timed.dropna(subset=["error"]), ["error", "gradient_error"]
    # one check a batch: the largest of each
    kinds = checked.groupby(["function", "n", "dtype"], sort=False)
    rows = kinds.first().assign(**{error: kinds[error].max() for error in errors}).reset_index()
    return markdown.of_records(
        {
            "": r.function, "version": r.package_version if isinstance(r.package_version, str) else "",
            "definition": definition(r.function), "n": r.n, "dtype": r.dtype,
            "largest error of P": f"{r.error:.1e}",
            "relative error of dX": "" if pandas.isna(r.gradient_error) else f"{r.gradient_error:.1e}",
            "note": FUNCTIONS[r.function].note,
        }
        for r in rows.itertuples()
    )  # fmt: skip


def host_table(results: Results) -> str:
    rows = results.section("host")
    base = rows[rows.function == "x * 2"].us.iloc[0]
    return markdown.of_records(
        {"layer": LAYERS.get(r.function, r.function), "us a call": spread(r), "/ x * 2": figure(r.us / base)}
        for r in rows.itertuples()
    )


def lanes_table(results: Results) -> str:
    rows = []
    for (batch, n), group in results.section("lanes").groupby(["batch", "n"]):
        by = group.set_index("function")
        slow, fast = by.loc["eager"], by.drop("eager").iloc[0]
        row = {
            "batch": int(batch), "lanes": n, "eager, ms": f"{slow.us / 1e3:.3f}",
            "FusedMHC, ms": f"{fast.us / 1e3:.3f}", "speed-up": f"{slow.us / fast.us:.1f} x",
        }  # fmt: skip
        if not pandas.isna(fast.bytes):
            row["eager, KiB"], row["FusedMHC, KiB"] = f"{slow.bytes / 1024:.1f}", f"{fast.bytes / 1024:.1f}"
            row["memory saved"] = f"{100 * (1 - fast.bytes / slow.bytes):.1f} %"
        rows.append(row)
    return markdown.of_records(rows)


def left_out(results: Results) -> str:
    return "\n".join(
        f"- {r.function if isinstance(r.function, str) else 'benchmark'}"
        f"{'' if pandas.isna(r.n) else f', n = {int(r.n)}'}: {r.note}"
        for r in results.section("left out").drop_duplicates(["function", "n", "note"]).itertuples()
    )


# ------------------------------------------------------------------------------------------ plots


COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
"""Okabe and Ito's, which the colour-blind can tell apart."""


def look(n: int) -> dict[str, str]:
    """Colour and marker, the same for a size in every plot."""
    k = (int(n).bit_length() - 3) % len(COLORS)
    return {"color": COLORS[k], "marker": "osD^vPX"[k]}


def panels(count: int, size: tuple[float, float], **shared: bool) -> tuple[Figure, list[Axes]]:
    shown = Figure(figsize=size, layout="constrained")
    return shown, list(shown.subplots(1, count, sharey=True, squeeze=False, **shared)[0])


def plot_time(results: Results, out: Path) -> None:
    """Time against B: in a CUDA graph solid, single calls dotted, copies of n = 4 in grey."""
    shown, axes = panels(2, (10, 5))
    sizes = [n for n, group in results.of(OURS).groupby("n") if group.batch.nunique() > 1]
    styles = {"graph": ("-", 1.8), "eager": (":", 1.3)}
    for axis, which in zip(axes, PASSES[:2], strict=True):
        for timer, (style, width) in styles.items():
            for n in sizes:
                line = results.of(OURS, n=n, which=which, timer=timer)
                shape = look(n) | ({} if timer == "graph" else {"marker": ""})
                axis.plot(line.batch, line.us, style, **shape, markersize=5, linewidth=width)
            line = results.of(FLOOR, n=4, which=which, timer=timer)
            axis.plot(line.batch, line.us, style, color="0.55", linewidth=width)
        axis.set_xscale("log", base=2)
        axis.set(title=which, xlabel="matrices B", ylabel="us a call", yscale="log")
        axis.label_outer()
        axis.grid(alpha=0.3)
    handles = [axes[0].plot([], [], "-", **look(n), label=f"n = {n}")[0] for n in sizes]
    handles += axes[0].plot([], [], "-", color="0.55", label="copy, n = 4")
    for timer, (style, _) in styles.items():
        handles += axes[0].plot([], [], style, color="0.2", label=CALLED[timer])
    shown.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=11)
    shown.savefig(out / "time.png", dpi=110)


WRONG = 1e-4
"""Error of a gradient beyond which it is another's (CHECKED)."""
BARS = {"forward": ("#0072B2", -0.2), "backward": ("#E69F00", 0.2)}
"""Colour, and how far below the line of its name."""
OTHER_FORM = {"hatch": "////", "edgecolor": "white", "linewidth": 0}


def plot_speedup(results: Results, out: Path) -> None:
    """How many times as long others take at n = 4, by the timer that hides the host where there is one."""
    timer = "graph" if (results.timed.timer == "graph").any() else "eager"
    names = [name for name in compared(results) if not results.of(name, n=4).empty]
    if not names:
        return
    batches = results.of(names[0], n=4).batch
    batches = sorted({batches.min(), batches.max()})
    ratios = {
        (name, batch, which): results.ratio(name, n=4, batch=batch, which=which, timer=timer)
        for name in names for batch in batches for which in BARS
    }  # fmt: skip
    names.sort(key=lambda name: ratios[name, batches[-1], "forward"])
    shown, axes = panels(len(batches), (10, 1.5 + 0.4 * len(names)), sharex=True)
    for axis, batch in zip(axes, batches, strict=True):
        for which, (hue, below) in BARS.items():
            for k, name in enumerate(names):
                # a bar from 1, its figure beside it
                ratio = ratios[name, batch, which]
                form = {} if definition(name) == "deepseek" else OTHER_FORM
                axis.barh(k + below, ratio - 1, 0.38, left=1, color=hue, **form)
                said = f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}"
                said = why_absent(results, name, which) if numpy.isnan(ratio) else said
                axis.text(numpy.nanmax((1, ratio)), k + below, f" {said}", va="center", fontsize=8.5)
        axis.axvline(1, color="0.3", linewidth=1)
        axis.set(title=f"{batch:,} matrices", xscale="log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.tick_params("y", length=0)
    # room for the figure beside the longest bar
    axes[0].set_xlim(numpy.nanmin((1.0, *ratios.values())), 2.5 * numpy.nanmax([*ratios.values()]))
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    shown.supxlabel(f"times as long as {OURS}, n = 4, {TIMER[timer]} (log scale)", fontsize="medium")
    handles = [Patch(color=hue, label=which) for which, (hue, _) in BARS.items()]
    handles.append(Patch(facecolor="0.6", **OTHER_FORM, label="computes another form"))
    shown.legend(handles=handles, loc="outside upper center", ncols=3)
    shown.savefig(out / "speedup.png", dpi=110)


def why_absent(results: Results, name: str, which: str) -> str:
    """Why a function has no time of a pass, where its check before timing tells."""
    errors = results.of(name, n=4).gradient_error.dropna()
    if which == "backward" and errors.empty:
        return "no gradient"
    if which == "backward" and errors.max() > WRONG:
        return f"gradient off by {errors.max():.0e}"
    return "not timed"


def text(results: Results) -> str:
    """report.md."""
    lines = ["# Benchmark", "", *conditions(results), "", HOW]

    def section(title: str, there: object, *parts: str) -> None:
        if there:
            lines.extend([f"## {title}", "", *parts, ""])

    if results.of(OURS).empty:
        lines += ["No row of the main series: see the end.", ""]
    else:
        section("Main series", True, "![us a call](time.png)", "", TIME)
        lines += [*sweep_tables(results), "The configs of these calls:", "", *configs(results), ""]
        variants = variant_rows(results)
        said = "In brackets: time over that of float32, deepseek."
        section("bfloat16 and the log form", variants, said, "", markdown.of_records(variants))
    if compared(results):
        parts = BESIDE, where_others_are_faster(results), "", "![speed-up](speedup.png)"
        section("Beside PyTorch and other packages", True, *parts)
        lines += peer_tables(results)
    if not results.section("host").empty:
        section("Host time", True, host_table(results))
    memory = [
        {"bytes a matrix": name, **{k: figure(v) for k, v in of.items()}}
        for name, of in results.memory.items()
    ]
    section("Memory", memory, markdown.of_records(memory))
    if not results.section("lanes").empty:
        section("Small batches, forward and backward", True, LANES, lanes_table(results))
    if results.timed.error.notna().any():
        section("Errors", True, CHECKED, checks(results))
    absent = left_out(results)
    section("Left out", absent, absent)
    return "\n".join(lines)


def plots(results: Results, out: Path) -> None:
    """The pictures that `text` shows."""
    if not results.of(OURS).empty:
        plot_time(results, out)
    if compared(results):
        plot_speedup(results, out)


def render(path: Path, out: Path) -> None:
    """Write report.md and its plots into `out` from the CSV at `path`."""
    out.mkdir(parents=True, exist_ok=True)
    results = Results(path)
    plots(results, out)
    (out / "report.md").write_text(text(results))
