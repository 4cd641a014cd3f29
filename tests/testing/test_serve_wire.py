"""`serve_wire` under laneway itself: the same script means the same as with `Scripted`, over real HTTP, on every wire."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pkgutil import iter_modules
from typing import Any, get_args

import msgspec
import pytest

from laneway import Agent, StreamOptions, tool
from laneway.abort import AbortController
from laneway.llm import Models
from laneway.llm import wire as wire_package
from laneway.llm.base import Model, Transcript
from laneway.llm.wire import load_wire
from laneway.messages import (
    AssistantMessage,
    ErrorInfo,
    ErrorKind,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from laneway.testing import Scripted, WireServer, call, calls, deferred, error, overflow, serve_wire, text, thinking, truncated
from laneway.testing._serve.server import DIALECTS

WIRES = list(DIALECTS)
FIELDS: dict[str, Any] = {"reasoning": True, "max_tokens": 8000, "context_window": 100_000}
HELLO: list[Message] = [UserMessage(content="Hello")]
each_wire = pytest.mark.parametrize("wire", WIRES)


async def ask(model: Model, messages: list[Message] | None = None, **options: Any) -> AssistantMessage:
    """One response."""
    stream = load_wire(model.api)(model, Transcript(messages=messages or HELLO), StreamOptions(**options))
    async with asyncio.timeout(20):
        return await stream.result()


async def answered(wire: str, *script: Any, **options: Any) -> AssistantMessage:
    """What the first reply comes to."""
    async with serve_wire(wire, script) as server:
        message = await ask(server.model(**FIELDS), **options)
    assert server.refused == []
    return message


@tool
def read(path: str) -> str:
    """Read a file."""
    return f"the text of {path}"


# ---------------------------------------------------------------------------------------------------- the same as Scripted


SCRIPT = [
    thinking("Hm. ") + text("Let me look.") + call("read", path="a") + call("read", path="b ü 🐱"),
    text("One more.") + call("read", {"path": "c"}),
    text("All three are there.", delta_size=3),
]


def told(message: Any) -> Any:
    """What of a message must be the same on every wire: ids and signatures are not."""
    if isinstance(message, ToolResultMessage):
        return ("result", message.tool_name, message.content, message.is_error)
    if isinstance(message, AssistantMessage):
        parts = [
            ("call", block.name, block.arguments)
            if isinstance(block, ToolCall)
            else ("thinking", block.thinking)
            if isinstance(block, ThinkingContent)
            else ("text", block.text)
            for block in message.content
        ]
        return ("assistant", parts, message.stop_reason)
    return message.role


@each_wire
async def test_a_script_means_the_same_as_with_a_scripted_model(wire: str):
    """Thinking, text, parallel calls with their results, and the end: the transcripts tell the same, and every request was taken."""
    scripted = Scripted(SCRIPT)
    expected = Agent(model=scripted.model, stream_fn=scripted.stream_fn, tools=[read], thinking_level="medium")
    await expected.prompt("Look at a, b and c.")
    async with serve_wire(wire, SCRIPT) as server:
        agent = Agent(model=server.model(**FIELDS), tools=[read], thinking_level="medium")
        async with asyncio.timeout(20):
            await agent.prompt("Look at a, b and c.")
    assert server.refused == []
    assert server.remaining == 0
    assert [told(message) for message in agent.state.messages] == [told(message) for message in expected.state.messages]
    assert [request.outcome for request in server.requests] == ["answered"] * 3


@each_wire
async def test_usage_is_what_the_script_says(wire: str):
    """To the token, cached ones apart, wherever the wire has a word for it."""
    wanted = Usage(input=100, output=20, cache_read=30, cache_write=0, reasoning=7, total_tokens=150)
    message = await answered(wire, text("hi", usage=wanted))
    usage = message.usage
    assert (usage.input, usage.output, usage.cache_read, usage.cache_write, usage.total_tokens) == (100, 20, 30, 0, 150)
    assert usage.reasoning == (None if wire in ("mistral", "bedrock_converse") else 7)


@pytest.mark.parametrize("wire", ["openai_chat", "anthropic_messages", "openai_responses", "azure", "bedrock_converse"])
async def test_cache_writes_are_counted(wire: str):
    """The wires that report them."""
    message = await answered(wire, text("hi", usage=Usage(input=5, output=2, cache_read=3, cache_write=40, total_tokens=50)))
    assert (message.usage.input, message.usage.cache_write, message.usage.total_tokens) == (5, 40, 50)


@each_wire
async def test_usage_is_estimated_where_the_script_says_nothing(wire: str):
    """A token per four characters of the request and of the answer."""
    message = await answered(wire, text("x" * 40))
    assert message.usage.output == 10
    assert message.usage.input > 5


@each_wire
async def test_a_truncated_answer_ends_in_length(wire: str):
    """Also one with a call in it."""
    assert (await answered(wire, truncated("half of"))).stop_reason == "length"
    message = await answered(wire, truncated(call("read", path="a")))
    assert (message.stop_reason, message.tool_calls[0].arguments) == ("length", {"path": "a"})


@each_wire
async def test_a_ready_message_is_said_as_it_is(wire: str):
    """With its ids and its redacted thinking, which comes back in the next request."""
    given = AssistantMessage(
        content=[
            ThinkingContent(thinking="(hidden)", signature="c2VjcmV0", redacted=True),
            TextContent(text="So."),
            ToolCall(id="abcdefgh1", name="read", arguments={"path": "a"}),
        ]
    )
    async with serve_wire(wire, [given, "thanks"]) as server:
        first = await ask(server.model(**FIELDS), reasoning="low")
        result = ToolResultMessage(tool_call_id=first.tool_calls[0].id, tool_name="read", content="ok", is_error=False)
        await ask(server.model(**FIELDS), [*HELLO, first, result], reasoning="low")
    assert server.refused == []
    assert first.text == "So."
    assert first.tool_calls[0].id.partition("|")[0] == "abcdefgh1"
    assert "c2VjcmV0" in str(server.requests[1].body)


async def test_a_recorded_reasoning_item_is_said_as_it_came():
    """The signature of Responses thinking is the item itself."""
    item = '{"type":"reasoning","id":"rs_recorded","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"E"}'
    given = AssistantMessage(content=[ThinkingContent(thinking="hm", signature=item), TextContent(text="So.")])
    message = await answered("openai_responses", given)
    assert "rs_recorded" in str(message.content[0])


async def test_structured_reasoning_is_said_as_it_came():
    """Chat Completions: details in the place of text, or another field for the text."""
    details = '[{"type":"reasoning.text","text":"hm","signature":"s","index":0}]'
    for signature in (details, "reasoning"):
        given = AssistantMessage(content=[ThinkingContent(thinking="hm", signature=signature), TextContent(text="So.")])
        thought = (await answered("openai_chat", given)).content[0]
        assert isinstance(thought, ThinkingContent)
        assert (thought.thinking, thought.signature) == ("hm", signature)


async def test_arguments_that_are_no_json_arrive_as_they_are():
    """On the wires that stream arguments as text; on Google's the script says what cannot be."""
    message = await answered("anthropic_messages", call("read", '{"path": "a'))
    assert message.tool_calls[0].arguments_error
    with pytest.raises(Exception, match="no JSON object"):
        await answered("google_generate", call("read", '{"path": "a'))


