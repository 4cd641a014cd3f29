"""The vendors' own SDKs as clients of a served wire: what each of them understood of a response, in one form for all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from laneway.testing import WireServer

KEY = "key-0123456789"
WHY = "the official SDK is the oracle here; it is a development dependency only"


@dataclass
class Understood:
    """A response as an SDK has it at the end. `usage` is prompt tokens (cached ones included) and completion tokens."""

    text: str = ""
    thinking: str = ""
    signature: str | None = None
    calls: list[tuple[str, str, Any]] = field(default_factory=list)  # id, name, arguments
    stop: str | None = None
    usage: tuple[int | None, int | None] = (None, None)


@dataclass
class Failed:
    """A failure as an SDK has it."""

    status: int | None
    text: str


def checked(event: Any) -> Any:
    """SDKs that do not look at what they read are made to: every field that its type promises is there and of the right type."""
    type(event).model_validate(event.model_dump(exclude_unset=True, warnings=False))
    return event


# ---------------------------------------------------------------------------------------------------- OpenAI


def _failed(error: Any) -> Failed:
    return Failed(getattr(error, "status_code", None), str(error))


def _openai(server: WireServer) -> Any:
    openai = pytest.importorskip("openai", reason=WHY)
    if server.wire == "azure":
        return openai.AsyncAzureOpenAI(base_url=server.url, api_key=KEY, api_version="v1", max_retries=0)
    return openai.AsyncOpenAI(base_url=server.url, api_key=KEY, max_retries=0)


async def openai_chat(server: WireServer, messages: Any, tools: Any) -> Understood | Failed:
    client = _openai(server)
    got, arguments = Understood(), dict[int, list[Any]]()
    more = {"tools": tools} if tools else {}
    async with client:
        try:
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True, stream_options={"include_usage": True}, **more)
            async for chunk in stream:
                checked(chunk)
                if chunk.usage:
                    got.usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
                for choice in chunk.choices:
                    got.text += choice.delta.content or ""
                    got.thinking += (choice.delta.model_extra or {}).get("reasoning_content") or ""
                    got.stop = choice.finish_reason or got.stop
                    for piece in choice.delta.tool_calls or ():
                        if piece.id:
                            arguments[piece.index] = [piece.id, piece.function.name, ""]
                        arguments[piece.index][2] += piece.function.arguments or ""
        except pytest.importorskip("openai").APIError as error:
            return _failed(error)
    got.calls = [(call_id, name, json.loads(raw)) for call_id, name, raw in arguments.values()]
    return got


async def responses(server: WireServer, messages: Any, tools: Any) -> Understood | Failed:
    client = _openai(server)
    got = Understood()
    more = {"tools": tools} if tools else {}
    async with client:
        try:
            stream = await client.responses.create(model="m", input=messages, stream=True, store=False, **more)
            final: Any = None
            async for event in stream:
                checked(event)
                if event.type == "response.output_text.delta":
                    got.text += event.delta
                elif event.type == "response.reasoning_summary_text.delta":
                    got.thinking += event.delta
                elif event.type == "response.failed":
                    return Failed(None, event.response.error.message)
                elif event.type in ("response.completed", "response.incomplete"):
                    final = event.response
        except pytest.importorskip("openai").APIError as error:
            return _failed(error)
    got.stop = final.incomplete_details.reason if final.incomplete_details else final.status
    got.usage = (final.usage.input_tokens, final.usage.output_tokens)
    for item in final.output:
        if item.type == "function_call":
            got.calls.append((item.call_id, item.name, json.loads(item.arguments)))
        elif item.type == "reasoning":
            got.signature = item.encrypted_content
    assert final.output_text == got.text
    return got


# ---------------------------------------------------------------------------------------------------- Anthropic


async def anthropic_messages(server: WireServer, messages: Any, tools: Any) -> Understood | Failed:
    anthropic = pytest.importorskip("anthropic", reason=WHY)
    got = Understood()
    more = {"tools": tools} if tools else {}
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        try:
            async with client.messages.stream(model="m", max_tokens=4000, messages=messages, **more) as stream:
                async for event in stream:
                    checked(event)
                message = await stream.get_final_message()
        except anthropic.APIError as error:
            return _failed(error)
    for block in message.content:
        if block.type == "text":
            got.text += block.text
        elif block.type == "thinking":
            got.thinking += block.thinking
            got.signature = block.signature
        elif block.type == "tool_use":
            got.calls.append((block.id, block.name, block.input))
    usage = message.usage
    got.usage = (usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0), usage.output_tokens)
    got.stop = message.stop_reason
    return got


# ---------------------------------------------------------------------------------------------------- Google


async def google(server: WireServer, messages: Any, tools: Any) -> Understood | Failed:
    genai = pytest.importorskip("google.genai", reason=WHY)
    vertex = server.wire == "google_vertex"
    version = "v1beta1" if vertex else "v1beta"
    options = genai.types.HttpOptions(base_url=server.url.removesuffix("/v1beta"), api_version=version)
    client = genai.Client(vertexai=vertex, api_key=KEY, http_options=options)
    got = Understood()
    config = genai.types.GenerateContentConfig(
        tools=tools or None, automatic_function_calling=genai.types.AutomaticFunctionCallingConfig(disable=True)
    )
    try:
        async for chunk in await client.aio.models.generate_content_stream(model="m", contents=messages, config=config):
            counts = chunk.usage_metadata
            got.usage = (counts.prompt_token_count, (counts.candidates_token_count or 0) + (counts.thoughts_token_count or 0))
            for part in (chunk.candidates[0].content.parts or ()) if chunk.candidates else ():
                if part.function_call:
                    got.calls.append((part.function_call.id, part.function_call.name, part.function_call.args))
                elif part.thought:
                    got.thinking += part.text or ""
                    got.signature = part.thought_signature.decode("latin-1") if part.thought_signature else got.signature
                else:
                    got.text += part.text or ""
            finish = chunk.candidates[0].finish_reason if chunk.candidates else None
            got.stop = finish.value if finish else got.stop
    except genai.errors.APIError as error:
        return Failed(error.code, str(error))
    finally:
        await client.aio.aclose()
    return got


# ---------------------------------------------------------------------------------------------------- Mistral


async def mistral(server: WireServer, messages: Any, tools: Any) -> Understood | Failed:
    module = pytest.importorskip("mistralai.client", reason=WHY)
    errors = pytest.importorskip("mistralai.client.errors")
    got, arguments = Understood(), dict[int, list[Any]]()
    more = {"tools": tools} if tools else {}
    async with module.Mistral(api_key=KEY, server_url=server.url) as client:
        try:
            async for event in await client.chat.stream_async(model="m", messages=messages, **more):
                chunk = event.data
                if chunk.usage and chunk.usage.prompt_tokens:
                    got.usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
                for choice in chunk.choices:
                    _take_mistral(got, choice.delta.content)
                    got.stop = choice.finish_reason or got.stop
                    for piece in choice.delta.tool_calls or ():
                        known = arguments.setdefault(piece.index, [piece.id, piece.function.name, ""])
                        known[2] += piece.function.arguments
        except errors.MistralError as error:
            return _failed(error)
    got.calls = [(call_id, name, json.loads(raw)) for call_id, name, raw in arguments.values()]
    return got


def _take_mistral(got: Understood, content: Any) -> None:
    if isinstance(content, str):
        got.text += content
        return
    for part in content or ():
        if part.type == "thinking":
            got.thinking += "".join(inner.text for inner in part.thinking)
            got.signature = getattr(part, "signature", None) or got.signature


# ---------------------------------------------------------------------------------------------------- Bedrock


async def bedrock(server: WireServer, messages: Any, tools: Any) -> Understood | Failed:
    pytest.importorskip("botocore", reason=WHY)
    return await asyncio.to_thread(_bedrock, server, messages, tools)


def _bedrock(server: WireServer, messages: Any, tools: Any) -> Understood | Failed:
    import botocore.session
    from botocore.config import Config
    from botocore.exceptions import ClientError, EventStreamError

    session = botocore.session.Session()
    session.set_credentials(KEY, "secret")
    config = Config(retries={"total_max_attempts": 1})
    client = session.create_client("bedrock-runtime", region_name="us-east-1", endpoint_url=server.url, config=config)
    got, arguments = Understood(), dict[int, list[Any]]()
    more = {"toolConfig": {"tools": tools}} if tools else {}
    try:
        with closing(client.converse_stream(modelId="vendor.m:0", messages=messages, **more)["stream"]) as stream:
            for event in stream:
                _take_bedrock(got, arguments, event)
    except EventStreamError as error:  # in the middle of a stream
        return Failed(None, str(error))
    except ClientError as error:
        return Failed(error.response["ResponseMetadata"]["HTTPStatusCode"], str(error))
    finally:
        client.close()
    got.calls = [(call_id, name, json.loads(raw)) for call_id, name, raw in arguments.values()]
    return got


def _take_bedrock(got: Understood, arguments: dict[int, list[Any]], event: Any) -> None:
    if "contentBlockStart" in event:
        start = event["contentBlockStart"]
        arguments[start["contentBlockIndex"]] = [start["start"]["toolUse"]["toolUseId"], start["start"]["toolUse"]["name"], ""]
    elif "contentBlockDelta" in event:
        delta = event["contentBlockDelta"]["delta"]
        got.text += delta.get("text", "")
        got.thinking += delta.get("reasoningContent", {}).get("text", "")
        got.signature = delta.get("reasoningContent", {}).get("signature", got.signature)
        if "toolUse" in delta:
            arguments[event["contentBlockDelta"]["contentBlockIndex"]][2] += delta["toolUse"]["input"]
    elif "messageStop" in event:
        got.stop = event["messageStop"]["stopReason"]
    elif "metadata" in event:
        usage = event["metadata"]["usage"]
        got.usage = (usage["inputTokens"] + usage.get("cacheReadInputTokens", 0) + usage.get("cacheWriteInputTokens", 0), usage["outputTokens"])


Ask = Callable[[WireServer, Any, Any], Awaitable[Understood | Failed]]
SDKS: dict[str, Ask] = {
    "openai_chat": openai_chat,
    "anthropic_messages": anthropic_messages,
    "openai_responses": responses,
    "azure": responses,
    "google_generate": google,
    "google_vertex": google,
    "mistral": mistral,
    "bedrock_converse": bedrock,
}


# ---------------------------------------------------------------------------------------------------- conversations

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}


def hello(wire: str) -> list[Any]:
    """A conversation of one user's message."""
    return {
        "google_generate": [{"role": "user", "parts": [{"text": "Hello"}]}],
        "google_vertex": [{"role": "user", "parts": [{"text": "Hello"}]}],
        "bedrock_converse": [{"role": "user", "content": [{"text": "Hello"}]}],
    }.get(wire, [{"role": "user", "content": "Hello"}])


