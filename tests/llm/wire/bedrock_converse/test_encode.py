"""What the Converse wire sends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from laneway.errors import ModelError
from laneway.llm._transform import encode_body
from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.llm.wire.bedrock_converse.encode import Surroundings, encode
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
from llm.wire.bedrock_converse.protocol import model

POINT = {"cachePoint": {"type": "default"}}
HOUR = {"cachePoint": {"type": "default", "ttl": "1h"}}
IMAGE = ImageContent(data="aGk=", mime_type="image/png")
SENT_IMAGE = {"image": {"format": "png", "source": {"bytes": "aGk="}}}
TOOL = ToolDeclaration(name="read", description="Reads.", parameters={"type": "object", "properties": {"path": {"type": "string"}}})
SENT_TOOL = {"toolSpec": {"name": "read", "description": "Reads.", "inputSchema": {"json": TOOL.parameters}}}
LLAMA = model("meta.llama3-3-70b-instruct-v1:0", input=("text", "image"))
VISION = model(input=("text", "image"))


def body(*messages: Message, of: Model | None = None, around: Surroundings | None = None, **options: Any) -> dict[str, Any]:
    """The body for some messages, as the server reads it."""
    options.setdefault("cache_retention", "none")
    return json.loads(encode_body(encode(of or model(), Transcript(messages=list(messages)), StreamOptions(**options), around)))


def sent(*messages: Message, of: Model | None = None) -> list[Any]:
    """The wire's messages after a question."""
    return body(UserMessage(content="q"), *messages, of=of)["messages"][1:]


def said(*blocks: Any, of: Model | None = None) -> AssistantMessage:
    """What the model itself said."""
    of = of or model()
    return AssistantMessage(content=list(blocks), provider=of.provider, model=of.id, api=of.api)


def result(call_id: str = "c1", *blocks: Any, **fields: Any) -> ToolResultMessage:
    """A result."""
    return ToolResultMessage(tool_call_id=call_id, tool_name="read", content=list(blocks) or [TextContent(text="ok")], **fields)


CALL = ToolCall(id="c1", name="read", arguments={"path": "a"})
SENT_CALL = {"toolUse": {"toolUseId": "c1", "name": "read", "input": {"path": "a"}}}


# ---------------------------------------------------------------------------------------------------- the request


def test_prompt_and_tools_are_what_holds_now() -> None:
    """05 §4.5: system messages are collapsed into the prompt; tools are the current set."""
    later = ToolDeclaration(name="later", description="", parameters={})
    found = body(
        SystemMessage(content="A", tools_added=[TOOL]),
        UserMessage(content="q"),
        SystemMessage(content="B", tools_added=[later], tools_removed=["read"]),
    )
    assert found == {
        "system": [{"text": "A\n\nB"}],
        "toolConfig": {"tools": [{"toolSpec": {"name": "later", "inputSchema": {"json": {"type": "object", "properties": {}}}}}]},
        "messages": [{"role": "user", "content": [{"text": "q"}]}],
    }
    assert list(found)[-1] == "messages"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, None), ("auto", {"auto": {}}), ("any", {"any": {}}), ("required", {"any": {}}), ("read", {"tool": {"name": "read"}}),
        ({"name": "any"}, {"tool": {"name": "any"}}), ({"any": {}}, {"any": {}}),
    ],
)  # fmt: skip
def test_tool_choice(choice: Any, expected: Any) -> None:
    """05 §4.0: the protocol's members; a name is a choice of that tool; nothing without tools."""
    assert body(SystemMessage(tools_added=[TOOL]), UserMessage(content="q"), tool_choice=choice)["toolConfig"].get("toolChoice") == expected
    assert "toolConfig" not in body(UserMessage(content="q"), tool_choice=choice)


def test_no_tools_are_sent_where_none_may_be_called() -> None:
    """05 §4.0: `none` leaves the tools out, for the protocol has no word for it."""
    assert "toolConfig" not in body(SystemMessage(tools_added=[TOOL]), UserMessage(content="q"), tool_choice="none")


