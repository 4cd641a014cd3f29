"""One request as a stream of bytes: clocks, retries, redirects, secrets and shared clients, on real sockets."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from laneway.abort import AbortController
from laneway.errors import Aborted
from laneway.llm import _http
from laneway.llm._http import HttpRequest, aclose_clients, illegal_header, is_local, merge_headers, open_stream, safe_url, shared_client
from laneway.llm.base import ProviderFailure, StreamOptions
from llm.loopback import CLOSE, CUT, Answer, Loopback, error_reply

KEY = "planted-secret-0123456789"


def request(url: str, **headers: str) -> HttpRequest:
    """A request with a key."""
    return HttpRequest(
        url=url, headers={"authorization": f"Bearer {KEY}", "x-api-key": KEY, "content-type": "application/json", **headers}, body=b"{}", provider="p"
    )


async def read(url: str, options: StreamOptions | None = None) -> bytes:
    """The whole body."""
    out = b""
    async with open_stream(request(url), options or StreamOptions()) as response:
        while chunk := await response.read():
            out += chunk
    return out


async def failure(url: str, options: StreamOptions | None = None) -> ProviderFailure:
    """The failure of a request that must fail."""
    with pytest.raises(ProviderFailure) as caught:
        await read(url, options)
    assert KEY not in str(caught.value)
    return caught.value


def ok(*steps: object, **fields: object) -> Answer:
    """A good answer."""
    return Answer(steps=list(steps or (b"data",)), **fields)  # type: ignore[arg-type]  # test helper


# ---------------------------------------------------------------------------------------------------- the good case


async def test_the_body_arrives_as_it_is_sent() -> None:
    """Pieces come as they come; status and headers (lower case) are known; the request is what was given."""
    gate = asyncio.Event()
    async with Loopback([ok(b"one", gate, b"two", headers={"X-Thing": "1"})]) as server, asyncio.timeout(10):
        async with open_stream(request(server.url), StreamOptions()) as response:
            assert await response.read() == b"one"
            gate.set()
            assert (await response.read(), await response.read()) == (b"two", b"")
            assert (response.info.status, response.info.headers["x-thing"]) == (200, "1")
        sent = server.requests[0]
    assert (sent.method, sent.path, sent.body, sent.headers["x-api-key"]) == ("POST", "/v1", b"{}", KEY)


async def test_connections_are_used_again() -> None:
    """A body read to its end leaves its connection for the next request."""
    async with Loopback([ok()]) as server:
        for _ in range(3):
            assert await read(server.url) == b"data"
        assert server.connections == 1


@pytest.mark.parametrize("end", [CLOSE, CUT])
async def test_a_kept_connection_that_was_closed_costs_no_request(end: str) -> None:
    """A server may close it in the very moment it is used; nobody has read the request then, and it goes out on a new one."""
    async with Loopback([ok(b"1"), Answer(steps=[end], raw=True), ok(b"2")]) as server:
        assert [await read(server.url) for _ in range(2)] == [b"1", b"2"]
        assert server.connections == 2


@pytest.mark.parametrize("end", [CLOSE, CUT])
async def test_a_new_connection_that_is_closed_is_a_failure(end: str) -> None:
    """There the server had its chance; one that closes every connection is not asked without end."""
    async with Loopback([ok(b"1"), Answer(steps=[end], raw=True)]) as server:
        await read(server.url)
        assert (await failure(server.url)).info.kind == "network"
        assert len(server.requests) == 3


async def test_many_requests_run_at_once() -> None:
    """No pool limit makes agents wait for each other."""
    gate = asyncio.Event()
    async with Loopback([ok(gate, b"x")]) as server, asyncio.timeout(30):
        tasks = [asyncio.ensure_future(read(server.url)) for _ in range(150)]
        await server.arrived(150)
        gate.set()
        assert await asyncio.gather(*tasks) == [b"x"] * 150


# ---------------------------------------------------------------------------------------------------- clocks


async def test_silence_inside_the_body_ends_it() -> None:
    """B12: one delta, then nothing with the socket open: a retryable failure after the idle timeout, and the socket is closed."""
    async with Loopback([ok(b"one", 60.0)]) as server, asyncio.timeout(10):
        found = await failure(server.url, StreamOptions(idle_timeout=0.1))
        await server.disconnected.wait()
    assert (found.info.kind, "0.1 s" in str(found)) == ("timeout", True)


async def test_slow_headers_end_the_wait() -> None:
    """`timeout` is the wait for the headers, not for the whole response."""
    async with Loopback([Answer(steps=[60.0], raw=True)]) as server, asyncio.timeout(10):
        found = await failure(server.url, StreamOptions(timeout=0.1))
        await server.disconnected.wait()
    assert (found.info.kind, "no response headers" in str(found)) == ("timeout", True)


async def test_a_slow_but_living_body_may_take_any_time() -> None:
    """There is no total deadline: only silence counts (05 §6.6)."""
    async with Loopback([ok(*[step for _ in range(20) for step in (b"x", 0.1)])]) as server, asyncio.timeout(20):
        assert await read(server.url, StreamOptions(timeout=1.5, idle_timeout=1.5)) == b"x" * 20


# ---------------------------------------------------------------------------------------------------- abort and cancellation


@pytest.mark.parametrize("steps", [[60.0], [b"one", 60.0]])
async def test_an_abort_ends_every_wait_and_closes_the_socket(steps: list[object]) -> None:
    """B12: abort while waiting for headers or for bytes."""
    controller = AbortController()
    answer = Answer(steps=steps, raw=steps == [60.0])  # type: ignore[arg-type]  # test helper
    async with Loopback([answer]) as server, asyncio.timeout(10):
        asyncio.get_running_loop().call_later(0.05, controller.abort, "stop")
        with pytest.raises(Aborted, match="stop"):
            await read(server.url, StreamOptions(signal=controller.signal))
        await server.disconnected.wait()


async def test_an_abort_ends_a_retry_s_wait() -> None:
    """B52: noticed in the pause, not after it."""
    controller = AbortController()
    async with Loopback([error_reply(429, headers={"retry-after": "30"})]) as server, asyncio.timeout(10):
        asyncio.get_running_loop().call_later(0.05, controller.abort)
        with pytest.raises(Aborted):
            await read(server.url, StreamOptions(signal=controller.signal, max_retries=3))
        assert len(server.requests) == 1


async def test_cancelling_the_task_closes_the_socket() -> None:
    """05 sc. 147: CancelledError propagates, the server sees the disconnect."""
    async with Loopback([ok(b"one", 60.0)]) as server, asyncio.timeout(10):
        task = asyncio.ensure_future(read(server.url))
        await server.arrived()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.disconnected.wait()


async def test_leaving_the_stream_closes_the_socket() -> None:
    """The connection is closed on every way out."""
    async with Loopback([ok(b"one", 60.0)]) as server, asyncio.timeout(10):
        async with open_stream(request(server.url), StreamOptions()) as response:
            await response.read()
        await server.disconnected.wait()


# ---------------------------------------------------------------------------------------------------- broken connections


async def test_a_refused_connection_is_a_network_failure() -> None:
    """One clear sentence with the address and what to check."""
    async with Loopback([ok()]) as server:
        url = server.url
    found = await failure(url)
    assert found.info.kind == "network"
    assert "127.0.0.1" in str(found)
    assert "check that the server runs" in str(found)


@pytest.mark.parametrize("end", [CUT, CLOSE])
async def test_a_cut_body_is_a_network_failure(end: str) -> None:
    """B47: a connection that ends before the body does is never a finished answer."""
    async with Loopback([ok(b"one", end)]) as server:
        assert (await failure(server.url)).info.kind == "network"


@pytest.mark.parametrize("raw", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"])
async def test_what_is_not_http_is_a_failure(raw: bytes) -> None:
    """A closed connection, garbage instead of a status line, a broken chunk."""
    async with Loopback([Answer(steps=[raw], raw=True)]) as server:
        assert (await failure(server.url)).info.kind == "network"


# ---------------------------------------------------------------------------------------------------- retries


@pytest.mark.parametrize(
    ("status", "headers", "requests"),
    [
        (429, {}, 3), (408, {}, 3), (409, {}, 3), (500, {}, 3), (503, {}, 3), (400, {}, 1), (401, {}, 1), (404, {}, 1),
        (500, {"x-should-retry": "false"}, 1), (400, {"x-should-retry": "true"}, 3), (500, {"x-should-retry": "perhaps"}, 3),
    ],
)  # fmt: skip
async def test_which_answers_are_asked_for_again(status: int, headers: dict[str, str], requests: int) -> None:
    """05 sc. 85, §6.1: by status, unless the server says itself; max_retries on top of the first try."""
    async with Loopback([error_reply(status, {"error": {"message": "no"}}, headers={"retry-after-ms": "1", **headers})]) as server:
        found = await failure(server.url, StreamOptions(max_retries=2))
        assert (found.info.status, len(server.requests)) == (status, requests)


async def test_a_retry_can_succeed() -> None:
    """05 sc. 83: 429 with retry-after-ms 10, then a good answer."""
    async with Loopback([error_reply(429, headers={"retry-after-ms": "10"}), Answer(steps=[b"", CLOSE], raw=True), ok()]) as server:
        assert await read(server.url, StreamOptions(max_retries=2)) == b"data"
        assert len(server.requests) == 3


async def test_without_retries_there_is_one_request() -> None:
    """max_retries is 0 by default: layers do not multiply (B50)."""
    async with Loopback([error_reply(503)]) as server:
        found = await failure(server.url)
        assert (found.info.kind, len(server.requests)) == ("overloaded", 1)


async def test_the_wait_is_the_server_s() -> None:
    """B50: Retry-After is kept, and survives to the layer above."""
    async with Loopback([error_reply(429, headers={"retry-after": "0.2"}), ok()]) as server:
        before = time.monotonic()
        await read(server.url, StreamOptions(max_retries=1))
        assert time.monotonic() - before >= 0.2
    async with Loopback([error_reply(429, headers={"retry-after": "30"})]) as server:
        assert (await failure(server.url)).info.retry_after_ms == 30_000


@pytest.mark.parametrize("retries", [0, 5])
async def test_a_huge_wait_fails_at_once_and_says_how_long(retries: int) -> None:
    """B51, 05 sc. 84: no early retry; the text has the wait and the limit."""
    async with Loopback([error_reply(429, {"error": {"message": "slow down"}}, headers={"retry-after": "198300"})]) as server, asyncio.timeout(10):
        found = await failure(server.url, StreamOptions(max_retries=retries))
        assert len(server.requests) == 1
    for part in ("slow down", "retry delay", "198300 s", "60 s"):
        assert part in str(found)
    assert found.info.retry_after_ms == 198_300_000


async def test_without_a_cap_any_wait_is_kept() -> None:
    """05 sc. 84: max_retry_delay 0 waits."""
    async with Loopback([error_reply(429, headers={"retry-after": "0.3"}), ok()]) as server:
        assert await read(server.url, StreamOptions(max_retries=1, max_retry_delay=0.0)) == b"data"


async def test_an_error_body_that_never_ends_is_not_read_for_ever() -> None:
    """What has arrived has to do."""
    async with Loopback([Answer(steps=[b'{"error": "half', 60.0], status=500)]) as server, asyncio.timeout(10):
        found = await failure(server.url, StreamOptions(idle_timeout=0.1))
    assert (found.info.status, "half" in str(found)) == (500, True)


async def test_a_huge_error_body_is_cut() -> None:
    """At most 256 KiB are read, 4000 characters shown."""
    async with Loopback([Answer(steps=[b"x" * 65536] * 64, status=500)]) as server:
        assert len(str(await failure(server.url))) < 5000


# ---------------------------------------------------------------------------------------------------- redirects


async def test_a_redirect_on_the_same_server_keeps_everything() -> None:
    """307 and 308 keep method, body and headers."""
    async with Loopback([Answer(status=307, headers={"location": "/v2"}), ok()]) as server:
        assert await read(server.url) == b"data"
        assert (server.requests[1].path, server.requests[1].body, server.requests[1].headers["x-api-key"]) == ("/v2", b"{}", KEY)


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_to_another_server_carries_no_credentials(status: int) -> None:
    """Decision 14: no header that may be a secret goes to another host or port."""
    async with Loopback([ok()]) as other, Loopback([Answer(status=status, headers={"location": other.url})]) as server:
        assert await read(server.url) == b"data"
        headers = other.requests[0].headers
    assert KEY not in str(headers)
    assert headers["content-type"] == "application/json"


async def test_other_redirects_and_circles_are_explained() -> None:
    """301 would turn the request into another one; a circle ends."""
    async with Loopback([Answer(status=301, headers={"location": "https://elsewhere.example/x?key=abc"})]) as server:
        found = await failure(server.url)
        assert (found.info.kind, "https://elsewhere.example/x" in str(found), "key=abc" in str(found)) == ("configuration", True, False)
    async with Loopback([Answer(status=307, headers={"location": "/v1"})]) as server:
        assert "redirects" in str(await failure(server.url))
        assert len(server.requests) == 6


# ---------------------------------------------------------------------------------------------------- secrets


async def test_a_planted_key_is_in_no_text() -> None:
    """Decision 14: not in errors that echo it, not in reprs; not from an illegal header either."""
    async with Loopback([error_reply(401, {"error": {"message": f"bad key {KEY} or Bearer {KEY}"}})]) as server:
        assert "***" in str(await failure(server.url))
        assert KEY not in repr(request(server.url)) + repr(StreamOptions(api_key=KEY, headers={"x": KEY}))
    bad = HttpRequest(url="http://127.0.0.1:1/v1", headers={"authorization": f"Bearer {KEY}\nx: y"}, body=b"", provider="p")
    with pytest.raises(ProviderFailure) as caught:
        async with open_stream(bad, StreamOptions()):
            pass
    assert KEY not in str(caught.value)


async def test_a_password_in_the_url_is_sent_but_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    """The HTTP library logs URLs; the password is moved to a header first."""
    caplog.set_level("DEBUG")
    async with Loopback([error_reply(500)]) as server:
        url = server.url.replace("http://", "http://user:hidden-password@")
        open_request = HttpRequest(url=url, headers={}, body=b"", provider="p")
        with pytest.raises(ProviderFailure) as caught:
            async with open_stream(open_request, StreamOptions()):
                pass
        assert server.requests[0].headers["authorization"].startswith("Basic ")
    assert "hidden-password" not in str(caught.value) + repr(open_request) + caplog.text


async def test_no_cookies_pass_from_one_request_to_the_next() -> None:
    """The client is shared; what a provider sets for one user is not sent for another."""
    async with Loopback([ok(headers={"set-cookie": "a=b"})]) as server:
        await read(server.url)
        await read(server.url)
        assert "cookie" not in server.requests[1].headers


# ---------------------------------------------------------------------------------------------------- clients


async def test_a_loop_has_one_client_per_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """05 §10.7: shared, by proxy setting; plain HTTP needs no certificates; closed on demand."""
    for name in _http._PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    plain = await shared_client("http://127.0.0.1")
    assert plain is await shared_client("http://localhost:99")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert await shared_client("http://127.0.0.1") is not plain
    await aclose_clients()
    assert plain.is_closed
    monkeypatch.delenv("http_proxy")
    assert await shared_client("http://127.0.0.1") is not plain
    await aclose_clients()
    await aclose_clients()


def test_clients_are_closed_with_their_loop() -> None:
    """Nothing is left open, nothing holds the loop: `asyncio.run` again and again leaves no trace."""
    seen: list[object] = []

    async def use() -> None:
        async with Loopback([ok()]) as server:
            assert await read(server.url) == b"data"
            seen.append(await shared_client(server.url))

    for _ in range(3):
        asyncio.run(use())
    assert all(client.is_closed for client in seen)  # type: ignore[attr-defined]  # HTTP clients
    assert len(_http._clients) == 0


def test_headers_merge_without_regard_to_case() -> None:
    """05 sc. 133: later layers win, None removes."""
    assert merge_headers({"A": "1", "b": "2"}, None, {"a": "3", "B": None}) == {"a": "3"}


LOCAL = ["127.0.0.1:8080/v1", "localhost", "[::1]:1", "192.168.1.5/v1", "10.0.0.1", "gpu-box:8000/v1", "host.docker.internal:1"]


@pytest.mark.parametrize(("host", "local"), [*((host, True) for host in LOCAL), ("api.openai.com/v1", False), ("8.8.8.8", False), ("", False)])
def test_which_hosts_are_local(host: str, local: bool) -> None:
    """A server on this machine or network may well need no key (05 sc. 105)."""
    assert is_local(f"http://{host}") is local


def test_urls_and_headers_are_safe_to_show() -> None:
    """No query, no user; a header that cannot be sent is named without its value."""
    assert safe_url("https://u:p@h:1/path?key=abc#x") == "https://h:1/path"
    assert illegal_header({"a": "ok", "authorization": "Bearer a\nb"}) == "authorization"
    assert illegal_header({"a": "grüße"}) == "a"
    assert illegal_header({"a": "ok\there"}) is None


def test_importing_the_layer_imports_no_http_library() -> None:
    """05 sc. 149: httpx2 comes with the first request."""
    import subprocess
    import sys

    heavy = ("httpx2", "pydantic", "email")
    program = f"import sys, laneway.llm.wire.openai_chat; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ})
    assert run.stdout.strip() == "[]"
