"""The proxy, client and server, over real sockets: nothing is lost on the way, and a client can set nothing that is the server's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneway.abort import AbortController
from laneway.events import AssistantEvent, StreamDone
from laneway.llm import Model, StreamOptions, Transcript
from laneway.llm._retry import is_retryable
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, ProviderFailure, StreamFn
from laneway.llm.proxy import ProxyCaller, proxy_app, proxy_stream_fn
from laneway.llm.proxy._decode import FrameDecoder
from laneway.llm.proxy._protocol import frame
from laneway.messages import (
    AssistantMessage,
    ErrorInfo,
    ImageContent,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    Usage,
    UserMessage,
    encode,
)
from laneway.testing import Scripted, call, error, text, thinking
from llm.asgi import AsgiServer
from llm.loopback import Answer, Loopback, error_reply, sse, sse_reply

TOKEN = "planted-token-0123456789"
OURS = Model(id="scripted", provider="scripted", api="mine", base_url="http://evil.example", headers={"x-secret": "planted-header"})
HI = Transcript(messages=[UserMessage(content="hi")])


def app(scripted: Scripted, **more: Any) -> Any:
    """A proxy for one token."""
    return proxy_app(scripted.stream_fn, **{"authorize": lambda caller: caller.token == TOKEN, "models": scripted.models, **more})


async def collect(response: Any) -> list[AssistantEvent]:
    """All events, which must come in time."""
    async with asyncio.timeout(10):
        return [event async for event in response]


async def final(response: Any) -> AssistantMessage:
    """The final message, which must come in time."""
    async with asyncio.timeout(10):
        return await response.result()


def ask(url: str, transcript: Transcript = HI, model: Model = OURS, **options: Any) -> Any:
    """Ask through the proxy."""
    return proxy_stream_fn(url, auth_token=TOKEN)(model, transcript, StreamOptions(**options))


def plain(event: AssistantEvent) -> tuple[Any, ...]:
    """An event without what differs between two responses."""
    fields = {name: getattr(event, name) for name in event.__struct_fields__ if name not in ("partial", "message")}
    return event.type, fields


# ---------------------------------------------------------------------------------------------------- end to end


async def test_everything_arrives_as_the_server_had_it() -> None:
    """05 sc. 143: the same events, the same content, usage and identity; time is the client's own."""
    reply = thinking("hm") + text("Hello ü😀") + call("read", path="a") + call("read", "{", call_id="c2")
    direct = await collect(Scripted([reply]).stream_fn(Scripted().model, HI, StreamOptions()))
    scripted = Scripted([reply])
    async with AsgiServer(app(scripted)) as server:
        events = await collect(ask(server.url, temperature=0.5))
    assert [plain(event) for event in events] == [plain(event) for event in direct]
    ours, theirs = events[-1].message, direct[-1].message  # type: ignore[union-attr]  # done
    assert msgspec.structs.replace(ours, timestamp=0) == msgspec.structs.replace(theirs, timestamp=0)
    assert (ours.provider, ours.api) == ("scripted", "scripted")
    assert ours.tool_calls[1].arguments_error
    assert scripted.requests[0].options.temperature == 0.5


async def test_the_whole_transcript_arrives() -> None:
    """Prompt, tools, images, thinking with its signature, calls and results; lone surrogates are repaired."""
    messages = [
        SystemMessage(content="S", sections={"a": "b"}, tools_added=[ToolDeclaration(name="read", description="", parameters={})], timestamp=1),
        UserMessage(content=[TextContent(text="x\ud83d"), ImageContent(data="aGk=", mime_type="image/png")], timestamp=2),
        AssistantMessage(
            content=[ThinkingContent(thinking="hm", signature="S1", redacted=True), ToolCall(id="c", name="read")], usage=Usage(input=5), timestamp=3
        ),
        ToolResultMessage(tool_call_id="c", tool_name="read", content=[TextContent(text="ok")], details={"a": [1]}, is_error=True, timestamp=4),
    ]
    scripted = Scripted(["ok"])
    async with AsgiServer(app(scripted)) as server:
        await final(ask(server.url, Transcript(messages=list(messages))))
    (request,) = scripted.requests
    assert b"".join(map(encode, request.messages)) == b"".join(map(encode, messages))


