"""The only place that talks to a provider: one shared HTTP client per event loop, and one request as a stream of bytes.

A request has three clocks and no total deadline: connecting, waiting for the response headers, and silence inside the body. An abort
ends any of these waits, and the connection is closed on every way out. Redirects are followed here, because only here is
known which headers are secret.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from msgspec import Struct

from laneway.abort import AbortSignal, abort_scope
from laneway.llm._errors import as_sentence, http_failure, redact, transport_failure
from laneway.llm._retry import abortable_sleep, transport_delay
from laneway.llm.base import ProviderFailure, ResponseInfo, StreamOptions

if TYPE_CHECKING:
    import httpx2

CONNECT_TIMEOUT = 10.0
HEADER_TIMEOUT = 600.0
IDLE_TIMEOUT = 300.0
_ERROR_BODY_BYTES = 256 * 1024
_ERROR_BODY_SECONDS = 10.0
_MAX_REDIRECTS = 5
_KEPT_TRIES = 4
"""How many kept connections may turn out to be closed, one after the other."""
_SAFE_HEADERS = frozenset({"accept", "accept-encoding", "content-type", "user-agent"})
"""Headers that may follow a redirect to another host; whatever else is there may be a credential."""
_PUBLIC_HEADERS = _SAFE_HEADERS | {"anthropic-version", "anthropic-beta", "openai-beta", "http-referer", "x-title"}
"""Headers whose values are no secrets and need not be cut out of error texts."""
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_TLS_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


class HttpRequest(Struct, kw_only=True, frozen=True):
    """One request. `provider` is the name used in error texts; header names are lower case (see `merge_headers`)."""

    url: str
    headers: dict[str, str]
    body: bytes
    provider: str
    method: str = "POST"

    def __repr__(self) -> str:
        return f"HttpRequest({self.method} {safe_url(self.url)}, {len(self.body)} bytes)"

    @property
    def secrets(self) -> list[str]:
        """The values of this request that must not be seen in any text."""
        found = [value for name, value in self.headers.items() if name not in _PUBLIC_HEADERS]
        found += [value.partition(" ")[2] for value in found if " " in value]
        password = urlsplit(self.url).password
        return [*found, password] if password else found


# ---------------------------------------------------------------------------------------------------- headers, URLs


def merge_headers(*layers: Mapping[str, str | None] | None) -> dict[str, str]:
    """Merge headers, later layers winning; names compare (and come out) in lower case, None removes one."""
    merged: dict[str, str] = {}
    for layer in layers:
        for name, value in (layer or {}).items():
            if value is None:
                merged.pop(name.lower(), None)
            else:
                merged[name.lower()] = value
    return merged


def safe_url(url: str) -> str:
    """Return the URL without query, user name and password: what may be shown."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def is_local(url: str) -> bool:
    """Whether the URL's host is this machine or a private network: a server there may well need no key."""
    import ipaddress

    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith((".localhost", ".local", ".internal")) or (host and "." not in host and ":" not in host):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_private or address.is_loopback or address.is_link_local


# ---------------------------------------------------------------------------------------------------- shared clients


class _LoopClients:
    """The clients of one event loop. A suspended async generator closes them when the loop shuts its generators down."""

    def __init__(self) -> None:
        self.by_setting: dict[tuple[Any, ...], httpx2.AsyncClient] = {}
        self._keeper = self._keep()

    async def start(self) -> None:
        await self._keeper.__anext__()

    async def _keep(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            with _registry:
                _clients.pop(asyncio.get_running_loop(), None)
            clients = list(self.by_setting.values())
            self.by_setting.clear()
            for client in clients:
                await client.aclose()

    async def aclose(self) -> None:
        await self._keeper.aclose()


_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopClients] = weakref.WeakKeyDictionary()
_registry = threading.Lock()  # loops of several threads share the dictionary


async def shared_client(url: str) -> httpx2.AsyncClient:
    """Return this event loop's client for `url`; settings of proxies and certificates come from the environment, as usual.

    It is closed when the loop ends (`asyncio.run` does that) or by `aclose_clients`.
    """
    loop = asyncio.get_running_loop()
    clients = _clients.get(loop)
    if clients is None:
        with _registry:
            for stale in [other for other in list(_clients) if other.is_closed()]:
                _clients.pop(stale, None)
            clients = _clients[loop] = _LoopClients()
        await clients.start()
    environment = os.environ
    proxies = tuple(environment.get(name) for name in _PROXY_VARIABLES)
    plain = url.startswith("http://") and not any(proxies)
    setting = (plain,) if plain else (*proxies, *(environment.get(name) for name in _TLS_VARIABLES))
    client = clients.by_setting.get(setting)
    if client is None:
        client = clients.by_setting[setting] = _new_client(plain)
    return client


def _new_client(plain: bool) -> httpx2.AsyncClient:
    """Make a client. One for plain HTTP needs no certificates; loading them takes longer than a local server's first answer."""
    from http.cookiejar import CookieJar, DefaultCookiePolicy

    import httpx2

    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=30.0),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # one user's cookies are not for the next one's request
        verify=not plain,
        follow_redirects=False,
    )


