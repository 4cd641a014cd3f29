"""Hand-off: a conversation that one wire's decoder produced, encoded for every other wire (and for its own), for every ordered pair.

The conversation has everything that makes a hand-off hard: signed and sealed reasoning, images from the person and from a tool, two calls at
once, a change of prompt and tools, a response that was aborted in the middle of a call, a call that nobody answered, ids that come twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from hashlib import sha256
from typing import Any

import pytest
from msgspec.structs import replace

from laneway.abort import AbortController
from laneway.llm._transform import encode_body
from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.llm.wire import load_wire, wire_names
from laneway.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolDeclaration,
    ToolResultMessage,
    UserMessage,
    decode_message,
    encode,
)
from laneway.transcript import NO_RESULT
from llm.dialects import DIALECTS, SECRET, check_against_sdk, encode_for, items_of, walk
from llm.loopback import Answer, Loopback

WIRES = wire_names()
PAIRS = [(author, reader) for author in WIRES for reader in WIRES]
IMAGE = ImageContent(data="aGk=", mime_type="image/png")
SEEN = ImageContent(data="dG9vbA==", mime_type="image/png")
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [ToolDeclaration(name=name, description=f"{name}s a file.", parameters=PATH) for name in ("read", "look", "write")]
START = SystemMessage(content="You help.", sections={"style": "Be kind."}, tools_added=TOOLS[:2], timestamp=0)
CHANGE = SystemMessage(
    content="Be brief.", sections={"style": None}, tools_added=[TOOLS[2]], tools_removed=["look"], timestamp=0
)  # fmt: skip


def test_every_wire_has_a_dialect() -> None:
    """A new wire joins these tests with an entry in `dialects`."""
    assert sorted(DIALECTS) == WIRES


# ---------------------------------------------------------------------------------------------------- the conversation


async def _ask(author: str, body: bytes, messages: list[Message], *, abort: bool = False) -> AssistantMessage:
    """Ask the author's wire over a socket and return what it makes of the answer; with `abort` the run is stopped at the call's first piece."""
    dialect, controller = DIALECTS[author], AbortController()
    steps: list[Any] = [body, asyncio.Event()] if abort else [body]
    async with Loopback([Answer(steps=steps, content_type=dialect.content_type)]) as server, asyncio.timeout(20):
        model = replace(dialect.model, base_url=server.url)
        options = StreamOptions(api_key="k", signal=controller.signal, reasoning="high")
        stream = load_wire(author)(model, Transcript(messages=messages), options)
        async for event in stream:
            if abort and event.type == "toolcall_delta":
                controller.abort()
        return await stream.result()


def _result(call_id: str, name: str, *content: TextContent | ImageContent, **fields: Any) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call_id, tool_name=name, content=list(content), timestamp=0, **fields)


def _user(text: str, *images: ImageContent) -> UserMessage:
    return UserMessage(content=[TextContent(text=text), *images] if images else text, timestamp=0)


async def _talk(author: str) -> list[Message]:
    dialect = DIALECTS[author]
    messages: list[Message] = [START, _user("What is there?", IMAGE)]

    async def answer(body: bytes, *, abort: bool = False) -> AssistantMessage:
        messages.append(await _ask(author, body, messages, abort=abort))
        return messages[-1]  # type: ignore[return-value]  # what was just appended

    first = await answer(dialect.first)
    read, look = first.tool_calls
    messages += [_result(read.id, "read", TextContent(text="notes")), _result(look.id, "look", TextContent(text="a photo"), SEEN), CHANGE]
    await answer(dialect.answer)
    messages.append(_user("Write it down."))
    await answer(dialect.cut, abort=True)
    messages.append(_user("No, read again."))
    await answer(dialect.call)
    messages.append(_user("Well?"))  # the process died before the call was answered
    again = await answer(dialect.call)
    messages += [_result(again.tool_calls[0].id, "read", is_error=True), _user("And?")]
    await answer(dialect.answer)
    return [*messages, _user("Thanks.")]


@cache
def conversation(author: str) -> list[Message]:
    """The whole conversation, as the author's wire produced it."""
    return asyncio.run(_talk(author))


def requests(messages: list[Message]) -> list[int]:
    """Where a request was made: the lengths of the transcript before each response, and at the end."""
    return [*(at for at, message in enumerate(messages) if isinstance(message, AssistantMessage)), len(messages)]


def reader_of(api: str, **fields: Any) -> Model:
    """The model that the conversation is handed to."""
    return replace(DIALECTS[api].model, **fields) if fields else DIALECTS[api].model