# ---------------------------------------------------------------------------------------------------- failures


KINDS: list[ErrorKind] = [
    "overflow", "rate_limit", "overloaded", "quota", "auth", "invalid_request", "not_found", "content_filter", "image", "timeout",
    "server",
]  # fmt: skip


FAILURES = [(wire, kind) for wire in WIRES for kind in KINDS if (wire, kind) != ("bedrock_converse", "content_filter")]
"""Bedrock has no error for a filter: it is a reason to stop."""


@pytest.mark.parametrize(("wire", "kind"), FAILURES)
async def test_a_failure_arrives_as_the_kind_that_it_is(wire: str, kind: ErrorKind):
    """Through the provider's own status, type and code; its sentence is in the error."""
    message = await answered(wire, error("this is what happened", kind=kind))
    assert message.error is not None
    assert (message.stop_reason, message.error.kind) == ("error", kind)
    assert "this is what happened" in (message.error_message or "")


@pytest.mark.parametrize(("wire", "kind"), FAILURES)
async def test_a_failure_in_the_middle_arrives_as_the_kind_that_it_is(wire: str, kind: ErrorKind):
    """With what had been said by then."""
    message = await answered(wire, text("Hel") + error("this is what happened", kind=kind))
    assert message.error is not None
    assert (message.stop_reason, message.error.kind, message.text) == ("error", kind, "Hel")
    assert "this is what happened" in (message.error_message or "")


