"""What Mistral's wire sends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from laneway.errors import ModelError
from laneway.llm._transform import encode_body
from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.llm.wire.mistral import encode
from laneway.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    UserMessage,
)
from llm.wire.mistral.protocol import model

IMAGE = ImageContent(data="aGk=", mime_type="image/png")
SENT_IMAGE = {"type": "image_url", "image_url": "data:image/png;base64,aGk="}
TOOL = ToolDeclaration(name="read", description="Reads.", parameters={"type": "object", "properties": {"path": {"type": "string"}}})
VISION = model(input=("text", "image"))


def body(*messages: Message, of: Model | None = None, **options: Any) -> dict[str, Any]:
    """The body for some messages, as the server reads it."""
    return json.loads(encode_body(encode(of or model(), Transcript(messages=list(messages)), StreamOptions(**options))))


def sent(*messages: Message, of: Model | None = None) -> list[Any]:
    """The wire's messages after a question."""
    return body(UserMessage(content="q"), *messages, of=of)["messages"][1:]


def said(*blocks: Any, of: Model | None = None) -> AssistantMessage:
    """What the model itself said."""
    of = of or model()
    return AssistantMessage(content=list(blocks), provider=of.provider, model=of.id, api=of.api)


def result(call_id: str = "abc123XYZ", *blocks: Any, **fields: Any) -> ToolResultMessage:
    """A result."""
    return ToolResultMessage(tool_call_id=call_id, tool_name="read", content=list(blocks) or [TextContent(text="ok")], **fields)


# ---------------------------------------------------------------------------------------------------- the request


def test_prompt_and_tools_are_what_holds_now() -> None:
    """System messages are collapsed into the first message; tools are the current set."""
    later = ToolDeclaration(name="later", description="L", parameters={})
    found = body(
        SystemMessage(content="A", tools_added=[TOOL]),
        UserMessage(content="q"),
        SystemMessage(content="B", tools_added=[later], tools_removed=["read"]),
    )
    assert found["messages"] == [{"role": "system", "content": "A\n\nB"}, {"role": "user", "content": "q"}]
    assert found["tools"] == [
        {"type": "function", "function": {"name": "later", "description": "L", "parameters": {"type": "object", "properties": {}}}}
    ]
    assert list(found)[-1] == "messages"


def test_a_strict_tool_is_asked_for_if_its_schema_can_be_strict() -> None:
    """A wish, where the server knows it; a schema without a strict form goes as it is."""
    strict = ToolDeclaration(name="read", description="", parameters=TOOL.parameters, strict=True)
    loose = ToolDeclaration(name="any", description="", parameters={"type": "object", "patternProperties": {}}, strict=True)
    found = [tool["function"] for tool in body(SystemMessage(tools_added=[strict, loose]), UserMessage(content="q"))["tools"]]
    assert (found[0]["strict"], found[0]["parameters"]["required"]) == (True, ["path"])
    assert "strict" not in found[1]
    of = model(compat={"supports_strict_mode": False})
    assert "strict" not in body(SystemMessage(tools_added=[strict]), UserMessage(content="q"), of=of)["tools"][0]["function"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, None), ("auto", "auto"), ("none", "none"), ("any", "any"), ("required", "required"),
        ("read", {"type": "function", "function": {"name": "read"}}), ({"name": "any"}, {"type": "function", "function": {"name": "any"}}),
        ({"type": "function", "function": {"name": "x"}}, {"type": "function", "function": {"name": "x"}}),
    ],
)  # fmt: skip
def test_tool_choice(choice: Any, expected: Any) -> None:
    """05 §4.0: the protocol's words pass, names become a choice of that tool; nothing without tools."""
    assert body(SystemMessage(tools_added=[TOOL]), UserMessage(content="q"), tool_choice=choice).get("tool_choice") == expected
    assert "tool_choice" not in body(UserMessage(content="q"), tool_choice=choice)


