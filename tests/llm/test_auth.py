"""How a request is authorised, from the explicit key down to the environment; refreshing logins; and that no key is ever shown."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import ModelError
from laneway.llm import (
    Auth,
    Credential,
    EnvKey,
    FileCredentialStore,
    MemoryCredentialStore,
    Models,
    Provider,
    RefreshContext,
    Setting,
    StreamOptions,
    _auth,
)
from laneway.llm._auth import AuthRequest, authorise, env_value, fresh_credential, needs_refresh
from laneway.llm.base import Transcript
from laneway.llm.vendors import builtin_providers
from laneway.messages import UserMessage
from llm.chat import chunk
from llm.loopback import Loopback, error_reply, sse_reply

pytestmark = pytest.mark.usefixtures("clean_env")

PLANTED = "sk-planted-0123456789"
HELLO = Transcript(messages=[UserMessage(content="hello")])


def keyed(**fields: Any) -> Provider:
    """A provider with two variables."""
    return Provider(**{"id": "p", "base_url": "http://p.test", "keys": ("KEY1", "KEY2"), **fields})


# ---------------------------------------------------------------------------------------------------- order


def test_a_blank_variable_counts_as_unset() -> None:
    """Scenario 133: KEY1 is empty, KEY2 is set."""
    auth = authorise(keyed(), env={"KEY1": "  ", "KEY2": "two\n"})
    assert auth is not None
    assert (auth.api_key, auth.source) == ("two", "KEY2")


def test_a_placeholder_from_an_example_counts_as_unset() -> None:
    """`<your key here>` is no key."""
    assert env_value({"KEY1": "<your key>"}, "KEY1") is None


@pytest.mark.parametrize(
    ("explicit", "stored", "env", "expected"),
    [
        ("x", "s", "e", ("x", "explicit key")),
        (None, "s", "e", ("s", "stored key")),
        (None, None, "e", ("e", "KEY1")),
        (" ", None, "e", ("e", "KEY1")),
        (None, None, "", None),
    ],
)
def test_explicit_wins_over_stored_wins_over_environment(explicit: str | None, stored: str | None, env: str, expected: Any) -> None:
    """Scenario 133: one order, everywhere."""
    credential = Credential(key=stored) if stored else None
    auth = authorise(keyed(), api_key=explicit, credential=credential, env={"KEY1": env})
    assert (auth and (auth.api_key, auth.source)) == expected


def test_a_stored_login_without_a_handler_is_unconfigured() -> None:
    """Scenario 134: a stored credential owns its provider; the environment is not tried behind its back."""
    assert authorise(keyed(), credential=Credential(kind="oauth", key="t"), env={"KEY1": "e"}) is None


def test_a_stored_key_without_a_value_takes_the_environments() -> None:
    """A stored entry may hold only settings; the key is ambient then."""
    auth = authorise(keyed(), credential=Credential(env={"region": "x"}), env={"KEY1": "e"})
    assert auth is not None
    assert auth.api_key == "e"


def test_settings_come_from_the_request_then_what_is_stored_then_the_environment() -> None:
    """Scenario 134: a stored key's settings merge with the request's."""
    provider = keyed(
        base_url="http://{region}.{zone}.test", settings=(Setting(name="region", env=("REGION",)), Setting(name="zone", env=("ZONE",), default="z"))
    )
    auth = authorise(provider, credential=Credential(key="k", env={"region": "stored", "ZONE": "stored"}), env={"region": "request"})
    assert auth is not None
    assert auth.base_url == "http://request.stored.test"
    assert auth.env == {"region": "request", "zone": "stored"}


def test_a_bearer_variable_becomes_a_header() -> None:
    """Anthropic's auth token is sent as a bearer header, before the API key is looked for."""
    auth = authorise(builtin_providers()["anthropic"], env={"ANTHROPIC_AUTH_TOKEN": "t", "ANTHROPIC_API_KEY": "k"})
    assert auth is not None
    assert auth.headers == {"authorization": "Bearer t"}
    assert auth.api_key is None
    second = authorise(builtin_providers()["anthropic"], env={"ANTHROPIC_OAUTH_TOKEN": "o", "ANTHROPIC_API_KEY": "k"})
    assert second is not None
    assert second.api_key == "o"
    assert EnvKey(name="A").bearer is False


def test_a_resolver_that_fails_is_one_error_with_its_cause() -> None:
    """Somebody's resolver raising is named; a sentence of laneway's own stays as it is."""

    def broken(request: AuthRequest) -> Auth | None:
        raise KeyError("oops")

    with pytest.raises(ModelError, match=r"p: .*KeyError"):
        authorise(keyed(auth=broken))


# ---------------------------------------------------------------------------------------------------- vendors' own ways