@pytest.mark.parametrize("author", WIRES)
def test_the_conversation_is_what_it_should_be(author: str) -> None:
    """The bytes were understood: reasoning is signed, two calls at once, an aborted turn with a call, the same id again."""
    messages = conversation(author)
    said = [message for message in messages if isinstance(message, AssistantMessage)]
    assert [message.stop_reason for message in said] == ["tool_use", "stop", "aborted", "tool_use", "tool_use", "stop"]
    assert [len(message.tool_calls) for message in said] == [2, 0, 1, 1, 1, 0]
    assert all((message.api, message.provider, message.model) == (author, reader_of(author).provider, reader_of(author).id) for message in said)
    thoughts = [block for block in said[0].content if isinstance(block, ThinkingContent)]
    assert SECRET in thoughts[0].thinking
    text = json.dumps(json.loads(encode(said[0]))).replace("\\", "")
    assert all(mark in text for mark in DIALECTS[author].marks)
    assert said[3].tool_calls[0].id == said[4].tool_calls[0].id


# ---------------------------------------------------------------------------------------------------- every ordered pair


@pytest.mark.parametrize(("author", "reader"), PAIRS)
def test_every_call_has_one_result_and_a_legal_id_of_its_own(author: str, reader: str) -> None:
    """Decision 15, B30, B31, B36, 05 sc. 121, 122, 124: at every request; orphans are answered, aborted turns are gone with their calls."""
    messages = conversation(author)
    for length in requests(messages):
        waiting: list[str] = []
        seen: list[str] = []
        events = list(walk(encode_for(reader_of(reader), messages[:length])))
        for kind, call_id in events:
            if kind == "call":
                assert re.fullmatch(DIALECTS[reader].ids, call_id)
                waiting.append(call_id)
                seen.append(call_id)
            elif kind == "result":
                assert waiting.pop(0) == call_id
            else:
                assert not waiting, f"{kind} stands between a call and its result"
        assert not waiting
        assert len(set(seen)) == len(seen)
        answered = [message for message in messages[:length] if isinstance(message, AssistantMessage) and message.stop_reason == "tool_use"]
        assert len(seen) == sum(len(message.tool_calls) for message in answered)
    assert json.dumps(encode_for(reader_of(reader), messages)).count(NO_RESULT) == 1


@pytest.mark.parametrize(("author", "reader"), PAIRS)
def test_reasoning_goes_back_to_its_own_model_only(author: str, reader: str) -> None:
    """Decision 7, B37 (a), (c), (d), B38, 05 sc. 78, 107, 117, 120: dropped for others, not turned into text; all of it comes home."""
    messages = conversation(author)
    text = _plain(encode_for(reader_of(reader), messages))
    found = {mark: text.count(mark) for mark in DIALECTS[author].marks}
    if author == reader:
        assert set(found.values()) == {1}
        text = _plain(encode_for(reader_of(reader, id="gemini-3-pro" if "google" in reader else "another"), messages))
        found = {mark: text.count(mark) for mark in DIALECTS[author].marks}
    assert set(found.values()) == {0}
    assert "I look." in text
    assert "I wr" not in text


def _plain(body: dict[str, Any]) -> str:
    """A body as text, JSON inside of strings unwrapped."""
    return json.dumps(body).replace("\\", "")


@pytest.mark.parametrize(("author", "reader"), PAIRS)
def test_images_arrive(author: str, reader: str) -> None:
    """B56: the person's image, and (as the wire can) the tool's; a model that cannot see gets a note instead."""
    messages = conversation(author)
    text = json.dumps(encode_for(reader_of(reader), messages))
    assert (text.count(IMAGE.data), text.count(SEEN.data)) == (1, 1)
    blind = json.dumps(encode_for(reader_of(reader, input=("text",)), messages))
    assert IMAGE.data not in blind
    assert SEEN.data not in blind
    assert "notes" in blind


@pytest.mark.parametrize(("author", "reader"), PAIRS)
def test_prompt_and_tools_are_those_of_now(author: str, reader: str) -> None:
    """05 sc. 12, 74: a wire that knows no change of prompt in the middle gets the merged prompt and the current tools at the top."""
    body = encode_for(reader_of(reader, compat={}), conversation(author))
    text = json.dumps(body)
    assert text.count("You help.") == text.count("Be brief.") == 1
    assert "Be kind." not in text
    tools = json.dumps(body.get("tools") or body.get("toolConfig"))
    assert all(f'"{name}"' in tools for name in ("read", "write"))
    assert '"look"' not in tools


@pytest.mark.parametrize(("author", "reader"), PAIRS)
def test_the_stored_transcript_is_not_touched(author: str, reader: str) -> None:
    """05 §5: healing and fitting are for the wire only."""
    messages = conversation(author)
    before = [encode(message) for message in messages]
    encode_for(reader_of(reader), messages)
    assert [encode(message) for message in messages] == before


