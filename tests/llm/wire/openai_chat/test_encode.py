"""Transcript → body of a chat completion."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from laneway.errors import ModelError
from laneway.llm._transform import IMAGE_PLACEHOLDER
from laneway.llm.base import Model, StreamOptions, Transcript, encode_json
from laneway.llm.wire.openai_chat import encode
from laneway.messages import (
    AssistantContent,
    AssistantMessage,
    ImageContent,
    Message,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from llm.chat import chat_model

USER = UserMessage(content="q")
TOOL = ToolDeclaration(name="read", description="Reads.", parameters={"type": "object", "properties": {"path": {"type": "string"}}})
IMAGE = ImageContent(data="aGk=", mime_type="image/png")
URL = {"url": "data:image/png;base64,aGk="}


def body(*messages: Message, model: Model | None = None, **options: Any) -> dict[str, Any]:
    """The request body."""
    return encode(model or chat_model(), Transcript(messages=list(messages)), StreamOptions(**options))


def sent(*messages: Message, model: Model | None = None, **options: Any) -> list[dict[str, Any]]:
    """The messages of the request body."""
    return body(*messages, model=model, **options)["messages"]


def said(*content: AssistantContent, model: Model | None = None) -> AssistantMessage:
    """A response of the model itself."""
    model = model or chat_model()
    return AssistantMessage(content=list(content), api=model.api, provider=model.provider, model=model.id)


def call(call_id: str = "c1", **arguments: Any) -> ToolCall:
    """A call of the tool."""
    return ToolCall(id=call_id, name="read", arguments=arguments)


def result(call_id: str = "c1", *content: TextContent | ImageContent, **fields: Any) -> ToolResultMessage:
    """Its result."""
    return ToolResultMessage(tool_call_id=call_id, tool_name="read", content=list(content or (TextContent(text="ok"),)), **fields)


# ---------------------------------------------------------------------------------------------------- the body


def test_an_unknown_server_gets_only_what_everybody_understands() -> None:
    """05 §11.17: no store, no developer role, no empty tools, no null."""
    assert body(SystemMessage(content="S"), USER) == {
        "model": "m", "stream": True, "stream_options": {"include_usage": True},
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "q"}],
    }  # fmt: skip
    assert b"null" not in encode_json(body(SystemMessage(content="S"), USER, said(call(x=1)), result()))


def test_a_longer_conversation_s_bytes_begin_with_the_shorter_one_s() -> None:
    """05 §10.6: prompt caches go by the prefix; the messages stand last in the body."""
    messages: list[Message] = [SystemMessage(content="S", tools_added=[TOOL]), USER, said(TextContent(text="a"), call(path="x"))]
    messages += [result(), UserMessage(content="r"), said(TextContent(text="b"))]
    bodies = [encode_json(body(*messages[:n])) for n in (2, 4, 5, 6)]
    for shorter, longer in itertools.pairwise(bodies):
        assert longer.startswith(shorter[:-2])
    assert encode_json(body(*messages)) == bodies[-1]


def test_an_edited_body_does_not_spoil_the_next_request() -> None:
    """The copy that `on_payload` gets is its own; here the sharing is shown to be by reference, so the client copies."""
    first = body(USER, said(TextContent(text="a")), UserMessage(content="r"))
    second = body(USER, said(TextContent(text="a")), UserMessage(content="r"))
    assert first == second
    first["messages"].append("x")
    assert body(USER, said(TextContent(text="a")), UserMessage(content="r")) == second


def test_options_become_fields() -> None:
    """Temperature, output limit, tool choice; sampling parameters win over everything (05 sc. 103)."""
    found = body(
        SystemMessage(tools_added=[TOOL]), USER, temperature=0.5, max_tokens=100, tool_choice="auto", sampling_params={"temperature": 1, "top_k": 5}
    )
    assert (found["temperature"], found["max_completion_tokens"], found["tool_choice"], found["top_k"]) == (1, 100, "auto", 5)
    assert list(found)[-1] == "messages"
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    assert body(USER, sampling_params={"response_format": schema})["response_format"] == schema


@pytest.mark.parametrize(
    ("choice", "wire"),
    [
        ("none", "none"), ("required", "required"), ("any", "required"),
        ("read", {"type": "function", "function": {"name": "read"}}), ({"name": "read"}, {"type": "function", "function": {"name": "read"}}),
        ({"type": "function", "function": {"name": "read"}}, {"type": "function", "function": {"name": "read"}}),
    ],
)  # fmt: skip
def test_tool_choices(choice: Any, wire: Any) -> None:
    """The protocol's words pass; a tool's name becomes the object that the protocol wants."""
    assert body(SystemMessage(tools_added=[TOOL]), USER, tool_choice=choice)["tool_choice"] == wire
    assert "tool_choice" not in body(USER, tool_choice=choice)


def test_tools_are_declared_with_a_complete_schema() -> None:
    """OpenAI refuses an object schema without properties; names are made legal; the declaration itself is not touched."""
    bare = ToolDeclaration(name="my.tool", description="", parameters={})
    found = body(SystemMessage(tools_added=[TOOL, bare]), USER)["tools"]
    assert found[0] == {"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": TOOL.parameters}}
    assert found[1]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert found[1]["function"]["name"].startswith("my_tool_")
    assert bare.parameters == {}


def test_a_strict_tool_is_strict_where_the_server_can() -> None:
    """05 sc. 69: converted if it can be, else sent as it is; never to a server that does not know the word."""
    can = chat_model(compat={"supports_strict_mode": True})
    strict = ToolDeclaration(name="s", description="", parameters=TOOL.parameters, strict=True)
    loose = ToolDeclaration(name="l", description="", parameters={"type": "object", "properties": {"p": {"$ref": "#/x"}}}, strict=True)
    messages = (SystemMessage(tools_added=[TOOL, strict, loose]), USER)
    first, second, third = (tool["function"] for tool in body(*messages, model=can)["tools"])
    assert "strict" not in first
    assert (second["strict"], second["parameters"]["required"], second["parameters"]["additionalProperties"]) == (True, ["path"], False)
    assert ("strict" in third, third["parameters"]) == (False, loose.parameters)
    assert all("strict" not in tool["function"] for tool in body(*messages)["tools"])


def test_tools_follow_the_transcript() -> None:
    """Changes in the middle are collapsed: the current tools at the top, one merged system prompt."""
    other = ToolDeclaration(name="other", description="", parameters={})
    messages = (
        SystemMessage(content="S", tools_added=[TOOL]),
        USER,
        said(TextContent(text="a")),
        SystemMessage(content="more", tools_removed=["read"], tools_added=[other]),
        USER,
    )
    found = body(*messages)
    assert [t["function"]["name"] for t in found["tools"]] == ["other"]
    assert [m["role"] for m in found["messages"]] == ["system", "user", "assistant", "user"]
    assert found["messages"][0]["content"] == "S\n\nmore"


def test_no_tools_but_a_history_of_calls() -> None:
    """05 sc. 104 [fix]: no tools field, unless the server insists."""
    assert "tools" not in body(USER, said(call()), result())
    assert body(USER, said(call()), result(), model=chat_model(compat={"requires_tools_with_tool_history": True}))["tools"] == []
    assert "tools" not in body(USER, model=chat_model(compat={"requires_tools_with_tool_history": True}))


def test_the_output_limit_fits_the_window() -> None:
    """05 §1.9: the model's own limit is sent, reduced to what the window still holds."""
    model = chat_model(max_tokens=8000, context_window=10_000, compat={"max_tokens_field": "max_tokens"})
    assert body(USER, model=model)["max_tokens"] == 5903
    used = AssistantMessage(content=[TextContent(text="a")], usage=Usage(input=9000, total_tokens=9000), provider="x")
    assert body(USER, used, UserMessage(content="r"), model=model)["max_tokens"] == 1
    assert body(USER, model=chat_model(max_tokens=500))["max_completion_tokens"] == 500
    assert "max_completion_tokens" not in body(USER)