def test_azure_needs_its_resource() -> None:
    """The URL comes from AZURE_OPENAI_BASE_URL or the resource's name; a key without either is an error that says so."""
    azure = builtin_providers()["azure"]
    assert authorise(azure) is None
    with pytest.raises(ModelError, match="AZURE_OPENAI_BASE_URL"):
        authorise(azure, api_key="k")
    auth = authorise(azure, env={"AZURE_OPENAI_API_KEY": "k", "AZURE_OPENAI_RESOURCE_NAME": "mine", "AZURE_OPENAI_API_VERSION": "v9"})
    assert auth is not None
    assert auth.base_url == "https://mine.openai.azure.com/openai/v1"
    assert auth.env["AZURE_OPENAI_API_VERSION"] == "v9"


def test_vertex_is_reached_where_its_location_says() -> None:
    """A key or Google Cloud credentials; the location is in the host, except the global one."""
    vertex = builtin_providers()["vertex"]
    assert authorise(vertex) is None
    auth = authorise(vertex, env={"GOOGLE_CLOUD_API_KEY": "k", "GOOGLE_CLOUD_PROJECT": "proj", "GOOGLE_CLOUD_LOCATION": "europe-west4"})
    assert auth is not None
    assert auth.base_url == "https://europe-west4-aiplatform.googleapis.com"
    assert auth.env == {"project": "proj", "location": "europe-west4"}
    everywhere = authorise(vertex, env={"GOOGLE_APPLICATION_CREDENTIALS": "/x.json", "GOOGLE_CLOUD_LOCATION": "global"})
    assert everywhere is not None
    assert (everywhere.base_url, everywhere.source, everywhere.api_key) == (
        "https://aiplatform.googleapis.com",
        "GOOGLE_APPLICATION_CREDENTIALS",
        None,
    )


def test_bedrock_takes_ambient_credentials_and_its_region() -> None:
    """A bearer token, or whatever AWS's own tools would find; the region is in the host."""
    bedrock = builtin_providers()["bedrock"]
    assert authorise(bedrock) is None
    auth = authorise(bedrock, env={"AWS_PROFILE": "work", "AWS_DEFAULT_REGION": "eu-west-1"})
    assert auth is not None
    assert (auth.base_url, auth.source, auth.api_key) == ("https://bedrock-runtime.eu-west-1.amazonaws.com", "AWS_PROFILE", None)
    token = authorise(bedrock, env={"AWS_BEARER_TOKEN_BEDROCK": "b"})
    assert token is not None
    assert (token.api_key, token.base_url) == ("b", "https://bedrock-runtime.us-east-1.amazonaws.com")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("127.0.0.1:5000", "http://127.0.0.1:5000/v1"),
        ("box", "http://box:11434/v1"),
        ("https://ollama.test:443/", "https://ollama.test:443/v1"),
    ],
)
def test_ollama_is_reached_where_its_own_variable_says(host: str, url: str) -> None:
    """OLLAMA_HOST is a host, a host and port, or a URL; "listen everywhere" means this machine."""
    auth = authorise(builtin_providers()["ollama"], env={"OLLAMA_HOST": host})
    assert auth is not None
    assert auth.base_url == url


# ---------------------------------------------------------------------------------------------------- logins


class Login:
    """An OAuth handler that counts its refreshes."""

    def __init__(self, *, delay: float = 0.0, error: Exception | None = None) -> None:
        self.refreshes = 0
        self.delay, self.error = delay, error
        self.begun = asyncio.Event()

    async def refresh(self, credential: Credential) -> Credential:
        self.refreshes += 1
        self.begun.set()
        await asyncio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        return Credential(kind="oauth", key=f"fresh-{self.refreshes}", refresh_token="r2", expires_at=later())

    def auth(self, credential: Credential) -> Auth:
        return Auth(api_key=credential.key, base_url=credential.data.get("url", ""), source="login")


def later(minutes: float = 60) -> int:
    """Unix milliseconds from now on."""
    return int((time.time() + minutes * 60) * 1000)


EXPIRED = Credential(kind="oauth", key="old", refresh_token="r1", expires_at=1)


