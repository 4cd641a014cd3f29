"""The benchmarks work: each measures something, and the table says what may be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_workload_is_measured(tmp_path: Path):
    """Once, a tenth of everything: a number for every line and no cell that failed. The numbers themselves are for a quiet machine."""
    raw = tmp_path / "raw.json"
    command = [sys.executable, str(ROOT / "benchmarks/run.py"), "--quick", "--reps", "1", "--json", str(raw)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    measured = json.loads(raw.read_text())
    assert [cell for cell in measured["cells"] if "error" in cell] == []
    assert {cell["workload"] for cell in measured["cells"]} == {"w1", "w1s", "w2", "w2args", "w3", "w5", "w5resume", "w6"}
    assert {cell["who"] for cell in measured["cells"]} == {"laneway", "durable", "store", "R", "bare"}
    assert set(measured["starts"]) == {"python", "bare", "import", "agent", "help"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("W")]
    assert len(lines) == 25
    assert all(" - " not in line for line in lines)


@pytest.mark.parametrize(
    ("script", "sizes", "lines"),
    [
        ("bench_storage.py", ("--commits", "100", "--history", "2000"), 11),
        ("bench_storage_pg.py", ("--commits", "100", "--history", "2000"), 4),
        ("bench_session.py", ("--quick",), 10),
    ],
)
def test_what_the_stores_cost_is_measured(tmp_path: Path, script: str, sizes: tuple[str, ...], lines: int):
    """A line for each measure, with few commits and short histories."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *sizes], capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= lines, done.stdout


def test_a_peer_without_an_environment_is_left_out(tmp_path: Path):
    """A folder of peers is no obstacle where their environments were never made; one that has an environment is compared by the same floor."""
    (tmp_path / "peer_absent.py").write_text("raise SystemExit('never run')")
    (tmp_path / "peer_quick.py").write_text(
        "import json, sys\nprint(json.dumps({'per_unit_us': 1.0, 'overhead_ms': 1.0, 'peak_rss_mb': 1.0, 'argv': sys.argv[1:]}))"
    )
    python = tmp_path / "venvs/quick/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    command = [sys.executable, str(ROOT / "benchmarks/run.py"), "--quick", "--reps", "1", "--only", "w3", "--peers", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert "absent" not in done.stdout
    assert [line.split("[")[1].split("]")[0] for line in done.stdout.splitlines() if "[" in line] == ["quick", "quick"]