# ---------------------------------------------------------------------------------------------------- messages


def test_user_content() -> None:
    """Strings as they are, blocks as parts, images as data URLs; an empty list is left out."""
    vision = chat_model(input=("text", "image"))
    blocks = UserMessage(content=[TextContent(text="t"), IMAGE])
    assert sent(blocks, model=vision) == [{"role": "user", "content": [{"type": "text", "text": "t"}, {"type": "image_url", "image_url": URL}]}]
    assert sent(blocks)[0]["content"][1] == {"type": "text", "text": IMAGE_PLACEHOLDER}
    assert sent(UserMessage(content=[]), USER) == [{"role": "user", "content": "q"}]


def test_assistant_content() -> None:
    """Text is a string; calls have their arguments as compact JSON; content is left out where there is none."""
    assert sent(USER, said(TextContent(text="a"), TextContent(text=" "), TextContent(text="b")), USER)[1] == {"role": "assistant", "content": "ab"}
    assert sent(USER, said(call(path="x", n=None)), result())[1] == {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path":"x","n":null}'}}],
    }
    non_null = chat_model(compat={"requires_non_null_assistant_content": True})
    assert sent(USER, said(call(), model=non_null), result(), model=non_null)[1]["content"] == ""


@pytest.mark.parametrize("content", [[], [TextContent(text="")], [TextContent(text=" \n")], [ThinkingContent(thinking="t", signature="reasoning")]])
def test_a_response_with_nothing_to_say_is_left_out(content: list[AssistantContent]) -> None:
    """B42, 05 sc. 94: blank, empty and thinking-only responses; failed ones too."""
    assert sent(USER, said(*content), UserMessage(content="r")) == [{"role": "user", "content": "q"}, {"role": "user", "content": "r"}]
    failed = AssistantMessage(content=[TextContent(text="half"), call()], stop_reason="aborted")
    assert sent(USER, failed, result(), UserMessage(content="r")) == [{"role": "user", "content": "q"}, {"role": "user", "content": "r"}]


