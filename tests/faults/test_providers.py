"""What a provider can do wrong, over the whole way: from a socket through the wire, the loop and the Agent to the person at the shell.

After each fault: every call has its result, the conversation can be sent again, nothing hangs, and one sentence says what happened.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from cli.running import run
from cli.serving import asked, at, calling, saying, text_of
from laneway.messages import AssistantMessage, ToolResultMessage
from llm.chat import chunk, fragment, tools
from llm.loopback import CLOSE, CUT, Answer, Loopback, error_reply, sse, sse_reply

RUN = ("run", "--no-session", "-m", "custom/m", "-t", "ls", "--json", "go")
PAGE = "<!doctype html><html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
HALF = sse(chunk("caf\u00e9"))
HALF = HALF[: HALF.index(b"\\u00e9")] + b"\xc3"


def _raw(*pieces: bytes, **fields: object) -> Answer:
    return Answer(steps=[*pieces], **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        pytest.param([error_reply(401, {"error": {"message": "Incorrect API key", "code": "invalid_api_key"}})], ["401", "API key"], id="401"),
        pytest.param([error_reply(429, "slow down", headers={"retry-after": "3600"})], ["429", "3600 s", "try again later"], id="429 for an hour"),
        pytest.param([error_reply(500, {"error": {"message": "the model tripped"}})], ["500", "the model tripped"], id="500"),
        pytest.param([error_reply(502, PAGE, content_type="text/html")], ["502", "HTML page: 502 Bad Gateway"], id="an HTML error"),
        pytest.param([_raw(PAGE.encode(), content_type="text/html")], ["HTML"], id="HTML with status 200"),
        pytest.param([sse_reply(chunk("On 14"), CLOSE)], ["connection"], id="closed in the middle"),
        pytest.param([sse_reply(chunk("On 14"), CUT)], ["connection"], id="reset in the middle"),
        pytest.param([sse_reply(tools(fragment('{"pa', index=0, call_id="c", name="ls")), CUT)], ["connection"], id="reset inside of a call"),
        pytest.param([_raw(HALF)], [""], id="half a character at the end"),
        pytest.param([sse_reply(chunk("On 14"))], ["finish"], id="no finish reason"),
        pytest.param([sse_reply(chunk("On 14"), {"error": {"message": "overloaded", "code": 503}})], ["overloaded"], id="an error in the stream"),
        pytest.param([_raw(b"data: {not json}\n\n")], ["JSON"], id="an event that is not JSON"),
        pytest.param([_raw(b"")], [""], id="nothing at all"),
        pytest.param([_raw(b"\x00\xff\xfe" * 1000, raw=True)], [""], id="no HTTP"),
    ],
)
async def test_a_failed_response_is_one_sentence(env: dict[str, str], work: Path, answers: list[Answer], said: list[str]):
    """Exit code 1; the failed message is in the transcript and stays out of what is sent on."""
    async with Loopback(answers) as server:
        done = await run(RUN, at(server, env), cwd=work)
    sentence = done.check(1, "the run failed", *said)
    assert len(sentence) < 400, sentence
    assert len(done.sentences) == 1
    *_, last = done.check_transcript()
    assert isinstance(last, AssistantMessage)
    assert last.stop_reason == "error"
    assert last.error_message
    assert last.error_message in sentence
    assert done.events[-1]["reason"] == "error"


@pytest.mark.parametrize(
    ("answer", "said", "requests"),
    [
        pytest.param(error_reply(401, {"error": {"message": "Incorrect API key"}}), ["401", "API key"], 1, id="401"),
        pytest.param(error_reply(500, "tripped"), ["500", "tripped"], 3, id="500"),
        pytest.param(sse_reply(chunk("On 14"), CUT), ["connection"], 3, id="reset in the middle"),
        pytest.param(_raw(HALF), [""], 3, id="half a character at the end"),
    ],
)
async def test_the_durable_run_fails_in_the_same_words(env: dict[str, str], work: Path, answer: Answer, said: list[str], requests: int):
    """With a session what may pass is asked again as a new response; what failed stays out of every request, and one sentence ends it."""
    async with Loopback([answer]) as server:
        done = await run(["run", "-m", "custom/m", "-t", "ls", "--json", "go"], at(server, env), cwd=work)
    done.check(1, "the run failed", *said)
    assert sum("trying again" in sentence for sentence in done.sentences) == requests - 1
    done.check_transcript()
    assert len(server.requests) == requests
    assert [m["role"] for m in asked(server)] == ["user"]


async def test_a_refused_connection_names_the_address_and_what_to_check(env: dict[str, str], work: Path):
    """Nobody listens there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = await run(RUN, {**env, "LANEWAY_CUSTOM_BASE_URL": f"http://127.0.0.1:{port}/v1"}, cwd=work)
    done.check(1, "the run failed", f"127.0.0.1:{port}", "check that the server runs")
    done.check_transcript()


@pytest.mark.parametrize(
    "refusal",
    [
        error_reply(429, "slow down", headers={"retry-after": "0.05"}),
        error_reply(500, "tripped", headers={"retry-after-ms": "10"}),
        error_reply(503, PAGE, content_type="text/html", headers={"retry-after": "0"}),
    ],
)
async def test_what_passes_is_asked_again(env: dict[str, str], work: Path, refusal: Answer):
    """A request that failed before anything of the answer had come is sent again after the wait that was asked for; nobody notices."""
    async with Loopback([refusal, refusal, saying("Here I am.")]) as server:
        done = await run(RUN, at(server, env), cwd=work)
    done.check(0)
    assert done.err == ""
    assert [m.role for m in done.check_transcript()] == ["user", "assistant"]
    assert len(server.requests) == 3
    assert server.requests[0].body == server.requests[2].body


