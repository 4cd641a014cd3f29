"""The server: requests are checked, take their replies from the script, and are answered in the wire's words."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import msgspec

from laneway.llm.base import Model
from laneway.testing._replies import Answer, check_answer
from laneway.testing._scripted import half_way, resolve, split_deltas
from laneway.testing._serve.dialect import Dialect, Refused, Speaker, compact, refuse
from laneway.testing._serve.http import Connection, Connections, Gone, HttpRequest
from laneway.testing._serve.plan import Failure, Plan, plan_of

DIALECTS = {
    "openai_chat": "openai_chat.ChatDialect",
    "anthropic_messages": "anthropic_messages.AnthropicDialect",
    "openai_responses": "openai_responses.ResponsesDialect",
    "azure": "openai_responses.AzureDialect",
    "google_generate": "google_generate.GoogleDialect",
    "google_vertex": "google_generate.VertexDialect",
    "mistral": "mistral.MistralDialect",
    "bedrock_converse": "bedrock_converse.BedrockDialect",
}
ANY_KEY = "served"
"""The key that `model()` and `env` bring where none is asked for."""
Outcome: TypeAlias = Literal["answered", "failed", "refused", "disconnected"]
_EACH = 64  # so many deltas are followed by a turn of the event loop each, later ones by one per 16


class WireRequest:
    """One request as it came over the wire, and what became of it.

    Attributes:
        number: 1 for the first request. method, path, query, headers (names in lower case): of HTTP. model: the id that is asked for.
        body: the decoded JSON body; {} if it was none.
        outcome: None while it is being answered; "answered"; "failed" as the script wanted; "refused"; "disconnected" if the client left first.
        refusal: why it was refused, None if it was not.
    """

    def __init__(self, number: int, http: HttpRequest) -> None:
        parts = urlsplit(http.target)
        self.number = number
        self.method = http.method
        self.path = parts.path
        self.query = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.headers = http.headers
        self.body: dict[str, Any] = {}
        self.model = ""
        self.outcome: Outcome | None = None
        self.refusal: str | None = None

    def __repr__(self) -> str:
        return f"WireRequest({self.number}, {self.method} {self.path}, {self.outcome or 'under way'})"


class WireServer:
    """A provider on loopback; `serve_wire` makes one.

    Attributes:
        wire: the name of the protocol. url: the base URL, as a client of the protocol takes it.
        requests: every request in the order in which they came, refused ones included.
    """

    wire: str
    url: str
    requests: list[WireRequest]

    def __init__(self, wire: str, script: Iterable[Answer], api_key: str | None) -> None:
        self.wire = wire
        self.url = ""
        self.requests = []
        self._dialect = _dialect(wire)
        self._api_key = api_key
        self._replies: list[Answer] = []
        self._taken = 0
        self._call_ids = 0
        self._active = 0
        self._changed = asyncio.Condition()
        self._raised: list[Exception] = []  # by functions of the script
        self.add(*script)

    # -- the script

    def add(self, *replies: Answer) -> None:
        """Append replies to the script."""
        self._replies += [check_answer(reply) for reply in replies]

    @property
    def remaining(self) -> int:
        """How many replies are left."""
        return len(self._replies) - self._taken

    @property
    def refused(self) -> list[str]:
        """Why requests were refused, one sentence per request; [] is good."""
        return [request.refusal for request in self.requests if request.refusal is not None]

    # -- how to reach it

    def model(self, id: str = "served-model", **fields: Any) -> Model:
        """Return a model that is asked here. `fields` are those of `Model`: `reasoning=True`, `context_window=…`, `provider="openai"`, …

        It needs no registry and no key in the environment: where the server wants a key, the model's headers bring it.
        """
        key = self._api_key or (ANY_KEY if self._dialect.needs_key else None)
        headers = {**(self._dialect.key_header(key) if key is not None else {}), **fields.pop("headers", {})}
        given: dict[str, Any] = {"provider": "served", "api": self.wire, "name": id, "base_url": self.url, **fields}
        return Model(id=id, headers=headers, **given)

    @property
    def env(self) -> dict[str, str]:
        """The environment variables with which another process (`laneway run`, say) finds the wire's vendor here, key included.

        The vendors are `custom` (openai_chat), `anthropic`, `openai` (openai_responses), `azure`, `google`, `vertex`, `mistral` and `bedrock`.
        """
        return {self._dialect.url_variable: self.url, self._dialect.key_variable: self._api_key or ANY_KEY}

    # -- waiting

    async def arrived(self, count: int = 1) -> None:
        """Return when this many requests have come."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= count)

    async def idle(self) -> None:
        """Return when no request is being answered."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._active == 0)

    def raise_errors(self) -> None:
        """Raise again what a function of the script raised first; `serve_wire` does so at the end of its block."""
        if self._raised:
            raise self._raised[0]

    # -- one request

    async def handle(self, http: HttpRequest, connection: Connection) -> None:
        """Answer one request of a client."""
        request = WireRequest(len(self.requests) + 1, http)
        self.requests.append(request)
        self._active += 1
        await self._notify()
        try:
            await self._answer(request, http, connection)
        except Gone:
            request.outcome = "disconnected"
            raise
        finally:
            self._active -= 1
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _answer(self, request: WireRequest, http: HttpRequest, connection: Connection) -> None:
        try:
            answer = self._checked(request, http)
        except Refused as refused:
            request.refusal = str(refused)
            request.outcome = "refused"
            await self._fail(refused.failure, connection, final=True)
            return
        try:
            reply = await connection.race(resolve(answer, request))
            plan = plan_of(reply, make_id=self._next_id, request_bytes=len(http.body))
            self._dialect.check_plan(plan)
        except Gone:
            raise
        except Exception as error:
            if error is not answer:
                self._raised.append(error)
            request.outcome = "failed"
            await self._fail(Failure(message=f"the script raised {type(error).__name__}: {error}", kind="server"), connection, final=True)
            return
        await self._play(plan, request, connection)

    def _checked(self, request: WireRequest, http: HttpRequest) -> Answer:
        """Return the reply for a request.

        Raises:
            Refused: the provider would not answer it, or the script has no reply left.
        """
        try:
            body = msgspec.json.decode(http.body) if http.body else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            body = None
        if isinstance(body, dict):
            request.body = body
        request.model = self._dialect.model_of(request.method, request.path, request.query, request.body)
        if not isinstance(body, dict):
            refuse("the body is no JSON object")
        if self._api_key is not None and self._api_key not in self._dialect.keys_in(request.headers):
            refuse(f"the API key is not the right one; it is expected in the header {self._dialect.key_headers[0]}", kind="auth")
        try:
            self._dialect.check(request.body, request.model, request.headers)
        except (TypeError, ValueError, AttributeError, LookupError) as error:  # something of a type that nobody thought of
            refuse(f"the body does not have the shape of a {self.wire} request ({type(error).__name__}: {error})")
        if self._taken == len(self._replies):
            refuse(f"the script has no reply for request {request.number}: all {self._taken} of its replies were taken; add one")
        self._taken += 1
        return self._replies[self._taken - 1]

    def _next_id(self, name: str) -> str:
        self._call_ids += 1
        return self._dialect.call_id(self._call_ids)

    async def _fail(self, failure: Failure, connection: Connection, *, final: bool = False) -> None:
        """Answer with an error; a `final` one is the same for every further try, and says so."""
        status = self._dialect.status_of(failure)
        headers, body = self._dialect.error(failure, status)
        if final:
            headers["x-should-retry"] = "false"
        if failure.retry_after is not None:
            headers["retry-after"] = str(math.ceil(failure.retry_after))
            if failure.retry_after % 1:
                headers["retry-after-ms"] = str(round(failure.retry_after * 1000))
        await connection.answer(status, {"content-type": "application/json", **headers}, compact(body).encode("utf-8", "replace"))

    # -- one response

    async def _play(self, plan: Plan, request: WireRequest, connection: Connection) -> None:
        if plan.delay:
            await connection.race(asyncio.sleep(plan.delay))
        if plan.blocks or plan.failure is None:
            speaker = self._dialect.speaker(plan, number=self._taken, model=request.model, body=request.body)
            await connection.begin({"content-type": self._dialect.content_type, "cache-control": "no-cache"})
            await _blocks(plan, speaker, connection)
            if plan.failure is None:
                await connection.send(speaker.end(plan.end))
            elif not plan.failure.breaks:
                await connection.send(speaker.fail(plan.failure))
            if plan.failure is None or not plan.failure.breaks:
                await connection.finish()
        else:
            if plan.gate is not None:
                await connection.race(plan.gate.wait())
            if not plan.failure.breaks:
                await self._fail(plan.failure, connection)
        if plan.failure is not None and plan.failure.breaks:
            connection.hang_up()
        request.outcome = "answered" if plan.failure is None else "failed"


async def _blocks(plan: Plan, speaker: Speaker, connection: Connection) -> None:
    """Stream the blocks: start, pieces, end. The last block of a response that fails stays open."""
    pieces = [split_deltas(block.text, plan.delta_size) for block in plan.blocks]
    wait_before = half_way(pieces) if plan.gate is not None and any(pieces) else -1
    await connection.send(speaker.begin())
    sent = 0
    for block, deltas in zip(plan.blocks, pieces, strict=True):
        await connection.send(speaker.open(block))
        for delta in deltas:
            if sent == wait_before and plan.gate is not None:
                await connection.race(plan.gate.wait())
            await connection.send(speaker.delta(block, delta))
            sent += 1
            if sent <= _EACH or sent % 16 == 0:
                await asyncio.sleep(0)
        if plan.failure is None or block is not plan.blocks[-1]:
            await connection.send(speaker.close(block))
    if plan.gate is not None and sent <= wait_before:
        await connection.race(plan.gate.wait())


# ---------------------------------------------------------------------------------------------------- the door


def _dialect(wire: str) -> Dialect:
    if wire not in DIALECTS:
        raise ValueError(f"serve_wire speaks no wire {wire!r}; choose one of {', '.join(DIALECTS)}")
    module, _, name = DIALECTS[wire].partition(".")
    return getattr(import_module(f"laneway.testing._serve.{module}"), name)()


@asynccontextmanager
async def serve_wire(wire: str, script: Iterable[Answer] = (), *, api_key: str | None = None) -> AsyncGenerator[WireServer]:
    """Run a provider on loopback that speaks a wire and answers from a script: for end-to-end tests of what stands on laneway.

    ::

        from laneway import Agent
        from laneway.testing import call, serve_wire, text

        async with serve_wire("anthropic_messages", [call("add", a=2, b=40), text("It is 42.")]) as server:
            agent = Agent(model=server.model(), tools=[add])
            await agent.prompt("What is 2 + 40?")
        assert agent.state.messages[-1].text == "It is 42."
        assert server.requests[1].body["messages"][-1]["content"][0]["type"] == "tool_result"
        assert server.refused == []

    The script is the one that `Scripted` takes, one reply per request, and means the same: blocks, `usage`, `delay`, `delta_size`, `gate`,
    `truncated`, ready messages, functions (of the `WireRequest`, sync or async). `error(…)` alone is an HTTP error with the provider's body and
    `Retry-After`; after something said it is the wire's error in the middle of a stream; the kinds "network" and "incomplete" (without a status)
    break the connection instead. Deferred replies are not possible. Calls without an id get one of the wire's form: `call_1`, `toolu_1`, ….

    A request is checked first, and refused with the provider's kind of error if it does not fit: another path, a body of the wrong shape,
    calls and results that do not pair up, with `api_key` another key. It takes no reply then; see `WireServer.refused`. A request without a
    reply left is refused too. Only streams are served. When the block ends the server is gone, and what a function of the script raised is
    raised again.

    Raises:
        ValueError: there is no such wire.
    """
    server = WireServer(wire, script, api_key)
    connections = Connections()
    listener = await asyncio.get_running_loop().create_server(lambda: Connection(server.handle, connections), "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}{_dialect(wire).base_path}"
    try:
        yield server
    finally:
        listener.close()
        await connections.aclose()
        await listener.wait_closed()
    server.raise_errors()
