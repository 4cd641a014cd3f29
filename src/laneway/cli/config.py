"""Settings of the command line: the only reader of its environment variables and of `config.toml`."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, TextIO

from laneway.cli._exit import CliError


def home() -> Path:
    """The directory of settings: `LANEWAY_HOME`, else the platform's (`XDG_CONFIG_HOME/laneway` or `~/.config/laneway`)."""
    if chosen := os.environ.get("LANEWAY_HOME"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "laneway"


def settings() -> dict[str, Any]:
    """Return `config.toml` as a dict, `{}` if there is none.

    Raises:
        CliError: the file cannot be read or is not TOML.
    """
    path = home() / "config.toml"
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CliError(f"cannot read {path}: {error}") from error


def configured_model() -> tuple[str, str] | None:
    """Return the model that the person chose in the settings, and where: `(spec, source)`."""
    if spec := os.environ.get("LANEWAY_MODEL"):
        return spec, "LANEWAY_MODEL"
    spec = settings().get("model")
    if spec is None:
        return None
    if not isinstance(spec, str):
        raise CliError(f'{home() / "config.toml"}: model must be a text such as "openai/gpt-5"')
    return spec, str(home() / "config.toml")


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour what goes to `stream`: a terminal, and nobody said `NO_COLOR`."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
