"""The registry: finding models, asking them, and what is said when something is missing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from laneway.abort import AbortController
from laneway.errors import ModelError, ModelNotFound
from laneway.events import AssistantEvent
from laneway.llm import (
    AssistantStream,
    Auth,
    Credential,
    EnvKey,
    MemoryCredentialStore,
    Model,
    Models,
    PreparedModel,
    Provider,
    ProviderFailure,
    RefreshContext,
    StreamOptions,
    Transcript,
    get_default_stream_fn,
    set_default_stream_fn,
)
from laneway.llm import model as default_model
from laneway.llm._paths import cache_dir
from laneway.llm._writer import StreamWriter
from laneway.messages import AssistantMessage, DeferredHandle, UserMessage
from laneway.testing import Scripted, deferred, text
from llm.chat import chunk
from llm.loopback import Loopback, error_reply, sse_reply

HELLO = Transcript(messages=[UserMessage(content="hello")])


async def failed(models: Models, model: Model, options: StreamOptions | None = None) -> AssistantMessage:
    """Ask, and return the message of the lone error event."""
    events = [event async for event in models.stream(model, HELLO, options)]
    assert [event.type for event in events] == ["error"]
    return events[0].message  # type: ignore[union-attr]


# ---------------------------------------------------------------------------------------------------- specs


def test_a_spec_names_a_model_by_provider_and_id(models: Models) -> None:
    """`provider/id` finds the model with its wire, URL and facts filled in."""
    found = models.model("anthropic/claude-sonnet-5-5")
    assert (found.provider, found.api, found.base_url) == ("anthropic", "anthropic_messages", "https://api.anthropic.com")
    assert found.context_window == 1_000_000
    assert found.cost.output > found.cost.input > 0
    assert found.default_thinking_level is None


@pytest.mark.parametrize(
    ("spec", "model_id", "level"),
    [
        ("anthropic/claude-sonnet-5-5:high", "claude-sonnet-5-5", "high"),
        ("ollama/qwen3:8b", "qwen3:8b", None),
        ("ollama/qwen3:8b:low", "qwen3:8b", "low"),
        ("openrouter/anthropic/claude-new:free", "anthropic/claude-new:free", None),
        ("openrouter/anthropic/claude-new:free:max", "anthropic/claude-new:free", "max"),
        ("groq/openai/gpt-oss-120b:medium", "openai/gpt-oss-120b", "medium"),
        ("bedrock/us.anthropic.claude-haiku-4-5-20251001-v1:0", "us.anthropic.claude-haiku-4-5-20251001-v1:0", None),
        ("local//models/a b.gguf", "/models/a b.gguf", None),
    ],
)
def test_ids_keep_their_own_slashes_and_colons(models: Models, spec: str, model_id: str, level: str | None) -> None:
    """Only a valid thinking level is split off the end."""
    found = models.model(spec)
    assert (found.id, found.default_thinking_level) == (model_id, level)


def test_an_id_that_ends_like_a_level_wins_over_the_level(models: Models) -> None:
    """`x:high` is the model of that id where there is one."""
    models.add(Model(id="x", provider="custom", api="openai_chat", base_url="http://127.0.0.1:1"))
    models.add(Model(id="x:high", provider="custom", api="openai_chat", base_url="http://127.0.0.1:1"))
    assert models.model("custom/x:high").id == "x:high"
    assert models.model("custom/x:low").default_thinking_level == "low"


@pytest.mark.parametrize(
    ("spec", "hints"),
    [
        ("anthropic/claude-sonet-5-5", ["anthropic/claude-sonnet-5-5", "did you mean"]),
        ("anthropic/claude-sonet-5-5:high", ["anthropic/claude-sonnet-5-5"]),
        ("antropic/claude-sonnet-5-5", ["no provider 'antropic'", "anthropic"]),
        ("zzzz/x", ["known providers", "openai", "ollama"]),
        ("groq/qqqqqqq", ["laneway models groq"]),
        ("claude-sonnet-5-5", ["provider/model-id"]),
        ("anthropic/", ["provider/model-id"]),
        ("", ["provider/model-id"]),
    ],
)
def test_an_unknown_model_lists_near_names(models: Models, spec: str, hints: list[str]) -> None:
    """`ModelNotFound` says what there is instead."""
    with pytest.raises(ModelNotFound) as caught:
        models.model(spec)
    for hint in hints:
        assert hint in str(caught.value)


def test_get_gives_none_for_what_is_not_there(models: Models) -> None:
    """`get` never raises; an open-ended provider has any id, a closed one only its own."""
    assert models.get("anthropic", "claude-nope") is None
    assert models.get("nobody", "x") is None
    plain = models.get("lmstudio", "some-model")
    assert plain is not None
    assert plain.base_url == "http://127.0.0.1:1234/v1"
    assert plain.name == "some-model"


# ---------------------------------------------------------------------------------------------------- adding


def test_an_added_model_takes_from_its_provider_what_it_leaves_empty(models: Models) -> None:
    """`Models.add` fills in wire, URL and headers, and the model is found and listed."""
    added = models.add(Model(id="claude-mine", provider="anthropic", api=""))
    assert added.api == "anthropic_messages"
    assert added.base_url == "https://api.anthropic.com"
    assert models.model("anthropic/claude-mine") == added
    assert added in models.list("anthropic")


def test_an_added_model_goes_over_the_built_in_one(models: Models) -> None:
    """The same provider and id replaces."""
    models.add(Model(id="claude-sonnet-5-5", provider="anthropic", api="", context_window=1))
    assert models.model("anthropic/claude-sonnet-5-5").context_window == 1


def test_a_model_of_nobodys_provider_needs_a_wire_and_a_url(models: Models) -> None:
    """What could never be asked is refused at once."""
    with pytest.raises(ModelError, match="no provider 'acme'"):
        models.add(Model(id="m", provider="acme", api="openai_chat"))
    models.add(Model(id="m", provider="acme", api="openai_chat", base_url="http://127.0.0.1:9/v1"))
    assert models.model("acme/m").base_url == "http://127.0.0.1:9/v1"
    assert [model.spec for model in models.list("acme")] == ["acme/m"]


def test_a_provider_whose_list_fails_has_no_models_and_harms_nobody(models: Models) -> None:
    """Scenario 137: an exception in one provider's list leaves the others as they are."""

    def broken() -> list[Model]:
        raise RuntimeError("no list today")

    models.set_provider(Provider(id="broken", models=broken))
    assert models.list("broken") == []
    assert len(models.list()) > 400


