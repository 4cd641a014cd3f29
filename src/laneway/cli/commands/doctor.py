"""`laneway doctor`: what is installed, which keys are set, which model would be used, and how to fix each gap."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from msgspec import Struct

from laneway.cli._exit import DONE, USAGE, CliError
from laneway.cli.commands._model import choose_model
from laneway.cli.commands.local import describe
from laneway.cli.config import is_terminal, sessions_dir, settings, settings_file
from laneway.cli.render._terminal import printable
from laneway.errors import LanewayError
from laneway.llm import default_models, local_setup
from laneway.llm.base import encode_json

_OPTIONAL = (("Postgres store", "psycopg", "postgres"), ("platform folders", "platformdirs", "cli"), ("AWS credentials", "botocore", "bedrock"))
_LOW_SPACE = 200 * 1024 * 1024
_WAL_FIXED = "3.51.3"


class Finding(Struct, kw_only=True, frozen=True):
    """One line of the report; `fix` says what to do where it is not fine."""

    what: str
    ok: bool
    found: str
    fix: str = ""


def doctor(*, as_json: bool) -> int:
    """Print the report. Exit code 0 if a run would have a model, 2 if not."""
    model = _checked("model of a run", _model)[0]
    findings = [finding for what, check in _CHECKS for finding in _checked(what, check)] + [model]
    if as_json:
        print(encode_json({"usable": model.ok, "findings": [{f: getattr(x, f) for f in x.__struct_fields__} for x in findings]}).decode())
        return DONE if model.ok else USAGE
    for finding in findings:
        print(printable(f"{'ok ' if finding.ok else '-- '} {finding.what:<18} {finding.found}"))
        for line in finding.fix.splitlines():
            print(printable(f"{'':22}{line.strip()}"))
    return DONE if model.ok else USAGE


def _checked(what: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """Make the check; what it trips over is its finding, because a report that dies of the disease is none."""
    try:
        return check()
    except (LanewayError, CliError, OSError) as error:
        return [Finding(what=what, ok=False, found="cannot be found out", fix=str(error))]


# ---------------------------------------------------------------------------------------------------- checks


def _laneway() -> list[Finding]:
    return [Finding(what="laneway", ok=True, found=f"{version('laneway')} on Python {platform.python_version()}")]


def _sqlite() -> list[Finding]:
    if not wal_reset_bug(sqlite3.sqlite_version_info):
        return [Finding(what="SQLite", ok=True, found=sqlite3.sqlite_version)]
    found = f"{sqlite3.sqlite_version} can damage a file that two connections write and checkpoint at once"
    fix = f"""laneway writes a session through one connection, so this needs another program: let none write to session files
        use a Python with SQLite {_WAL_FIXED} or newer; about the bug: https://sqlite.org/wal.html#walresetbug"""
    return [Finding(what="SQLite", ok=False, found=found, fix=fix)]


def wal_reset_bug(version: tuple[int, ...]) -> bool:
    """Whether this version of SQLite is one of those that its own notice about the WAL-reset bug names.

    3.7.0 to 3.51.2 are, but for the repaired 3.44.6 and 3.50.7: https://sqlite.org/wal.html#walresetbug
    """
    if version[:2] in ((3, 44), (3, 50)):
        return version < {44: (3, 44, 6), 50: (3, 50, 7)}[version[1]]
    return (3, 7, 0) <= version < (3, 51, 3)


def _settings() -> list[Finding]:
    path = settings_file()
    names = ", ".join(sorted(settings()))
    return [Finding(what="settings", ok=True, found=f"{path} ({f'sets {names}' if names else 'none yet'})")]


def _embedded() -> list[Finding]:
    setup = local_setup()
    return [Finding(what="embedded model", ok=setup.ready, found=describe(setup), fix="" if setup.ready else "laneway local setup")]


