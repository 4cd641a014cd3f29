"""Asking servers for their models: what is read from each kind of answer, and what is said of a server that gives none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from laneway.errors import ModelError
from laneway.llm import RefreshContext
from laneway.llm.vendors._lists import llama_cpp_list, lmstudio_list, ollama_list, openai_list, openrouter_list
from llm.loopback import Answer, Loopback, error_reply


def at(server: Loopback, **fields: Any) -> RefreshContext:
    """A provider at the server."""
    return RefreshContext(**{"provider": "p", "base_url": server.url, **fields})


async def test_a_list_of_the_openai_protocol() -> None:
    """Ids, and vLLM's context length; what is no model is skipped."""
    answer = {"object": "list", "data": [{"id": "a"}, {"id": "b", "max_model_len": 32768}, {"id": 3}, "x"]}
    async with Loopback([error_reply(200, answer)]) as server:
        models = await openai_list(at(server, api_key="k"))
        assert [(model.id, model.context_window) for model in models] == [("a", 0), ("b", 32768)]
        assert (server.requests[0].method, server.requests[0].path) == ("GET", "/v1/models")
        assert server.requests[0].headers["authorization"] == "Bearer k"


async def test_llama_cpp_says_how_long_its_context_is() -> None:
    """From /props; a server without it is listed all the same."""
    props = {"default_generation_settings": {"n_ctx": 4096}, "modalities": {"vision": True}}
    async with Loopback([error_reply(200, {"data": [{"id": "m"}]}), error_reply(200, props)]) as server:
        model = (await llama_cpp_list(at(server)))[0]
        assert (model.context_window, model.input) == (4096, ("text", "image"))
        assert server.requests[1].path == "/props"
    async with Loopback([error_reply(200, {"data": [{"id": "m"}]}), error_reply(404, "no")]) as server:
        assert (await llama_cpp_list(at(server)))[0].context_window == 0


async def test_lm_studio_lists_chat_models_with_their_context() -> None:
    """Its own API first, the OpenAI one where that is missing."""
    answer = {
        "data": [
            {"id": "a", "type": "llm", "max_context_length": 8192},
            {"id": "v", "type": "vlm", "loaded_context_length": 10},
            {"id": "e", "type": "embeddings"},
        ]
    }
    async with Loopback([error_reply(200, answer)]) as server:
        models = await lmstudio_list(at(server))
        assert [(model.id, model.context_window, "image" in model.input) for model in models] == [("a", 8192, False), ("v", 10, True)]
    async with Loopback([error_reply(404, "no"), error_reply(200, {"data": [{"id": "m"}]})]) as server:
        assert [model.id for model in await lmstudio_list(at(server))] == ["m"]


async def test_ollama_lists_what_is_on_disk() -> None:
    """Models for embeddings are no chat models."""
    answer = {
        "models": [
            {"name": "qwen3:8b", "details": {"families": ["qwen3"]}},
            {"name": "nomic", "details": {"families": ["nomic-bert"]}},
            {"name": "bare"},
        ]
    }
    async with Loopback([error_reply(200, answer)]) as server:
        assert [model.id for model in await ollama_list(at(server))] == ["qwen3:8b", "bare"]
        assert server.requests[0].path == "/api/tags"


async def test_openrouter_lists_models_that_call_tools_with_prices_and_limits() -> None:
    """Prices are text per token there; a price that depends is unknown."""
    entry = {
        "id": "a/m", "name": "M", "context_length": 9, "supported_parameters": ["tools", "reasoning"],
        "architecture": {"input_modalities": ["text", "image"]}, "top_provider": {"context_length": 1000, "max_completion_tokens": 100},
        "pricing": {"prompt": "0.000002", "completion": "0.00001", "input_cache_read": "0.0000002"},
    }  # fmt: skip
    auto = {"id": "auto", "supported_parameters": ["tools"], "pricing": {"prompt": "-1", "completion": "-1"}}
    async with Loopback([error_reply(200, {"data": [entry, auto, {"id": "no-tools", "supported_parameters": []}]})]) as server:
        model, routed = await openrouter_list(at(server))
        assert (model.context_window, model.max_tokens, model.reasoning, model.input) == (1000, 100, True, ("text", "image"))
        assert (model.cost.input, model.cost.output, model.cost.cache_read) == (2, 10, 0.2)
        assert routed.cost.input == 0


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (error_reply(401, {"error": "sk-planted"}), "401"),
        (error_reply(200, "<html>", content_type="text/html"), "JSON"),
        (error_reply(200, "[]"), "JSON"),
        (Answer(steps=["cut"]), "cannot be reached"),
    ],
)
async def test_a_server_that_gives_no_list_is_one_clear_error(answer: Answer, told: str) -> None:
    """What happened, where; nothing of the answer is repeated."""
    async with Loopback([answer]) as server:
        with pytest.raises(ModelError, match=told) as caught:
            await openai_list(at(server))
        assert "sk-planted" not in str(caught.value)
        assert "/v1/models" in str(caught.value)


async def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is not there is named at once."""
    monkeypatch.setattr("laneway.llm.vendors._lists.LIST_SECONDS", 0.05)
    async with Loopback([Answer(steps=[asyncio.Event()])]) as server:
        with pytest.raises(ModelError, match="did not answer"):
            await openai_list(at(server))
        gone = server.url
    with pytest.raises(ModelError, match=r"cannot be reached|did not answer"):
        await openai_list(RefreshContext(provider="p", base_url=gone))


@pytest.mark.parametrize("answer", [{}, {"data": None}, {"data": "x"}, {"models": {}}])
async def test_an_answer_without_a_list_lists_nothing(answer: Any) -> None:
    """Never an exception for odd JSON."""
    async with Loopback([error_reply(200, answer)]) as server:
        for fetch in (openai_list, lmstudio_list, ollama_list, openrouter_list, llama_cpp_list):
            assert list(await fetch(at(server))) == []