def test_calls_in_the_conversation_need_tools_in_the_request() -> None:
    """The service refuses a conversation with calls in it and no tools: they stay, without a choice, or are declared as gone."""
    talk = [UserMessage(content="q"), said(CALL), result()]
    kept = body(SystemMessage(tools_added=[TOOL]), *talk, tool_choice="none")
    assert kept["toolConfig"] == {"tools": [SENT_TOOL]}
    for messages in (talk, [SystemMessage(tools_added=[TOOL]), *talk, SystemMessage(tools_removed=["read"])]):
        found = body(*messages, tool_choice="any")
        assert list(found["toolConfig"]) == ["tools"]
        (spec,) = (tool["toolSpec"] for tool in found["toolConfig"]["tools"])
        assert (spec["name"], "no longer" in spec["description"]) == ("read", True)


def test_a_strict_tool_is_asked_for_if_the_model_and_the_schema_can() -> None:
    """05 sc. 69: a wish; newer models refuse the word itself."""
    strict = ToolDeclaration(name="read", description="", parameters=TOOL.parameters, strict=True)
    bounded = {"type": "object", "properties": {"n": {"type": "array", "maxItems": 2}}}
    loose = ToolDeclaration(name="any", description="", parameters=bounded, strict=True)
    system = SystemMessage(tools_added=[strict, loose])
    found = [tool["toolSpec"] for tool in body(system, UserMessage(content="q"))["toolConfig"]["tools"]]
    assert (found[0]["strict"], found[0]["inputSchema"]["json"]["required"]) == (True, ["path"])
    assert "strict" not in found[1]
    for of in (model("anthropic.claude-opus-4-8"), LLAMA, model(compat={"supports_strict_tools": False})):
        assert all("strict" not in tool["toolSpec"] for tool in body(system, UserMessage(content="q"), of=of)["toolConfig"]["tools"])


def test_the_root_of_a_schema_has_only_what_the_model_takes() -> None:
    """Combinators there are refused; Nova takes three keywords."""
    parameters = {"type": "object", "properties": {"a": {}}, "anyOf": [{}], "additionalProperties": False, "$defs": {"x": {}}}
    tool = ToolDeclaration(name="t", description="", parameters=parameters)
    plain = {"type", "properties", "$defs"}
    for of, keys in ((model(), plain | {"additionalProperties"}), (model("amazon.nova-pro-v1:0"), plain)):
        (declared,) = body(SystemMessage(tools_added=[tool]), UserMessage(content="q"), of=of)["toolConfig"]["tools"]
        assert set(declared["toolSpec"]["inputSchema"]["json"]) == keys


# ---------------------------------------------------------------------------------------------------- cache


def test_cache_points_end_what_a_later_request_begins_with() -> None:
    """05 §4.5: after the tools, after the prompt, at the end of the last user message; an hour for long, where the model can."""
    talk = [SystemMessage(content="S", tools_added=[TOOL]), UserMessage(content="q")]
    for of, retention, point in (
        (model(), "short", POINT),
        (model(), "long", HOUR),
        (model("anthropic.claude-sonnet-4-20250514-v1:0"), "long", POINT),
    ):
        found = body(*talk, of=of, cache_retention=retention)
        assert found["system"] == [{"text": "S"}, point]
        assert found["toolConfig"]["tools"][-1] == point
        assert found["messages"][-1]["content"] == [{"text": "q"}, point]


@pytest.mark.parametrize(
    "of", [LLAMA, model("amazon.nova-pro-v1:0"), model("anthropic.claude-3-haiku-20240307-v1:0"), model(compat={"supports_prompt_cache": False})]
)
def test_no_cache_points_for_models_that_know_none(of: Model) -> None:
    """They would refuse the request; and for nobody who wants none."""
    assert "cachePoint" not in json.dumps(body(SystemMessage(content="S"), UserMessage(content="q"), of=of, cache_retention="short"))
    assert "cachePoint" not in json.dumps(body(SystemMessage(content="S"), UserMessage(content="q"), cache_retention="none"))


def test_cache_points_for_a_profile_of_ones_own() -> None:
    """An ARN says nothing of its model: its name does, or the environment (AWS_BEDROCK_FORCE_CACHE)."""
    arn = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc123"
    for of, around in ((model(arn, name="Claude Sonnet 4.5"), None), (model(arn), Surroundings(force_cache=True))):
        assert body(SystemMessage(content="S"), UserMessage(content="q"), of=of, around=around, cache_retention="short")["system"][-1] == POINT
    assert body(SystemMessage(content="S"), UserMessage(content="q"), of=model(arn), cache_retention="short")["system"] == [{"text": "S"}]