@pytest.mark.parametrize(
    ("of", "level", "expected"),
    [
        (model(reasoning=True, thinking_levels={"off": "none", "minimal": None, "low": None, "medium": None}), "low", {"reasoning_effort": "high"}),
        (model(reasoning=True, thinking_levels={"off": "none"}), None, {"reasoning_effort": "none"}),
        (model(reasoning=True), None, {}),
        (model(reasoning=True), "medium", {"reasoning_effort": "medium"}),
        (model("magistral-medium", reasoning=True, thinking_levels={"off": "none"}), "high", {"prompt_mode": "reasoning"}),
        (model("magistral-medium", reasoning=True, thinking_levels={"off": "none"}), "off", {}),
        (model(reasoning=True, compat={"thinking": "none"}), "high", {}),
        (model(), "high", {}),
    ],
)
def test_how_much_to_think(of: Model, level: Any, expected: Any) -> None:
    """05 §4.6: an effort, or the prompt's mode."""
    found = body(UserMessage(content="q"), of=of, reasoning=level)
    assert {key: found[key] for key in ("reasoning_effort", "prompt_mode") if key in found} == expected


def test_the_other_settings() -> None:
    """Temperature, output limit, cache key, sampling parameters, extra body."""
    of = model(max_tokens=1000, compat={"extra_body": {"safe_prompt": True}})
    found = body(UserMessage(content="q"), of=of, temperature=0, session_id="s", sampling_params={"top_p": 0.5, "random_seed": None})
    assert {key: value for key, value in found.items() if key != "messages"} == {
        "model": "m", "stream": True, "max_tokens": 1000, "temperature": 0, "prompt_cache_key": "s", "safe_prompt": True, "top_p": 0.5,
    }  # fmt: skip
    assert "prompt_cache_key" not in body(UserMessage(content="q"), session_id="s", cache_retention="none")
    with pytest.raises(ModelError, match="no_such"):
        body(UserMessage(content="q"), of=model(compat={"no_such": 1}))


# ---------------------------------------------------------------------------------------------------- messages


def test_ids_have_nine_letters_and_digits() -> None:
    """05 §4.6, B36: hashed, distinct, the same in call and result and in every request; a legal one stays."""
    ids = ["abc123XYZ", "call_1|fc_1", "call_1|fc_2", "abc123XY", "ü" * 9]
    foreign = AssistantMessage(content=[ToolCall(id=i, name="read") for i in ids], provider="o", model="x", api="y")
    messages = sent(foreign, *[result(i) for i in ids])
    found = [call["id"] for call in messages[0]["tool_calls"]]
    assert found == [message["tool_call_id"] for message in messages[1:]]
    assert (found[0], len(set(found))) == ("abc123XYZ", 5)
    assert all(len(i) == 9 and i.isalnum() and i.isascii() for i in found)
    assert found == [call["id"] for call in sent(foreign)[0]["tool_calls"]]


def test_thinking_goes_back_to_its_own_model_only() -> None:
    """B37: in its place among the parts, with its signature; a message without thinking is plain text."""
    blocks = (
        ThinkingContent(thinking="hm"),
        TextContent(text="a"),
        ThinkingContent(thinking="", signature="S"),
        ToolCall(id="abc123XYZ", name="read"),
    )
    assert sent(said(*blocks), result())[0] == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
            {"type": "text", "text": "a"},
            {"type": "thinking", "thinking": [{"type": "text", "text": ""}], "signature": "S"},
        ],
        "tool_calls": [{"id": "abc123XYZ", "type": "function", "function": {"name": "read", "arguments": "{}"}}],
    }
    assert sent(said(*blocks[:2], of=model("other"))) == [{"role": "assistant", "content": "a"}]