def test_two_threads_may_look_up_models_at_once(models: Models) -> None:
    """The registry loads its lists once, whoever asks first."""
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(models.list()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 8
    assert len(set(found)) == 1


# ---------------------------------------------------------------------------------------------------- models.toml


def test_models_of_ones_own_come_from_models_toml(clean_env: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A provider with its key's variable, and models with thinking levels written as true, false or a word."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.toml").write_text(
        """
        [[provider]]
        id = "acme"
        base_url = "https://llm.acme.test/v1"
        key_env = "ACME_KEY"

        [[model]]
        provider = "acme"
        id = "big"
        reasoning = true
        context_window = 50000
        thinking_levels = { off = false, high = "very", xhigh = true }
        sampling_params = { top_p = 0.9 }
        sampling_params_by_thinking_level = { high = { top_p = 0.95 } }
        cost = { input = 1.5, output = 2 }

        [[model]]
        provider = "openai"
        id = "gpt-mine"
        """
    )
    models = Models(credentials=MemoryCredentialStore())
    big = models.model("acme/big")
    assert big.base_url == "https://llm.acme.test/v1"
    assert big.cost.input == 1.5
    assert big.thinking_levels == {"off": None, "high": "very", "xhigh": "xhigh"}
    assert (big.sampling_params, big.sampling_params_by_thinking_level) == ({"top_p": 0.9}, {"high": {"top_p": 0.95}})
    assert models.model("openai/gpt-mine").api == "openai_responses"
    assert models.model("acme/anything").api == "openai_chat"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("model = 3", "models.toml"),
        ("[[model]]\nid = 'x'", "provider"),
        ("[[model]]\nprovider = 'a'\nid = 'x'\nnope = 1", "nope"),
        ("[[", "models.toml"),
    ],
)
async def test_a_wrong_models_toml_is_named(clean_env: pytest.MonkeyPatch, tmp_path: Path, content: str, told: str) -> None:
    """Looking a model up raises an error that names file and place; asking a model gives it as an error event."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.toml").write_text(content)
    models = Models(credentials=MemoryCredentialStore())
    with pytest.raises(ModelError, match=told):
        models.model("openai/gpt-5")
    message = await failed(models, Model(id="m", provider="openai", api="openai_chat"))
    assert "models.toml" in str(message.error_message)


# ---------------------------------------------------------------------------------------------------- asking


async def test_an_unknown_provider_is_an_error_event(models: Models) -> None:
    """Scenario 136: nothing is raised; the text says what there is."""
    message = await failed(models, Model(id="m", provider="nobody", api="openai_chat"))
    assert message.stop_reason == "error"
    assert "no provider 'nobody'" in str(message.error_message)
    assert message.error is not None
    assert message.error.kind == "configuration"


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_wants_a_key_after_all_names_the_variable(clean_env: pytest.MonkeyPatch, tmp_path: Path, status: int) -> None:
    """A server near by is asked without a key, for many want none; one that refuses is no riddle, with `key_env` or without."""
    async with Loopback([error_reply(status, {"error": {"message": "no key"}})]) as server:
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "models.toml").write_text(
            f'[[provider]]\nid = "work"\nbase_url = "{server.url}"\nkey_env = "WORK_KEY"\n[[provider]]\nid = "open"\nbase_url = "{server.url}"\n'
        )
        models = Models(credentials=MemoryCredentialStore())
        refused = await failed(models, models.model("work/m"))
        assert refused.error is not None
        assert (refused.error.kind, refused.error.status) == ("auth", status)
        assert "no key. Check the API key that is used for work. No key was sent" in str(refused.error_message)
        assert "set WORK_KEY, store one or pass api_key" in str(refused.error_message)
        assert "store one or pass api_key" in str((await failed(models, models.model("open/m"))).error_message)
        assert "set VLLM_API_KEY" in str((await failed(models, replace(models.model("vllm/m"), base_url=server.url))).error_message)
        for options in (StreamOptions(api_key="wrong"), StreamOptions(headers={"Authorization": "Bearer wrong"})):
            assert "No key was sent" not in str((await failed(models, models.model("work/m"), options)).error_message)
        clean_env.setenv("WORK_KEY", "wrong")
        assert "No key was sent" not in str((await failed(models, models.model("work/m"))).error_message)


async def test_an_answer_without_a_key_is_an_answer_like_any_other(models: Models) -> None:
    """Every event comes through, an abort keeps what had arrived, and a failure of another kind stays as it is."""
    going = asyncio.Event()
    answers = [sse_reply(chunk("Hel"), chunk("lo"), chunk(finish="stop")), sse_reply(chunk("Hel"), going), error_reply(400, "no")]
    async with Loopback(answers) as server:
        model = replace(models.model("vllm/m"), base_url=server.url)
        stream = models.stream(model, HELLO)
        kinds = [event.type async for event in stream]
        assert (kinds[0], kinds[-1], (await stream.result()).text) == ("start", "done", "Hello")
        controller = AbortController()
        stream = models.stream(model, HELLO, StreamOptions(signal=controller.signal))
        async for event in stream:
            if event.type == "text_delta":
                controller.abort()
        assert ((await stream.result()).stop_reason, (await stream.result()).text) == ("aborted", "Hel")
        assert "No key" not in str((await failed(models, model)).error_message)


async def test_a_missing_key_is_an_error_event_that_names_the_variable(models: Models) -> None:
    """Scenario 136: an unconfigured provider ends the stream with how to configure it."""
    message = await failed(models, models.model("openai/gpt-5.6"))
    assert "OPENAI_API_KEY" in str(message.error_message)
    assert "platform.openai.com" in str(message.error_message)
    assert message.error is not None
    assert message.error.kind == "auth"


async def test_a_wire_that_is_not_there_is_an_error_event(models: Models) -> None:
    """The model's `api` names no wire."""
    models.set_provider(Provider(id="odd", api="telepathy", base_url="http://127.0.0.1:1", key_optional=True, open_ended=True))
    message = await failed(models, models.model("odd/x"))
    assert "telepathy" in str(message.error_message)


