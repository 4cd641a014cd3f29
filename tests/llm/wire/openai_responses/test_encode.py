"""Transcript → body of a Responses request."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from msgspec.structs import replace

from laneway.errors import ModelError
from laneway.llm._transform import IMAGE_PLACEHOLDER, encode_body, legal_tool_name
from laneway.llm.base import Model, StreamOptions, Transcript, encode_json
from laneway.llm.wire.openai_responses import ResponsesCompat, encode, resolve_compat
from laneway.llm.wire.openai_responses.encode import affinity_headers
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
    ToolGrammar,
    ToolResultMessage,
    UserMessage,
)
from llm.wire.openai_responses.protocol import model, reasoning

USER = UserMessage(content="q")
ASKED = {"role": "user", "content": [{"type": "input_text", "text": "q"}]}
TOOL = ToolDeclaration(name="read", description="Reads.", parameters={"type": "object", "properties": {"path": {"type": "string"}}})
OTHER = ToolDeclaration(name="other", description="Other.", parameters={})
IMAGE = ImageContent(data="aGk=", mime_type="image/png")
PICTURE = {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,aGk="}
SEES = model(input=("text", "image"))
THINKS = model(reasoning=True)
MID = model(compat={"supports_mid_convo_system_messages": True})
LATER = model(compat={"supports_mid_convo_system_messages": True, "supports_additional_tools": True})
STEP = ThinkingContent(thinking="r", signature=json.dumps(reasoning("r")))


def body(*messages: Message, of: Model | None = None, **options: Any) -> dict[str, Any]:
    """The request body."""
    return encode(of or model(), Transcript(messages=list(messages)), StreamOptions(**options))


def sent(*messages: Message, of: Model | None = None, **options: Any) -> list[dict[str, Any]]:
    """The input items of the request body."""
    return list(body(*messages, of=of, **options)["input"])


def said(*content: AssistantContent, of: Model | None = None) -> AssistantMessage:
    """A response of the model itself."""
    of = of or model()
    return AssistantMessage(content=list(content), api=of.api, provider=of.provider, model=of.id)


def foreign(*content: AssistantContent, **fields: Any) -> AssistantMessage:
    """A response of another model."""
    return AssistantMessage(content=list(content), **{"api": "anthropic_messages", "provider": "anthropic", "model": "claude", **fields})


def call(call_id: str = "call_1|fc_1", **arguments: Any) -> ToolCall:
    """A call of the tool."""
    return ToolCall(id=call_id, name="read", arguments=arguments)


def result(call_id: str = "call_1|fc_1", *content: TextContent | ImageContent, **fields: Any) -> ToolResultMessage:
    """Its result."""
    return ToolResultMessage(tool_call_id=call_id, tool_name="read", content=list(content or (TextContent(text="ok"),)), **fields)


def phrase(value: str, item_id: str = "msg_1") -> TextContent:
    """A text with the id of its item."""
    return TextContent(text=value, signature=json.dumps({"v": 1, "id": item_id, "phase": "commentary"}))


# ---------------------------------------------------------------------------------------------------- the body


def test_a_simple_request() -> None:
    """Nothing is stored at the provider, and nothing is null."""
    assert body(SystemMessage(content="S"), USER) == {
        "model": "m",
        "stream": True,
        "store": False,
        "input": [{"role": "system", "content": "S"}, ASKED],
    }
    assert b"null" not in encode_json(body(SystemMessage(content="S"), USER, said(call(x=1)), result()))


def test_a_longer_conversation_s_bytes_begin_with_the_shorter_one_s() -> None:
    """05 §10.6: prompt caches go by the prefix; the input stands last in the body."""
    messages: list[Message] = [SystemMessage(content="S", tools_added=[TOOL]), USER, said(STEP, phrase("a"), call(path="x"), call("c2"))]
    messages += [result(), result("c2"), UserMessage(content="r"), said(TextContent(text="b"))]
    bodies = [encode_body(body(*messages[:n])) for n in (2, 5, 6, 7)]
    for shorter, longer in itertools.pairwise(bodies):
        assert longer.startswith(shorter[:-2])
    assert encode_body(body(*messages)) == encode_json(json.loads(bodies[-1])) == bodies[-1]


def test_options_become_fields() -> None:
    """05 sc. 106: the least limit is 16; sampling parameters win over everything."""
    found = body(
        SystemMessage(tools_added=[TOOL]), USER, temperature=0.5, max_tokens=5, tool_choice="auto",
        sampling_params={"temperature": 1, "service_tier": "flex", "top_p": None},
    )  # fmt: skip
    assert (found["temperature"], found["max_output_tokens"], found["tool_choice"], found["service_tier"], found["store"]) == (
        1,
        16,
        "auto",
        "flex",
        False,
    )
    assert "top_p" not in found
    assert list(found)[-1] == "input"
    assert "max_output_tokens" not in body(USER, max_tokens=5, of=model(compat={"supports_max_output_tokens": False}))


@pytest.mark.parametrize(
    ("choice", "wire"),
    [
        ("none", "none"), ("required", "required"), ("any", "required"), ("read", {"type": "function", "name": "read"}),
        ({"name": "read"}, {"type": "function", "name": "read"}), ({"type": "mcp", "server_label": "x"},) * 2,
    ],
)  # fmt: skip
def test_tool_choices(choice: Any, wire: Any) -> None:
    """The protocol's words pass; a tool's name becomes the object that the protocol wants."""
    assert body(SystemMessage(tools_added=[TOOL]), USER, tool_choice=choice)["tool_choice"] == wire
    assert "tool_choice" not in body(USER, tool_choice=choice)


@pytest.mark.parametrize(
    ("retention", "compat", "expected"),
    [
        ("none", {}, {}), ("short", {}, {"prompt_cache_key": "s" * 64}),
        ("long", {}, {"prompt_cache_key": "s" * 64, "prompt_cache_retention": "24h"}),
        ("long", {"supports_long_cache_retention": False}, {"prompt_cache_key": "s" * 64}),
        ("none", {"supports_explicit_prompt_cache_mode": True}, {"prompt_cache_options": {"mode": "explicit"}}),
        ("short", {"supports_explicit_prompt_cache_mode": True}, {"prompt_cache_key": "s" * 64}),
        ("long", {"supports_explicit_prompt_cache_mode": True}, {"prompt_cache_key": "s" * 64, "prompt_cache_options": {"ttl": "30m"}}),
    ],
)  # fmt: skip
def test_the_prompt_cache_is_steered(retention: Any, compat: dict[str, Any], expected: dict[str, Any]) -> None:
    """05 §4.3, §11.18: a key of at most 64 characters, none where nothing is to be cached."""
    found = body(USER, of=model(compat=compat), cache_retention=retention, session_id="s" * 70)
    assert {key: value for key, value in found.items() if key.startswith("prompt_cache")} == expected


def test_strict_tools() -> None:
    """05 sc. 69: where the server knows the word it is always said, because without it a schema is taken for strict."""
    strict = ToolDeclaration(name="s", description="", parameters=TOOL.parameters, strict=True)
    loose = ToolDeclaration(name="l", description="", parameters={"type": "object", "properties": {"p": {"$ref": "#/x"}}}, strict=True)
    found = body(SystemMessage(tools_added=[TOOL, strict, loose, OTHER]), USER, of=model(provider="openai"))["tools"]
    assert [tool["strict"] for tool in found] == [False, True, False, False]
    assert (found[1]["parameters"]["required"], found[3]["parameters"]) == (["path"], {"type": "object", "properties": {}})
    assert all("strict" not in tool for tool in body(SystemMessage(tools_added=[TOOL, strict]), USER)["tools"])


# ---------------------------------------------------------------------------------------------------- thinking


@pytest.mark.parametrize(
    ("fields", "level", "expected"),
    [
        ({}, "high", ({"effort": "high", "summary": "auto"}, True)), ({}, None, ({"effort": "none"}, False)),
        ({"thinking_levels": {"off": None}}, None, ({"effort": "minimal", "summary": "auto"}, True)),
        ({"thinking_levels": {"max": "max", "off": "low"}}, "max", ({"effort": "max", "summary": "auto"}, True)),
        ({"thinking_levels": {"off": "low"}}, None, ({"effort": "low"}, False)), ({"provider": "github-copilot"}, None, (None, False)),
        ({"provider": "xai"}, None, ({"effort": "none"}, True)),
        ({"compat": {"supports_reasoning_effort": False}}, "low", ({"summary": "auto"}, True)),
        ({"compat": {"reasoning_summary": None}}, "low", ({"effort": "low"}, True)),
    ],
)  # fmt: skip
def test_thinking_is_asked_for_in_a_form_that_can_be_sent_back(fields: dict[str, Any], level: Any, expected: tuple[Any, bool]) -> None:
    """05 sc. 106, B40: effort and summary, and the encrypted form."""
    found = body(USER, of=model(reasoning=True, **fields), reasoning=level)
    assert (found.get("reasoning"), found.get("include") == ["reasoning.encrypted_content"]) == expected
    assert not {"reasoning", "include"} & body(USER, reasoning="high").keys()


# ---------------------------------------------------------------------------------------------------- system and tools


def test_the_prompt_is_the_developer_s_for_a_model_that_reasons() -> None:
    """And the system's for others, and where the server does not know developers."""
    assert sent(SystemMessage(content="S"), USER, of=THINKS)[0] == {"role": "developer", "content": "S"}
    assert sent(SystemMessage(content="S"), USER, of=model(reasoning=True, compat={"supports_developer_role": False}))[0]["role"] == "system"
    assert sent(USER) == [ASKED]