def test_images_come_from_the_user_and_from_tools() -> None:
    """05 §4.6: as parts of both; where the server cannot, as a user message after the last result."""
    both = said(ToolCall(id="abc123XYZ", name="read"), ToolCall(id="abc123XY0", name="read"), of=VISION)
    found = sent(UserMessage(content=[TextContent(text="a"), IMAGE]), both, result("abc123XYZ", IMAGE), result("abc123XY0"), of=VISION)
    assert found[0]["content"] == [{"type": "text", "text": "a"}, SENT_IMAGE]
    assert [message["content"] for message in found[2:]] == [[{"type": "text", "text": "(see the attached image)"}, SENT_IMAGE], "ok"]
    apart = model(input=("text", "image"), compat={"supports_images_in_tool_results": False})
    both = said(ToolCall(id="abc123XYZ", name="read"), ToolCall(id="abc123XY0", name="read"), of=apart)
    found = sent(both, result("abc123XYZ", IMAGE), result("abc123XY0"), of=apart)
    assert [message["role"] for message in found] == ["assistant", "tool", "tool", "assistant", "user"]
    assert found[1]["content"] == "(see the image in the next user message)"
    assert found[-1]["content"] == [{"type": "text", "text": "Image from the result of read (abc123XYZ):"}, SENT_IMAGE]


def test_a_user_message_never_follows_a_result_directly() -> None:
    """The server refuses that order; a model that allows it is sent nothing extra."""
    messages = (said(ToolCall(id="abc123XYZ", name="read")), result(), UserMessage(content="wait"))
    assert [message["role"] for message in sent(*messages)] == ["assistant", "tool", "assistant", "user"]
    of = model(compat={"requires_assistant_after_tool_result": False})
    assert [message["role"] for message in sent(*messages, of=of)] == ["assistant", "tool", "user"]


def test_errors_and_silence_are_said() -> None:
    """B43: an error says that it is one; an empty result is not empty."""
    found = sent(
        said(ToolCall(id="abc123XYZ", name="read"), ToolCall(id="abc123XY0", name="read")),
        result("abc123XYZ", TextContent(text="boom"), is_error=True),
        result("abc123XY0", TextContent(text="")),
    )
    assert [message["content"] for message in found[1:]] == ["[tool error] boom", "(no output)"]
    assert {message["name"] for message in found[1:]} == {"read"}


def test_a_response_without_anything_to_send_is_left_out() -> None:
    """B42."""
    for blocks in ([], [TextContent(text="")], [TextContent(text=" \n")], [ThinkingContent(thinking=" ")]):
        assert sent(said(*blocks), UserMessage(content="next")) == [{"role": "user", "content": "next"}]


def test_text_that_is_no_unicode_is_repaired() -> None:
    """B44."""
    half = "x\ud83d y😀"
    found = body(
        SystemMessage(content=half), UserMessage(content=half),
        said(TextContent(text=half), ToolCall(id="abc123XYZ", name="read", arguments={"a": half})),
        result("abc123XYZ", TextContent(text=half)), UserMessage(content=[TextContent(text=half)]),
    )  # fmt: skip
    assert json.dumps(found, ensure_ascii=False).count("x\ufffd y😀") == 6


def test_a_number_of_any_size_is_sent() -> None:
    """Arguments beyond 64 bits."""
    found = sent(said(ToolCall(id="abc123XYZ", name="read", arguments={"n": 2**70})))
    assert json.loads(found[0]["tool_calls"][0]["function"]["arguments"]) == {"n": 2**70}


def test_a_longer_conversation_begins_with_the_bytes_of_the_shorter_one() -> None:
    """Prompt caches go by the prefix: request after request."""
    messages: list[Message] = [SystemMessage(content="S", tools_added=[TOOL])]
    before = b""
    for turn in range(4):
        call = said(ThinkingContent(thinking="hm"), TextContent(text="I look."), ToolCall(id=f"call_{turn}", name="read"))
        for more in ([UserMessage(content=f"q{turn}")], [call, result(f"call_{turn}", IMAGE)]):
            messages += more
            found = encode_body(encode(model(), Transcript(messages=list(messages)), StreamOptions()))
            assert found.startswith(before)
            before = found.removesuffix(b"]}")