async def test_a_missing_setting_is_an_error_event_that_names_the_variable(clean_env: pytest.MonkeyPatch) -> None:
    """A URL with a placeholder needs the variable that fills it."""
    models = Models(credentials=MemoryCredentialStore(), env={"CLOUDFLARE_API_KEY": "k"})
    message = await failed(models, models.model("cloudflare/x"))
    assert "CLOUDFLARE_ACCOUNT_ID" in str(message.error_message)


async def test_a_signal_that_is_already_set_gives_a_lone_aborted_message(models: Models) -> None:
    """Also where the request would have failed for another reason."""
    controller = AbortController()
    controller.abort()
    message = await failed(models, Model(id="m", provider="nobody", api="openai_chat"), StreamOptions(signal=controller.signal))
    assert message.stop_reason == "aborted"


async def test_the_key_reaches_the_wire_and_the_model_its_server(models: Models) -> None:
    """A model of a known provider, sent to another server, carries the key, the headers and the model's own URL."""
    async with Loopback([sse_reply(chunk("hi"), chunk(finish="stop"), "[DONE]")]) as server:
        registry = Models(credentials=MemoryCredentialStore({"deepseek": Credential(key="stored-key")}), env={"DEEPSEEK_API_KEY": "env-key"})
        model = replace(registry.model("deepseek/deepseek-v4-pro"), base_url=server.url, headers={"X-Mine": "1"})
        message = await registry.stream(model, HELLO, StreamOptions(headers={"x-other": "2"})).result()
        assert message.text == "hi"
        assert server.requests[0].headers["authorization"] == "Bearer stored-key"
        assert server.requests[0].headers["x-mine"] == "1"
        assert server.requests[0].headers["x-other"] == "2"
        await registry.stream(model, HELLO, StreamOptions(api_key="explicit")).result()
        assert server.requests[1].headers["authorization"] == "Bearer explicit"


