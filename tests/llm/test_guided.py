"""Guided tool calling, without a model: what is asked, and how a response becomes a call or an answer."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.abort import AbortController
from laneway.errors import ModelError
from laneway.llm import Model, Models, StreamOptions, Transcript
from laneway.llm._guided import GuidedPolicy
from laneway.llm._guided.decode import GuidedDecoder
from laneway.llm._guided.dialogue import dialogue
from laneway.llm._guided.policy import without_guidance
from laneway.llm._guided.schema import call_schema, full_arguments, mentioned_files, response_schema, search_terms, short_arguments
from laneway.llm._guided.small import choice_messages, choice_schema, nearest_examples
from laneway.llm._guided.stream import plan_request
from laneway.llm._writer import StreamWriter
from laneway.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    SystemMessage,
    TextContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    UserMessage,
)
from laneway.testing import provider_ready
from llm.chat import chunk, usage
from llm.loopback import CUT, Loopback, error_reply, sse_reply

MODEL = Model(id="m", provider="test", api="openai_chat", base_url="http://127.0.0.1:1/v1")
TEXT = {"type": "string"}
READ = ToolDeclaration(
    name="read",
    description="Read a file. Long ones in parts.",
    parameters={"type": "object", "properties": {"path": TEXT, "limit": {"type": "integer"}}, "required": ["path"]},
)
LS = ToolDeclaration(name="ls", description="List files.", parameters={"type": "object", "properties": {"path": TEXT}})
GREP = ToolDeclaration(
    name="grep", description="Search.", parameters={"type": "object", "properties": {"pattern": TEXT, "path": TEXT}, "required": ["pattern"]}
)
TOOLS = [READ, LS, GREP]


def decoded(*pieces: str, plain: bool = False) -> tuple[StreamWriter, GuidedDecoder]:
    """Feed pieces to a decoder."""
    writer = StreamWriter(MODEL)
    writer.start()
    decoder = GuidedDecoder(writer, "call_1", plain=plain)
    for piece in pieces:
        decoder.feed(piece)
    decoder.finish()
    writer.done("tool_use" if decoder.called else "stop")
    return writer, decoder


def block(*pieces: str, plain: bool = False) -> Any:
    """The one block that pieces become."""
    content = decoded(*pieces, plain=plain)[0].partial.content
    assert len(content) == 1
    return content[0]


# ---------------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("pretty", [None, 2])
@pytest.mark.parametrize("text", ["hello", "", 'a "quoted" \\ back\nslash\t', "naïve 😀 \u2028", "\x01\x7f"])
def test_an_answer_becomes_text(text: str, pretty: int | None) -> None:
    """Escapes, line breaks and pairs of surrogates come out as the characters they are, whatever the white space around."""
    for ascii_only in (True, False):
        found = block(json.dumps({"answer": text}, indent=pretty, ensure_ascii=ascii_only))
        assert isinstance(found, TextContent)
        assert found.text == text


def test_a_call_becomes_a_tool_call() -> None:
    """Name and arguments; braces and quotes inside of strings are no structure."""
    arguments = {"path": 'a"}]{[ \\ b', "deep": [{"x": [1, {}]}], "n": -1.5, "none": None}
    found = block(json.dumps({"tool": "read", "arguments": arguments}))
    assert found == ToolCall(id="call_1", name="read", arguments=arguments)


@given(
    reply=st.one_of(
        st.builds(lambda text: {"answer": text}, st.text()),
        st.builds(
            lambda name, arguments: {"tool": name, "arguments": arguments},
            st.text(min_size=1).filter(lambda name: json.dumps(name) == f'"{name}"'),
            st.dictionaries(st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5)),
        ),
    ),
    cuts=st.lists(st.integers(0, 400)),
    indent=st.none() | st.integers(0, 3),
    ascii_only=st.booleans(),
)
def test_how_a_response_is_cut_into_pieces_makes_no_difference(reply: dict[str, Any], cuts: list[int], indent: int | None, ascii_only: bool) -> None:
    """Any cut, in the middle of an escape too, gives the same block, and the deltas add up to it."""
    text = json.dumps(reply, indent=indent, ensure_ascii=ascii_only)
    if not ascii_only and any(0xD800 <= ord(character) < 0xE000 for character in text):
        return
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    writer, decoder = decoded(*pieces)
    events = writer.take()
    deltas = "".join(event.delta for event in events if event.type in ("text_delta", "toolcall_delta"))  # type: ignore[union-attr]
    (found,) = writer.partial.content
    if "answer" in reply:
        assert isinstance(found, TextContent)
        clean = json.loads(text)["answer"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        assert found.text == deltas == clean
        assert not decoder.called
    else:
        assert isinstance(found, ToolCall)
        assert (found.name, found.arguments, found.arguments_error) == (reply["tool"], reply["arguments"], None)
        assert json.loads(deltas) == reply["arguments"]
        assert decoder.called


@pytest.mark.parametrize(
    "text",
    [
        "Hello, I am a model.",
        "",
        " ",
        "[1]",
        "{}",
        "{",
        '{"',
        '{"ans',
        '{"answe',
        '{"reply": "x"}',
        '{"answer": 3}',
        '{"tool": {"name": "x"}}',
        '{"tool" "x"}',
        "{x",
        '"answer"',
    ],
)
def test_what_is_no_guided_response_is_text_as_it_is(text: str) -> None:
    """A server that ignored the schema still gives its answer, cut anywhere."""
    for pieces in ([text], list(text)):
        content = decoded(*pieces)[0].partial.content
        assert "".join(found.text for found in content if isinstance(found, TextContent)) == text
        assert len(content) <= 1


def test_plain_text_is_never_looked_into() -> None:
    """Where only an answer may come, JSON in it stays text."""
    call = '{"tool": "read", "arguments": {}}'
    assert block(call[:5], call[5:], plain=True).text == call


def test_what_follows_the_response_is_dropped() -> None:
    """Some servers write on after the object."""
    assert block('{"answer": "a"} {"answer": "b"}').text == "a"
    assert block('{"tool": "ls", "arguments": {}}}} trailing').arguments == {}


@pytest.mark.parametrize(
    ("text", "arguments", "error"),
    [
        ('{"tool": "ls"}', {}, None),
        ('{"tool": "ls", "arguments": null}', {}, None),
        ('{"tool": "ls", "arguments": {"path": "a', {}, "not complete"),
        ('{"tool": "ls", "arguments": {"path": 1 2}}', {}, "not complete"),
    ],
)
def test_arguments_that_are_missing_or_cut_off(text: str, arguments: dict[str, Any], error: str | None) -> None:
    """No arguments are none; a text that was cut off is never guessed."""
    found = block(*text)
    assert found.arguments == arguments
    assert (error or "") in (found.arguments_error or "")
    assert (found.arguments_error is None) == (error is None)


def test_decoding_is_linear() -> None:
    """Ten times the response costs about ten times the work, in deltas of a few characters."""

    def steps(size: int) -> int:
        writer = StreamWriter(MODEL)
        decoder = GuidedDecoder(writer, "c")
        text = json.dumps({"tool": "write", "arguments": {"content": 'x" {' * size}})
        held = 0
        for start in range(0, len(text), 7):
            decoder.feed(text[start : start + 7])
            held = max(held, len(decoder._held))
            writer.take()
        return held

    assert steps(10_000) == steps(100)


# ---------------------------------------------------------------------------------------------------- the schema


def valid(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value fits."""
    return jsonschema_rs.validator_for(schema).is_valid(value)