def test_changes_are_collapsed_where_the_model_cannot_take_them() -> None:
    """One merged prompt, the current tools at the top."""
    messages = (
        SystemMessage(content="S", tools_added=[TOOL]),
        USER,
        SystemMessage(content="more", tools_removed=["read"], tools_added=[OTHER]),
        USER,
    )
    found = body(*messages)
    assert found["input"] == [{"role": "system", "content": "S\n\nmore"}, ASKED, ASKED]
    assert [tool["name"] for tool in found["tools"]] == ["other"]


PATCH = ToolDeclaration(
    name="my.patch", description="Patches.", parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    grammar=ToolGrammar(lark="start: /.+/", regex=".+"),
)  # fmt: skip
PATCH_NAME = legal_tool_name("my.patch")
GRAMMAR = model(compat={"supports_grammar_tools": True})


def test_a_grammar_tool_is_declared_with_its_grammar_where_the_model_can() -> None:
    """05 §1.8: Lark before a regular expression; elsewhere it is a function like others; a choice names it as what it is."""
    found = body(SystemMessage(tools_added=[PATCH]), USER, of=GRAMMAR, tool_choice="my.patch")
    form = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    assert found["tools"] == [{"type": "custom", "name": PATCH_NAME, "description": "Patches.", "format": form}]
    assert found["tool_choice"] == {"type": "custom", "name": PATCH_NAME}
    plain = body(SystemMessage(tools_added=[PATCH]), USER, tool_choice={"name": "my.patch"})
    assert plain["tools"][0]["parameters"] == PATCH.parameters
    assert plain["tool_choice"] == {"type": "function", "name": PATCH_NAME}
    regex = replace(PATCH, grammar=ToolGrammar(regex="a+"))
    assert body(SystemMessage(tools_added=[regex]), USER, of=GRAMMAR)["tools"][0]["format"]["syntax"] == "regex"