async def test_headers_merge_whatever_their_case(models: Models) -> None:
    """Scenario 133: the authorisation's headers are under the model's, those under the request's; None removes one. No callback sees a key."""
    seen: list[str] = []
    async with Loopback([sse_reply(chunk("hi"), chunk(finish="stop"))]) as server:
        registry = Models(builtin=False, env={"TOKEN": "secret-token"})
        registry.set_provider(
            Provider(id="p", base_url=server.url, keys=(EnvKey(name="TOKEN", bearer=True),), headers={"X-A": "provider"}, open_ended=True)
        )
        plain = registry.model("p/m")
        options = StreamOptions(on_response=lambda info, model: seen.append(repr(model)), headers={"x-a": "request"})
        await registry.stream(plain, HELLO, options).result()
        await registry.stream(replace(plain, headers={"AUTHORIZATION": "Basic mine"}), HELLO).result()
        await registry.stream(plain, HELLO, StreamOptions(headers={"Authorization": None, "X-a": None})).result()
    assert server.requests[0].headers["authorization"] == "Bearer secret-token"
    assert server.requests[0].headers["x-a"] == "request"
    assert server.requests[1].headers["authorization"] == "Basic mine"
    assert not {"authorization", "x-a"} & set(server.requests[2].headers)
    assert seen
    assert "secret-token" not in seen[0]


async def test_the_base_url_in_the_environment_moves_the_provider_but_not_a_models_own(models: Models) -> None:
    """`DEEPSEEK`-like vendors have none, `LMSTUDIO_BASE_URL` moves LM Studio; a URL set on the model wins."""
    async with Loopback([sse_reply(chunk("here"), chunk(finish="stop"))]) as server:
        registry = Models(credentials=MemoryCredentialStore(), env={"LMSTUDIO_BASE_URL": server.url})
        assert (await registry.stream(registry.model("lmstudio/m"), HELLO).result()).text == "here"
        assert "authorization" not in server.requests[0].headers
        elsewhere = replace(registry.model("lmstudio/m"), base_url="http://127.0.0.1:9/v1")
        assert (await registry.stream(elsewhere, HELLO).result()).stop_reason == "error"
        assert len(server.requests) == 1