def test_a_response_is_a_call_of_a_tool_or_an_answer() -> None:
    """Nothing else fits the schema, and without an answer only calls do."""
    calls = [call_schema(tool, full_arguments(tool)) for tool in TOOLS]
    free, forced = response_schema(calls, answer=True), response_schema(calls, answer=False)
    assert valid(free, {"tool": "read", "arguments": {"path": "a"}})
    assert valid(free, {"answer": "x"})
    assert not valid(forced, {"answer": "x"})
    assert not valid(free, {"tool": "read", "arguments": {}})
    assert not valid(free, {"tool": "rm", "arguments": {}})
    assert not valid(free, {"tool": "ls", "arguments": {}, "answer": "x"})
    assert valid(response_schema([], answer=False), {"answer": "x"})


def test_definitions_of_a_tools_schema_move_to_the_root() -> None:
    """`$ref` looks for them there; two tools may call theirs alike."""

    def tool(name: str, kind: str) -> ToolDeclaration:
        item = {"$ref": "#/$defs/Item"}
        schema = {"type": "object", "properties": {"items": {"type": "array", "items": item}}, "required": ["items"]}
        return ToolDeclaration(name=name, description="", parameters={**schema, "$defs": {"Item": {"type": kind}}})

    tools = [tool("a", "string"), tool("b", "integer")]
    schema = response_schema([call_schema(one, full_arguments(one)) for one in tools], answer=True)
    assert valid(schema, {"tool": "a", "arguments": {"items": ["x"]}})
    assert valid(schema, {"tool": "b", "arguments": {"items": [1]}})
    assert not valid(schema, {"tool": "b", "arguments": {"items": ["x"]}})
    assert "$defs" not in json.dumps(schema["anyOf"][0]["properties"]["arguments"]["properties"]).replace("#/$defs/", "")


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("What does notes.txt say?", ["notes.txt"]),
        ("Compare a/b.py, src/ and ./x.", ["a/b.py", "src/", "./x"]),
        ("Look at README.md. Then README.md again", ["README.md"]),
        ("What is 2.5 + 3? E.g. this, i.e. that.", []),
        ("Hello there...", []),
    ],
)
def test_files_that_a_request_mentions(text: str, files: list[str]) -> None:
    """Words with an extension or a slash; no numbers, no abbreviations."""
    assert mentioned_files(text) == files


