"""What it costs to start: whole processes, timed from outside, with the peak of their memory.

    python benchmarks/bench_cold_start.py [--reps 9]

Prints one JSON line. Each start is measured by itself, in turn with the others, and the median is kept; `python` is the interpreter
alone, which everything else contains, and `bare` the hand-written floor: it imports asyncio and json and builds nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

AGENT = """
from laneway import Agent, Model, tool

@tool
async def add(a: int, b: int) -> str:
    "Add two numbers."
    return str(a + b)

Agent(model=Model(id="fake", provider="fake", api="fake"), tools=[add])
"""
# As after an installation, which writes compiled modules: this variable would have every start compile what it imports.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
STARTS = {
    "python": ["-c", "pass"],
    "bare": [str(Path(__file__).with_name("floor_bare.py")), "--workload", "w4"],
    "import": ["-c", "import laneway"],
    "agent": ["-c", AGENT],
    "help": ["-c", "import sys; sys.argv = ['laneway', '--help']; from laneway.cli.main import run; run()"],
}


def start(arguments: list[str]) -> tuple[float, float]:
    """Run one process; return its seconds and the MB of its peak memory."""
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"a start failed with exit code {process.returncode}: {arguments}")
    return seconds, usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1024 * 1024)


def measure(reps: int) -> dict[str, dict[str, float]]:
    """Return the median milliseconds and MB of every kind of start."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in STARTS}
    for arguments in STARTS.values():
        start(arguments)  # the first one reads the files and writes what is compiled
    for _ in range(reps):
        for name, arguments in STARTS.items():
            taken[name].append(start(arguments))
    return {
        name: {"ms": round(statistics.median(s for s, _ in runs) * 1000, 1), "mb": round(statistics.median(mb for _, mb in runs), 1)}
        for name, runs in taken.items()
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--reps", type=int, default=9)
    print(json.dumps(measure(parser.parse_args().reps)))