async def test_a_local_server_of_a_known_vendor_needs_no_key(models: Models) -> None:
    """A model sent to loopback is asked without a key; one sent to the vendor is not asked at all."""
    async with Loopback([sse_reply(chunk("hi"), chunk(finish="stop"))]) as server:
        model = replace(models.model("groq/openai/gpt-oss-120b"), base_url=server.url)
        assert (await models.stream(model, HELLO).result()).text == "hi"


@pytest.mark.parametrize("header", ["Authorization", "api-key", "X-Api-Key", "x-goog-api-key", "cf-aig-authorization"])
async def test_a_header_that_authorises_stands_for_a_key(models: Models, header: str) -> None:
    """05 §4.1, 4.2: whoever brings the header needs no key (Azure's is `api-key`); the request is made, here up to its body."""

    def stop(_body: dict[str, Any], _model: Model) -> None:
        raise ValueError("got as far as the body")

    model = replace(models.model("azure/gpt-5"), base_url="https://resource.openai.azure.com", headers={header: "mine"})
    message = await failed(models, model, StreamOptions(on_payload=stop))
    expected = "got as far as the body" if header.lower() in ("authorization", "api-key") else "no API key for azure"
    assert expected in str(message.error_message)


async def test_a_model_that_nobody_registered_is_asked_by_its_own_facts(models: Models) -> None:
    """A `Model` is pure data: with a wire and a URL it needs no registry entry; no key is guessed for it."""
    async with Loopback([sse_reply(chunk("hi"), chunk(finish="stop"))]) as server:
        registry = Models(credentials=MemoryCredentialStore(), env={"OPENAI_API_KEY": "secret"})
        model = Model(id="m", provider="acme", api="openai_chat", base_url=server.url)
        assert (await registry.stream(model, HELLO).result()).text == "hi"
        assert "authorization" not in server.requests[0].headers


async def test_nothing_is_sent_before_the_stream_is_read(models: Models) -> None:
    """A stream that nobody reads costs no request."""
    async with Loopback([sse_reply(chunk("hi"), chunk(finish="stop"))]) as server:
        model = replace(models.model("ollama/x"), base_url=server.url)
        stream = models.stream(model, HELLO)
        await stream.aclose()
        assert server.connections == 0


async def test_a_providers_own_stream_function_is_used_and_needs_no_key() -> None:
    """What `laneway.testing.Scripted` is built on."""
    script = Scripted([text("scripted")])
    assert (await script.models.stream(script.model, HELLO).result()).text == "scripted"


async def test_a_stream_function_may_be_async_or_give_any_stream() -> None:
    """The registry's stream is an `AssistantStream` all the same; one that raises is an error event."""
    inner = Scripted([text("one"), text("two")])

    class Foreign:
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __aiter__(self) -> Any:
            return self._stream.__aiter__()

        async def result(self) -> AssistantMessage:
            return await self._stream.result()

    async def later(model: Model, transcript: Transcript, options: StreamOptions) -> Any:
        await asyncio.sleep(0)
        return Foreign(inner.stream_fn(model, transcript, options))

    def broken(*_: Any) -> Any:
        raise RuntimeError("not today")

    models = Models(builtin=False)
    models.set_provider(Provider(id="a", open_ended=True, stream_fn=later))
    models.set_provider(Provider(id="b", open_ended=True, stream_fn=broken))
    stream = models.stream(models.model("a/x"), HELLO)
    assert isinstance(stream, AssistantStream)
    assert (await stream.result()).text == "one"
    assert "not today" in str((await failed(models, models.model("b/x"))).error_message)


# ---------------------------------------------------------------------------------------------------- preparing


