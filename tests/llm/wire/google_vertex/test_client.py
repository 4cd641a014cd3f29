"""Gemini on Vertex AI over a socket: keys, tokens, projects, places."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laneway.llm import MemoryCredentialStore, Models
from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.llm.wire.google_vertex import client, stream
from laneway.llm.wire.google_vertex._tokens import Token, forget_credentials
from laneway.messages import AssistantMessage, UserMessage
from llm.loopback import Answer, Loopback, error_reply, sse_reply
from llm.wire.google_generate.protocol import HELLO, stop

KEY = "AQ.Planted-0123456789"
TOKEN = "ya29.planted-0123456789"
ENV = {"project": "p1", "location": "europe-west4"}


@pytest.fixture(autouse=True)
def no_credentials(clean_env: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nobody's credentials are found, and the test's are forgotten."""
    clean_env.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    clean_env.setenv("NO_GCE_CHECK", "true")
    forget_credentials()
    yield
    forget_credentials()


def model(model_id: str = "gemini-3-flash", **fields: Any) -> Model:
    """A model on Vertex."""
    return Model(**{"id": model_id, "provider": "vertex", "api": "google_vertex", **fields})


async def ask(server: Loopback | None, of: Model | None = None, **options: Any) -> AssistantMessage:
    """The final message, which must come in time."""
    of = of or model(base_url=server.url.removesuffix("/v1") if server is not None else "")
    async with asyncio.timeout(20):
        return await stream(of, Transcript(messages=[UserMessage(content="hi")]), StreamOptions(**options)).result()


async def test_a_key_needs_no_project() -> None:
    """05 §4.4: the key's header, and a path without project and location."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        message = await ask(server, api_key=KEY)
        (request,) = server.requests
    assert (message.text, message.api) == ("Hello", "google_vertex")
    assert request.path == "/v1beta1/publishers/google/models/gemini-3-flash:streamGenerateContent?alt=sse"
    assert (request.headers["x-goog-api-key"], "authorization" in request.headers) == (KEY, False)


@pytest.mark.parametrize("options", [{"api_key": TOKEN}, {"headers": {"Authorization": f"Bearer {TOKEN}"}}])
async def test_a_token_of_ones_own(options: dict[str, Any]) -> None:
    """As `gcloud auth print-access-token` gives it: no google-auth is needed, but a project."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        assert (await ask(server, env=ENV, **options)).text == "Hello"
        (request,) = server.requests
        message = await ask(server, **options)
    assert request.headers["authorization"] == f"Bearer {TOKEN}"
    assert request.path == (
        "/v1beta1/projects/p1/locations/europe-west4/publishers/google/models/gemini-3-flash:streamGenerateContent?alt=sse"
    )  # fmt: skip
    assert "GOOGLE_CLOUD_PROJECT" in (message.error_message or "")


@pytest.mark.parametrize(
    ("model_id", "path"),
    [
        ("publishers/google/models/x", "projects/p1/locations/europe-west4/publishers/google/models/x"),
        ("models/x", "projects/p1/locations/europe-west4/publishers/google/models/x"),
        ("meta/llama", "projects/p1/locations/europe-west4/publishers/meta/models/llama"),
        ("projects/a/locations/b/endpoints/7", "projects/a/locations/b/endpoints/7"),
    ],
)
async def test_a_model_may_be_a_path(model_id: str, path: str) -> None:
    """Another publisher's model, or a tuned one at an endpoint."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        await ask(server, model(model_id, base_url=server.url), api_key=TOKEN, env=ENV)
        assert server.requests[0].path == f"/v1/{path}:streamGenerateContent?alt=sse"


@pytest.mark.parametrize(
    ("base_url", "env", "express", "expected"),
    [
        ("", {"location": "europe-west4"}, False, "https://europe-west4-aiplatform.googleapis.com/v1beta1/"),
        ("", {"location": "global"}, False, "https://aiplatform.googleapis.com/v1beta1/"),
        ("", {}, False, "https://us-central1-aiplatform.googleapis.com/v1beta1/"),
        ("https://{location}-aiplatform.googleapis.com", {"GOOGLE_CLOUD_LOCATION": "a"}, False, "https://a-aiplatform.googleapis.com/v1beta1/"),
        ("https://a-aiplatform.googleapis.com/", {}, True, "https://aiplatform.googleapis.com/v1beta1/"),
        ("https://mine.example/vertex/v1", {}, True, "https://mine.example/vertex/v1/"),
    ],
)
def test_where_a_request_goes(base_url: str, env: dict[str, str], express: bool, expected: str) -> None:
    """05 §4.4: the location's host, the global one, or one's own."""
    access = client._Access(headers={}, express=express, project="p")
    assert client._url(model(base_url=base_url), access, env).startswith(expected)


# ---------------------------------------------------------------------------------------------------- application default credentials


@pytest.fixture
def service_account(tmp_path: Path) -> dict[str, Any]:
    """A service account's file, whose token server is still to be filled in."""
    pytest.importorskip("google.auth", reason="the extra `vertex` is not installed")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return {
        "type": "service_account", "project_id": "own-project", "private_key_id": "k", "private_key": pem.decode(), "client_email": "a@b.c",
        "client_id": "1",
    }  # fmt: skip