def tools(wire: str) -> list[Any]:
    """The declaration of the tool `read`."""
    function = {"name": "read", "description": "Reads.", "parameters": SCHEMA}
    return {
        "anthropic_messages": [{"name": "read", "description": "Reads.", "input_schema": SCHEMA}],
        "openai_responses": [{"type": "function", "strict": False, **function}],
        "azure": [{"type": "function", "strict": False, **function}],
        "google_generate": [{"function_declarations": [function]}],
        "google_vertex": [{"function_declarations": [function]}],
        "bedrock_converse": [{"toolSpec": {"name": "read", "description": "Reads.", "inputSchema": {"json": SCHEMA}}}],
    }.get(wire, [{"type": "function", "function": function}])


def after_two_calls(wire: str) -> list[Any]:
    """A conversation in which the model called `read` twice and got two results. Calls and results are its last messages."""
    ids = ("abcdefgh1", "abcdefgh2")
    arguments = {"path": "a"}
    raw = json.dumps(arguments)
    if wire == "anthropic_messages":
        calls = [{"type": "tool_use", "id": id, "name": "read", "input": arguments} for id in ids]
        results = [{"type": "tool_result", "tool_use_id": id, "content": "ok"} for id in ids]
        more = [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    elif wire in ("openai_responses", "azure"):
        more = [{"type": "function_call", "call_id": id, "name": "read", "arguments": raw} for id in ids]
        more += [{"type": "function_call_output", "call_id": id, "output": "ok"} for id in ids]
    elif wire.startswith("google"):
        more = [
            {"role": "model", "parts": [{"functionCall": {"name": "read", "args": arguments}} for _ in ids]},
            {"role": "user", "parts": [{"functionResponse": {"name": "read", "response": {"output": "ok"}}} for _ in ids]},
        ]
    elif wire == "bedrock_converse":
        calls = [{"toolUse": {"toolUseId": id, "name": "read", "input": arguments}} for id in ids]
        results = [{"toolResult": {"toolUseId": id, "content": [{"text": "ok"}]}} for id in ids]
        more = [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    else:
        calls = [{"id": id, "type": "function", "function": {"name": "read", "arguments": raw}} for id in ids]
        more = [{"role": "assistant", "tool_calls": calls}, *({"role": "tool", "tool_call_id": id, "content": "ok"} for id in ids)]
    return [*hello(wire), *more]


def without_the_last_result(messages: list[Any]) -> list[Any]:
    """The same conversation, but one call has no result."""
    last = messages[-1]
    name = next((name for name in ("content", "parts") if isinstance(last.get(name), list)), None)
    return messages[:-1] if name is None else [*messages[:-1], {**last, name: last[name][:-1]}]
