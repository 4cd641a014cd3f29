"""Reads the command line and runs one command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, cast

from laneway.cli._exit import DONE, FAILED, INTERRUPTED, USAGE, CliError, complain, drop_output, leave


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code. Whatever goes wrong is said on stderr; nothing is raised."""
    from laneway.cli._arguments import build, parse

    arguments: Any = None
    try:
        arguments = parse(list(argv))
        if arguments.command is None:
            build()[0].print_help()
            return DONE
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except SystemExit as end:  # help, the version, or a refusal that has been said
        return end.code if isinstance(end.code, int) else USAGE
    except CliError as error:
        complain(str(error))
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        drop_output()
        if _only_lists(arguments):  # `| head` has what it wanted
            return DONE
        complain("stopped, because nobody reads the output any more")
        return FAILED
    except Exception as error:
        return _unexpected(error)


def _only_lists(arguments: Any) -> bool:
    """Whether a command only prints what there is, so that nothing is left undone when nobody reads on."""
    command = getattr(arguments, "command", None)
    reads = getattr(arguments, "verb", None) in ("list", "show", "tree", "search", "export")
    return command in (None, "models", "doctor") or (command == "local" and arguments.action == "status") or (command == "sessions" and reads)


def _unexpected(error: Exception) -> int:
    """Say in a sentence what a command did not expect."""
    from laneway.errors import LanewayError

    if os.environ.get("LANEWAY_DEBUG"):
        import traceback

        traceback.print_exc()
    if isinstance(error, LanewayError):  # a refusal of ours is a sentence already
        complain(str(error))
        return USAGE
    if isinstance(error, OSError):
        name = f" ({error.filename})" if error.filename else ""
        complain(f"the system refused: {error.strerror or error}{name}")
        return FAILED
    complain(f"this should not have happened: {type(error).__name__}: {error}; LANEWAY_DEBUG=1 shows where")
    return FAILED


def _dispatch(arguments: Any) -> int:
    from laneway.cli.config import home

    home()  # says what is wrong with it, before something deep inside trips over it
    match cast("str", arguments.command):
        case "run":
            from laneway.cli.commands.run import run

            return run(arguments)
        case "resume":
            from laneway.cli.commands.resume import resume

            return resume(arguments)
        case "models":
            from laneway.cli.commands.models import models

            return models(arguments)
        case "doctor":
            from laneway.cli.commands.doctor import doctor

            return doctor(as_json=arguments.json)
        case "sessions":
            from laneway.cli.commands._sessions import sessions

            return sessions(arguments)
        case _:
            from laneway.cli.commands.local import local

            return local(arguments.action)


def run() -> None:
    """Entry point of the `laneway` script."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # its descriptor was closed at the start
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives
        else:
            stream.reconfigure(errors="replace")  # a terminal may not know every character
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:  # it came while an error was being said
        code = INTERRUPTED
    leave(code)


if __name__ == "__main__":
    run()