async def test_marks_and_metadata_survive() -> None:
    """Redacted thinking, signatures, ids, diagnostics, the level: what the older protocol lost."""
    message = AssistantMessage(
        content=[ThinkingContent(thinking="(hidden)", signature="R", redacted=True), TextContent(text="a", signature="T"), ToolCall(
            id="c", name="f", arguments={"n": 2**60}, signature="C")],
        stop_reason="length", response_id="r", response_model="m2", raw_stop_reason="max", diagnostics=["odd"], thinking_level="high",
        usage=Usage(input=1, output=2, cache_read=3, reasoning=1, total_tokens=6),
    )  # fmt: skip
    async with AsgiServer(app(Scripted([message]))) as server:
        events = await collect(ask(server.url))
    found = events[-1].message  # type: ignore[union-attr]  # done
    for name in ("content", "stop_reason", "response_id", "response_model", "raw_stop_reason", "diagnostics", "usage"):
        assert getattr(found, name) == getattr(message, name), name
    start = next(event for event in events if event.type == "thinking_start")
    assert start.partial.content[0].redacted  # type: ignore[union-attr]  # thinking


async def test_an_upstream_error_is_the_client_s_error() -> None:
    """With its kind, its wait and what had arrived, so that the client's own retry decides as if it had asked directly."""
    failed = AssistantMessage(
        content=[TextContent(text="Hel")],
        stop_reason="error",
        error_message="busy",
        error=ErrorInfo(kind="overloaded", status=529, retry_after_ms=70),
    )
    async with AsgiServer(app(Scripted([failed, error("no", kind="auth")]))) as server:
        message = await final(ask(server.url))
        other = await final(ask(server.url))
    assert (message.stop_reason, message.text, message.error_message, message.error) == ("error", "Hel", "busy", failed.error)
    assert is_retryable(message)
    assert other.error is not None
    assert (other.error.kind, is_retryable(other)) == ("auth", False)


async def test_only_names_and_harmless_options_leave_the_client() -> None:
    """Keys, URLs and headers meant for a provider are not sent; the token is, and only in its header."""
    async with Loopback([sse_reply()]) as server:
        options = {
            "api_key": "planted-key", "headers": {"x-api-key": "planted-key"}, "env": {"K": "planted-key"}, "reasoning": "high", "session_id": "s",
            "tool_choice": {"name": "read"}, "max_tokens": 5, "timeout": 3.0,
        }  # fmt: skip
        await final(ask(server.url, **options))
        (request,) = server.requests
    assert request.path == "/v1/api/stream"
    assert request.headers["authorization"] == f"Bearer {TOKEN}"
    sent = request.body.decode() + repr({name: value for name, value in request.headers.items() if name != "authorization"})
    assert "planted" not in sent
    assert "evil" not in sent
    assert request.json["model"] == {"provider": "scripted", "id": "scripted"}
    assert request.json["options"] == {
        "reasoning": "high", "session_id": "s", "tool_choice": {"name": "read"}, "max_tokens": 5, "cache_retention": "short", "max_retries": 0,
        "max_retry_delay": 60.0,
    }  # fmt: skip


async def test_a_level_in_the_model_s_spec_is_asked_for() -> None:
    """The suffix of a spec is the client's model's, so it goes with the request; the request's own level wins."""
    scripted = Scripted(["a", "b"])
    async with AsgiServer(app(scripted)) as server:
        of = msgspec.structs.replace(OURS, default_thinking_level="low")
        await final(ask(server.url, model=of))
        await final(ask(server.url, model=of, reasoning="high"))
    assert [request.options.reasoning for request in scripted.requests] == ["low", "high"]


async def test_callbacks_see_the_connection_and_the_model_that_was_asked() -> None:
    """`on_payload` may change what is sent to the proxy; `on_response` sees the proxy's answer."""
    seen: list[Any] = []
    scripted = Scripted(["ok"])
    async with AsgiServer(app(scripted)) as server:
        await final(
            ask(
                server.url,
                on_payload=lambda payload, of: seen.append(of) or {**payload, "options": {"temperature": 0.25}},  # type: ignore[func-returns-value]
                on_response=lambda info, of: seen.append((info.status, of)),
            )
        )
    assert seen == [OURS, (200, OURS)]
    assert scripted.requests[0].options.temperature == 0.25