async def test_what_a_provider_prepares_is_awaited_and_its_failure_is_an_error_event() -> None:
    """`prepare` runs before the request and may change the model; a refusal reads as it is."""

    async def prepare(model: Model) -> PreparedModel:
        if model.id == "bad":
            raise ModelError("the server does not start; start it by hand")
        return PreparedModel(model=model, api_key="prepared-key")

    async with Loopback([sse_reply(chunk("hi"), chunk(finish="stop"))]) as server:

        async def to_server(model: Model) -> PreparedModel:
            prepared = await prepare(model)
            return replace(prepared, model=replace(prepared.model, base_url=server.url))

        models = Models(builtin=False)
        models.set_provider(Provider(id="p", key_optional=True, open_ended=True, prepare=to_server))
        assert (await models.stream(models.model("p/good"), HELLO).result()).text == "hi"
        assert server.requests[0].headers["authorization"] == "Bearer prepared-key"
        await models.stream(models.model("p/good"), HELLO, StreamOptions(api_key="explicit")).result()
        assert server.requests[1].headers["authorization"] == "Bearer explicit"
        message = await failed(models, models.model("p/bad"))
    assert message.error_message == "the server does not start; start it by hand"
    assert message.error is not None
    assert message.error.kind == "configuration"


async def test_a_prepared_stream_that_is_dropped_keeps_what_had_arrived() -> None:
    """Closing, or an abort, in the middle closes the connection and gives the partial text as an aborted message."""

    async def prepare(model: Model) -> PreparedModel:
        return PreparedModel(model=model)

    never = asyncio.Event()
    async with Loopback([sse_reply(chunk("par"), chunk("tial"), never)]) as server:
        models = Models(builtin=False)
        models.set_provider(Provider(id="p", base_url=server.url, key_optional=True, open_ended=True, prepare=prepare))
        for close in (True, False):
            server.disconnected.clear()
            controller = AbortController()
            stream = models.stream(models.model("p/x"), HELLO, StreamOptions(signal=controller.signal))
            async for event in stream:
                if getattr(event, "delta", "") == "tial":
                    break
            if close:
                await stream.aclose()
            else:
                controller.abort()
            message = await stream.result()
            assert (message.stop_reason, message.text) == ("aborted", "partial")
            async with asyncio.timeout(5):
                await server.disconnected.wait()


async def test_cancelling_the_reader_of_a_prepared_stream_stays_a_cancellation() -> None:
    """The task's own cancellation is not turned into a message for it; the stream keeps the partial."""

    async def prepare(model: Model) -> PreparedModel:
        return PreparedModel(model=model)

    async with Loopback([sse_reply(chunk("par"), asyncio.Event())]) as server:
        models = Models(builtin=False)
        models.set_provider(Provider(id="p", base_url=server.url, key_optional=True, open_ended=True, prepare=prepare))
        stream = models.stream(models.model("p/x"), HELLO)
        arrived = asyncio.Event()

        async def read() -> None:
            async for event in stream:
                if event.type == "text_delta":
                    arrived.set()

        task = asyncio.create_task(read())
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        message = await stream.result()
        assert (message.stop_reason, message.text) == ("aborted", "par")


# ---------------------------------------------------------------------------------------------------- auth


async def test_get_auth_gives_none_for_an_unknown_or_unconfigured_provider(models: Models) -> None:
    """Scenario 136: `get_auth` asks, it does not judge."""
    assert await models.get_auth("nobody") is None
    assert await models.get_auth("openai") is None
    assert await models.get_auth(models.model("openai/gpt-5.6"), api_key="k") == Auth(
        api_key="k", base_url="https://api.openai.com/v1", source="explicit key"
    )


def test_available_models_are_those_of_configured_providers(clean_env: pytest.MonkeyPatch) -> None:
    """A key makes its provider's models available and nobody else's."""
    models = Models(credentials=MemoryCredentialStore({"groq": Credential(key="k")}), env={"MISTRAL_API_KEY": "k"})
    found = {model.provider for model in models.get_available()}
    assert {"groq", "mistral"} <= found
    assert not found & {"openai", "anthropic", "deepseek"}


# ---------------------------------------------------------------------------------------------------- deferred