async def aclose_clients() -> None:
    """Close the clients of the running event loop. The next request makes new ones."""
    clients = _clients.get(asyncio.get_running_loop())
    if clients is not None:
        await clients.aclose()


# ---------------------------------------------------------------------------------------------------- one request


class HttpStream:
    """An answer of status 2xx whose body is still arriving."""

    __slots__ = ("_iterator", "_response", "headers", "idle_timeout", "request", "signal", "status")

    def __init__(self, request: HttpRequest, response: httpx2.Response, signal: AbortSignal | None, idle_timeout: float) -> None:
        self.request = request
        self.status = response.status_code
        self.headers = _lower(response)
        self.signal = signal
        self.idle_timeout = idle_timeout
        self._response = response
        self._iterator: AsyncIterator[bytes] | None = None

    @property
    def info(self) -> ResponseInfo:
        """What `StreamOptions.on_response` is told."""
        return ResponseInfo(status=self.status, headers=self.headers)

    async def read(self) -> bytes:
        """Return the next bytes as they arrive, b"" at the end.

        Raises:
            Aborted: the signal was set.
            ProviderFailure: the connection broke, or was silent for longer than the idle timeout.
        """
        if self._iterator is None:
            self._iterator = self._response.aiter_bytes()
        try:
            async with abort_scope(self.signal), asyncio.timeout(self.idle_timeout):
                while True:
                    chunk = await self._iterator.__anext__()
                    if chunk:
                        return chunk
        except StopAsyncIteration:
            return b""
        except TimeoutError:
            host = safe_url(self.request.url)
            text = f"{self.request.provider}: {host} sent nothing for {self.idle_timeout:g} s in the middle of its response (idle timeout)"
            raise ProviderFailure(text, kind="timeout") from None
        except Exception as error:
            raise _raised(self.request, error, "reading the response") from None


@asynccontextmanager
async def open_stream(
    request: HttpRequest, options: StreamOptions, sign: Callable[[HttpRequest], HttpRequest] | None = None
) -> AsyncGenerator[HttpStream]:
    """Send the request and give its answer; the connection is closed on the way out, however that is.

    Retries up to `options.max_retries` times what failed before any byte of a good answer; see `StreamOptions` for the waits. `sign` is
    called for every try: a signature has a time in it and is soon too old.

    Raises:
        Aborted: the signal was set, before or during any wait.
        ProviderFailure: no connection, no headers in time, or an answer other than 2xx.
    """
    response, sent = await _send_with_retries(request, options, sign)
    try:
        yield HttpStream(sent, response, options.signal, _or(options.idle_timeout, IDLE_TIMEOUT))
    finally:
        await _close(response)


async def _send_with_retries(
    request: HttpRequest, options: StreamOptions, sign: Callable[[HttpRequest], HttpRequest] | None
) -> tuple[httpx2.Response, HttpRequest]:
    retry = 0
    while True:
        sent = request if sign is None else sign(request)
        try:
            return await _send(sent, options), sent
        except _Refused as refused:
            failure = _too_long(refused.failure, options.max_retry_delay)
            if failure is not refused.failure or retry >= options.max_retries or not refused.retryable:
                raise failure from None
            asked = failure.info.retry_after_ms
            delay = asked / 1000 if asked is not None else transport_delay(retry)
        retry += 1
        await abortable_sleep(delay, options.signal)


class _Refused(Exception):
    """A try that did not bring a good answer."""

    def __init__(self, failure: ProviderFailure, retryable: bool) -> None:
        super().__init__()
        self.failure, self.retryable = failure, retryable


def _too_long(failure: ProviderFailure, cap: float) -> ProviderFailure:
    """Say how long the provider asks to wait where that is longer than anybody will; `cap` 0 is no limit."""
    asked = failure.info.retry_after_ms
    if asked is None or cap <= 0 or asked <= cap * 1000:
        return failure
    text = f"{as_sentence(str(failure))} The provider asks for a retry delay of {asked / 1000:.10g} s, above the limit of {cap:g} s; try again later."
    return ProviderFailure(text, kind=failure.info.kind, status=failure.info.status, retry_after_ms=asked)


async def _send(request: HttpRequest, options: StreamOptions) -> httpx2.Response:
    """Send once, following redirects.

    Raises:
        _Refused: no good answer.
    """
    for _ in range(_MAX_REDIRECTS + 1):
        response = await _send_one(request, options)
        if response.status_code in (307, 308) and "location" in response.headers:
            request = _redirected(request, response.headers["location"])
            await _close(response)
        elif 200 <= response.status_code < 300:
            return response
        else:
            raise await _refusal(request, response, options)
    text = f"{request.provider}: more than {_MAX_REDIRECTS} redirects, the last one to {safe_url(request.url)}; check the base URL"
    raise _Refused(ProviderFailure(text, kind="configuration"), False)