@each_wire
async def test_an_overflow_arrives_as_one(wire: str):
    """In the words of a provider."""
    message = await answered(wire, overflow())
    assert message.error is not None
    assert message.error.kind == "overflow"


@each_wire
async def test_a_failure_is_tried_again_after_the_wait_it_asks_for(wire: str):
    """`Retry-After` is kept to the millisecond; without retries the error says how long."""
    async with serve_wire(wire, [error("busy", 429, retry_after=0.02), error("busy", 503), text("now"), error("busy", 429, retry_after=7)]) as server:
        assert (await ask(server.model(), max_retries=2)).text == "now"
        last = await ask(server.model())
    assert [request.outcome for request in server.requests] == ["failed", "failed", "answered", "failed"]
    assert last.error is not None
    assert (last.error.status, last.error.retry_after_ms) == (429, 7000)


@each_wire
@pytest.mark.parametrize("kind", ["network", "incomplete"])
async def test_the_connection_can_break(wire: str, kind: ErrorKind):
    """Before anything was said, which is tried again, and in the middle, which is not."""
    async with serve_wire(wire, [error("x", kind=kind), text("Hello, wor", delta_size=2) + error("x", kind=kind)]) as server:
        message = await ask(server.model(), max_retries=1)
    assert [request.outcome for request in server.requests] == ["failed", "failed"]
    assert message.error is not None
    assert (message.stop_reason, message.text) == ("error", "Hello, wor")
    assert message.error.kind in ("network", "incomplete")


@each_wire
async def test_an_abort_is_seen_by_the_server(wire: str):
    """The client leaves in the middle; what had been said by then is in the message, and the next request is answered."""
    gate = asyncio.Event()
    controller = AbortController()
    async with serve_wire(wire, [text("Hello, world", delta_size=1, gate=gate), "again"]) as server:
        stream = load_wire(wire)(server.model(), Transcript(messages=HELLO), StreamOptions(signal=controller.signal))
        said = ""
        async with asyncio.timeout(20):
            async for event in stream:
                if event.type == "text_delta":
                    said += event.delta
                if len(said) == 6:
                    controller.abort("enough")
            message = await stream.result()
            await server.idle()
            assert (await ask(server.model())).text == "again"
    assert (message.stop_reason, message.text) == ("aborted", "Hello,")
    assert [request.outcome for request in server.requests] == ["disconnected", "answered"]


@pytest.mark.parametrize("reply", [text("later", delay=600), error("later", gate=asyncio.Event()), call("read", path="a") + text("", delay=600)])
async def test_a_wait_ends_with_the_block(reply: Any):
    """Nothing goes on when the server is gone, and nothing waits for it."""
    async with asyncio.timeout(20):
        async with serve_wire("openai_chat", [reply]) as server:
            waiting = asyncio.create_task(ask(server.model()))
            await server.arrived()
        assert (await waiting).stop_reason == "error"


# ---------------------------------------------------------------------------------------------------- the script


@each_wire
async def test_a_script_that_is_at_its_end_says_so(wire: str):
    """At once, whatever the client would try again; the request is there to look at."""
    async with serve_wire(wire, ["one"]) as server:
        await ask(server.model())
        message = await ask(server.model(), max_retries=3)
        server.add("two")
        assert (await ask(server.model())).text == "two"
    assert "no reply for request 2: all 1 of its replies were taken; add one" in (message.error_message or "")
    assert [request.outcome for request in server.requests] == ["answered", "refused", "answered"]
    assert len(server.refused) == 1