async def test_a_token_may_be_asked_for_each_time() -> None:
    """For tokens that live shortly; sync or async."""
    given: list[str] = []

    async def late() -> str:
        given.append("x")
        return TOKEN

    async with AsgiServer(app(Scripted(["a", "b"]))) as server:
        for token in (late, late):
            assert (await final(proxy_stream_fn(server.url, auth_token=token)(OURS, HI, StreamOptions()))).stop_reason == "stop"
        assert (await final(proxy_stream_fn(server.url)(OURS, HI, StreamOptions()))).stop_reason == "error"
    assert len(given) == 2


async def test_a_connection_is_kept_for_the_next_request() -> None:
    """The last frame does not cut the body off."""
    async with AsgiServer(app(Scripted(["a", "b", "c"]))) as server:
        for _ in range(3):
            await final(ask(server.url))
        assert server.connections == 1


# ---------------------------------------------------------------------------------------------------- what the server refuses


async def raw(server: AsgiServer, body: Any, *, path: str = "/api/stream", method: str = "POST", token: str = TOKEN) -> tuple[int, Any]:
    """Send any body and return status and JSON of the answer."""
    import httpx2

    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with httpx2.AsyncClient() as client:
        answer = await client.request(method, server.url + path, content=content, headers={"authorization": f"Bearer {token}"})
    return answer.status_code, answer.json() if "json" in answer.headers["content-type"] else answer.text


def request(**changes: Any) -> dict[str, Any]:
    """A good request, changed."""
    good = {"version": 2, "model": {"provider": "scripted", "id": "scripted"}, "options": {}, "messages": [{"role": "user", "content": "hi"}]}
    return {**good, **changes}


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        (b"oops", 400, "shape"),
        (b"\xff", 400, "shape"),
        ({}, 400, "model"),
        (request(version=3), 400, "version 3"),
        (request(model={"provider": "other", "id": "x"}), 404, "other/x"),
        (request(messages=[{"role": "custom", "content": "x"}]), 400, "role"),
        (request(messages=[{"role": "user", "content": "x", "extra": 1}]), 400, "extra"),
        (request(options={"api_key": "k"}), 400, "api_key"),
        (request(options={"headers": {"x": "y"}}), 400, "headers"),
        (request(options={"base_url": "http://x"}), 400, "base_url"),
        (request(options={"tool_choice": {"type": "x", "name": "y"}}), 400, "type"),
        (request(options={"sampling_params": {"model": "dearer"}}), 400, "'model'"),
        (request(options={"sampling_params": {"messages": []}}), 400, "'messages'"),
        (b"[" * 100_000, 400, "shape"),
    ],
)
async def test_what_a_client_may_not_ask_for(body: Any, status: int, part: str) -> None:
    """No URL, no header, no key, no other body; each refusal says why, and the model is not asked."""
    scripted = Scripted(["no"])
    async with AsgiServer(app(scripted)) as server:
        found, answer = await raw(server, body)
    assert (found, part in answer["error"]) == (status, True), answer
    assert not scripted.requests
    assert not server.failures


async def test_the_model_is_the_server_s_own() -> None:
    """What else a client says of the model does not matter."""
    scripted = Scripted(["ok"])
    async with AsgiServer(app(scripted)) as server:
        status, _ = await raw(server, request(model={"provider": "scripted", "id": "scripted", "base_url": "http://evil", "headers": {"a": "b"}}))
    assert status == 200
    assert scripted.requests[0].model == scripted.model


async def test_who_may_ask() -> None:
    """Nothing is read of a stranger's request; `authorize` sees token, headers and address, and fails closed."""
    seen: list[ProxyCaller] = []

    async def authorize(caller: ProxyCaller) -> bool:
        seen.append(caller)
        if caller.token == "broken":
            raise RuntimeError("planted-secret")
        return caller.token == TOKEN

    async with AsgiServer(app(Scripted(["ok"]), authorize=authorize, max_body_bytes=1000)) as server:
        assert await raw(server, b"oops", token="wrong") == (401, {"error": "not authorised"})
        assert await raw(server, request(), token="broken") == (500, {"error": "the request could not be authorised"})
        assert (await raw(server, b" " * 1001))[0] == 413
        message = await final(proxy_stream_fn(server.url, auth_token="wrong")(OURS, HI, StreamOptions()))
    assert (seen[0].token, seen[0].headers["authorization"], seen[0].address) == ("wrong", "Bearer wrong", "127.0.0.1")
    assert "wrong" not in repr(seen)
    assert message.error is not None
    assert (message.error.kind, message.error.status, "not authorised" in (message.error_message or "")) == ("auth", 401, True)