async def _send_one(request: HttpRequest, options: StreamOptions) -> httpx2.Response:
    limit = _or(options.timeout, HEADER_TIMEOUT)
    where = safe_url(request.url)
    try:
        async with abort_scope(options.signal), asyncio.timeout(limit):
            return await _send_on_open_connection(request, limit)
    except TimeoutError:
        text = f"{request.provider}: {where} sent no response headers within {limit:g} s"
        raise _Refused(ProviderFailure(text, kind="timeout"), True) from None
    except Exception as error:
        failure = _raised(request, error, f"the request to {where}")
        if isinstance(failure, ProviderFailure):
            raise _Refused(failure, failure.info.kind != "configuration") from None
        raise failure from None


async def _send_on_open_connection(request: HttpRequest, limit: float) -> httpx2.Response:
    """Send, once more if the connection was a kept one that turns out to be closed.

    A server may close a kept connection at any moment, llama.cpp's does so just after each stream although it says that it keeps it. A
    request that is on its way then is answered by nothing at all, and nobody has read it.
    """
    import httpx2

    client = await shared_client(request.url)
    url, headers = _without_user(request)
    for tries_left in reversed(range(_KEPT_TRIES)):
        new: list[str] = []

        async def note(step: str, _: Any, new: list[str] = new) -> None:
            if step.startswith("connection."):
                new.append(step)

        timeouts = {"connect": min(CONNECT_TIMEOUT, limit), "read": None, "write": None, "pool": None}
        built = httpx2.Request(
            request.method, url, headers=headers, content=request.body, extensions={"timeout": timeouts, "trace": note}
        )  # fmt: skip
        try:
            return await client.send(built, stream=True)
        except (httpx2.RemoteProtocolError, httpx2.NetworkError):
            if new or not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def _without_user(request: HttpRequest) -> tuple[str, dict[str, str]]:
    """Move a user name and password from the URL, which gets logged, to where they belong."""
    parts = urlsplit(request.url)
    if "@" not in parts.netloc:
        return request.url, request.headers
    from base64 import b64encode
    from urllib.parse import unquote

    user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return bare, {"authorization": f"Basic {b64encode(user.encode()).decode()}", **request.headers}


def _raised(request: HttpRequest, error: Exception, doing: str) -> Exception:
    """Turn what the HTTP library raised into what this module promises; an abort passes."""
    from laneway.errors import Aborted

    if isinstance(error, (Aborted, ProviderFailure, _Refused)):
        return error
    return transport_failure(error, provider=request.provider, doing=doing, secrets=request.secrets)


def _redirected(request: HttpRequest, location: str) -> HttpRequest:
    """Return the request for the new place; another host (or a plain connection instead of a safe one) gets no credentials."""
    url = urljoin(request.url, location)
    old, new = urlsplit(request.url), urlsplit(url)
    same = old.hostname == new.hostname and (old.scheme, _port(old)) == (new.scheme, _port(new))
    upgraded = old.hostname == new.hostname and (old.scheme, new.scheme) == ("http", "https")
    headers = request.headers if same or upgraded else {k: v for k, v in request.headers.items() if k in _SAFE_HEADERS}
    return HttpRequest(url=url, headers=headers, body=request.body, provider=request.provider, method=request.method)


def _port(parts: Any) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


async def _refusal(request: HttpRequest, response: httpx2.Response, options: StreamOptions) -> _Refused:
    """Read an answer that is no success (at most 256 KiB of it, for at most 10 s) and say what it means."""
    body = bytearray()
    try:
        async with abort_scope(options.signal), asyncio.timeout(min(_ERROR_BODY_SECONDS, _or(options.idle_timeout, IDLE_TIMEOUT))):
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) >= _ERROR_BODY_BYTES:
                    break
    except TimeoutError:
        pass  # what has arrived has to do
    except Exception as error:
        if not isinstance(_raised(request, error, ""), ProviderFailure):
            raise
    finally:
        await _close(response)
    headers = _lower(response)
    if 300 <= response.status_code < 400:
        target = redact(safe_url(urljoin(request.url, headers.get("location", ""))), request.secrets)
        where = f"{request.provider}: {safe_url(request.url)}"
        text = f"{where} answered {response.status_code}, a redirect to {target}; set the base URL to where it leads"
        return _Refused(ProviderFailure(text, kind="configuration", status=response.status_code), False)
    failure = http_failure(response.status_code, headers, bytes(body), provider=request.provider, secrets=request.secrets)
    return _Refused(failure, _worth_a_retry(response.status_code, headers))


def _worth_a_retry(status: int, headers: Mapping[str, str]) -> bool:
    told = headers.get("x-should-retry", "").lower()
    return told == "true" if told in ("true", "false") else status in (408, 409, 429) or status >= 500


async def _close(response: httpx2.Response) -> None:
    """Close the connection; that it was broken already is no news."""
    try:
        await response.aclose()
    except (OSError, RuntimeError):
        pass
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("httpx2", "httpcore2", "anyio", "h11"):
            raise


def _lower(response: httpx2.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def illegal_header(headers: Mapping[str, str]) -> str | None:
    """Return the name of a header whose value cannot be sent (a key pasted with a line break, say); None if all can."""
    for name, value in headers.items():
        if not value.isascii() or any((ord(c) < 32 and c != "\t") or ord(c) == 127 for c in value):
            return name
    return None