def test_a_small_model_may_only_name_what_is_mentioned() -> None:
    """A required file is one of those mentioned; without one the tool is not offered; a folder may be here."""
    assert short_arguments(READ, "Read it") is None
    arguments = short_arguments(READ, "Read a.txt")
    assert arguments is not None
    assert arguments["properties"] == {"path": {"enum": ["a.txt"]}}
    listed = short_arguments(LS, "a.txt or src/")
    assert listed is not None
    assert listed["properties"] == {"path": {"enum": ["src/", "."]}}
    searched = short_arguments(GREP, "Which file mentions the launch date?")
    assert searched is not None
    assert searched["properties"] == {"pattern": {"enum": ["launch", "date", "launch date"]}}


def test_a_glob_is_not_taken_from_the_request() -> None:
    """`*.py` stands for "Python files", which does not say it; a request of common words only limits nothing."""
    find = ToolDeclaration(name="find", description="Find files by glob pattern.", parameters=GREP.parameters)
    for tool, request in ((find, "Find all Python files"), (GREP, "Search for it in this folder")):
        arguments = short_arguments(tool, request)
        assert arguments is not None
        assert arguments["properties"] == {"pattern": TEXT}


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Search for TODO in the code", ["TODO"]),
        ("Where is parse_args defined?", ["parse_args"]),
        ("Which files mention red ripe apples?", ["red", "ripe", "apples", "red ripe", "ripe apples", "red ripe apples"]),
        ("what is this", []),
    ],
)
def test_what_a_request_may_ask_to_search_for(text: str, terms: list[str]) -> None:
    """Words and neighbours, without those that every request has."""
    assert search_terms(text) == terms


def test_a_small_model_looks_before_it_answers_about_a_file() -> None:
    """With a file in the question no answer from memory fits; without one it does."""
    assert not valid(choice_schema("What does notes.txt say?", TOOLS, answer=True), {"answer": "x"})
    assert valid(choice_schema("Hello", TOOLS, answer=True), {"answer": "x"})
    assert not valid(choice_schema("Hello", TOOLS, answer=False), {"answer": "x"})
    assert valid(choice_schema("What does notes.txt say?", [GREP], answer=True), {"answer": "x"})


# ---------------------------------------------------------------------------------------------------- what is told


def test_the_nearest_example_comes_last_and_both_kinds_are_shown() -> None:
    """What a small model copies is what it saw last."""
    examples = nearest_examples("What does plan.txt say?", TOOLS)
    assert examples[-1][1]["tool"] == "read"
    assert any("answer" in reply for _, reply in examples)
    assert any("tool" in reply for _, reply in nearest_examples("Good evening!", TOOLS))
    assert "answer" in nearest_examples("Thanks!", TOOLS)[-1][1]