async def test_a_reply_may_be_a_function_of_the_request():
    """It sees model, headers and body, and may be async."""

    async def answer(request: Any) -> Any:
        await asyncio.sleep(0)
        assert request.headers["content-type"] == "application/json"
        return text(f"{request.model} was asked {request.body['messages'][-1]['content']}")

    async with serve_wire("openai_chat", [answer, lambda request: f"request {request.number}"]) as server:
        assert (await ask(server.model("gpt"))).text == "gpt was asked Hello"
        assert (await ask(server.model("gpt"))).text == "request 2"


async def test_what_a_function_raises_is_raised_again_at_the_end():
    """An assertion about a request fails the test, and the client gets an error that it does not try again."""

    def answer(request: Any) -> Any:
        assert request.body["model"] == "another", "the wrong model"

    seen: list[WireServer] = []
    messages: list[AssistantMessage] = []

    async def block() -> None:
        async with serve_wire("openai_chat", [answer]) as server:
            seen.append(server)
            messages.append(await ask(server.model(), max_retries=3))

    with pytest.raises(AssertionError, match="the wrong model"):
        await block()
    assert "the script raised AssertionError: the wrong model" in (messages[0].error_message or "")
    assert len(seen[0].requests) == 1


async def test_an_exception_in_the_script_is_only_a_failure():
    """It was put there on purpose."""
    message = await answered("openai_chat", ValueError("boom"))
    assert "the script raised ValueError: boom" in (message.error_message or "")


async def test_a_mistake_in_the_script_is_raised():
    """At once where it can be seen at once, else at the end."""
    with pytest.raises(ValueError, match="no wire 'smtp'; choose one of openai_chat, anthropic_messages"):
        async with serve_wire("smtp"):
            pass
    with pytest.raises(TypeError, match="a scripted reply is text"):
        async with serve_wire("openai_chat", [42]):  # type: ignore[list-item]
            pass
    with pytest.raises(Exception, match="no wire has deferred"):
        await answered("openai_chat", deferred("d1"))


# ---------------------------------------------------------------------------------------------------- reaching it


@each_wire
async def test_the_model_needs_no_registry_and_no_key(wire: str):
    """A key that the server asks for is in the model's headers; the registry takes the model as it is."""
    async with serve_wire(wire, ["one", "two", "three"], api_key="s3cret-key") as server:
        model = server.model("some-model", context_window=1000)
        assert (model.id, model.api, model.base_url, model.context_window) == ("some-model", wire, server.url, 1000)
        assert (await ask(model)).text == "one"
        models = Models(builtin=False, env={})
        assert (await models.stream(model, Transcript(messages=HELLO)).result()).text == "two"
        bare = msgspec.structs.replace(server.model(), headers={})
        wrong = await ask(bare, api_key="another-key")
        assert (await ask(bare, api_key="s3cret-key")).text == "three"
    assert wrong.error is not None
    assert wrong.error.kind == "auth"
    assert [request.model for request in server.requests] == ["some-model", "some-model", "served-model", "served-model"]


def test_the_wires_are_those_that_laneway_has():
    """A new wire needs a server."""
    assert sorted(WIRES) == sorted(module.name for module in iter_modules(wire_package.__path__) if module.ispkg)


def test_every_kind_of_failure_is_tried():
    """The list here is complete but for those that no server says."""
    assert set(KINDS) == set(get_args(ErrorKind)) - {"network", "incomplete", "protocol", "configuration", "unknown"}
    assert ErrorInfo().kind == "unknown"


async def test_the_example_of_the_docstring_runs():
    """As it stands there."""
    documentation = inspect.getdoc(serve_wire) or ""
    program = inspect.cleandoc(re.search(r"::\n\n((?: {4}.*\n|\n)+)", documentation + "\n")[1])  # type: ignore[index]

    @tool
    def add(a: float, b: float) -> float:
        """Add two numbers."""
        return a + b

    code = compile(program, "docstring", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with asyncio.timeout(20):
        await eval(code, {"add": add})


def test_a_server_can_be_named_in_types():
    """For annotations of users' fixtures."""
    assert WireServer.__name__ == "WireServer"
    assert calls(call("read")) is not None
