"""Transcript → body of a messages request."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from laneway.errors import ModelError
from laneway.llm._transform import IMAGE_PLACEHOLDER, encode_body
from laneway.llm.base import Model, StreamOptions, Transcript, encode_json
from laneway.llm.wire.anthropic_messages import encode, resolve_compat
from laneway.llm.wire.anthropic_messages.encode import betas
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
from llm.wire.anthropic_messages.protocol import model

USER = UserMessage(content="q")
TOOL = ToolDeclaration(name="read", description="Reads.", parameters={"type": "object", "properties": {"path": {"type": "string"}}})
OTHER = ToolDeclaration(name="other", description="Other.", parameters={})
IMAGE = ImageContent(data="aGk=", mime_type="image/png")
SOURCE = {"type": "base64", "media_type": "image/png", "data": "aGk="}
MARK = {"type": "ephemeral"}
SEES = model(input=("text", "image"))
MID = model(compat={"supports_mid_convo_system_messages": True})
NATIVE = model(compat={"supports_mid_convo_system_messages": True, "supports_mid_convo_tool_changes": True})
THINKS = model(reasoning=True)
ADAPTIVE = model(reasoning=True, compat={"force_adaptive_thinking": True})


def body(*messages: Message, of: Model | None = None, **options: Any) -> dict[str, Any]:
    """The request body, without cache markers unless they are asked for."""
    options.setdefault("cache_retention", "none")
    return encode(of or model(), Transcript(messages=list(messages)), StreamOptions(**options))


def sent(*messages: Message, of: Model | None = None, **options: Any) -> list[dict[str, Any]]:
    """The messages of the request body."""
    return list(body(*messages, of=of, **options)["messages"])


def said(*content: AssistantContent, of: Model | None = None, **fields: Any) -> AssistantMessage:
    """A response of the model itself."""
    of = of or model()
    return AssistantMessage(content=list(content), api=of.api, provider=of.provider, model=of.id, **fields)


def foreign(*content: AssistantContent) -> AssistantMessage:
    """A response of another model."""
    return AssistantMessage(content=list(content), api="openai_responses", provider="openai", model="gpt")


def call(call_id: str = "c1", **arguments: Any) -> ToolCall:
    """A call of the tool."""
    return ToolCall(id=call_id, name="read", arguments=arguments)


def result(call_id: str = "c1", *content: TextContent | ImageContent, **fields: Any) -> ToolResultMessage:
    """Its result."""
    return ToolResultMessage(tool_call_id=call_id, tool_name="read", content=list(content or (TextContent(text="ok"),)), **fields)


def words(value: str) -> dict[str, Any]:
    """A text block."""
    return {"type": "text", "text": value}


# ---------------------------------------------------------------------------------------------------- the body


def test_a_simple_request() -> None:
    """What everybody understands, and nothing that is null."""
    assert body(SystemMessage(content="S"), USER) == {
        "model": "m", "max_tokens": 8000, "stream": True, "system": [words("S")], "messages": [{"role": "user", "content": [words("q")]}],
    }  # fmt: skip
    assert b"null" not in encode_json(body(SystemMessage(content="S"), USER, said(call(x=1)), result()))


def test_a_longer_conversation_s_bytes_begin_with_the_shorter_one_s() -> None:
    """05 §10.6: prompt caches go by the prefix; the messages stand last in the body."""
    messages: list[Message] = [SystemMessage(content="S", tools_added=[TOOL]), USER, said(TextContent(text="a"), call(path="x"), call("c2"))]
    messages += [result(), result("c2"), UserMessage(content="r"), said(TextContent(text="b"))]
    bodies = [encode_body(body(*messages[:n])) for n in (2, 5, 6, 7)]
    for shorter, longer in itertools.pairwise(bodies):
        assert longer.startswith(shorter[:-2])
    assert encode_body(body(*messages)) == encode_json(json.loads(bodies[-1])) == bodies[-1]


def test_cache_markers_do_not_change_what_is_cached() -> None:
    """Without the markers the bytes of a long conversation begin with those of the short one."""
    messages: list[Message] = [
        SystemMessage(content="S", tools_added=[TOOL]),
        USER,
        said(call(path="x")),
        result(),
        said(TextContent(text="b")),
        USER,
    ]
    marked = [body(*messages[:n], cache_retention="short") for n in (2, 4, 6)]
    bare = [json.dumps(one).replace(', "cache_control": {"type": "ephemeral"}', "") for one in marked]
    for shorter, longer in itertools.pairwise(bare):
        assert longer.startswith(shorter[:-2])


def test_options_become_fields() -> None:
    """Temperature, output limit, user, tool choice; sampling parameters win (and may be the protocol's own)."""
    found = body(
        SystemMessage(tools_added=[TOOL]), USER, temperature=0.5, max_tokens=100, metadata={"user_id": "u", "x": 1}, tool_choice="auto",
        sampling_params={"temperature": 1, "top_k": 5, "stop_sequences": ["x"], "top_p": None},
    )  # fmt: skip
    assert (found["temperature"], found["max_tokens"], found["metadata"], found["top_k"]) == (1, 100, {"user_id": "u"}, 5)
    assert found["tool_choice"] == {"type": "auto"}
    assert "top_p" not in found
    assert list(found)[-1] == "messages"
    assert "metadata" not in body(USER, metadata={"user_id": 5})


def test_a_limit_is_always_sent() -> None:
    """The protocol insists on one; the window and the model's own limit are kept."""
    assert body(USER, of=model(max_tokens=0))["max_tokens"] == 8192
    assert body(USER, of=model(max_tokens=5000, context_window=6000))["max_tokens"] < 2000
    assert body(USER, max_tokens=7)["max_tokens"] == 7


@pytest.mark.parametrize(
    ("choice", "wire"),
    [
        ("none", {"type": "none"}), ("any", {"type": "any"}), ("required", {"type": "any"}), ("read", {"type": "tool", "name": "read"}),
        ({"name": "my.read"}, {"type": "tool", "name": "my_read_34e42b6e"}), ({"type": "auto", "disable_parallel_tool_use": True},) * 2,
    ],
)  # fmt: skip
def test_tool_choices(choice: Any, wire: Any) -> None:
    """The protocol's words pass; a tool's name becomes the object that the protocol wants; nothing without tools."""
    found = body(SystemMessage(tools_added=[TOOL]), USER, tool_choice=choice)["tool_choice"]
    assert found.keys() == wire.keys()
    assert found["type"] == wire["type"]
    assert "tool_choice" not in body(USER, tool_choice=choice)


def test_a_schema_keeps_what_its_references_need() -> None:
    """05 §11.25: `$defs` stay; combinators at the root, which are refused, do not; the declaration itself is not touched."""
    parameters = {
        "$schema": "x",
        "properties": {"p": {"$ref": "#/$defs/P"}},
        "$defs": {"P": {"type": "string"}},
        "anyOf": [{}],
        "additionalProperties": False,
    }
    tool = ToolDeclaration(name="my.tool", description="", parameters=parameters)
    found = body(SystemMessage(tools_added=[tool, OTHER]), USER)["tools"]
    assert found[0]["input_schema"] == {
        "type": "object", "properties": {"p": {"$ref": "#/$defs/P"}}, "additionalProperties": False, "$defs": {"P": {"type": "string"}},
    }  # fmt: skip
    assert found[1] == {"name": "other", "description": "Other.", "eager_input_streaming": True, "input_schema": {"type": "object", "properties": {}}}
    assert found[0]["name"].startswith("my_tool_")
    assert "$schema" in parameters


@pytest.mark.parametrize(
    ("schema", "can"),
    [({"type": "string"}, True), ({"type": "string", "format": "date"}, True), ({"type": "array", "items": {"type": "string"}, "minItems": 1}, True),
     ({"type": "integer", "minimum": 1}, False), ({"type": "string", "format": "regex"}, False), ({"$ref": "#/x"}, False),
     ({"type": "array", "items": {"type": "string"}, "minItems": 2}, False)],
)  # fmt: skip
def test_a_strict_tool_is_strict_where_that_is_possible(schema: dict[str, Any], can: bool) -> None:
    """05 sc. 69: with Anthropic's own list of what constrained decoding cannot follow; else the schema goes as it is."""
    tool = ToolDeclaration(name="s", description="", parameters={"type": "object", "properties": {"p": schema}}, strict=True)
    found = body(SystemMessage(tools_added=[tool]), USER, of=model(provider="anthropic"))["tools"][0]
    assert found.get("strict", False) is can
    assert (found["input_schema"].get("additionalProperties") is False) is can
    assert "strict" not in body(SystemMessage(tools_added=[tool]), USER)["tools"][0]


# ---------------------------------------------------------------------------------------------------- system and tools


def test_changes_are_collapsed_where_the_model_cannot_take_them() -> None:
    """05 sc. 74: one merged prompt, the current tools at the top."""
    messages = (
        SystemMessage(content="S", tools_added=[TOOL]), USER, said(TextContent(text="a")),
        SystemMessage(content="more", tools_removed=["read"], tools_added=[OTHER]), UserMessage(content="r"),
    )  # fmt: skip
    found = body(*messages)
    assert found["system"] == [words("S\n\nmore")]
    assert [tool["name"] for tool in found["tools"]] == ["other"]
    assert [item["role"] for item in found["messages"]] == ["user", "assistant", "user"]


def test_a_system_message_between_a_call_and_its_result_comes_after_the_result() -> None:
    """05 sc. 74: in place, after what the user says, before the next response."""
    messages = (SystemMessage(content="S"), USER, said(call()), SystemMessage(content="now"), result(), said(TextContent(text="b")), USER)
    found = sent(*messages, of=MID)
    assert [item["role"] for item in found] == ["user", "assistant", "user", "system", "assistant", "user"]
    assert found[3]["content"] == [words("now")]
    assert body(*messages, of=MID)["system"] == [words("S")]


def test_system_messages_wait_for_a_response_that_says_something() -> None:
    """[1.6]: one that converts to nothing does not let them out; several become one; the user's words come first."""
    messages = (USER, SystemMessage(content="one"), foreign(ThinkingContent(thinking="x")), SystemMessage(content="two"), UserMessage(content="r"))
    found = sent(*messages, of=MID)
    assert [item["role"] for item in found] == ["user", "user", "system"]
    assert found[-1]["content"] == [words("one"), words("two")]


def test_a_system_message_stands_only_where_the_protocol_takes_it() -> None:
    """After a user's message, and before a response or at the end: else the provider refuses every later request of the conversation."""
    one, two = said(TextContent(text="a")), said(TextContent(text="b"))
    for messages in (
        (USER, one, SystemMessage(content="x")),
        (USER, one, SystemMessage(content="x"), two, USER),
        (USER, SystemMessage(content="x"), USER, one, SystemMessage(content="y"), SystemMessage(content="z"), USER),
        (one, SystemMessage(content="x"), SystemMessage(content="y"), USER, two),
        (SystemMessage(content="S"), one, SystemMessage(content="x"), two),
    ):
        roles = [item["role"] for item in sent(*messages, of=MID)]
        for before, role, after in zip(["none", *roles], roles, [*roles[1:], "assistant"], strict=False):
            assert role != "system" or (before, after) == ("user", "assistant"), roles
        assert "system" in roles


def test_tool_changes_are_said_in_place_where_the_model_can_take_them() -> None:
    """05 sc. 75 in the later form: the list at the top never grows; text, removals, additions by value, the marker on the last block."""
    change = SystemMessage(content="changed", tools_removed=["read"], tools_added=[OTHER])
    messages = (SystemMessage(content="S", tools_added=[TOOL]), USER, said(TextContent(text="a")), UserMessage(content="r"), change)
    found = body(*messages, of=NATIVE, cache_retention="short")
    assert [tool["name"] for tool in found["tools"]] == ["read"]
    assert found["tools"][0]["cache_control"] == MARK
    addition = {"name": "other", "description": "Other.", "eager_input_streaming": True, "input_schema": {"type": "object", "properties": {}}}
    assert found["messages"][-1] == {
        "role": "system",
        "content": [
            words("changed"), {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "read"}},
            {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": addition}, "cache_control": MARK},
        ],
    }  # fmt: skip


def test_a_redefined_tool_is_an_addition_alone() -> None:
    """05 sc. 76 in the later form; what is added and removed again before the next response is not said at all."""
    new = ToolDeclaration(name="read", description="Better.", parameters={})
    messages: list[Message] = [SystemMessage(tools_added=[TOOL]), USER, said(TextContent(text="a")), UserMessage(content="r")]
    found = sent(*messages, SystemMessage(tools_added=[new]), of=NATIVE)[-1]["content"]
    assert [(part["type"], part["tool"]["definition"]["description"]) for part in found] == [("tool_addition", "Better.")]
    undone = (SystemMessage(tools_added=[OTHER]), SystemMessage(tools_removed=["other"]))
    assert sent(*messages, *undone, of=NATIVE)[-1]["role"] == "user"


def test_tool_changes_keep_the_bytes_before_them() -> None:
    """The reason for all of it: the request after a change begins like the one before it, and the betas are the same from the first request."""
    messages: list[Message] = [SystemMessage(content="S", tools_added=[TOOL]), USER, said(TextContent(text="a")), UserMessage(content="r")]
    changed = [*messages, SystemMessage(tools_added=[OTHER]), said(TextContent(text="b")), UserMessage(content="s")]
    assert encode_body(body(*changed, of=NATIVE)).startswith(encode_body(body(*messages, of=NATIVE))[:-2])
    flags = [betas(NATIVE, Transcript(messages=list(m)), StreamOptions(), body(*m, of=NATIVE)) for m in (messages, changed)]
    assert flags[0] == flags[1] == ["mid-conversation-tool-changes-2026-07-01", "inline-tools-2026-09-15"]


def test_tools_that_come_first_in_the_middle_stand_at_the_top() -> None:
    """Without a tool in the first request there is nothing to change in place."""
    messages = (SystemMessage(content="S"), USER, said(TextContent(text="a")), SystemMessage(tools_added=[TOOL]), UserMessage(content="r"))
    found = body(*messages, of=NATIVE)
    assert [tool["name"] for tool in found["tools"]] == ["read"]
    assert [item["role"] for item in found["messages"]] == ["user", "assistant", "user"]


# ---------------------------------------------------------------------------------------------------- cache markers


@pytest.mark.parametrize(
    ("retention", "can", "mark"), [("short", True, MARK), ("long", True, {**MARK, "ttl": "1h"}), ("long", False, MARK), ("none", True, None)]
)
def test_cache_markers(retention: str, can: bool, mark: Any) -> None:
    """05 sc. 70: on the system prompt, the last tool and the last block of the last message; none for "none"."""
    of = model(compat={"supports_long_cache_retention": can})
    found = body(SystemMessage(content="S", tools_added=[TOOL, OTHER]), USER, said(call()), result(), of=of, cache_retention=retention)
    places = [found["system"][0], found["tools"][1], found["messages"][-1]["content"][-1]]
    assert [place.get("cache_control") for place in places] == [mark] * 3
    assert json.dumps(found).count("cache_control") == (0 if mark is None else 3)


def test_markers_do_not_stay_in_later_requests() -> None:
    """The items are shared between requests; the marked one is a copy. Tools are marked only where the server takes that."""
    body(USER, said(TextContent(text="a")), UserMessage(content="r"), cache_retention="short")
    found = body(USER, said(TextContent(text="a")), UserMessage(content="r"), said(TextContent(text="b")), USER, cache_retention="short")
    assert json.dumps(found).count("cache_control") == 1
    bare = model(compat={"supports_cache_control_on_tools": False})
    assert "cache_control" not in body(SystemMessage(tools_added=[TOOL]), USER, of=bare, cache_retention="short")["tools"][0]


def test_the_model_s_own_words_are_not_marked() -> None:
    """A conversation that ends with a response (to be continued) has no marker there."""
    found = body(USER, said(TextContent(text="a")), cache_retention="short")
    assert "cache_control" not in json.dumps(found)


# ---------------------------------------------------------------------------------------------------- thinking


def test_a_budget_is_thought_on_top_of_the_answer() -> None:
    """05 sc. 26: the limit grows by the budget up to the model's own, and 1024 tokens stay for the answer."""
    found = body(USER, of=THINKS, reasoning="high", max_tokens=1000)
    assert (found["max_tokens"], found["thinking"]) == (8000, {"type": "enabled", "budget_tokens": 8000 - 1024})
    own = body(USER, of=model(reasoning=True, max_tokens=64000), reasoning="low", thinking_budgets={"low": 3000}, max_tokens=1000)
    assert (own["max_tokens"], own["thinking"]["budget_tokens"]) == (4000, 2976)


def test_a_budget_that_is_too_small_is_no_thinking() -> None:
    """05 §11.12: never silently more than was allowed; the least that the protocol takes is 1024."""
    found = body(USER, of=model(reasoning=True, max_tokens=1500), reasoning="high")
    assert (found["max_tokens"], found["thinking"]) == (1500, {"type": "disabled"})


@pytest.mark.parametrize(
    ("levels", "level", "effort"),
    [({}, "minimal", "low"), ({}, "medium", "medium"), ({"xhigh": "xhigh"}, "xhigh", "xhigh"), ({"max": "max"}, "max", "max"), ({}, "max", "high"),
     ({"low": "medium"}, "low", "medium")],
)  # fmt: skip
def test_an_adaptive_model_gets_an_effort(levels: dict[str, str | None], level: str, effort: str) -> None:
    """The map's word, else the nearest of the protocol's; the output limit is not touched."""
    found = body(USER, of=model(reasoning=True, thinking_levels=levels, compat={"force_adaptive_thinking": True}), reasoning=level, max_tokens=500)
    assert (found["thinking"], found["output_config"], found["max_tokens"]) == (
        {"type": "adaptive", "display": "summarized"},
        {"effort": effort},
        500,
    )


def test_thinking_is_switched_off_where_it_can_be() -> None:
    """Off is said; a model that cannot be without it is told nothing; one that does not reason neither."""
    assert body(USER, of=THINKS)["thinking"] == {"type": "disabled"}
    assert body(USER, of=ADAPTIVE)["thinking"] == {"type": "disabled"}
    always = model(reasoning=True, thinking_levels={"off": None, "minimal": None}, compat={"force_adaptive_thinking": True})
    assert body(USER, of=always)["output_config"] == {"effort": "low"}
    assert "thinking" not in body(USER, reasoning="high")


def test_temperature_is_not_sent_with_thinking() -> None:
    """The provider refuses the combination; some models refuse it always."""
    assert "temperature" not in body(USER, of=THINKS, reasoning="low", temperature=0.1)
    assert body(USER, of=THINKS, temperature=0.1)["temperature"] == 0.1
    assert "temperature" not in body(USER, of=model(compat={"supports_temperature": False}), temperature=0.1)


def test_an_effort_that_changes_is_said_in_the_conversation() -> None:
    """Where the model can take that: the request's own effort never changes, so that what is cached stays; history says what each answer had."""
    of = model(reasoning=True, compat={"supports_mid_convo_effort": True, "force_adaptive_thinking": True})
    messages = (USER, said(TextContent(text="a"), of=of, thinking_level="high"), UserMessage(content="r"))
    found = body(*messages, of=of, reasoning="low", cache_retention="short")
    assert (found["output_config"], found["thinking"]["type"]) == ({"effort": "low"}, "adaptive")
    assert [item.get("output_config", item["role"]) for item in found["messages"]] == [
        "user",
        {"effort": "high"},
        "assistant",
        "user",
        {"effort": "low"},
    ]
    assert found["messages"][-2]["content"][-1]["cache_control"] == MARK
    higher = body(*messages, of=of, reasoning="high")
    assert {**higher, "messages": None} == {**body(*messages, of=of, reasoning="low"), "messages": None}
    again = (USER, *[said(TextContent(text="a"), of=of, thinking_level="high")] * 2)
    assert [item["role"] for item in sent(*again, of=of, reasoning="low")] == ["user", "system", "assistant", "assistant"]
    both = of.compat | {"supports_mid_convo_system_messages": True}
    last = sent(USER, SystemMessage(content="now"), of=model(reasoning=True, compat=both), reasoning="medium")[-1]
    assert last == {"role": "system", "content": [words("now")], "output_config": {"effort": "medium"}}


@pytest.mark.parametrize(
    ("of", "options", "expected"),
    [
        (model(), {}, []), (THINKS, {"reasoning": "low"}, ["interleaved-thinking-2025-05-14"]), (ADAPTIVE, {"reasoning": "low"}, []),
        (model(compat={"supports_eager_tool_input_streaming": False}), {}, ["fine-grained-tool-streaming-2025-05-14"]),
        (model(compat={"allowed_fallback_models": {"small": {}}}), {}, ["server-side-fallback-2026-07-01"]),
        (model(reasoning=True, compat={"interleaved_thinking": False}), {"reasoning": "low"}, []),
    ],
)  # fmt: skip
def test_betas_are_those_that_the_body_uses(of: Model, options: dict[str, Any], expected: list[str]) -> None:
    """05 §4.1."""
    transcript = Transcript(messages=[SystemMessage(tools_added=[TOOL]), USER])
    found = encode(of, transcript, StreamOptions(**options))
    assert betas(of, transcript, StreamOptions(**options), found) == expected


# ---------------------------------------------------------------------------------------------------- messages


def test_own_thinking_goes_back_byte_for_byte() -> None:
    """B37 (a), B38: text and signature unchanged and in their place; an empty text is a signed block all the same; redacted ones too."""
    content = [ThinkingContent(thinking=" hm\n", signature="S1"), ThinkingContent(thinking="", signature="S2"),
               ThinkingContent(thinking="(hidden)", signature="R1", redacted=True), TextContent(text="t"), call()]  # fmt: skip
    assert sent(USER, said(*content), result())[1]["content"] == [
        {"type": "thinking", "thinking": " hm\n", "signature": "S1"}, {"type": "thinking", "thinking": "", "signature": "S2"},
        {"type": "redacted_thinking", "data": "R1"}, words("t"), {"type": "tool_use", "id": "c1", "name": "read", "input": {}},
    ]  # fmt: skip


def test_thinking_without_a_signature_is_no_thinking_block() -> None:
    """05 sc. 77, B37 (b): text, or (where the server takes that) thinking with an empty signature; blank is nothing."""
    content = [ThinkingContent(thinking="hm"), ThinkingContent(thinking=" "), ThinkingContent(thinking="x", redacted=True), TextContent(text="t")]
    assert sent(USER, said(*content), USER)[1]["content"] == [words("hm"), words("t")]
    lax = model(compat={"allow_empty_signature": True})
    assert sent(USER, said(*content), USER, of=lax)[1]["content"] == [{"type": "thinking", "thinking": "hm", "signature": ""}, words("t")]


def test_foreign_thinking_is_left_out_and_comes_back_to_its_own_model() -> None:
    """05 sc. 78, 107, decision 7, B37 (c), (d): also of another model of the same provider."""
    own = said(ThinkingContent(thinking="mine", signature="S"), TextContent(text="a"))
    for other in (foreign(ThinkingContent(thinking="x", signature="F"), TextContent(text="b")),
                  AssistantMessage(content=[ThinkingContent(thinking="x", signature="R", redacted=True), TextContent(text="b")],
                                   api="anthropic_messages", provider="test", model="m2")):  # fmt: skip
        found = sent(USER, own, USER, other, USER)
        assert found[1]["content"][0] == {"type": "thinking", "thinking": "mine", "signature": "S"}
        assert found[3]["content"] == [words("b")]


def test_nothing_blank_is_ever_sent() -> None:
    """B42, 05 sc. 73, 125: empty turns are left out, blank text too."""
    blank = (said(), said(TextContent(text="")), said(TextContent(text=" \n")), foreign(ThinkingContent(thinking="x")))
    for message in blank:
        assert [item["role"] for item in sent(USER, message, UserMessage(content="r"))] == ["user", "user"]
    mixed = UserMessage(content=[TextContent(text=" "), TextContent(text="x")])
    assert sent(mixed, UserMessage(content=""), UserMessage(content=[])) == [{"role": "user", "content": [words("x")]}]


def test_orphans_and_failed_turns_are_healed() -> None:
    """05 sc. 73, 121, 122, 124: a missing result is an error result; a failed turn is absent with its results."""
    broken = said(call("c9"), stop_reason="error")
    found = sent(
        USER, said(call("c1"), call("c2")), result("c2"), broken, result("c9"), UserMessage(content=[TextContent(text=""), TextContent(text="go")])
    )
    assert [item["role"] for item in found] == ["user", "assistant", "user", "user"]
    first, second = found[2]["content"]
    assert (first["tool_use_id"], first["is_error"], bool(first["content"])) == ("c1", True, True)
    assert second == {"type": "tool_result", "tool_use_id": "c2", "content": "ok"}
    assert found[3]["content"] == [words("go")]
    assert sent(USER, said(call("c1")))[-1]["content"][0]["tool_use_id"] == "c1"


def test_results_of_one_turn_are_one_message() -> None:
    """All results of parallel calls together, texts joined; a silent tool says so (B43)."""
    found = sent(USER, said(call("c1"), call("c2")), result("c1", TextContent(text="a"), TextContent(text="b")), result("c2", TextContent(text="")))
    assert [part["content"] for part in found[2]["content"]] == ["a\nb", "(no output)"]
    assert len(found) == 3


def test_images_in_and_out_of_results() -> None:
    """05 sc. 72: a result that is only an image gets a word first; users' images are blocks."""
    found = sent(UserMessage(content=[TextContent(text="look"), IMAGE]), said(call(), of=SEES), result("c1", IMAGE), of=SEES)
    assert found[0]["content"] == [words("look"), {"type": "image", "source": SOURCE}]
    note, image = found[2]["content"][0]["content"]
    assert (note["type"], bool(note["text"]), image) == ("text", True, {"type": "image", "source": SOURCE})
    both = sent(USER, said(call(), of=SEES), result("c1", TextContent(text="a"), IMAGE), of=SEES)[2]["content"][0]["content"]
    assert [part["type"] for part in both] == ["text", "image"]


def test_an_error_s_images_follow_the_results() -> None:
    """05 sc. 89 [fix]: an error result is text only; the picture comes after all results with a caption that names the call."""
    messages = (USER, said(call("c1"), call("c2"), of=SEES), result("c1", IMAGE, is_error=True), result("c2"))
    first, second, caption, image = sent(*messages, of=SEES)[2]["content"]
    assert (first["is_error"], isinstance(first["content"], str), bool(first["content"])) == (True, True, True)
    assert second["tool_use_id"] == "c2"
    assert "c1" in caption["text"]
    assert image == {"type": "image", "source": SOURCE}


def test_a_model_that_cannot_see_gets_a_note() -> None:
    """05 sc. 119: a run of images is one note."""
    found = sent(UserMessage(content=[IMAGE, IMAGE, TextContent(text="x"), IMAGE]))
    assert [part["text"] for part in found[0]["content"]] == [IMAGE_PLACEHOLDER, "x", IMAGE_PLACEHOLDER]


def test_foreign_ids_become_legal_and_stay_apart() -> None:
    """05 sc. 71, 123, B36, decision 15: legal, at most 64 characters, the same in call and result, distinct, the same in every request."""
    ids = ["call_1|fc_+/=1", "call_1|fc_+/=2", "x" * 80, "ok_1"]
    messages = (USER, foreign(*(ToolCall(id=i, name="read") for i in ids)), *(result(i) for i in ids))
    found = sent(*messages)
    uses = [part["id"] for part in found[1]["content"]]
    assert uses == [part["tool_use_id"] for part in found[2]["content"]]
    assert len(set(uses)) == 4
    assert uses[3] == "ok_1"
    assert all(len(i) <= 64 and i.replace("_", "").replace("-", "").isalnum() for i in uses)
    assert [part["id"] for part in sent(*messages, USER)[1]["content"]] == uses


def test_half_characters_never_reach_the_wire() -> None:
    """B44, 05 sc. 146: in what the user says, in results, prompts and arguments; real emoji stay."""
    messages = (
        SystemMessage(content="p\udc9f"),
        UserMessage(content="😀 \udc9f"),
        said(call(p="x\ud83d")),
        result("c1", TextContent(text="\ud83d y")),
    )
    raw = encode_body(body(*messages))
    assert "😀" in raw.decode()
    assert "\ufffd" in json.loads(raw)["messages"][2]["content"][0]["content"]


def test_a_long_conversation_s_estimate_bounds_the_answer() -> None:
    """The limit leaves room for what the window already holds."""
    of = model(context_window=20_000, max_tokens=16_000)
    used = said(TextContent(text="a"), usage=Usage(input=9_000, output=1_000, total_tokens=10_000))
    assert body(USER, used, USER, of=of)["max_tokens"] < 6_000


# ---------------------------------------------------------------------------------------------------- compat


def test_a_wrong_flag_is_named() -> None:
    """A typo in a model's compat is no silent default."""
    with pytest.raises(ModelError, match="no_such"):
        body(USER, of=model(compat={"no_such": 1}))


def test_known_servers_are_recognised_by_host_before_provider() -> None:
    """A provider's id at somebody else's address is that address's server."""
    assert resolve_compat(model(provider="x", base_url="https://api.anthropic.com")).supports_strict_tools
    assert resolve_compat(model(provider="anthropic", base_url="https://openrouter.ai/api")).auth == "bearer"
    assert resolve_compat(model(provider="minimax")) == resolve_compat(model())
    assert not resolve_compat(model(provider="fireworks", compat={"allow_empty_signature": False})).allow_empty_signature