def test_a_login_is_refreshed_when_it_has_less_than_five_minutes() -> None:
    """Neither too late nor all the time."""
    assert needs_refresh(EXPIRED)
    assert needs_refresh(Credential(kind="oauth", key="t", expires_at=later(4)))
    assert not needs_refresh(Credential(kind="oauth", key="t", expires_at=later(6)))
    assert not needs_refresh(Credential(kind="oauth", key="t"))
    assert not needs_refresh(Credential(key="t", expires_at=1))


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_three_requests_at_once_refresh_once(kind: str, tmp_path: Path) -> None:
    """Scenario 135: concurrent requests with an expired token cause one refresh; all of them use its result."""
    login = Login(delay=0.05)
    store = MemoryCredentialStore({"p": EXPIRED}) if kind == "memory" else FileCredentialStore(tmp_path / "auth.json")
    if kind == "file":
        await store.modify("p", lambda _: _value(EXPIRED))
    async with Loopback([sse_reply(chunk("hi"), chunk(finish="stop"))]) as server:
        models = Models(builtin=False, credentials=store)
        models.set_provider(Provider(id="p", base_url=server.url, oauth=login, open_ended=True))
        streams = [models.stream(models.model("p/m"), HELLO) for _ in range(3)]
        messages = await asyncio.gather(*(stream.result() for stream in streams))
        assert [message.text for message in messages] == ["hi"] * 3
        assert {request.headers["authorization"] for request in server.requests} == {"Bearer fresh-1"}
    assert login.refreshes == 1
    kept = store.read("p")
    assert kept is not None
    assert kept.refresh_token == "r2"


async def _value(credential: Credential) -> Credential:
    return credential


async def test_a_login_may_say_where_its_provider_is_reached() -> None:
    """Scenario 135: the base URL of the authorisation replaces the model's."""
    async with Loopback([sse_reply(chunk("hi"), chunk(finish="stop"))]) as server:
        store = MemoryCredentialStore({"p": Credential(kind="oauth", key="t", data={"url": server.url})})
        models = Models(builtin=False, credentials=store)
        models.set_provider(Provider(id="p", base_url="http://127.0.0.1:9/v1", oauth=Login(), open_ended=True))
        assert (await models.stream(models.model("p/m"), HELLO).result()).text == "hi"


async def test_a_refresh_that_fails_keeps_the_login_and_says_to_log_in_again() -> None:
    """Scenario 135: an error event with the cause, the tokens cut out of it; nothing is lost."""
    store = MemoryCredentialStore({"p": EXPIRED})
    models = Models(builtin=False, credentials=store)
    models.set_provider(Provider(id="p", base_url="http://127.0.0.1:9", oauth=Login(error=OSError("server said no to old and r1")), open_ended=True))
    message = await models.stream(models.model("p/m"), HELLO).result()
    assert message.stop_reason == "error"
    assert "log in again" in str(message.error_message)
    assert "OSError" in str(message.error_message)
    assert store.read("p") == EXPIRED


async def test_a_refresh_is_finished_even_if_its_caller_is_cancelled() -> None:
    """The provider may have replaced the old token already, so the new one must be kept."""
    login, store = Login(delay=0.05), MemoryCredentialStore({"p": EXPIRED})
    provider = Provider(id="p", oauth=login)
    task = asyncio.create_task(fresh_credential(provider, store))
    await login.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):
        await asyncio.gather(*_auth._refreshing)
    kept = store.read("p")
    assert kept is not None
    assert kept.key == "fresh-1"
    assert login.refreshes == 1


async def test_a_refresh_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a limit, and the error says how long was waited."""
    monkeypatch.setattr("laneway.llm._auth.REFRESH_SECONDS", 0.05)
    with pytest.raises(ModelError, match="no answer in"):
        await fresh_credential(Provider(id="p", oauth=Login(delay=60)), MemoryCredentialStore({"p": EXPIRED}))


# ---------------------------------------------------------------------------------------------------- secrets


async def test_a_planted_key_is_in_no_repr_error_or_stored_message(tmp_path: Path) -> None:
    """Decision 14: keys never show, not even where the server sends them back."""
    store = FileCredentialStore(tmp_path / "auth.json")
    credential = Credential(key=PLANTED, refresh_token=PLANTED, env={"secret": PLANTED}, data={"t": PLANTED})
    await store.modify("p", lambda _: _value(credential))
    auth = Auth(api_key=PLANTED, headers={"authorization": PLANTED}, env={"x": PLANTED})
    request = AuthRequest(provider=keyed(), env={"KEY1": PLANTED}, api_key=PLANTED, credential=credential)
    context = RefreshContext(provider="p", base_url="http://x", api_key=PLANTED, headers={"authorization": PLANTED})
    options = StreamOptions(api_key=PLANTED, headers={"authorization": PLANTED}, env={"x": PLANTED})
    shown = [repr(thing) for thing in (store, credential, auth, request, context, options, MemoryCredentialStore({"p": credential}))]
    async with Loopback([error_reply(401, {"error": {"message": f"bad key {PLANTED}"}})]) as server:
        models = Models(builtin=False, credentials=store)
        models.set_provider(keyed(base_url=server.url, open_ended=True))
        message = await models.stream(models.model("p/m"), HELLO).result()
        assert server.requests[0].headers["authorization"] == f"Bearer {PLANTED}"
    shown += [repr(message), repr(models), repr(models.list()), repr(await models.get_auth("p"))]
    assert message.stop_reason == "error"
    assert not [text for text in shown if PLANTED in text]