def test_a_tool_of_ones_own_gets_an_example_made_of_its_description() -> None:
    """Its required arguments are filled with what their schemas offer."""
    schema = {
        "type": "object",
        "properties": {"city": TEXT, "unit": {"enum": ["C", "F"]}, "days": {"type": "integer"}},
        "required": ["city", "unit", "days"],
    }
    weather = ToolDeclaration(name="get_weather", description="Get the weather forecast. Slow.", parameters=schema)
    examples = nearest_examples("What will the weather be?", [weather])
    assert {"tool": "get_weather", "arguments": {"city": "some city", "unit": "C", "days": 3}} in [reply for _, reply in examples]
    bare = ToolDeclaration(name="ping", description="", parameters={"type": "object"})
    assert {"tool": "ping", "arguments": {}} in [reply for _, reply in nearest_examples("ping", [bare])]


def conversation(*, results: int = 1) -> list[Message]:
    """A question, calls, and their results."""
    calls = [ToolCall(id=f"c{number}", name="read", arguments={"path": "notes.txt"}) for number in range(results)]
    answers = [ToolResultMessage(tool_call_id=call.id, tool_name="read", content=[TextContent(text="It is on 12 June.")]) for call in calls]
    asked: list[Message] = [SystemMessage(content="Be brief.", tools_added=TOOLS), UserMessage(content="What does notes.txt say?")]
    return [*asked, AssistantMessage(content=list(calls), stop_reason="tool_use"), *answers] if calls else asked


def test_a_guided_conversation_is_plain_messages() -> None:
    """Calls and results as text, tools in the system prompt; the result is one that a provider takes."""
    told = dialogue("Be brief.", conversation(), TOOLS, MODEL)
    assert [type(message).__name__ for message in told] == ["SystemMessage", "UserMessage", "AssistantMessage", "UserMessage"]
    assert isinstance(told[0], SystemMessage)
    assert '"name":"grep"' in told[0].content
    assert isinstance(told[2], AssistantMessage)
    assert told[2].text == '{"tool": "read", "arguments": {"path": "notes.txt"}}'
    assert isinstance(told[3], UserMessage)
    assert told[3].content == "Result of read:\nIt is on 12 June."
    assert provider_ready(told) == []


def test_images_and_long_results_are_said_to_be_left_out() -> None:
    """Nothing disappears without a word."""
    result = ToolResultMessage(
        tool_call_id="c", tool_name="read", content=[TextContent(text="x" * 50), ImageContent(data="AA==", mime_type="image/png")], is_error=True
    )
    told = dialogue("", [UserMessage(content="q"), AssistantMessage(content=[ToolCall(id="c", name="read")]), result], TOOLS, MODEL, result_chars=20)
    last = told[-1]
    assert isinstance(last, UserMessage)
    assert str(last.content).startswith("Error from read:\n" + "x" * 20 + "\n[41 more characters")


@pytest.mark.parametrize(
    ("choice", "tools", "answer"),
    [
        (None, {"read", "ls", "grep"}, True),
        ("auto", {"read", "ls", "grep"}, True),
        ("required", {"read", "ls", "grep"}, False),
        ("any", {"read", "ls", "grep"}, False),
        ("ls", {"ls"}, False),
        ({"type": "function", "function": {"name": "ls"}}, {"ls"}, False),
        ({"type": "tool", "name": "grep"}, {"grep"}, False),
        ({"type": "any"}, {"read", "ls", "grep"}, False),
    ],
)
def test_tool_choice_in_all_its_forms(choice: Any, tools: set[str], answer: bool) -> None:
    """Which tools may be called, and whether one must be."""
    schema = plan_request(conversation(results=0), MODEL, GuidedPolicy(tools=True), choice).schema
    assert schema is not None
    members = schema.get("anyOf", [schema])
    assert {member["properties"]["tool"]["const"] for member in members if "tool" in member["properties"]} == tools
    assert any("answer" in member["properties"] for member in members) is answer