async def test_other_paths_and_methods() -> None:
    """Only one thing is here; a prefix of a mount does not matter."""
    async with AsgiServer(app(Scripted(["ok"]))) as server:
        assert (await raw(server, request(), path="/else"))[0] == 404
        assert (await raw(server, request(), method="GET"))[0] == 405
        assert (await raw(server, request(), path="/models/api/stream"))[0] == 200


async def test_the_life_of_the_app() -> None:
    """A server may ask whether the app is ready, and say that it stops; web sockets are closed."""
    messages = iter(["lifespan.startup", "lifespan.shutdown"])
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        return {"type": next(messages)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await app(Scripted())({"type": "lifespan"}, receive, send)
    await app(Scripted())({"type": "websocket"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


# ---------------------------------------------------------------------------------------------------- leaving, silence, failures


async def test_leaving_stops_the_response_at_its_source() -> None:
    """An abort gives what had arrived; at the server the signal is set, the stream closed, nothing left running."""
    signals: list[Any] = []
    closed = asyncio.Event()

    def endless(model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
        writer = StreamWriter(model)

        async def source() -> AsyncIterator[AssistantEvent]:
            writer.start()
            writer.text(writer.open_text(), "Hel")
            for event in writer.take():
                yield event
            try:
                await asyncio.sleep(60)
            finally:
                closed.set()

        signals.append(options.signal)
        return AssistantStream(source(), fallback=writer.fallback, signal=options.signal)

    controller = AbortController()
    async with AsgiServer(proxy_app(endless, authorize=lambda _: True, models=Scripted().models)) as server, asyncio.timeout(10):
        response = ask(server.url, signal=controller.signal)
        async for event in response:
            if event.type == "text_delta":
                controller.abort("enough")
        message = await response.result()
        await closed.wait()
        await server.idle()
        assert not server.failures
    assert (message.stop_reason, message.text) == ("aborted", "Hel")
    assert signals[0].aborted
    async with AsgiServer(proxy_app(endless, authorize=lambda _: True, models=Scripted().models)) as server, asyncio.timeout(10):
        closed.clear()
        async with ask(server.url) as response:
            await anext(aiter(response))
        await closed.wait()


async def test_silence_is_filled_with_comments() -> None:
    """The client's watch for silence is content as long as the server lives."""
    gate = asyncio.Event()
    async with AsgiServer(app(Scripted([text("Hello", gate=gate)]), heartbeat=0.02)) as server:
        asyncio.get_running_loop().call_later(0.3, gate.set)
        message = await final(ask(server.url, idle_timeout=0.15))
    assert message.text == "Hello"


def broken(how: str) -> StreamFn:
    """A stream function that breaks its contract."""

    class Stream:
        def __aiter__(self) -> AsyncIterator[AssistantEvent]:
            return self.events()

        async def events(self) -> AsyncIterator[AssistantEvent]:
            if how == "raises in the stream":
                raise RuntimeError("planted-secret")
            return
            yield

        async def result(self) -> AssistantMessage:
            raise NotImplementedError

    def stream(model: Model, transcript: Transcript, options: StreamOptions) -> Any:
        if how == "raises":
            raise RuntimeError("planted-secret")
        return Stream()

    return stream


@pytest.mark.parametrize("how", ["raises", "raises in the stream", "ends without an end"])
async def test_a_broken_stream_function_is_an_error_without_its_secrets(how: str) -> None:
    """The client gets a message, not a cut connection; it does not get the exception's text."""
    async with AsgiServer(proxy_app(broken(how), authorize=lambda _: True, models=Scripted().models)) as server:
        message = await final(ask(server.url))
    assert message.error is not None
    assert (message.stop_reason, message.error.kind) == ("error", "server")
    assert "planted" not in repr(message)


async def test_a_slow_client_holds_the_response_back() -> None:
    """The server keeps a bounded number of frames."""
    made = 0

    def fast(model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
        writer = StreamWriter(model)

        async def source() -> AsyncIterator[AssistantEvent]:
            nonlocal made
            index = writer.open_text()
            for made in range(5000):  # noqa: B007 - looked at below
                writer.text(index, "x" * 1000)
                for event in writer.take():
                    yield event
            writer.done("stop")
            for event in writer.take():
                yield event

        return AssistantStream(source(), fallback=writer.fallback)

    released = asyncio.Event()
    sizes: list[int] = []

    async def receive() -> dict[str, Any]:
        if not sizes:
            sizes.append(0)
            return {"type": "http.request", "body": json.dumps(request()).encode()}
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        await released.wait()
        sizes.append(len(message.get("body", b"")))

    scope = {"type": "http", "method": "POST", "path": "/api/stream", "headers": []}
    async with asyncio.timeout(20):
        running = asyncio.ensure_future(proxy_app(fast, authorize=lambda _: True, models=Scripted().models)(scope, receive, send))
        for _ in range(20):
            await asyncio.sleep(0)
        assert made < 1000
        released.set()
        await running
    assert made == 4999
    assert sum(sizes) > 10_000_000


# ---------------------------------------------------------------------------------------------------- the client against bad servers


def frames(*values: Any) -> Answer:
    """An answer of frames."""
    return sse_reply(*values)


START = {"type": "start", "version": 2, "api": "a", "provider": "p", "model": "m"}
OPENED = [START, {"type": "text_start", "content_index": 0}, {"type": "text_delta", "content_index": 0, "delta": "Hel"}]
DONE = {"type": "done", "message": {"role": "assistant", "content": [{"type": "text", "text": "Hello"}], "provider": "p", "stop_reason": "stop"}}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (frames(*OPENED), "incomplete"),
        (frames(), "incomplete"),
        (frames(*OPENED, {"type": "thinking_delta", "content_index": 0, "delta": "x"}), "protocol"),
        (frames(*OPENED, {"type": "toolcall_delta", "content_index": 0, "delta": "x"}), "protocol"),
        (frames(*OPENED, {"type": "text_delta", "content_index": 1, "delta": "x"}), "protocol"),
        (frames(*OPENED, {"type": "text_delta", "content_index": -1, "delta": "x"}), "protocol"),
        (frames(*OPENED, {"type": "text_start", "content_index": 0}), "protocol"),
        (frames(*OPENED, {"type": "text_start", "content_index": 2}), "protocol"),
        (frames(*OPENED, {"type": "toolcall_end", "content_index": 0, "tool_call": {"type": "tool_call", "id": "a", "name": "b"}}), "protocol"),
        (frames(*OPENED, {"type": "text_end", "content_index": 0, "content": "Hel"}, {"type": "text_delta", "content_index": 0}), "protocol"),
        (frames(*OPENED, {"type": "done"}), "protocol"),
        (frames(*OPENED, {"type": "done", "message": {**DONE["message"], "stop_reason": "error"}}), "protocol"),
        (frames(*OPENED, {"type": "error", "message": DONE["message"]}), "protocol"),
        (frames(*OPENED, {"type": "done", "message": {"role": "user", "content": "x"}}), "protocol"),
        (frames(*OPENED, b"oops"), "protocol"),
        (frames(*OPENED, 5), "protocol"),
        (frames(*OPENED, {"type": "error", "message": {**DONE["message"], "stop_reason": "aborted"}}), "incomplete"),
        (frames({**START, "version": 3}), "protocol"),
        (error_reply(401, {"error": "who are you"}), "auth"),
        (error_reply(502, "<html><title>Bad Gateway</title></html>", content_type="text/html"), "server"),
        (error_reply(429, {"error": "slow down"}), "rate_limit"),
    ],
)  # fmt: skip
async def test_what_breaks_the_protocol_is_an_error(answer: Answer, kind: str) -> None:
    """05 sc. 143: an end without the last frame, a delta of another kind, an unknown block, a refusal; what had arrived is kept."""
    answer.steps = [step if isinstance(step, bytes) else sse(step) for step in answer.steps]
    async with Loopback([answer]) as server:
        message = await final(ask(server.url))
    assert message.error is not None
    assert (message.stop_reason, message.error.kind) == ("error", kind)
    assert message.error_message
    if kind == "protocol" and len(answer.steps) > 3:
        assert message.text == "Hel"


async def test_a_later_server_is_understood() -> None:
    """Unknown frames and fields are passed over; the last line may lack its end; the text of the end counts."""
    done = {"type": "done", "new": 1, "message": {**DONE["message"], "new": 1, "content": [{"type": "text", "text": "Hello", "new": 1}]}}
    end = {"type": "text_end", "content_index": 0, "content": "Hello", "signature": "S"}
    whole = b": hello\n\n" + sse(*OPENED, {"type": "new", "x": 1}, end, done).rstrip(b"\n")
    async with Loopback([Answer(steps=[whole])]) as server:
        events = await collect(ask(server.url))
    assert [event.type for event in events] == ["start", "text_start", "text_delta", "text_end", "done"]
    assert events[3].content == "Hello"  # type: ignore[union-attr]  # text_end
    assert events[-1].message.text == "Hello"  # type: ignore[union-attr]  # done


async def test_every_cut_of_a_stream_settles() -> None:
    """A stream cut at every byte: the whole message or an error, never a wrong success."""
    parts = [*OPENED, {"type": "text_end", "content_index": 0, "content": "Hello"}]
    whole = sse(*parts, DONE)
    complete = len(whole) - 2
    cuts = [*range(0, complete - 50, 7), *range(complete - 50, len(whole) + 1)]
    async with Loopback([Answer(steps=[whole[:cut]] if cut else []) for cut in cuts]) as server:
        for cut in cuts:
            message = await ask(server.url).result()
            assert (message.stop_reason == "stop") == (cut >= complete), cut
            assert message.stop_reason in ("stop", "error")


async def test_a_planted_token_is_nowhere_in_what_is_kept() -> None:
    """Decision 14: although the server echoes it."""
    async with Loopback([error_reply(401, {"error": f"bad token {TOKEN}"}), sse_reply(*OPENED, f"oops {TOKEN}")]) as server:
        for _ in range(2):
            assert TOKEN not in repr(await collect(ask(server.url)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
TYPES = [
    "start", "text_start", "text_delta", "text_end", "thinking_start", "thinking_delta", "thinking_end", "toolcall_start", "toolcall_delta",
    "toolcall_end", "done", "error", "new",
]  # fmt: skip
some_frames = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES)},
    optional={
        "content_index": st.integers(-1, 3) | json_values, "delta": st.text(max_size=5) | json_values, "content": st.text(max_size=5) | json_values,
        "signature": json_values, "tool_call": json_values | st.just({"type": "tool_call", "id": "a", "name": "b"}),
        "message": json_values | st.just(DONE["message"]), "redacted": st.booleans(),
    },
)  # fmt: skip


@settings(max_examples=60)
@given(st.lists(some_frames, max_size=8))
def test_no_frames_raise(values: list[Any]) -> None:
    """Fuzz: whatever comes, only a `ProviderFailure` ends it, and the message so far can be read."""
    decoder = FrameDecoder(StreamWriter(OURS))
    found: ProviderFailure | None = None
    try:
        for value in values:
            decoder.feed(json.dumps(value).encode())
        decoder.finish()
    except ProviderFailure as failure:
        found = failure
    message = decoder.writer.partial.snapshot() if found is None else decoder.writer.fail(found, False)
    assert message.stop_reason == ("stop" if found is None else "error")


blocks = st.lists(
    st.builds(TextContent, text=st.text(max_size=8), signature=st.none() | st.text(max_size=4))
    | st.builds(ThinkingContent, thinking=st.text(max_size=8), signature=st.none() | st.text(max_size=4), redacted=st.booleans())
    | st.builds(ToolCall, id=st.text(max_size=4), name=st.text(max_size=4), arguments=st.dictionaries(st.text(max_size=3), json_values, max_size=2)),
    max_size=4,
)


@settings(max_examples=40)
@given(blocks)
async def test_frames_carry_any_content(content: list[Any]) -> None:
    """Events → frames → events: the same content, whatever it is."""
    scripted = Scripted([AssistantMessage(content=content, stop_reason="stop", usage=Usage(input=3))])
    decoder = FrameDecoder(StreamWriter(OURS))
    async for event in scripted.stream_fn(scripted.model, HI, StreamOptions()):  # type: ignore[union-attr]  # a stream
        decoder.feed(frame(event).removeprefix(b"data: ").strip())
    (last,) = decoder.finish()
    assert isinstance(last, StreamDone)
    assert (encode(last.message.content), last.message.usage) == (encode(content), Usage(input=3))
    assert encode(decoder.writer.partial.content) == encode(content)