async def test_deferred_responses_are_fetched_and_cancelled_through_their_provider() -> None:
    """The handle names provider and model; the provider's operations do the rest."""
    script = Scripted([deferred("job-1"), text("done")])
    first = await script.models.stream(script.model, HELLO).result()
    assert first.stop_reason == "deferred"
    assert first.deferred is not None
    assert (await script.models.fetch_deferred(first.deferred).result()).text == "done"
    await script.models.cancel_deferred(first.deferred)
    assert script.cancelled == [first.deferred]


async def test_a_provider_without_deferred_responses_says_so(models: Models) -> None:
    """Fetching gives an error event, cancelling raises."""
    handle = DeferredHandle(id="j", provider="openai", model_id="gpt-5.6", api="openai_responses")
    message = await models.fetch_deferred(handle).result()
    assert message.stop_reason == "error"
    assert "openai" in str(message.error_message)
    with pytest.raises(ModelError):
        await models.cancel_deferred(handle)
    unknown = await models.fetch_deferred(DeferredHandle(id="j", provider="nobody", model_id="m", api="x")).result()
    assert unknown.stop_reason == "error"


# ---------------------------------------------------------------------------------------------------- refresh


def listing(*ids: str) -> Any:
    """A refresh that always gives these models."""

    async def refresh(context: RefreshContext) -> Sequence[Model]:
        return [Model(id=name, provider=context.provider, api="") for name in ids]

    return refresh


async def test_a_fetched_list_goes_over_the_built_in_one_and_stays_for_later(tmp_path: Path) -> None:
    """Fetched models replace by id, others are appended; a new registry with the same cache has them without a network."""

    def provider(refresh: Any) -> Provider:
        mine = [Model(id="a", provider="p", api="", name="built in"), Model(id="b", provider="p", api="")]
        return Provider(id="p", base_url="http://x", key_optional=True, models=lambda: mine, refresh=refresh)

    models = Models(builtin=False, cache_dir=tmp_path)
    models.set_provider(provider(listing("a", "c")))
    result = await models.refresh("p")
    assert result.counts == {"p": 3}
    assert not result.errors
    assert [(model.id, model.name) for model in models.list("p")] == [("a", "a"), ("b", "b"), ("c", "c")]
    assert models.model("p/c").base_url == "http://x"

    async def unreachable(context: RefreshContext) -> Sequence[Model]:
        raise OSError("no network")

    later = Models(builtin=False, cache_dir=tmp_path)
    later.set_provider(provider(unreachable))
    assert (await later.refresh("p", offline=True)).counts == {"p": 3}
    assert "no network" in (await later.refresh("p")).errors["p"]
    assert [model.id for model in later.list("p")] == ["a", "b", "c"]


async def test_a_refresh_that_was_overtaken_is_dropped() -> None:
    """Scenario 138: `set_provider` while a fetch is under way makes its result stale."""
    go = asyncio.Event()

    async def slow(context: RefreshContext) -> Sequence[Model]:
        await go.wait()
        return [Model(id="stale", provider="p", api="")]

    models = Models(builtin=False)
    models.set_provider(Provider(id="p", key_optional=True, refresh=slow))
    task = asyncio.create_task(models.refresh("p"))
    await asyncio.sleep(0)
    models.set_provider(Provider(id="p", key_optional=True, refresh=listing("new")))
    go.set()
    await task
    assert models.list("p") == []
    await models.refresh("p")
    assert [model.id for model in models.list("p")] == ["new"]


async def test_refreshing_all_reports_each_failure_and_goes_on() -> None:
    """One provider's failure is in `errors`, the others are refreshed; one that cannot be listed says so when named."""

    async def broken(context: RefreshContext) -> Sequence[Model]:
        raise ModelError("p: the server is away")

    models = Models(builtin=False)
    models.set_provider(Provider(id="bad", key_optional=True, refresh=broken))
    models.set_provider(Provider(id="good", key_optional=True, refresh=listing("m")))
    models.set_provider(Provider(id="fixed", key_optional=True))
    result = await models.refresh()
    assert result.counts == {"good": 1}
    assert result.errors == {"bad": "p: the server is away"}
    assert "fixed" in (await models.refresh("fixed")).errors
    assert "nobody" in (await models.refresh("nobody")).errors


