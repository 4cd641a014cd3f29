"""The oracle of what providers refuse."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.llm.base import Model
from laneway.messages import (
    AssistantMessage,
    CustomMessage,
    ImageContent,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    UserMessage,
)
from laneway.testing import provider_ready

GO = UserMessage(content="go")
APIS = {
    "any", "openai_chat", "openai_responses", "anthropic_messages", "google_generate", "google_vertex", "bedrock_converse", "azure", "mistral",
    "scripted",
}  # fmt: skip


def said(*blocks: Any, **fields: Any) -> AssistantMessage:
    """Return a response; strings are text, and calls are given as `("id", "name")`."""
    content = [TextContent(text=b) if isinstance(b, str) else ToolCall(id=b[0], name=b[1]) if isinstance(b, tuple) else b for b in blocks]
    return AssistantMessage(content=content, **{"api": "scripted", "provider": "scripted", "model": "m", **fields})


def result(call_id: str, text: str = "ok", name: str = "f") -> ToolResultMessage:
    """Return a tool result."""
    return ToolResultMessage(tool_call_id=call_id, tool_name=name, content=[TextContent(text=text)])


def problems(*messages: Any, api: str = "any", model: Model | None = None) -> list[str]:
    """Return the problems of these messages."""
    return provider_ready(list(messages), api, model=model)


def test_a_good_conversation_has_no_problem():
    """System messages, parallel calls, thinking, images, a truncated response, two user messages in a row."""
    conversation = [
        SystemMessage(content="S", tools_added=[ToolDeclaration(name="f", description="", parameters={})]),
        UserMessage(content=[TextContent(text="look"), ImageContent(data="AAAA", mime_type="image/png")]),
        said(ThinkingContent(thinking="", signature="s", redacted=True), "Both.", ("1", "f"), ("2", "g")),
        result("1"),
        result("2"),
        SystemMessage(content="", tools_removed=["f"]),
        said(("3", "f"), stop_reason="length"),
        result("3"),
        said("Done."),
        GO,
        UserMessage(content="and more"),
    ]
    assert provider_ready(conversation) == []
    for count in (2, 5, 6, 8, 10, 11):
        assert provider_ready(conversation[:count]) == []


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([GO, said(("1", "f")), GO], "'1' has no result before message 2"),
        ([GO, said(("1", "f"))], "'1' has no result"),
        ([GO, said(("1", "f"), ("2", "f")), result("1"), GO], "'2' has no result before message 3"),
        ([GO, said(("1", "f"), ("2", "f")), result("2"), result("1")], "results follow the order of the calls"),
        ([GO, said(("1", "f")), SystemMessage(content="S"), result("1")], "'1' has no result before message 2"),
        ([GO, said(("1", "f")), result("1"), result("1")], "second result for the tool call '1'"),
        ([GO, result("9")], "'9', which the response before it did not call"),
        ([GO, said(("1", "f")), result("1"), said("a"), result("1")], "did not call"),
        ([GO, said(("1", "f"), ("1", "f")), result("1"), result("1")], "which is twice"),
        ([GO, said(("1", "f")), result("1"), said(("1", "f")), result("1")], "also in message 1"),
    ],
)
def test_calls_and_results_must_pair(messages: list[Any], says: str):
    """V 1, 2 and 5: exactly one result per call, right after it, in order; distinct ids."""
    assert any(says in problem for problem in provider_ready(messages)), provider_ready(messages)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([UserMessage(content="")], "message 0 is empty"),
        ([UserMessage(content=" \n")], "message 0 is blank"),
        ([UserMessage(content=[])], "no content"),
        ([GO, said(), GO], "message 1 is empty"),
        ([GO, said("a", " "), GO], "message 1, block 1 is a blank text"),
        ([GO, said(""), GO], "an empty text"),
        ([GO, said(("1", "f")), ToolResultMessage(tool_call_id="1", tool_name="f")], "message 2 is empty"),
        ([UserMessage(content=[ImageContent(data="data:image/png;base64,AA", mime_type="image/png")])], "an image without base64"),
    ],
)
def test_nothing_may_be_empty(messages: list[Any], says: str):
    """V 3, B42, B43."""
    (problem,) = provider_ready(messages)
    assert says in problem


def test_the_last_message_must_ask_for_an_answer():
    """V 4: a response at the end would be a prefill; a system message at the end does not count."""
    assert problems(GO, said("a")) == ["message 1 is the last one and is of role assistant; it must be a user message or a tool result"]
    assert problems(GO, SystemMessage(content="S")) == []
    assert problems(SystemMessage(content="S")) == problems() == ["there is nothing to answer: no user message and no tool result"]


@pytest.mark.parametrize("reason", ["error", "aborted", "deferred", "pending"])
def test_failed_and_unfinished_responses_must_be_left_out(reason: Any):
    """Promise 1 of the overview."""
    assert problems(GO, said("Hel", stop_reason=reason), GO) == [f"message 1 is a response that ended in '{reason}'; it must be left out"]


@pytest.mark.parametrize(
    ("call_id", "refused_by"),
    [("a" * 9, set()), ("call_1", {"mistral"}), ("a" * 41, {"any", "openai_chat", "mistral"}), ("a" * 65, APIS), ("call|item", APIS), ("", APIS)],
)
def test_ids_are_within_the_limits_of_the_api(call_id: str, refused_by: set[str]):
    """V 5, decision 15: 40 characters for Chat Completions, 64 elsewhere, legal characters; "any" is the strictest of the common ones."""
    refused = {api for api in APIS if problems(GO, said((call_id, "f")), result(call_id), api=api)}
    assert refused == refused_by


def test_names_are_within_the_limits_of_the_api():
    """V 5, B22: an invented name with illegal characters poisons the history, wherever it stands."""
    odd = "$READFILE"
    assert len(problems(GO, said(("1", odd)), result("1", name=odd))) == 2
    assert problems(SystemMessage(tools_added=[ToolDeclaration(name=odd, description="", parameters={})]), GO)
    assert problems(GO, said(("1", "fs.read")), result("1", name="fs.read"), api="google_generate") == []
    assert problems(GO, said(("1", "fs.read")), result("1", name="fs.read"), api="anthropic_messages")
    assert "65 characters" in problems(GO, said(("1", "n" * 65)), result("1"))[0]
    assert "has no name" in problems(GO, said(("1", "")), result("1"))[0]


def test_thinking_is_signed_and_by_one_model():
    """V 6, B37: unsigned or foreign thinking is refused."""
    signed = ThinkingContent(thinking="hm", signature="s")
    assert problems(GO, said(ThinkingContent(thinking="hm"), "a"), GO) == ["message 1 has thinking without a signature"]
    foreign = said(signed, "b", model="other")
    assert problems(GO, said(signed, "a"), GO, foreign, GO) == [
        "message 3 has thinking of scripted/other, but only thinking of scripted/m may be sent"
    ]
    assert problems(GO, said(signed, "a"), GO, said("b", model="other"), GO) == []
    assert problems(GO, said(signed, "a"), GO, model=Model(id="m", provider="scripted", api="scripted")) == []
    assert problems(GO, said(signed, "a"), GO, model=Model(id="m2", provider="scripted", api="scripted"))
    assert "cannot take" in problems(GO, said(signed, "a"), GO, api="anthropic_messages")[0]


def test_everything_is_utf8_and_strict_json():
    """V 7, B44: half a surrogate pair and NaN."""
    assert problems(UserMessage(content="x\ud83d")) == ["message 0 has half of a surrogate pair, which UTF-8 cannot hold"]
    assert problems(UserMessage(content="\U0001f600")) == []
    call = ToolCall(id="1", name="f", arguments={"x": float("nan")})
    assert "not strict JSON" in problems(GO, said(call), result("1"))[0]


def test_custom_messages_must_be_converted():
    """A provider knows four roles."""
    assert problems(CustomMessage(custom_type="note", content="x"), GO) == [
        "message 0 is of role 'custom', which no provider knows; convert it with convert_to_llm"
    ]


def test_an_unknown_api_is_an_error():
    """A typo must not weaken the check."""
    with pytest.raises(ValueError, match="choose one of any, "):
        provider_ready([GO], "openai")