def test_the_beginning_of_a_request_stays_the_same() -> None:
    """09, decision 5: byte for byte, but for the cache points."""
    talk: list[Message] = [SystemMessage(content="S", tools_added=[TOOL]), UserMessage(content="q")]
    before = encode_body(encode(model(), Transcript(messages=talk), StreamOptions(cache_retention="none")))
    talk += [said(CALL), result(), UserMessage(content="and?")]
    after = encode_body(encode(model(), Transcript(messages=talk), StreamOptions(cache_retention="none")))
    assert after.startswith(before.removesuffix(b"]}"))


# ---------------------------------------------------------------------------------------------------- thinking


def thinking(model_id: str, level: Any, around: Surroundings | None = None, **fields: Any) -> dict[str, Any]:
    """How thinking is asked for, and the settings of the output."""
    of = model(model_id, **{"reasoning": True, "max_tokens": 64000, **fields})
    found = body(UserMessage(content="q"), of=of, reasoning=level, temperature=0.5, around=around)
    return {**found.get("additionalModelRequestFields", {}), **found["inferenceConfig"]}


OPUS = "us.anthropic.claude-opus-4-8"
SUMMARY = {"type": "adaptive", "display": "summarized"}


@pytest.mark.parametrize(
    ("model_id", "levels", "level", "expected"),
    [
        (OPUS, {"xhigh": "xhigh", "max": "max"}, "max", {"thinking": SUMMARY, "output_config": {"effort": "max"}}),
        (OPUS, {}, "minimal", {"thinking": SUMMARY, "output_config": {"effort": "low"}}),
        (OPUS, {}, "off", {"thinking": {"type": "disabled"}}),
        (OPUS, {"off": None}, None, {"thinking": SUMMARY, "output_config": {"effort": "low"}}),
        ("anthropic.claude-opus-4-6-v1", {}, "high", {"thinking": SUMMARY, "output_config": {"effort": "high"}}),
        ("anthropic.claude-opus-4-6-v1", {}, "off", {"thinking": {"type": "disabled"}, "temperature": 0.5}),
        ("us-gov.anthropic.claude-opus-4-8", {}, "high", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}),
        ("anthropic.claude-sonnet-4-20250514-v1:0", {}, "off", {"temperature": 0.5}),
        ("amazon.nova-2-lite-v1:0", {}, "low", {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "low"}, "temperature": 0.5}),
        ("amazon.nova-2-lite-v1:0", {}, "off", {"temperature": 0.5}),
        ("us.openai.gpt-5.6-sol", {"off": "none", "xhigh": "xhigh"}, "xhigh", {"reasoning": {"effort": "xhigh"}, "temperature": 0.5}),
        ("us.openai.gpt-5.6-sol", {"off": "none"}, "off", {"reasoning": {"effort": "none"}, "temperature": 0.5}),
        ("openai.gpt-oss-120b-1:0", {"off": None}, "high", {"reasoning_effort": "high", "temperature": 0.5}),
        ("moonshotai.kimi-k3", {"off": None, "minimal": None}, "low", {"reasoning_effort": "low", "temperature": 0.5}),
        ("deepseek.v3.2", {}, "high", {"temperature": 0.5}),
    ],
)
def test_how_much_to_think(model_id: str, levels: dict[str, Any], level: Any, expected: dict[str, Any]) -> None:
    """05 §1.6, §4.5: an effort or a switch in each maker's own words, in the fields that Bedrock hands through."""
    assert thinking(model_id, level, thinking_levels=levels) == {**expected, "maxTokens": 64000}


