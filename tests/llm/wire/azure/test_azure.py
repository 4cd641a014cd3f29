"""Azure: the Responses wire at another address."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from laneway.llm import MemoryCredentialStore, Models
from laneway.llm.base import AssistantStream, Model, ProviderFailure, StreamOptions, Transcript
from laneway.llm.wire.azure import deployment_of, encode, responses_url, stream
from laneway.messages import AssistantMessage, SystemMessage, ToolDeclaration, UserMessage
from llm.loopback import Loopback, error_reply
from llm.wire.openai_responses.protocol import HELLO, model, reply

KEY = "azure-planted-0123456789"
MAP = "AZURE_OPENAI_DEPLOYMENT_NAME_MAP"
VERSION = "AZURE_OPENAI_API_VERSION"


def azure(**fields: Any) -> Model:
    """A model on Azure."""
    return model(**{"provider": "azure", "api": "azure", "id": "gpt-5", **fields})


def ask(of: Model, **options: Any) -> AssistantStream:
    """Ask it."""
    return stream(of, Transcript(messages=[UserMessage(content="hi")]), StreamOptions(**options))


async def final(answer: AssistantStream) -> AssistantMessage:
    """The final message, which must come in time."""
    async with asyncio.timeout(10):
        return await answer.result()


@pytest.mark.parametrize(
    ("base", "env", "url"),
    [
        ("https://r.openai.azure.com", {}, "https://r.openai.azure.com/openai/v1/responses?api-version=v1"),
        ("https://r.openai.azure.com/", {VERSION: "preview"}, "https://r.openai.azure.com/openai/v1/responses?api-version=preview"),
        ("https://r.openai.azure.com/openai/", {}, "https://r.openai.azure.com/openai/v1/responses?api-version=v1"),
        ("https://r.openai.azure.com/openai/v1", {}, "https://r.openai.azure.com/openai/v1/responses?api-version=v1"),
        ("https://r.services.ai.azure.com/openai/v1/responses", {}, "https://r.services.ai.azure.com/openai/v1/responses?api-version=v1"),
        ("https://r.openai.azure.com/openai/deployments/d?api-version=x", {}, "https://r.openai.azure.com/openai/v1/responses?api-version=v1"),
        ("https://r.openai.azure.com", {VERSION: "2025-04-01"}, "https://r.openai.azure.com/openai/responses?api-version=2025-04-01"),
        ("https://gateway.test/azure", {}, "https://gateway.test/azure/responses?api-version=v1"),
        ("https://gateway.test/azure/responses", {VERSION: "a b"}, "https://gateway.test/azure/responses?api-version=a%20b"),
    ],
)
def test_addresses(base: str, env: dict[str, str], url: str) -> None:
    """05 §4.3: the resource alone, what the portal shows, a gateway; versions with a date are of the older API."""
    assert responses_url(azure(base_url=base), env) == url


def test_a_model_without_an_address_says_what_to_set() -> None:
    """Nobody has the same resource."""
    with pytest.raises(ProviderFailure, match="AZURE_OPENAI_BASE_URL"):
        responses_url(azure(base_url=""), None)


@pytest.mark.parametrize(
    ("setting", "deployment"),
    [(None, "gpt-5"), ("", "gpt-5"), ("mine", "mine"), ("a=b, gpt-5 = mine", "mine"), ("a=b", "gpt-5"), ("gpt-5=", "gpt-5")],
)
def test_deployments(setting: str | None, deployment: str) -> None:
    """A map, one name for all, or the model's own id."""
    assert deployment_of(azure(), None if setting is None else {MAP: setting}) == deployment


def test_the_body_names_the_deployment() -> None:
    """All else is the Responses protocol's, in the same order; strictness is always said. 05 §11.18: no cache key where nothing is cached."""
    tool = ToolDeclaration(name="t", description="", parameters={})
    transcript = Transcript(messages=[SystemMessage(content="S", tools_added=[tool]), UserMessage(content="q")])
    body = encode(azure(), transcript, StreamOptions(env={MAP: "gpt-5=mine"}, session_id="s", cache_retention="none"))
    assert (body["model"], body["tools"][0]["strict"], list(body)[-1]) == ("mine", False, "input")
    assert "prompt_cache_key" not in body
    assert encode(azure(), transcript, StreamOptions(sampling_params={"model": "other"}))["model"] == "other"


@pytest.mark.parametrize(("key", "header"), [(KEY, ("api-key", KEY)), ("eyJh.eyJp.sig", ("authorization", "Bearer eyJh.eyJp.sig"))])
async def test_a_whole_response(key: str, header: tuple[str, str]) -> None:
    """A key goes out in Azure's own header, a token of the directory as a bearer token; the answer is an ordinary one."""
    async with Loopback([reply(*HELLO)]) as server:
        found = await final(ask(azure(base_url=server.url), api_key=key, session_id="s"))
        (request,) = server.requests
    assert (found.text, found.api, found.stop_reason) == ("Hello", "azure", "stop")
    assert (request.path, request.headers[header[0]]) == ("/v1/responses?api-version=v1", header[1])
    assert len({"api-key", "authorization"} & request.headers.keys()) == 1
    assert (request.json["model"], request.json["prompt_cache_key"]) == ("gpt-5", "s")


async def test_a_missing_key_is_an_error_that_says_so() -> None:
    """05 sc. 42."""
    found = await final(ask(azure(base_url="https://r.openai.azure.com")))
    assert found.error is not None
    assert (found.error.kind, "AZURE_OPENAI_API_KEY" in (found.error_message or "")) == ("configuration", True)


async def test_a_key_is_never_shown() -> None:
    """Decision 14: although the server repeats it."""
    async with Loopback([error_reply(401, {"error": {"code": "401", "message": f"Access denied: {KEY}"}})]) as server:
        found = await final(ask(azure(base_url=server.url), api_key=KEY))
    assert found.error is not None
    assert (found.error.kind, KEY in repr(found)) == ("auth", False)


async def test_the_registry_finds_the_wire(clean_env: pytest.MonkeyPatch) -> None:
    """Key, address, version and deployments from the environment."""
    async with Loopback([reply(*HELLO)]) as server:
        for name, value in {"AZURE_OPENAI_API_KEY": KEY, "AZURE_OPENAI_BASE_URL": server.url, VERSION: "preview", MAP: "gpt-5.4=mine"}.items():
            clean_env.setenv(name, value)
        models = Models(credentials=MemoryCredentialStore())
        found = await models.stream(models.model("azure/gpt-5.4"), Transcript(messages=[UserMessage(content="hi")])).result()
        (request,) = server.requests
    assert (found.text, request.headers["api-key"], request.json["model"]) == ("Hello", KEY, "mine")
    assert request.path == "/v1/responses?api-version=preview"