def test_after_enough_results_only_an_answer_may_come() -> None:
    """`guided_calls` counts results since the last user message; a new one begins anew; a forced call goes ahead."""
    small = GuidedPolicy(tools=True, small=True, calls=1)
    assert plan_request(conversation(results=0), MODEL, small).schema is not None
    asked = plan_request(conversation(), MODEL, small)
    assert asked.schema is None
    assert isinstance(asked.messages[-1], UserMessage)
    assert "It is on 12 June." in str(asked.messages[-1].content)
    assert plan_request(conversation(), MODEL, GuidedPolicy(tools=True, calls=2)).schema is not None
    assert plan_request(conversation(results=2), MODEL, GuidedPolicy(tools=True, calls=2)).schema is None
    assert plan_request([*conversation(), UserMessage(content="And ls?")], MODEL, small).schema is not None
    assert plan_request(conversation(), MODEL, small, "required").schema is not None
    assert plan_request(conversation(results=0), MODEL, small, "none").schema is None
    assert plan_request([UserMessage(content="hi")], MODEL, small).schema is None


def test_a_small_models_choice_is_short() -> None:
    """Whatever the conversation, the request to choose stays a few hundred words."""
    told = choice_messages("What does notes.txt say?", TOOLS, MODEL)
    assert len(told) <= 16
    assert sum(len(json.dumps(str(message))) for message in told) < 8000


# ---------------------------------------------------------------------------------------------------- the policy


def test_a_policy_is_read_from_compat_and_kept_from_the_wire() -> None:
    """`guided_…` values are the policy's, everything else the wire's."""
    model = Model(id="m", provider="p", api="openai_chat", compat={"guided_tools": True, "guided_calls": 3, "max_tokens_field": "max_tokens"})
    assert GuidedPolicy.of(model) == GuidedPolicy(tools=True, calls=3)
    assert without_guidance(model).compat == {"max_tokens_field": "max_tokens"}


@pytest.mark.parametrize("compat", [{"guided_tools": True, "guided_call": 1}, {"guided_tools": True, "guided_calls": "many"}])
async def test_a_wrong_policy_is_named(compat: dict[str, Any], models: Models) -> None:
    """By the registry as an error event, on its own as a `ModelError`."""
    model = Model(id="m", provider="custom", api="openai_chat", base_url="http://127.0.0.1:1", compat=compat)
    with pytest.raises(ModelError, match="guided"):
        GuidedPolicy.of(model)
    message = await models.stream(model, Transcript(messages=[])).result()
    assert "guided" in str(message.error_message)


# ---------------------------------------------------------------------------------------------------- over a server


def guided_model(server: Loopback, **compat: Any) -> Model:
    """A guided model on the loopback server."""
    return Model(id="m", provider="custom", api="openai_chat", base_url=server.url, compat={"guided_tools": True, **compat})


async def test_a_call_comes_out_of_a_server_that_knows_no_tools(models: Models) -> None:
    """Any chat-completions server with response schemas: text in, tool call out; usage and ids are the server's."""
    reply = ['{"tool": "re', 'ad", "argum', 'ents": {"path": "no', 'tes.txt"}}']
    async with Loopback(
        [sse_reply(*(chunk(piece) for piece in reply), chunk(finish="stop"), usage(prompt_tokens=7, completion_tokens=3), "[DONE]")]
    ) as server:
        stream = models.stream(guided_model(server), Transcript(messages=conversation(results=0)), StreamOptions(sampling_params={"top_k": 1}))
        events = [event.type async for event in stream]
        message = await stream.result()
        body = server.requests[0].json
    assert events == ["start", "toolcall_start", "toolcall_delta", "toolcall_delta", "toolcall_end", "done"]
    assert message.stop_reason == "tool_use"
    assert message.tool_calls == [ToolCall(id="call_1", name="read", arguments={"path": "notes.txt"})]
    assert (message.usage.input, message.usage.output, message.response_id, message.provider) == (7, 3, "chatcmpl-1", "custom")
    assert "tools" not in body
    assert body["top_k"] == 1
    assert body["response_format"]["json_schema"]["schema"]["anyOf"]
    assert body["messages"][0]["role"] == "system"