def test_a_budget_is_part_of_the_output() -> None:
    """05 §1.6, sc. 26: on top of what the answer was to have, within the model's limit; too small a one is none."""
    of = {"model_id": "anthropic.claude-sonnet-4-5-20250929-v1:0", "level": "high"}
    beta = {"anthropic_beta": ["interleaved-thinking-2025-05-14"]}
    assert thinking(**of) == {"thinking": {"type": "enabled", "budget_tokens": 16384}, "maxTokens": 64000, **beta}
    assert thinking(**of, max_tokens=2048) == {"thinking": {"type": "enabled", "budget_tokens": 1024}, "maxTokens": 2048, **beta}
    assert thinking(**of, max_tokens=1500) == {"maxTokens": 1500, "temperature": 0.5}
    assert thinking(**of, max_tokens=0)["maxTokens"] == 8192 + 16384
    assert "anthropic_beta" not in thinking("anthropic.claude-3-7-sonnet-20250219-v1:0", "high")


def test_the_highest_effort_of_nova_has_no_limits() -> None:
    """The service refuses an output limit and a temperature then."""
    of = model("us.amazon.nova-2-lite-v1:0", reasoning=True, max_tokens=64000)
    found = body(UserMessage(content="q"), of=of, reasoning="high", temperature=0.5)
    assert found["additionalModelRequestFields"]["reasoningConfig"]["maxReasoningEffort"] == "high"
    assert "inferenceConfig" not in found


def test_gov_cloud_is_known_by_its_region_too() -> None:
    """05 §4.5: display is not said there."""
    assert thinking("anthropic.claude-opus-4-8", "high", Surroundings(region="us-gov-west-1"))["thinking"] == {"type": "adaptive"}


def test_the_other_settings() -> None:
    """Each field where the protocol has it: its own, the output's, the model's."""
    params = {
        "top_p": 0.5, "stop": "x", "top_k": 5, "service_tier": "flex", "performanceConfig": {"latency": "optimized"}, "maxTokens": None,
        "requestMetadata": {"team": "a"}, "additionalModelRequestFields": {"a": 1},
    }  # fmt: skip
    found = body(UserMessage(content="q"), of=model(max_tokens=1000, compat={"extra_body": {"b": 2}}), temperature=0, sampling_params=params)
    del found["messages"]
    assert found == {
        "inferenceConfig": {"maxTokens": 1000, "temperature": 0, "topP": 0.5, "stopSequences": ["x"]},
        "additionalModelRequestFields": {"b": 2, "top_k": 5, "a": 1},
        "serviceTier": {"type": "flex"},
        "performanceConfig": {"latency": "optimized"},
        "requestMetadata": {"team": "a"},
    }
    with pytest.raises(ModelError, match="no_such"):
        body(UserMessage(content="q"), of=model(compat={"no_such": 1}))


# ---------------------------------------------------------------------------------------------------- messages


def test_users_and_assistants_take_turns() -> None:
    """The service insists: what the user says in a row, results among it, is one message; where the user said nothing, a word is put in."""
    found = body(said(TextContent(text="hello")), UserMessage(content="a"), UserMessage(content="b"), said(CALL), result(), UserMessage(content="c"))
    assert found["messages"] == [
        {"role": "user", "content": [{"text": "Go on."}]},
        {"role": "assistant", "content": [{"text": "hello"}]},
        {"role": "user", "content": [{"text": "a"}, {"text": "b"}]},
        {"role": "assistant", "content": [SENT_CALL]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "ok"}]}}, {"text": "c"}]},
    ]
    twice = sent(said(TextContent(text="a")), said(TextContent(text="b")))
    assert [message["role"] for message in twice] == ["assistant", "user", "assistant"]


def test_blank_texts_are_not_sent() -> None:
    """05 §4.5: dropped, or a word in their place where there must be one."""
    found = body(
        UserMessage(content=[TextContent(text=" "), TextContent(text="x")]), said(TextContent(text="\n"), CALL), result("c1", TextContent(text="")),
    )["messages"]  # fmt: skip
    assert found[0]["content"] == [{"text": "x"}]
    assert found[1]["content"] == [SENT_CALL]
    assert found[2]["content"][0]["toolResult"]["content"] == [{"text": "(no output)"}]


def test_images() -> None:
    """In what the user says; of a type that the service does not take, a note says so."""
    odd = ImageContent(data="aGk=", mime_type="image/tiff")
    (message,) = body(UserMessage(content=[TextContent(text="look"), IMAGE, odd]), of=VISION)["messages"]
    assert message["content"][:2] == [{"text": "look"}, SENT_IMAGE]
    assert "image/tiff" in message["content"][2]["text"]


