"""Settings of the command line: the only reader of its environment variables and of `config.toml`."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, TextIO

from laneway.cli._exit import CliError


def home() -> Path:
    """The directory of settings: `LANEWAY_HOME`, else the one where keys and own models are."""
    if chosen := os.environ.get("LANEWAY_HOME", "").strip():
        return Path(chosen).expanduser()
    from laneway.llm._paths import config_dir

    return config_dir()


def sessions_dir(chosen: str | None = None) -> Path:
    """The directory of sessions: the one chosen, else below `LANEWAY_HOME`, else below the platform's data directory."""
    if chosen:
        return Path(chosen).expanduser()
    if os.environ.get("LANEWAY_HOME", "").strip():
        return home() / "sessions"
    try:
        import platformdirs
    except ImportError:
        base = os.environ.get("XDG_DATA_HOME", "").strip()
        return (Path(base) if os.path.isabs(base) else Path.home() / ".local/share") / "laneway" / "sessions"
    return platformdirs.user_data_path("laneway", appauthor=False) / "sessions"


def settings_file() -> Path:
    """The file of settings, whether it exists or not."""
    return home() / "config.toml"


def settings() -> dict[str, Any]:
    """Return `config.toml` as a dict, `{}` if there is none.

    Raises:
        CliError: the file cannot be read or is not TOML.
    """
    path = settings_file()
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CliError(f"cannot read {path}: {error}; correct it or move it away") from error


def configured_model() -> tuple[str, str] | None:
    """Return the model that the person chose in the settings, and where: `(spec, source)`."""
    if spec := os.environ.get("LANEWAY_MODEL", "").strip():
        return spec, "LANEWAY_MODEL"
    spec = settings().get("model")
    if spec is None:
        return None
    if not isinstance(spec, str):
        raise CliError(f'{settings_file()}: model must be a text such as "openai/gpt-5"')
    return spec, str(settings_file())


def is_terminal(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that understands more than plain lines."""
    return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour what goes to `stream`: a terminal, and nobody said `NO_COLOR`."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")