async def test_a_character_in_two_halves_is_one(env: dict[str, str], work: Path):
    """Bytes are cut anywhere on their way; text is not."""
    body = (
        sse(*(chunk("caf\u00e9 \U0001f600"), chunk(finish="stop"), "[DONE]"))
        .replace(b"\\u00e9", "é".encode())
        .replace(b"\\ud83d\\ude00", "😀".encode())
    )
    async with Loopback([Answer(steps=[body[i : i + 1] for i in range(len(body))])]) as server:
        done = await run(["run", "--no-session", "-m", "custom/m", "go"], at(server, env), cwd=work)
    done.check(0)
    assert done.out == "café 😀\n"


async def test_repeated_call_ids_are_made_distinct(env: dict[str, str], work: Path):
    """Two calls of one response with one id, and the id again in the next response: each has its own result, paired by an id of its own."""
    (work / "sub").mkdir()
    twice = sse_reply(
        tools(fragment('{"path": "."}', index=0, call_id="same", name="ls"), fragment('{"path": "sub"}', index=1, call_id="same", name="ls")),
        chunk(finish="tool_calls"), "[DONE]",
    )  # fmt: skip
    async with Loopback([twice, calling("ls", {}, call_id="same"), saying("done")]) as server:
        done = await run(RUN, at(server, env), cwd=work)
    done.check(0)
    messages = done.check_transcript()
    calls = [call.id for m in messages if isinstance(m, AssistantMessage) for call in m.tool_calls]
    results = [m.tool_call_id for m in messages if isinstance(m, ToolResultMessage)]
    assert len(set(calls[:2])) == 2
    assert calls == results
    sent = [call["id"] for m in asked(server) for call in m.get("tool_calls") or ()]
    assert sent == [m["tool_call_id"] for m in asked(server) if m["role"] == "tool"]
    assert len(sent) == len(set(sent)) == 3


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(calling("ls", '{"path": nonsense'), ["arguments", "JSON"], id="arguments that are not JSON"),
        pytest.param(calling("ls", '["."]'), ["arguments"], id="arguments that are no object"),
        pytest.param(calling("ls", {"limit": "many"}), ["limit"], id="arguments that do not fit"),
        pytest.param(calling("teleport", {"to": "Mars"}), ["teleport", "ls"], id="an unknown tool"),
        pytest.param(calling("ls", {"path": "x" * 300_000}), ["does not exist", "characters)"], id="arguments that no system takes"),
    ],
)
async def test_a_call_that_cannot_be_made_is_told_to_the_model(env: dict[str, str], work: Path, answer: Answer, said: list[str]):
    """The model reads what is wrong with its call and may try again; the run goes on and the person needs to do nothing."""
    async with Loopback([answer, saying("I see.")]) as server:
        done = await run(RUN, at(server, env), cwd=work)
    done.check(0)
    _, _, result, last = done.check_transcript()
    assert isinstance(result, ToolResultMessage)
    assert result.is_error
    told = text_of(asked(server)[-1])
    assert all(part in told for part in said), told
    assert len(told) < 2000
    assert last.text == "I see."  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["", "tele port!", "x" * 300, "\u2620"])
async def test_a_tool_name_that_no_provider_takes_back(env: dict[str, str], work: Path, name: str):
    """A model may invent any name; the conversation is sent on with one that every provider accepts, in the call and in its result."""
    async with Loopback([calling(name, {}), saying("I see.")]) as server:
        done = await run(RUN, at(server, env), cwd=work)
    done.check(0)
    (sent,) = (call for m in asked(server) for call in m.get("tool_calls") or ())
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", sent["function"]["name"])
    assert asked(server)[-1]["tool_call_id"] == sent["id"]
    assert "ls" in text_of(asked(server)[-1])


async def test_an_event_of_five_megabytes(env: dict[str, str], work: Path):
    """Arrives, as text and as the arguments of a call."""
    big = "x" * (5 * 1024 * 1024)
    async with Loopback([calling("write", {"path": "big.txt", "content": big}), saying(big)]) as server:
        done = await run(["run", "--no-session", "-m", "custom/m", "go"], at(server, env), cwd=work)
    done.check(0)
    assert done.out == big + "\n"
    assert (work / "big.txt").read_text() == big
    assert max(len(line) for line in done.err.splitlines()) < 400


async def test_calls_of_a_response_that_was_cut_off_are_never_made(env: dict[str, str], work: Path):
    """Stopped by the output limit in the middle of a call: it may be incomplete, so it is answered with an error and not run."""
    cut = sse_reply(tools(fragment('{"path": "half.txt", "content": "x"', index=0, call_id="c", name="write")), chunk(finish="length"), "[DONE]")
    async with Loopback([cut, saying("smaller then")]) as server:
        done = await run(["run", "--no-session", "-m", "custom/m", "--json", "go"], at(server, env), cwd=work)
    done.check(0)
    assert not (work / "half.txt").exists()
    _, _, result, _ = done.check_transcript()
    assert isinstance(result, ToolResultMessage)
    assert "output limit" in text_of(asked(server)[-1])


async def test_a_model_that_loops_for_ever_is_stopped_by_a_limit(env: dict[str, str], work: Path):
    """After the turn in which the limit is reached; the calls of that turn have their results."""
    async with Loopback([calling("ls", {})]) as server:
        done = await run([*RUN, "--max-turns", "4"], at(server, env), cwd=work)
    done.check(1, "limit max_turns")
    messages = done.check_transcript()
    assert sum(isinstance(m, AssistantMessage) for m in messages) == len(server.requests) == 4
    assert done.events[-1]["limit"] == "max_turns"