async def test_an_answer_streams_as_it_arrives(models: Models) -> None:
    """Each piece of text is an event before the next one is sent."""
    go = asyncio.Event()
    async with Loopback([sse_reply(chunk('{"answer": "Hel'), go, chunk('lo"}'), chunk(finish="stop"))]) as server:
        deltas: list[str] = []
        stream = models.stream(guided_model(server), Transcript(messages=conversation()))
        async for event in stream:
            if event.type == "text_delta":
                deltas.append(event.delta)
                go.set()
        message = await stream.result()
    assert deltas == ["Hel", "lo"]
    assert (message.stop_reason, message.text) == ("stop", "Hello")


async def test_a_call_that_was_cut_off_by_the_limit_is_a_length_stop(models: Models) -> None:
    """Promise 2: the call stays marked as incomplete and is never run."""
    async with Loopback([sse_reply(chunk('{"tool": "read", "arguments": {"path": "a'), chunk(finish="length"))]) as server:
        message = await models.stream(guided_model(server), Transcript(messages=conversation(results=0))).result()
    assert message.stop_reason == "length"
    assert message.tool_calls[0].arguments_error


async def test_reasoning_that_comes_before_stays_reasoning(models: Models) -> None:
    """A server that streams its thoughts beside the schema keeps them apart."""
    async with Loopback([sse_reply(chunk(reasoning_content="hmm"), chunk('{"answer": "x"}'), chunk(finish="stop"))]) as server:
        message = await models.stream(guided_model(server), Transcript(messages=conversation(results=0))).result()
    assert [found.type for found in message.content] == ["thinking", "text"]


async def test_failures_keep_their_kind_and_what_had_arrived(models: Models) -> None:
    """A refusal, a connection that breaks, an abort: as without guidance."""
    async with Loopback([error_reply(429, {"error": {"message": "slow down"}}, headers={"retry-after": "7"})]) as server:
        message = await models.stream(guided_model(server), Transcript(messages=conversation())).result()
        assert message.error is not None
        assert (message.error.kind, message.error.status, message.error.retry_after_ms) == ("rate_limit", 429, 7000)
    async with Loopback([sse_reply(chunk('{"answer": "par'), CUT)]) as server:
        message = await models.stream(guided_model(server), Transcript(messages=conversation())).result()
        assert (message.stop_reason, message.text) == ("error", "par")
        assert message.error is not None
        assert message.error.kind in ("network", "incomplete")
    async with Loopback([sse_reply(chunk('{"answer": "par'), asyncio.Event())]) as server:
        controller = AbortController()
        stream = models.stream(guided_model(server), Transcript(messages=conversation()), StreamOptions(signal=controller.signal))
        async for event in stream:
            if event.type == "text_delta":
                controller.abort()
        message = await stream.result()
        assert (message.stop_reason, message.text) == ("aborted", "par")
        async with asyncio.timeout(5):
            await server.disconnected.wait()


async def test_dropping_the_stream_closes_the_connection(models: Models) -> None:
    """A consumer that stops reading stops the server."""
    async with Loopback([sse_reply(chunk('{"answer": "par'), asyncio.Event())]) as server:
        stream = models.stream(guided_model(server), Transcript(messages=conversation()))
        async for event in stream:
            if event.type == "text_delta":
                break
        await stream.aclose()
        assert (await stream.result()).text == "par"
        async with asyncio.timeout(5):
            await server.disconnected.wait()


async def test_ids_of_guided_calls_are_new_and_the_same_each_time(models: Models) -> None:
    """The second call of a conversation has another id than the first; asking again gives the same one."""
    messages = [*conversation(results=2), UserMessage(content="ls")]
    async with Loopback([sse_reply(chunk('{"tool": "ls", "arguments": {}}'), chunk(finish="stop"))]) as server:
        found = [(await models.stream(guided_model(server), Transcript(messages=messages)).result()).tool_calls[0].id for _ in range(2)]
    assert found == ["call_3", "call_3"]


async def test_an_unknown_tool_choice_is_an_error_event(models: Models) -> None:
    """It names no tool of the conversation."""
    model = Model(id="m", provider="custom", api="openai_chat", base_url="http://127.0.0.1:1/v1", compat={"guided_tools": True})
    message = await models.stream(model, Transcript(messages=conversation(results=0)), StreamOptions(tool_choice="rm")).result()
    assert "tool_choice names 'rm'" in str(message.error_message)
