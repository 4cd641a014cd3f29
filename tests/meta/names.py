"""The public names of laneway with their parameters or fields, as text: what `tests/meta/public_names.txt` holds.

`python tests/meta/names.py` writes the file anew; its diff is what changes for users.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

FILE = Path(__file__).with_name("public_names.txt")
MODULES = (
    "laneway",
    "laneway.abort",
    "laneway.agent",
    "laneway.errors",
    "laneway.events",
    "laneway.harness",
    "laneway.llm",
    "laneway.llm.proxy",
    "laneway.loop",
    "laneway.messages",
    "laneway.session",
    "laneway.storage",
    "laneway.testing",
    "laneway.tools",
    "laneway.transcript",
)


def public_names(module: ModuleType) -> list[str]:
    """The names that a module promises: its `__all__`, else what it defines without an underscore."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    return sorted(name for name, value in vars(module).items() if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__)


def parts_of(value: Any) -> list[str]:
    """The parameters of a function, or the fields or constructor's parameters of a class; nothing for anything else."""
    if isinstance(value, type) and getattr(value, "__struct_fields__", None) is not None:
        return list(value.__struct_fields__)
    if not callable(value):
        return []
    try:
        return [name for name, parameter in inspect.signature(value).parameters.items() if parameter.kind not in (2, 4)]
    except (TypeError, ValueError):
        return []


def described(module: str) -> list[str]:
    """One line for each public name of a module."""
    loaded = importlib.import_module(module)
    lines: list[str] = []
    for name in public_names(loaded):
        parts = " ".join(parts_of(getattr(loaded, name))) if module != "laneway" else ""
        lines.append(f"{module}.{name}({parts})" if parts else f"{module}.{name}")
    return lines


def everything() -> str:
    """The whole file."""
    return "\n".join(line for module in MODULES for line in described(module)) + "\n"


if __name__ == "__main__":
    FILE.write_text(everything())