@pytest.mark.parametrize(("author", "reader"), PAIRS)
def test_a_longer_conversation_begins_with_the_bytes_of_a_shorter_one(author: str, reader: str) -> None:
    """Issue of prompt caches: what was sent stays as it was, whichever model sent it; a fresh start gives the same bytes."""
    messages, model = conversation(author), reader_of(reader)
    before = ""
    for length in requests(messages):
        items = json.dumps(items_of(encode_for(model, messages[:length], cache_retention="none")))
        assert items.startswith(before)
        before = items.rstrip("]}")  # a message of the same role may become part of the last one
    grown = encode_body(encode_for(model, messages))
    copied = [decode_message(encode(message)) for message in messages]
    assert encode_body(encode_for(replace(model, name="nothing is kept for this one"), copied)) == grown


@pytest.mark.parametrize(("author", "reader"), [(a, r) for a in WIRES for r in WIRES if DIALECTS[r].in_place])
def test_where_changes_stay_in_place_the_whole_request_only_grows(author: str, reader: str) -> None:
    """05 §1.7, sc. 74-76: prompt, additions and removals in the middle leave every byte before them as it was."""
    messages = conversation(author)
    additive = [replace(message, tools_removed=None) if message is CHANGE else message for message in messages]
    model = reader_of(reader, compat=DIALECTS[reader].in_place)
    before = b""
    for length in requests(additive):
        body = encode_body(encode_for(model, additive[:length], cache_retention="none"))
        assert body.startswith(before)
        before = body.removesuffix(b"]}")
    assert b"Be brief." in before
    assert before.count(b"You help.") == 1


@pytest.mark.parametrize(("author", "reader"), PAIRS)
def test_bodies_fit_the_vendors_own_types(author: str, reader: str) -> None:
    """Decision 3: at every request of the conversation."""
    messages, model = conversation(author), reader_of(reader)
    if reader == "openai_chat":  # the types are those of OpenAI's own API; a router has words of its own
        model = replace(model, provider="openai", base_url="https://api.openai.com/v1")
    for length in requests(messages):
        check_against_sdk(reader, encode_for(model, messages[:length], reasoning="high"))


@pytest.mark.parametrize(("author", "reader"), [(a, r) for a, r in PAIRS if a != r])
def test_there_and_back_again(author: str, reader: str) -> None:
    """B36, B37 (d): after a stay with another model the first one gets its own part back byte for byte, and nothing of the other's reasoning."""
    home, model = conversation(author), reader_of(author)
    away = [message for message in conversation(reader)[2:] if message is not CHANGE]
    before = json.dumps(items_of(encode_for(model, home, cache_retention="none")))
    body = encode_for(model, [*home, *away], cache_retention="none")
    assert json.dumps(items_of(body)).startswith(before.rstrip("]}"))
    text = _plain(body)
    counts = Counter({mark: text.count(mark) for mark in DIALECTS[author].marks})
    assert set(counts.values()) == {1}
    ids = [call_id for kind, call_id in walk(body) if kind == "call"]
    assert len(set(ids)) == len(ids) == 8


# ---------------------------------------------------------------------------------------------------- ids that have to be made


@pytest.mark.parametrize("author", WIRES)
def test_a_call_without_an_id_gets_one_from_its_place_in_the_conversation(author: str) -> None:
    """05 §11.24, B46: no clock is in it, so a response decoded again has the same ids; the same response later in the conversation has others."""
    body = DIALECTS[author].nameless
    messages: list[Message] = [START, _user("Read.")]

    def ids(*before: Message) -> list[str]:
        return [call.id for call in asyncio.run(_ask(author, body, list(before))).tool_calls]

    first = ids(*messages)
    assert len(set(first)) == 2
    assert all(first)
    assert ids(*messages) == first
    assert not {*ids(*messages, _user("More."))} & {*first}


# ---------------------------------------------------------------------------------------------------- another process

_PROGRAM = """
import hashlib, json, sys
sys.path.insert(0, sys.argv[1])
from laneway.llm._transform import encode_body
from laneway.messages import decode_message
from llm.dialects import DIALECTS, encode_for
found = {}
for author, lines in json.load(sys.stdin).items():
    messages = [decode_message(line) for line in lines]
    for reader in lines and DIALECTS:
        found[f"{author} {reader}"] = hashlib.sha256(encode_body(encode_for(DIALECTS[reader].model, messages))).hexdigest()
print(json.dumps(found))
"""


def test_another_process_sends_the_same_bytes() -> None:
    """Decision 15: no hash seed, clock or counter is in an id or anywhere else; a resumed session finds the provider's cache."""
    stored = json.dumps({author: [encode(message).decode() for message in conversation(author)] for author in WIRES})
    tests = os.path.dirname(os.path.dirname(__file__))
    here = {
        f"{author} {reader}": sha256(encode_body(encode_for(reader_of(reader), conversation(author)))).hexdigest() for author, reader in PAIRS
    }  # fmt: skip
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        out = subprocess.run([sys.executable, "-c", _PROGRAM, tests], input=stored, capture_output=True, text=True, env=env, check=True, timeout=120)
        assert json.loads(out.stdout) == here