def _programs() -> list[Finding]:
    rg, shell = shutil.which("rg"), shutil.which("bash") or shutil.which("sh")
    search = f"ripgrep at {rg}" if rg else "built-in (ripgrep is faster where it is installed)"
    found = [Finding(what="search tools", ok=True, found=search)]
    if shell is None:
        found.append(Finding(what="shell", ok=False, found="neither bash nor sh", fix="install bash: the bash tool needs a shell"))
    else:
        found.append(Finding(what="shell", ok=True, found=shell))
    return found


def _optional() -> list[Finding]:
    found: list[Finding] = []
    for what, module, extra in _OPTIONAL:
        if find_spec(module) is not None:
            found.append(Finding(what=what, ok=True, found=f"{module} {_version_of(module)}"))
        else:
            found.append(Finding(what=what, ok=False, found="not installed", fix=f"pip install 'laneway[{extra}]'"))
    if find_spec("PIL") is None:
        found.append(Finding(what="image resizing", ok=False, found="not installed: large pictures are refused", fix="pip install pillow"))
    else:
        found.append(Finding(what="image resizing", ok=True, found=f"pillow {_version_of('pillow')}"))
    return found


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(version unknown)"


def _sessions() -> list[Finding]:
    folder = sessions_dir()
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return [Finding(what="sessions", ok=False, found=f"{folder} cannot be written", fix=f"make {nearest} writable, or set LANEWAY_HOME")]
    free = shutil.disk_usage(nearest).free
    if free < _LOW_SPACE:
        return [Finding(what="sessions", ok=False, found=f"{folder}: only {free >> 20} MB free", fix="make room, or set LANEWAY_HOME")]
    return [Finding(what="sessions", ok=True, found=f"{folder} ({free >> 30} GB free)" if free >> 30 else f"{folder} ({free >> 20} MB free)")]


def _terminal() -> list[Finding]:
    encoding = (sys.stdout.encoding or "").lower()
    found = f"{'a terminal' if is_terminal(sys.stdout) else 'no terminal'}, {encoding or 'no encoding'}"
    if encoding.replace("-", "") in ("utf8", ""):
        return [Finding(what="output", ok=True, found=found)]
    fix = "set LANG to a UTF-8 locale (or PYTHONUTF8=1): some characters cannot be shown"
    return [Finding(what="output", ok=False, found=found, fix=fix)]


def _proxies() -> list[Finding]:
    names = [name for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY") if os.environ.get(name) or os.environ.get(name.lower())]
    return [Finding(what="proxy", ok=True, found=", ".join(names) + " set")] if names else []


def _keys() -> list[Finding]:
    models = default_models()
    stored = models.credentials.list()
    keyed = [provider for provider in models.providers() if provider.key_names and not provider.key_optional]
    ready = [provider for provider in keyed if models.is_configured(provider)]
    if not ready:
        names = ", ".join(sorted({name for provider in keyed for name in provider.key_names[:1]}))
        return [Finding(what="provider keys", ok=False, found="none is set", fix=f"set one of {names}")]
    shown = (f"{p.id} ({'stored' if p.id in stored else next((n for n in p.key_names if os.environ.get(n)), 'found')})" for p in ready)
    return [Finding(what="provider keys", ok=True, found=", ".join(shown))]


def _model() -> list[Finding]:
    try:
        choice = choose_model(None)
    except CliError as error:
        first, _, rest = str(error).partition("\n")
        return [Finding(what="model of a run", ok=False, found=first, fix=rest)]
    return [Finding(what="model of a run", ok=True, found=f"{choice.model.spec} (from {choice.source})")]


_CHECKS: tuple[tuple[str, Callable[[], list[Finding]]], ...] = (
    ("laneway", _laneway),
    ("SQLite", _sqlite),
    ("settings", _settings),
    ("sessions", _sessions),
    ("embedded model", _embedded),
    ("programs", _programs),
    ("optional parts", _optional),
    ("output", _terminal),
    ("proxy", _proxies),
    ("provider keys", _keys),
)
