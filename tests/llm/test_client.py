"""The life of a request, with a wire that is smaller than any real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from laneway.abort import AbortController
from laneway.events import AssistantEvent
from laneway.llm._client import Prepared, stream_events, user_agent
from laneway.llm._http import HttpRequest
from laneway.llm._sse import SseEvent
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, Model, ProviderFailure, StreamOptions
from llm.loopback import Answer, Loopback


class EchoDecoder:
    """Every event's data is text; "fail" fails, "end" completes."""

    def __init__(self, writer: StreamWriter) -> None:
        self.writer = writer
        self.index = -1
        self.complete = False

    def feed(self, data: bytes, event: str = "") -> list[AssistantEvent]:
        """Take one event."""
        if data == b"fail":
            self.writer.text(self.index, "last words")
            raise ProviderFailure("the key planted-secret-1 is bad", kind="overloaded")
        if data == b"end":
            self.complete = True
            return []
        if self.index < 0:
            self.index = self.writer.open_text()
        self.writer.text(self.index, data.decode())
        return self.writer.take()

    def finish(self) -> list[AssistantEvent]:
        """End well."""
        self.writer.done("stop")
        return self.writer.take()


class Lines:
    """A framing of lines instead of server-sent events."""

    stray = b""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Cut into lines."""
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        return [SseEvent("", line) for line in lines]

    def finish(self) -> list[SseEvent]:
        """Nothing is left over."""
        return []


def ask(
    server: Loopback, *, prepare: Callable[[Prepared], Any] = lambda prepared: prepared, options: dict[str, Any] | None = None
) -> AssistantStream:
    """A request of the small wire; `prepare` may change what is prepared."""
    model = Model(id="m", provider="p", api="echo", base_url=server.url)
    writer = StreamWriter(model)
    ready = Prepared(url=f"{server.url}/echo", body={"a": 1}, decoder=EchoDecoder(writer), headers={"x-api-key": "planted-secret-1"})
    return stream_events(model, StreamOptions(**(options or {})), writer, lambda: prepare(ready))


async def test_what_a_decoder_had_said_before_it_failed_is_delivered() -> None:
    """05 §2.4: collected events come before the error; a key that the server repeats is cut out."""
    async with Loopback([Answer(steps=[b"data: one\n\ndata: fail\n\n"])]) as server:
        response = ask(server)
        events = [event async for event in response]
        message = await response.result()
    assert [event.type for event in events] == ["start", "text_start", "text_delta", "text_delta", "error"]
    assert message.text == "onelast words"
    assert (message.error_message, message.error and message.error.kind) == ("the key *** is bad", "overloaded")


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_preparing_may_take_its_time_or_fail(asynchronous: bool) -> None:
    """05 sc. 33: set-up runs inside the stream, sync or async (a token that must be fetched); its failure is the only event."""

    async def later(prepared: Prepared) -> Prepared:
        await asyncio.sleep(0)
        return prepared

    def fail(prepared: Prepared) -> Prepared:
        raise ProviderFailure("no token", kind="auth")

    async def fail_later(prepared: Prepared) -> Prepared:
        raise ProviderFailure("no token", kind="auth")

    async with Loopback([Answer(steps=[b"data: one\n\n"])]) as server:
        assert (await ask(server, prepare=later if asynchronous else lambda p: p).result()).text == "one"
        events = [event async for event in ask(server, prepare=fail_later if asynchronous else fail)]
        assert len(server.requests) == 1
    assert [event.type for event in events] == ["error"]


async def test_an_abort_does_not_wait_for_a_slow_callback() -> None:
    """05 sc. 34: abort while a token is fetched, or in on_payload."""
    controller = AbortController()

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    async with Loopback([Answer(steps=[b"data: one\n\n"])]) as server, asyncio.timeout(10):
        asyncio.get_running_loop().call_later(0.02, controller.abort)
        message = await ask(server, options={"signal": controller.signal, "on_payload": hang}).result()
        assert server.requests == []
    assert message.stop_reason == "aborted"


async def test_a_request_can_be_signed_when_it_is_final() -> None:
    """Signatures are over the bytes that are sent, after on_payload and the headers of model and options."""
    seen: list[HttpRequest] = []

    def sign(request: HttpRequest) -> HttpRequest:
        seen.append(request)
        return HttpRequest(
            url=request.url, headers={**request.headers, "signature": str(len(request.body))}, body=request.body, provider=request.provider
        )

    def change(prepared: Prepared) -> Prepared:
        return Prepared(url=prepared.url, body=prepared.body, decoder=prepared.decoder, sign=sign)

    async with Loopback([Answer(steps=[b"data: one\n\n"])]) as server:
        await ask(server, prepare=change, options={"on_payload": lambda body, model: {"b": 22}, "headers": {"x": "y"}}).result()
        request = server.requests[0]
    assert (request.body, request.headers["signature"]) == (b'{"b":22}', "8")
    assert seen[0].headers["x"] == "y"


async def test_another_framing_can_be_used() -> None:
    """Not every provider speaks server-sent events."""

    def lines(prepared: Prepared) -> Prepared:
        return Prepared(url=prepared.url, body=prepared.body, decoder=prepared.decoder, split=Lines)

    async with Loopback([Answer(steps=[b"one\ntw", b"o\n"])]) as server:
        assert (await ask(server, prepare=lines).result()).text == "onetwo"


async def test_the_end_that_the_server_says_is_the_end() -> None:
    """What follows a complete response is not decoded, and not waited for."""
    async with Loopback([Answer(steps=[b"data: one\n\ndata: end\n\n", 60.0])]) as server, asyncio.timeout(10):
        assert (await ask(server).result()).text == "one"


def test_laneway_introduces_itself() -> None:
    """Decision 13: as what it is."""
    assert user_agent().startswith("laneway")
