"""Settings of the command line: the only reader of its environment variables and of `config.toml`."""

from __future__ import annotations

import os
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from laneway.cli._exit import CliError, complain

_KNOWN = ("model",)
"""What `config.toml` can set."""
_HOMELESS = "nobody knows where this user's home folder is"


def home() -> Path:
    """The directory of settings: `LANEWAY_HOME`, else the one where keys and own models are.

    Raises:
        CliError: it is named after a user that there is not, or nobody knows where home is.
    """
    if chosen := os.environ.get("LANEWAY_HOME", "").strip():
        return _expanded(chosen, "LANEWAY_HOME")
    from laneway.llm._paths import config_dir

    try:
        return config_dir()
    except RuntimeError:
        raise CliError(f"{_HOMELESS}; set HOME or LANEWAY_HOME") from None


def sessions_dir(chosen: str | None = None) -> Path:
    """The directory of sessions: the one chosen, else below `LANEWAY_HOME`, else below the platform's data directory."""
    if chosen:
        return _expanded(chosen, "--session-dir")
    if os.environ.get("LANEWAY_HOME", "").strip():
        return home() / "sessions"
    try:
        import platformdirs
    except ImportError:
        base = os.environ.get("XDG_DATA_HOME", "").strip()
        return (Path(base) if os.path.isabs(base) else _expanded("~", "HOME") / ".local/share") / "laneway" / "sessions"
    folder = platformdirs.user_data_path("laneway", appauthor=False) / "sessions"
    if folder.parts[0] == "~":  # nobody knows where home is, and "~" would be made here
        _expanded("~", "HOME")
    return folder


def _expanded(text: str, source: str) -> Path:
    """Return a folder that a person named, `~` and `~user` followed.

    Raises:
        CliError: there is no such user, or nobody knows where home is.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        why = f"{_HOMELESS}; set HOME or LANEWAY_HOME" if text.split("/")[0] == "~" else "there is no such user"
        raise CliError(f"{source}: {text} cannot be used: {why}") from None


def settings_file() -> Path:
    """The file of settings, whether it exists or not."""
    return home() / "config.toml"


def settings() -> dict[str, Any]:
    """Return `config.toml` as a dict, `{}` if there is none. A key that means nothing is said on stderr, once, and kept.

    Raises:
        CliError: the file cannot be read or is not TOML.
    """
    path = settings_file()
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CliError(f"cannot read {path}: {error}; correct it or move it away") from error
    for key in found:
        if key not in _KNOWN:
            _say_unknown(str(path), key)
    return found


@cache
def _say_unknown(path: str, key: str) -> None:
    from difflib import get_close_matches

    near = get_close_matches(key, _KNOWN, n=1)
    instead = f"did you mean {near[0]!r}?" if near else f"what can be set: {', '.join(_KNOWN)}"
    complain(f"{path}: there is no setting {key!r}, so it is ignored; {instead}")


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


def somebody_answers() -> bool:
    """Whether there is somebody to ask: stdin is a terminal. It is None where it was closed at the start."""
    stdin: TextIO | None = sys.stdin
    return stdin is not None and not stdin.closed and stdin.isatty()


def is_terminal(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that understands more than plain lines."""
    return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour what goes to `stream`: a terminal, and nobody said `NO_COLOR`."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")