def tokens(*values: str) -> list[Answer]:
    """The token server's answers."""
    return [
        Answer(steps=[json.dumps({"access_token": value, "expires_in": 3600, "token_type": "Bearer"}).encode()], content_type="application/json")
        for value in values
    ]


async def test_the_environment_s_credentials(service_account: dict[str, Any], tmp_path: Path) -> None:
    """A real service account against a token server on loopback: one token for many requests; the project is the account's own."""
    path = tmp_path / "account.json"
    async with Loopback(tokens(TOKEN)) as issuer, Loopback([sse_reply(*HELLO)]) as server:
        path.write_text(json.dumps({**service_account, "token_uri": f"http://127.0.0.1:{issuer.port}/token"}))
        env = {"GOOGLE_APPLICATION_CREDENTIALS": str(path), "GOOGLE_CLOUD_QUOTA_PROJECT": "payer"}
        found = await asyncio.gather(*(ask(server, env=env) for _ in range(3)))
        assert len(issuer.requests) == 1
        request = server.requests[0]
    assert [message.text for message in found] == ["Hello"] * 3
    assert request.headers["authorization"] == f"Bearer {TOKEN}"
    assert request.headers["x-goog-user-project"] == "payer"
    assert request.path.startswith("/v1beta1/projects/own-project/locations/us-central1/")


async def test_the_credentials_of_the_process(service_account: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the registry: what the vendor's row finds is what the wire uses."""
    path = tmp_path / "account.json"
    async with Loopback(tokens(TOKEN)) as issuer, Loopback([sse_reply(*HELLO)]) as server:
        path.write_text(json.dumps({**service_account, "token_uri": f"http://127.0.0.1:{issuer.port}/token"}))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p2")
        monkeypatch.setenv("VERTEX_BASE_URL", server.url.removesuffix("/v1"))
        models = Models(credentials=MemoryCredentialStore())
        message = await models.stream(models.model("vertex/gemini-3.5-flash"), Transcript(messages=[UserMessage(content="hi")])).result()
        (request,) = server.requests
    assert message.text == "Hello"
    assert request.path.startswith("/v1beta1/projects/p2/locations/us-central1/publishers/google/models/gemini-3.5-flash:")
    assert request.headers["authorization"] == f"Bearer {TOKEN}"


async def test_credentials_that_do_not_work_are_an_error_that_says_what_to_do(service_account: dict[str, Any], tmp_path: Path) -> None:
    """A refused refresh, no file, a broken file; the private key is in no text."""
    path, broken = tmp_path / "account.json", tmp_path / "broken.json"
    broken.write_text("{")
    async with Loopback([error_reply(400, {"error": "invalid_grant", "error_description": "Revoked."})]) as issuer, Loopback([]) as server:
        path.write_text(json.dumps({**service_account, "token_uri": f"http://127.0.0.1:{issuer.port}/token"}))
        found = [await ask(server, env={"GOOGLE_APPLICATION_CREDENTIALS": str(file)}) for file in (path, tmp_path / "none.json", broken)]
        found.append(await ask(server))
        assert not server.requests
    for message in found:
        assert message.error is not None
        assert (message.stop_reason, message.error.kind) == ("error", "auth")
        assert "gcloud auth application-default login" in (message.error_message or "")
        assert "PRIVATE" not in repr(message)


async def test_without_google_auth_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is needed for credentials only; it is named where it is missing."""
    monkeypatch.setitem(sys.modules, "google.auth.exceptions", None)
    message = await ask(None)
    assert message.error is not None
    assert (message.error.kind, "pip install 'laneway[vertex]'" in (message.error_message or "")) == ("configuration", True)


async def test_a_planted_secret_is_nowhere_in_what_is_kept() -> None:
    """Decision 14: keys and tokens, although the server echoes them."""

    def echo(secret: str) -> list[Answer]:
        odd = stop("SAFETY")
        odd["candidates"][0]["finishMessage"] = f"not for {secret}"
        return [error_reply(401, {"error": {"code": 401, "message": f"bad: {secret}"}}), sse_reply(odd)]

    for secret in (KEY, TOKEN):
        async with Loopback(echo(secret)) as server:
            for _ in range(2):
                assert secret not in repr(await ask(server, api_key=secret, env=ENV))
    assert TOKEN not in repr(Token(value=TOKEN, project="p"))