def test_images_in_results() -> None:
    """05 sc. 89: inside where the model can, else after the results; an error holds text only."""
    call = said(CALL, ToolCall(id="c2", name="read"), of=VISION)
    results = [result("c1", IMAGE), result("c2", TextContent(text="bad"), IMAGE, is_error=True)]
    (one, two, *rest) = sent(call, *results, of=VISION)[1]["content"]
    assert one["toolResult"]["content"] == [{"text": "(see the attached image)"}, SENT_IMAGE]
    assert two["toolResult"] == {"toolUseId": "c2", "content": [{"text": "bad"}], "status": "error"}
    assert rest == [{"text": "Image from the result of read (c2):"}, SENT_IMAGE]
    (one, two, *rest) = sent(call, *results, of=LLAMA)[1]["content"]
    assert one["toolResult"]["content"] == [{"text": "(the images are below)"}]
    assert two["toolResult"] == {"toolUseId": "c2", "content": [{"text": "[tool error] bad"}]}
    assert [block.get("text", "image") for block in rest] == [
        "Image from the result of read (c1):", "image", "Image from the result of read (c2):", "image",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("model_id", "expected"),
    [
        ("anthropic.claude-sonnet-4-5-20250929-v1:0", [{"text": "a", "signature": "S"}, "text b", "secret R"]),
        ("deepseek.v3.2", [{"text": "a"}, {"text": "b"}, "secret R"]),
        ("us.openai.gpt-6-sol", ["secret R"]),
    ],
)
def test_thinking_goes_back_as_its_model_takes_it(model_id: str, expected: list[Any]) -> None:
    """05 §4.5: signatures for Claude, encrypted thinking for whoever sent it; 05 decision 7: nobody else's."""
    blocks = (
        ThinkingContent(thinking="a", signature="S"),
        ThinkingContent(thinking="b"),
        ThinkingContent(thinking=" "),
        ThinkingContent(thinking="(…)", signature="R", redacted=True),
    )
    of = model(model_id)
    (message,) = sent(said(*blocks, TextContent(text="x"), of=of), of=of)
    assert [_thought(block) for block in message["content"][:-1]] == expected
    foreign = AssistantMessage(content=[*blocks, TextContent(text="x")], provider="other", model="y", api="z")
    assert sent(foreign, of=of)[0]["content"] == [{"text": "x"}]


def _thought(block: dict[str, Any]) -> Any:
    inner = block.get("reasoningContent", {})
    return f"text {block['text']}" if "text" in block else inner.get("reasoningText") or f"secret {inner['redactedContent']}"


def test_ids_and_names_are_legal_and_distinct() -> None:
    """05 decision 15, sc. 71: at most 64 characters; the same in call and result."""
    ids = ["call_1|fc_1", "call_1|fc_2", "x" * 100, "ok-1"]
    foreign = AssistantMessage(content=[ToolCall(id=i, name="my.read") for i in ids], provider="o", model="x", api="y")
    results = [ToolResultMessage(tool_call_id=i, tool_name="my.read", content=[TextContent(text="ok")]) for i in ids]
    calls, answers = sent(foreign, *results)
    found = [block["toolUse"]["toolUseId"] for block in calls["content"]]
    assert found == [block["toolResult"]["toolUseId"] for block in answers["content"]]
    assert (found[-1], len(set(found)), max(map(len, found)) <= 64) == ("ok-1", 4, True)
    assert all(block["toolUse"]["name"].replace("_", "").isalnum() for block in calls["content"])


def test_empty_names_in_arguments_are_left_out() -> None:
    """05 §4.5: the service refuses them."""
    call = ToolCall(id="c1", name="read", arguments={"": 1, "a": [{"": 2, "b": 3}]})
    assert sent(said(call))[0]["content"][0]["toolUse"]["input"] == {"a": [{"b": 3}]}


def test_halves_of_characters_do_not_stop_a_request() -> None:
    """05 sc. 146."""
    assert body(UserMessage(content="a\ud83d"))["messages"][0]["content"] == [{"text": "a�"}]