async def test_a_server_that_nobody_has_named_is_not_asked(clean_env: pytest.MonkeyPatch) -> None:
    """`custom` without a URL is left out when all are refreshed; named, it says which variable to set; a list from before is no offer."""
    async with Loopback([error_reply(200, {"data": [{"id": "m1"}]})]) as server:
        named = Models(env={"LANEWAY_CUSTOM_BASE_URL": server.url})
        assert (await named.refresh("custom")).counts == {"custom": 1}
        assert "custom/m1" in [model.spec for model in named.get_available()]
    models = Models()
    for known in models.providers():
        if known.id != "custom" and known.refresh is not None:
            models.set_provider(Provider(id=known.id, key_optional=True))
    result = await models.refresh()
    assert (result.counts, result.errors) == ({}, {})
    assert "set LANEWAY_CUSTOM_BASE_URL" in (await models.refresh("custom")).errors["custom"]
    assert "custom/m1" in [model.spec for model in models.list()]
    mine = models.add(Model(id="mine", provider="custom", api="openai_chat", base_url="http://127.0.0.1:9/v1"))
    assert [model for model in models.get_available() if model.provider == "custom"] == [mine]


def test_the_home_of_laneway_has_the_cache_too(clean_env: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever moves everything by one variable finds nothing of another place; the folder's own variable wins."""
    clean_env.setenv("LANEWAY_HOME", str(tmp_path / "all"))
    assert cache_dir() == tmp_path / "cache"
    clean_env.delenv("LANEWAY_CACHE_DIR")
    assert cache_dir() == tmp_path / "all" / "cache"
    clean_env.delenv("LANEWAY_HOME")
    assert not cache_dir().is_relative_to(tmp_path / "all")


async def test_a_refreshed_server_is_asked_where_it_is() -> None:
    """The fetch goes to the URL of the environment, with the key of the environment."""
    async with Loopback([error_reply(200, {"data": [{"id": "m1", "max_model_len": 4096}]})]) as server:
        models = Models(credentials=MemoryCredentialStore(), env={"VLLM_BASE_URL": server.url, "VLLM_API_KEY": "k"})
        result = await models.refresh("vllm")
        assert result.counts == {"vllm": 1}, result.errors
        assert server.requests[0].headers["authorization"] == "Bearer k"
        assert models.model("vllm/m1").context_window == 4096


# ---------------------------------------------------------------------------------------------------- the default


async def test_the_default_stream_function_is_the_default_registrys_until_it_is_set() -> None:
    """`set_default_stream_fn` replaces it, None brings it back."""
    script = Scripted([text("mine")])
    set_default_stream_fn(script.stream_fn)
    try:
        assert get_default_stream_fn() is script.stream_fn
    finally:
        set_default_stream_fn(None)
    assert get_default_stream_fn() is not script.stream_fn
    assert default_model("openai/gpt-5.6").provider == "openai"


async def test_a_providers_failure_keeps_its_kind(models: Models) -> None:
    """A stream function that raises `ProviderFailure` is not called misconfigured."""

    def refuse(*_: Any) -> Any:
        raise ProviderFailure("busy", kind="overloaded")

    registry = Models(builtin=False)
    registry.set_provider(Provider(id="p", open_ended=True, stream_fn=refuse))
    message = await failed(registry, registry.model("p/x"))
    assert message.error is not None
    assert message.error.kind == "overloaded"
    assert message.error_message == "busy"


async def test_an_events_only_stream_is_passed_through_whole() -> None:
    """Every event of a provider's own stream arrives, in order, once."""

    def answer(model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
        writer = StreamWriter(model)

        async def events() -> Any:
            writer.start()
            index = writer.open_text()
            writer.text(index, "hello")
            writer.done("stop")
            for event in writer.take():
                yield event

        return AssistantStream(events(), fallback=writer.fallback)

    registry = Models(builtin=False)
    registry.set_provider(Provider(id="p", open_ended=True, stream_fn=answer))
    events: list[AssistantEvent] = [event async for event in registry.stream(registry.model("p/x"), HELLO)]
    assert [event.type for event in events] == ["start", "text_start", "text_delta", "text_end", "done"]