@pytest.mark.parametrize(
    "tool",
    [
        replace(PATCH, grammar=ToolGrammar()),
        replace(PATCH, parameters={"type": "object", "properties": {"text": {"type": "string"}}}),
        replace(PATCH, parameters={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
        replace(PATCH, parameters={"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a", "b"]}),
    ],
    ids=["empty", "optional", "number", "two"],
)
def test_a_grammar_that_cannot_be_used_is_an_error_that_names_the_tool(tool: ToolDeclaration) -> None:
    """05 §1.8: only where the model could have used it."""
    with pytest.raises(ModelError, match=r"my\.patch"):
        body(SystemMessage(tools_added=[tool]), USER, of=GRAMMAR)
    assert body(SystemMessage(tools_added=[tool]), USER)["tools"][0]["type"] == "function"


def test_calls_of_grammar_tools_and_their_results_are_what_they_were() -> None:
    """05 §4.3, §11.21: raw text, and a result of the call's own type; of other models too, and when the tool is gone; keyed on the call."""
    own = ToolCall(id="call_1|ctc_1", name="my.patch", arguments={"text": "a"})
    other = foreign(ToolCall(id="toolu_2", name="my.patch", arguments={"text": "b"}))
    broken = foreign(ToolCall(id="toolu_3", name="my.patch", arguments={}, arguments_error="no JSON"))
    messages = (
        SystemMessage(tools_added=[PATCH]), USER, said(own, of=GRAMMAR), result("call_1|ctc_1"), SystemMessage(tools_removed=["my.patch"]), other,
        result("toolu_2"), broken, result("toolu_3"),
    )  # fmt: skip
    found = sent(*messages, of=GRAMMAR)[1:]
    raw = {"type": "custom_tool_call", "name": PATCH_NAME}
    assert found[0] == {**raw, "id": "ctc_1", "call_id": "call_1", "input": "a"}
    assert found[2] == {**raw, "call_id": "toolu_2", "input": "b"}
    assert [item["type"] for item in found[1::2]] == ["custom_tool_call_output", "custom_tool_call_output", "function_call_output"]
    unable = [item["type"] for item in sent(*messages)[1:]]
    assert unable == ["custom_tool_call", "custom_tool_call_output", *["function_call", "function_call_output"] * 2]  # its own stays what it was


def test_later_tools_come_as_found_where_there_is_no_item_for_them() -> None:
    """05 §4.3: a search of the client's that has ended, the same in every request; an item of their own is preferred."""
    first, second, third = (SystemMessage(tools_added=[tool]) for tool in (TOOL, OTHER, PATCH))
    messages = (first, USER, second, USER, third, USER)
    both = {"supports_mid_convo_system_messages": True, "supports_tool_search": True, "supports_grammar_tools": True}
    found = body(*messages, of=model(compat=both))
    assert [tool["name"] for tool in found["tools"]] == ["read"]
    search, output, _, later, patch, _ = found["input"][1:]
    assert (search["type"], output["type"]) == ("tool_search_call", "tool_search_output")
    assert search["call_id"] == output["call_id"] != later["call_id"]
    assert (search["execution"], search["status"], search["arguments"]) == ("client", "completed", {"query": "other"})
    assert [(tool["name"], tool["defer_loading"]) for tool in output["tools"]] == [("other", True)]
    assert [(tool["type"], tool["name"]) for tool in patch["tools"]] == [("custom", PATCH_NAME)]
    assert body(*messages, of=model(compat=both)) == found
    assert body(*messages[:4], of=model(compat=both))["input"] == found["input"][:4]
    preferred = body(*messages, of=model(compat={**both, "supports_additional_tools": True}))
    assert [item["type"] for item in preferred["input"] if "type" in item] == ["additional_tools"] * 2


def test_changes_stay_where_they_are_where_the_model_can_take_them() -> None:
    """A later instruction in its place, after the results of a call; later tools in an item of their own."""
    messages = (SystemMessage(content="S", tools_added=[TOOL]), USER, said(call()), SystemMessage(content="now", tools_added=[OTHER]), result())
    assert [item.get("content", item.get("type")) for item in sent(*messages, of=MID)][-2:] == ["function_call_output", "now"]
    found = body(*messages, of=LATER)
    assert [tool["name"] for tool in found["tools"]] == ["read"]
    assert found["input"][-2]["type"] == "additional_tools"
    assert (found["input"][-2]["role"], [tool["name"] for tool in found["input"][-2]["tools"]]) == ("developer", ["other"])
    assert found["input"][-1] == {"role": "system", "content": "now"}
    shorter = encode_body(body(*messages[:2], of=LATER))
    assert encode_body(found).startswith(shorter[:-2])


def test_a_removal_folds_the_tools_into_the_top() -> None:
    """A model must not be able to call what was taken away; additions after it are in place again."""
    messages: list[Message] = [SystemMessage(tools_added=[TOOL]), USER, SystemMessage(content="x", tools_removed=["read"], tools_added=[OTHER]), USER]
    third = ToolDeclaration(name="third", description="", parameters={})
    found = body(*messages, SystemMessage(tools_added=[third]), of=LATER)
    assert [tool["name"] for tool in found["tools"]] == ["other"]
    assert [tool["name"] for item in found["input"] for tool in item.get("tools", ())] == ["third"]


# ---------------------------------------------------------------------------------------------------- input items


def test_own_items_go_back_as_they_came() -> None:
    """B37 (a), B40: reasoning verbatim, then the items that it led to, with their ids."""
    items = sent(USER, said(STEP, phrase("a"), call(path="ü")), result())
    assert items[1:] == [
        reasoning("r"),
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": "commentary",
         "content": [{"type": "output_text", "text": "a", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "read", "arguments": '{"path":"ü"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "ok"},
    ]  # fmt: skip
    old = sent(USER, said(TextContent(text="a", signature="msg_old")), USER)[1]
    assert (old["id"], "phase" in old) == ("msg_old", False)


@pytest.mark.parametrize(
    "broken",
    [
        ThinkingContent(thinking="r", signature=json.dumps(reasoning("r", encrypted=None))),
        ThinkingContent(thinking="r", signature="reasoning_content"),
        ThinkingContent(thinking="r", signature='{"type":"other","encrypted_content":"E","id":"x"}'), ThinkingContent(thinking="r", signature="["),
        ThinkingContent(thinking="r"),
    ],
)  # fmt: skip
def test_reasoning_that_cannot_go_back_takes_the_ids_with_it(broken: ThinkingContent) -> None:
    """B40: the pair is valid only as a whole; the call's own id stays. A good step after it is whole again. 05 §11.19."""
    items = sent(USER, said(broken, phrase("a"), call()), result())
    assert items[1] == {"role": "assistant", "content": "a", "phase": "commentary"}
    assert [("id" in item, item.get("call_id")) for item in items[2:]] == [(False, "call_1"), (False, "call_1")]
    again = sent(USER, said(broken, call("c0|fc_0"), STEP, call()), result("c0|fc_0"), result())
    assert [item.get("id") for item in again[1:4]] == [None, "rs_1", "fc_1"]


def test_reasoning_without_what_followed_is_left_out() -> None:
    """B40: alone at the end, or before an item without an id of its own; in a row it stays together."""
    assert sent(USER, said(STEP), USER) == [ASKED, ASKED]
    items = sent(USER, said(STEP, TextContent(text="a"), call()), result())
    assert [item.get("id") for item in items[1:3]] == [None, None]
    second = ThinkingContent(thinking="", signature=json.dumps(reasoning(item_id="rs_2")))
    assert [item.get("id") for item in sent(USER, said(STEP, second, call()), result())[1:4]] == ["rs_1", "rs_2", "fc_1"]


def test_another_model_s_answers_lose_what_was_only_for_it() -> None:
    """05 sc. 107, 112, B37 (c), (d): thinking, item ids and phases; also of another model of the same provider."""
    for other in (foreign(STEP, phrase("a"), call()), foreign(STEP, phrase("a"), call(), api="openai_responses", provider="test", model="m2")):
        items = sent(USER, other, result())
        assert items[1] == {"role": "assistant", "content": "a"}
        assert items[2] == {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": "{}"}
    assert sent(USER, said(STEP, call()), result(), foreign(TextContent(text="b")), USER)[1] == reasoning("r")


def test_foreign_ids_become_legal_and_stay_apart() -> None:
    """Decision 15, B36: at most 64 characters, distinct before the bar, the same in call and result and in every request."""
    ids = ["toolu_1", "call_1|fc_1", "call_1|fc_2", "x" * 80, "a b|fc_3"]
    messages = (USER, foreign(*(call(i) for i in ids)), *(result(i) for i in ids))
    items = sent(*messages)[1:]
    calls = [item["call_id"] for item in items[:5]]
    assert calls == [item["call_id"] for item in items[5:]]
    assert len(set(calls)) == 5
    assert calls[:2] == ["toolu_1", "call_1"]
    assert all(len(i) <= 64 and i.replace("_", "").isalnum() for i in calls)
    assert [item["call_id"] for item in sent(*messages, USER)[1:6]] == calls


def test_ids_that_do_not_fit_their_item_are_left_out() -> None:
    """A call's item begins with fc, a message's with msg; too long is no id."""
    items = sent(USER, said(phrase("a", "item_1"), phrase("b", "msg_" + "x" * 70), call("c1|item_9")), result("c1|item_9"))
    assert all("id" not in item for item in items)


def test_custom_calls_keep_their_form() -> None:
    """05 §11.21: keyed on the call, not on a name that may have changed; for another model it is an ordinary call."""
    raw = ToolCall(id="call_1|ctc_1", name="patch", arguments={"input": 'a"b'})
    items = sent(USER, said(raw), result("call_1|ctc_1"))
    assert items[1] == {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "patch", "input": 'a"b'}
    assert items[2] == {"type": "custom_tool_call_output", "call_id": "call_1", "output": "ok"}
    assert [item["type"] for item in sent(USER, foreign(raw), result("call_1|ctc_1"))[1:]] == ["function_call", "function_call_output"]


def test_nothing_blank_is_ever_sent() -> None:
    """B42, B43: empty turns are left out, a silent tool says so."""
    for blank in (said(), said(TextContent(text="")), said(TextContent(text=" \n")), foreign(ThinkingContent(thinking="x"))):
        assert sent(USER, blank, USER) == [ASKED, ASKED]
    assert sent(USER, said(call()), result("call_1|fc_1", TextContent(text="")))[-1]["output"] == "(no output)"


def test_orphans_and_failed_turns_are_healed() -> None:
    """05 sc. 121, 122, 124."""
    broken = AssistantMessage(content=[call("c9")], stop_reason="error")
    items = sent(USER, said(call("c1"), call("c2")), result("c2"), broken, result("c9"), USER)
    assert [item.get("call_id") for item in items] == [None, "c1", "c2", "c1", "c2", None]
    assert items[3]["output"]


def test_images_in_and_out_of_results() -> None:
    """05 sc. 107: users' and tools' images as data URLs; a model that cannot see gets a note (sc. 119)."""
    messages = (UserMessage(content=[TextContent(text="look"), IMAGE]), said(call(), of=SEES), result("call_1|fc_1", TextContent(text="t"), IMAGE))
    items = sent(*messages, of=SEES)
    assert items[0]["content"] == [{"type": "input_text", "text": "look"}, PICTURE]
    assert items[2]["output"] == [{"type": "input_text", "text": "t"}, PICTURE]
    assert sent(*messages)[2]["output"] == f"t\n{IMAGE_PLACEHOLDER}"


def test_half_characters_never_reach_the_wire() -> None:
    """B44, 05 sc. 146."""
    messages = (
        SystemMessage(content="p\udc9f"),
        UserMessage(content="😀 \udc9f"),
        said(call(p="x\ud83d")),
        result("call_1|fc_1", TextContent(text="\ud83d y")),
    )
    raw = encode_body(body(*messages))
    assert "😀" in raw.decode()
    assert json.loads(json.loads(raw)["input"][2]["arguments"]) == {"p": "x\ufffd"}


# ---------------------------------------------------------------------------------------------------- compat


def test_session_headers() -> None:
    """Where the server knows them, and not without caching."""
    session = StreamOptions(session_id="s")
    assert affinity_headers(session, ResponsesCompat()) == {"session-id": "s", "x-client-request-id": "s"}
    assert affinity_headers(session, ResponsesCompat(session_affinity_format="openai-nosession")) == {"x-client-request-id": "s"}
    assert affinity_headers(session, ResponsesCompat(session_affinity_format="openrouter")) == {"x-session-id": "s"}
    for options in (StreamOptions(), StreamOptions(session_id="s", cache_retention="none")):
        assert affinity_headers(options, ResponsesCompat()) == {}


def test_a_wrong_flag_is_named() -> None:
    """A typo in a model's compat is no silent default; a right one wins over the server's row."""
    with pytest.raises(ModelError, match="no_such"):
        body(USER, of=model(compat={"no_such": 1}))
    assert resolve_compat(model(provider="x", base_url="https://api.openai.com/v1")).supports_strict_mode
    assert not resolve_compat(model(provider="openai", compat={"supports_strict_mode": False})).supports_strict_mode
