"""`laneway doctor`: what is installed, which keys are set, which model would be used, and how to fix each gap."""

from __future__ import annotations

import json
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from msgspec import Struct

from laneway.cli._exit import DONE, USAGE, CliError
from laneway.cli.commands._model import choose_model
from laneway.cli.commands.local import describe
from laneway.cli.config import home
from laneway.llm import default_models, local_setup


class Finding(Struct, kw_only=True, frozen=True):
    """One line of the report; `fix` says what to do where it is not fine."""

    what: str
    ok: bool
    found: str
    fix: str = ""


def doctor(*, as_json: bool) -> int:
    """Print the report. Exit code 0 if a run would have a model, 2 if not."""
    model, usable = _model()
    findings = [*_installed(), *_keys(), model]
    if as_json:
        print(json.dumps({"usable": usable, "findings": [{f: getattr(x, f) for f in x.__struct_fields__} for x in findings]}, indent=2))
    else:
        for finding in findings:
            print(f"{'ok ' if finding.ok else '-- '} {finding.what:<18} {finding.found}")
            if finding.fix:
                print(f"{'':22}{finding.fix}")
    return DONE if usable else USAGE


def _installed() -> list[Finding]:
    setup = local_setup()
    found = [
        Finding(what="laneway", ok=True, found=f"{version('laneway')} on Python {platform.python_version()}, settings in {home()}"),
        Finding(what="embedded model", ok=setup.ready, found=describe(setup), fix="" if setup.ready else "laneway local setup"),
    ]
    search = shutil.which("rg")
    how = f"ripgrep at {search}" if search else "built-in search (ripgrep is faster where it is installed)"
    found.append(Finding(what="search tools", ok=True, found=how))
    for what, module, extra in (("Postgres store", "psycopg", "postgres"), ("image resizing", "PIL", "images")):
        if find_spec(module) is not None:
            found.append(Finding(what=what, ok=True, found=_version_of(module)))
        else:
            found.append(Finding(what=what, ok=False, found="not installed", fix=f"pip install 'laneway[{extra}]'"))
    return found


def _version_of(module: str) -> str:
    try:
        return version({"PIL": "pillow"}.get(module, module))
    except PackageNotFoundError:
        return "installed"


def _keys() -> list[Finding]:
    models = default_models()
    keyed = [provider for provider in models.providers() if provider.key_names and not provider.key_optional]
    ready = [provider.id for provider in keyed if models.is_configured(provider)]
    names = sorted({name for provider in keyed for name in provider.key_names[:1]})
    if ready:
        return [Finding(what="provider keys", ok=True, found=", ".join(ready))]
    return [Finding(what="provider keys", ok=False, found="none is set", fix="set one of " + ", ".join(names))]


def _model() -> tuple[Finding, bool]:
    try:
        choice = choose_model(None)
    except CliError as error:
        first, _, rest = str(error).partition("\n")
        return Finding(what="model of a run", ok=False, found=first, fix=" ".join(line.strip() for line in rest.split("\n"))), False
    return Finding(what="model of a run", ok=True, found=f"{choice.model.spec} (from {choice.source})"), True