def test_cut_arguments_are_replayed_as_an_empty_object() -> None:
    """B20, decision 6: never "" or null, never half of JSON."""
    broken = ToolCall(id="c1", name="read", arguments={}, arguments_error="not JSON")
    assert sent(USER, said(broken), result(is_error=True))[1]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "reasoning_text"])
def test_own_reasoning_goes_back_under_its_own_name(field: str) -> None:
    """05 §4.2: only the three known names; blocks are joined by a newline."""
    thoughts = (ThinkingContent(thinking="a", signature=field), ThinkingContent(thinking="b"))
    assert sent(USER, said(*thoughts, call()), result())[1][field] == "a\nb"
    strange = ThinkingContent(thinking="a", signature="role")
    assert sent(USER, said(strange, TextContent(text="x")))[1] == {"role": "assistant", "content": "x"}


def test_structured_reasoning_goes_back_as_it_came() -> None:
    """05 sc. 102: verbatim, instead of the plain field."""
    details = [{"type": "reasoning.encrypted", "data": "zz"}]
    assert sent(USER, said(ThinkingContent(thinking="t", signature=json.dumps(details)), call()), result())[1]["reasoning_details"] == details
    assert "reasoning_details" not in sent(USER, said(ThinkingContent(thinking="t", signature="[broken"), call()), result())[1]


def test_reasoning_is_never_handed_to_another_model() -> None:
    """B41, decision 7: a server that wants the field gets it empty, others do not see it."""
    wants = chat_model(id="other", reasoning=True, compat={"requires_reasoning_content_on_assistant_messages": True})
    history = (USER, said(ThinkingContent(thinking="secret", signature="reasoning_content"), call()), result())
    assert sent(*history, model=wants)[1]["reasoning_content"] == ""
    assert "reasoning_content" not in sent(*history, model=chat_model(id="other", reasoning=True))[1]


def test_thinking_as_text_is_not_glued_to_the_answer() -> None:
    """05 §11.7: separate parts, thinking first."""
    model = chat_model(compat={"requires_thinking_as_text": True})
    found = sent(USER, said(ThinkingContent(thinking="T"), TextContent(text="ok"), model=model), USER, model=model)[1]
    assert found["content"] == [{"type": "text", "text": "T"}, {"type": "text", "text": "ok"}]


def test_results_are_text_and_images_follow_the_run() -> None:
    """B56, 05 sc. 93: all tool messages first, then one user message with the images, labelled by call."""
    vision = chat_model(input=("text", "image"))
    history = (
        USER,
        said(call("a"), call("b"), model=vision),
        result("a", IMAGE),
        result("b", TextContent(text="t"), IMAGE),
        UserMessage(content="r"),
    )
    roles = [message["role"] for message in sent(*history, model=vision)]
    assert roles == ["user", "assistant", "tool", "tool", "user", "user"]
    messages = sent(*history, model=vision)
    assert messages[2]["content"]
    assert messages[3]["content"] == "t"
    parts = messages[4]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url", "text", "image_url"]
    assert "(a)" in parts[0]["text"]
    assert "(b)" in parts[2]["text"]
    text_only = sent(*history)
    assert [message["role"] for message in text_only] == ["user", "assistant", "tool", "tool", "user"]
    assert IMAGE_PLACEHOLDER in text_only[2]["content"]


