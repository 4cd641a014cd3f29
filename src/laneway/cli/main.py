"""Reads the command line and runs one command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from laneway.cli._exit import FAILED, INTERRUPTED, CliError

_DESCRIPTION = "An agent that works in a folder: it reads, edits and runs things with the model you choose."
_EXIT_CODES = "Exit codes: 0 done, 1 the run failed, 2 usage or configuration, 3 aborted, 130 interrupted before anything began."


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="laneway", description=_DESCRIPTION, epilog=_EXIT_CODES)
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_run(commands)
    models = commands.add_parser("models", help="list the models that laneway knows", description="List the models that laneway knows.")
    models.add_argument("filter", nargs="*", help="words that must all occur in provider, id or name")
    models.add_argument("--provider", help="only this provider")
    models.add_argument("--available", action="store_true", help="only models that can be used now (a key is set, or none is needed)")
    models.add_argument("--json", action="store_true", help="one JSON object per line")
    doctor = commands.add_parser(
        "doctor",
        help="say what is installed, which keys are set, which model would be used, and how to fix each gap",
        description="Say what is installed, which keys are set, which model would be used, and how to fix each gap.",
    )
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    local = commands.add_parser("local", help="the embedded local model", description="The embedded local model.")
    local.add_argument("action", choices=["setup", "status"], help="setup installs what is missing; status only looks")
    return parser


def _add_run(commands: Any) -> None:
    run: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="do one task and exit",
        description="Do one task and exit. The answer goes to stdout, what happens on the way to stderr.",
        epilog=f"Text on stdin comes before the task. Further words in quotes are further prompts of the same conversation. {_EXIT_CODES}",
    )
    run.add_argument("task", nargs="*", help="what to do; @FILE puts a file (or an image) into the first prompt")
    run.add_argument("-m", "--model", help='a model such as "openai/gpt-5" or "anthropic/claude-sonnet-4-5:high"')
    run.add_argument("-C", "--cwd", default=".", metavar="DIR", help="the folder to work in (default: here)")
    run.add_argument("-t", "--tools", metavar="NAMES", help='the tools, separated by commas (default: read,bash,edit,write), or "none"')
    run.add_argument("--read-only", action="store_true", help="only tools that change nothing: read, grep, find, ls")
    run.add_argument("--allow-outside", action="store_true", help="let write and edit leave the folder")
    run.add_argument("--system", metavar="TEXT", help="replace the system prompt")
    run.add_argument("--append-system", metavar="TEXT", help="add to the system prompt")
    run.add_argument("--thinking", metavar="LEVEL", help="off, minimal, low, medium, high, xhigh or max")
    run.add_argument("--max-turns", type=_positive, metavar="N", help="stop after N responses of the model")
    run.add_argument("--max-cost", type=float, metavar="USD", help="stop once the run has cost this much")
    run.add_argument("--json", action="store_true", help="print every event as one JSON object per line on stdout")
    run.add_argument("-q", "--quiet", action="store_true", help="say nothing but the answer")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _version() -> str:
    from importlib.metadata import version

    return f"laneway {version('laneway')}"


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    words = list(argv)
    if words[:1] == ["-p"]:
        words[0] = "run"
    parser = build_parser()
    arguments = parser.parse_args(words)
    if arguments.command is None:
        parser.print_help()
        return 0
    try:
        return _dispatch(arguments)
    except CliError as error:
        print(f"laneway: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _dispatch(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "run":
            from laneway.cli.commands.run import run

            return run(arguments)
        case "models":
            from laneway.cli.commands.models import models

            return models(arguments)
        case "doctor":
            from laneway.cli.commands.doctor import doctor

            return doctor(as_json=arguments.json)
        case _:
            from laneway.cli.commands.local import local

            return local(arguments.action)


def run() -> None:
    """Entry point of the `laneway` script."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