def test_results_may_carry_images_where_the_server_can() -> None:
    """ "Image in user message" and "image in tool result" are different abilities (B56)."""
    model = chat_model(input=("text", "image"), compat={"supports_images_in_tool_results": True})
    assert sent(USER, said(call(), model=model), result("c1", IMAGE), model=model)[2]["content"] == [{"type": "image_url", "image_url": URL}]


def test_an_empty_result_says_so() -> None:
    """B43: it can neither be dropped nor be empty."""
    empty = ToolResultMessage(tool_call_id="c1", tool_name="read", content=[])
    assert sent(USER, said(call()), empty)[2]["content"].strip()


def test_servers_that_want_more_around_results() -> None:
    """05 §4.2: a name on the result; an assistant message between a result and a user message."""
    named = chat_model(compat={"requires_tool_result_name": True})
    assert sent(USER, said(call(), model=named), result(), model=named)[2]["name"] == "read"
    filler = chat_model(compat={"requires_assistant_after_tool_result": True})
    roles = [m["role"] for m in sent(USER, said(call(), model=filler), result(), UserMessage(content="r"), model=filler)]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


def test_every_id_is_at_most_40_characters_and_pairs_match() -> None:
    """Decision 15: for all vendors, in calls and results alike."""
    history = (USER, said(call("call_" + "x" * 60), call("a|b"), call("a|c")), result("call_" + "x" * 60), result("a|b"), result("a|c"))
    messages = sent(*history)
    ids = [entry["id"] for entry in messages[1]["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in messages[2:]]
    assert len(set(ids)) == 3
    assert all(len(value) <= 40 and "|" not in value for value in ids)


def test_lone_surrogates_never_reach_the_wire() -> None:
    """B44, 05 sc. 146: in every text, name and argument; proper characters are untouched."""
    tool = ToolDeclaration(name="t", description="d\udcff", parameters={"description": "p\ud83d"})
    history = (
        SystemMessage(content="s\udc9f", tools_added=[tool]),
        UserMessage(content="u\ud83d 😀"),
        said(TextContent(text="a\ud83d"), call(path="\udcff.txt")),
        result("c1", TextContent(text="x\ud83d y")),
    )
    data = encode_json(body(*history))
    text = data.decode("utf-8", "strict")
    assert "😀" in text
    assert not any("\ud800" <= c <= "\udfff" for c in json.dumps(json.loads(data), ensure_ascii=False))


# ---------------------------------------------------------------------------------------------------- system messages in place


KIMI: dict[str, Any] = {
    "provider": "moonshotai",
    "base_url": "https://api.moonshot.ai/v1",
    "compat": {"supports_mid_convo_tool_additions": True},
}


def test_later_system_messages_stay_in_place_where_the_server_can() -> None:
    """05 §4.2: after the results, not between a call and its result; additions are declared in place, at the top only what was there first."""
    other = ToolDeclaration(name="other", description="", parameters={})
    model = chat_model(**KIMI)
    history = (
        SystemMessage(content="S", tools_added=[TOOL]), USER, said(call(), model=model), SystemMessage(content="now", tools_added=[other]), result(),
        UserMessage(content="r"),
    )  # fmt: skip
    found = body(*history, model=model)
    assert [t["function"]["name"] for t in found["tools"]] == ["read"]
    assert [m["role"] for m in found["messages"]] == ["system", "user", "assistant", "tool", "system", "system", "user"]
    assert found["messages"][4]["tools"][0]["function"]["name"] == "other"
    assert found["messages"][5]["content"] == "now"


def test_a_removal_folds_the_tools_into_the_top() -> None:
    """05 sc. 15: what is no longer true cannot stay declared in place."""
    model = chat_model(**KIMI)
    found = body(
        SystemMessage(content="S", tools_added=[TOOL]),
        USER,
        said(TextContent(text="a")),
        SystemMessage(content="x", tools_removed=["read"]),
        USER,
        model=model,
    )
    assert "tools" not in found
    assert [m["role"] for m in found["messages"]] == ["system", "user", "assistant", "system", "user"]


# ---------------------------------------------------------------------------------------------------- vendors


def test_openai_s_own_api() -> None:
    """05 sc. 90, 92: developer role for reasoning models, store false, the cache key cut to 64 characters and kept for a day."""
    model = chat_model(provider="openai", base_url="https://api.openai.com/v1", reasoning=True)
    found = body(SystemMessage(content="S"), USER, model=model, session_id="s" * 70, cache_retention="long")
    assert found["messages"][0]["role"] == "developer"
    assert found["store"] is False
    assert (found["prompt_cache_key"], found["prompt_cache_retention"]) == ("s" * 64, "24h")
    assert "prompt_cache_key" not in body(USER, model=model, session_id="s", cache_retention="none")
    assert body(SystemMessage(content="S"), USER, model=chat_model(reasoning=True))["messages"][0]["role"] == "system"
    assert "prompt_cache_key" not in body(USER, session_id="s", cache_retention="long")


def test_deepseek() -> None:
    """05 sc. 91: max_tokens, thinking disabled, empty reasoning_content on assistants, system role, no store."""
    model = chat_model(provider="deepseek", base_url="https://api.deepseek.com", reasoning=True)
    found = body(SystemMessage(content="S"), USER, said(call(), model=model), result(), model=model, max_tokens=5)
    assert found["max_tokens"] == 5
    assert found["thinking"] == {"type": "disabled"}
    assert found["messages"][0]["role"] == "system"
    assert found["messages"][2]["reasoning_content"] == ""
    assert "store" not in found
    assert body(USER, model=model, reasoning="high")["thinking"] == {"type": "enabled"}
    assert body(USER, model=model, reasoning="high")["reasoning_effort"] == "high"


@pytest.mark.parametrize(("retention", "marker"), [("short", {"type": "ephemeral"}), ("long", {"type": "ephemeral", "ttl": "1h"})])
def test_openrouter_marks_the_cache_for_anthropic_models(retention: Any, marker: dict[str, str]) -> None:
    """05 sc. 101: system prompt, last tool, last message with text; the shared messages stay unmarked."""
    model = chat_model(provider="openrouter", id="anthropic/claude", base_url="https://openrouter.ai/api/v1")
    history = (SystemMessage(content="S", tools_added=[TOOL]), USER, said(call(), model=model), result())
    found = body(*history, model=model, cache_retention=retention)
    assert found["messages"][0]["content"] == [{"type": "text", "text": "S", "cache_control": marker}]
    assert found["tools"][-1]["cache_control"] == marker
    assert found["messages"][-1]["content"] == [{"type": "text", "text": "ok", "cache_control": marker}]
    assert "cache_control" not in json.dumps(body(*history, model=model, cache_retention="none"))


MAPPED = {"low": "LOW", "off": "none"}
NO_OFF = {"off": None}
FORMATS: list[tuple[str, dict[str, str | None], str | None, dict[str, Any]]] = [
    ("openai", {}, "low", {"reasoning_effort": "low"}),
    ("openai", MAPPED, "low", {"reasoning_effort": "LOW"}),
    ("openai", {}, None, {}),
    ("openai", MAPPED, None, {"reasoning_effort": "none"}),
    ("openrouter", {}, "low", {"reasoning": {"effort": "low"}}),
    ("openrouter", {}, None, {"reasoning": {"effort": "none"}}),
    ("openrouter", NO_OFF, None, {"reasoning": {"effort": "minimal"}}),
    ("deepseek", {}, "low", {"thinking": {"type": "enabled"}, "reasoning_effort": "low"}),
    ("deepseek", {}, None, {"thinking": {"type": "disabled"}}),
    ("together", {}, "low", {"reasoning": {"enabled": True}, "reasoning_effort": "low"}),
    ("together", {}, None, {"reasoning": {"enabled": False}}),
    ("zai", {}, "low", {"thinking": {"type": "enabled", "clear_thinking": False}}),
    ("zai", MAPPED, "low", {"thinking": {"type": "enabled", "clear_thinking": False}, "reasoning_effort": "LOW"}),
    ("zai", {}, None, {"thinking": {"type": "disabled"}}),
    ("qwen", {}, "low", {"enable_thinking": True, "reasoning_effort": "low"}),
    ("qwen", {}, None, {"enable_thinking": False}),
    ("qwen-chat-template", {}, "low", {"chat_template_kwargs": {"enable_thinking": True, "preserve_thinking": True}}),
    ("qwen-chat-template", {}, None, {"chat_template_kwargs": {"enable_thinking": False, "preserve_thinking": True}}),
    ("string-thinking", MAPPED, "low", {"thinking": "LOW"}),
    ("string-thinking", {}, None, {"thinking": "none"}),
    ("ant-ling", MAPPED, "low", {"reasoning": {"effort": "LOW"}}),
    ("ant-ling", {}, "low", {}),
    ("ant-ling", {}, None, {}),
    ("none", {}, "low", {}),
]


@pytest.mark.parametrize(("format", "levels", "level", "expected"), FORMATS)
def test_each_thinking_format(format: str, levels: dict[str, str | None], level: Any, expected: dict[str, Any]) -> None:
    """05 §4.2: one row per format and state."""
    model = chat_model(reasoning=True, thinking_levels=levels, compat={"thinking_format": format})
    found = body(USER, model=model, reasoning=level)
    thinking = {key: value for key, value in found.items() if key not in ("model", "stream", "stream_options", "messages")}
    assert thinking == expected


def test_a_model_that_does_not_reason_gets_no_thinking_field() -> None:
    """Whatever was asked for."""
    found = body(USER, model=chat_model(compat={"thinking_format": "deepseek"}), reasoning="high")
    assert set(found) == {"model", "stream", "stream_options", "messages"}


def test_template_values_are_filled_in() -> None:
    """05 sc. 99: variables resolved, entries marked omitWhenOff dropped while off."""
    template = {
        "think": {"$var": "thinking.enabled"},
        "effort": {"$var": "thinking.effort", "omitWhenOff": True},
        "budget": {"$var": "thinking.budget"},
        "k": [1],
    }
    model = chat_model(reasoning=True, compat={"thinking_format": "chat-template", "chat_template_kwargs": template})
    assert body(USER, model=model, reasoning="high")["chat_template_kwargs"] == {"think": True, "effort": "high", "budget": 16384, "k": [1]}
    assert body(USER, model=model)["chat_template_kwargs"] == {"think": False, "budget": 0, "k": [1]}
    baseten = chat_model(
        reasoning=True, thinking_levels=MAPPED, compat={"thinking_format": "baseten", "chat_template_args": {"t": {"$var": "thinking.enabled"}}}
    )
    assert body(USER, model=baseten, reasoning="low")["chat_template_args"] == {"t": True}
    assert body(USER, model=baseten)["reasoning_effort"] == "none"
    bad = chat_model(reasoning=True, compat={"thinking_format": "chat-template", "chat_template_kwargs": {"x": {"$var": "nope"}}})
    with pytest.raises(ModelError, match="nope"):
        body(USER, model=bad)


@pytest.mark.parametrize(("limit", "expected"), [(2000, 976), (1000, None), (None, 8192)])
def test_the_thinking_budget_leaves_room_for_the_answer(limit: int | None, expected: int | None) -> None:
    """05 sc. 100."""
    model = chat_model(reasoning=True, compat={"thinking_budget_field": "thinking_budget"})
    assert body(USER, model=model, reasoning="medium", max_tokens=limit).get("thinking_budget") == expected
    assert "thinking_budget" not in body(USER, model=model)


def test_routing_fields_pass() -> None:
    """05 §4.2: routers' own fields."""
    compat = {
        "vllm_priority": 3, "open_router_routing": {"only": ["a"]}, "vercel_gateway_routing": {"order": ["b"], "x": 1}, "extra_body": {"y": 2},
        "zai_tool_stream": True,
    }  # fmt: skip
    found = body(SystemMessage(tools_added=[TOOL]), USER, model=chat_model(compat=compat))
    assert (found["priority"], found["provider"], found["providerOptions"], found["y"]) == (3, {"only": ["a"]}, {"gateway": {"order": ["b"]}}, 2)
    assert found["tool_stream"] is True


def test_encoding_changes_nothing_it_was_given() -> None:
    """Pure: messages, tools and options are as before."""
    history = [SystemMessage(content="S", tools_added=[TOOL]), USER, said(call(path="x")), result("c1", IMAGE)]
    before = [repr(message) for message in history]
    body(*history, model=chat_model(input=("text", "image")))
    assert [repr(message) for message in history] == before
