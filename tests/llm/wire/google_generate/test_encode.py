"""What the Gemini wire sends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from laneway.errors import ModelError
from laneway.llm._transform import encode_body
from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.llm.wire.google_generate import encode, resolve_compat
from laneway.llm.wire.google_generate._contents import SKIP_SIGNATURE
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
from llm.wire.google_generate.protocol import model

SIG = "c2lnMQ=="
IMAGE = ImageContent(data="aGk=", mime_type="image/png")
TOOL = ToolDeclaration(name="read", description="Reads.", parameters={"type": "object", "properties": {"path": {"type": "string"}}})


def body(*messages: Message, of: Model | None = None, **options: Any) -> dict[str, Any]:
    """The body for some messages, as the server reads it."""
    return json.loads(encode_body(encode(of or model(), Transcript(messages=list(messages)), StreamOptions(**options))))


def contents(*messages: Message, of: Model | None = None) -> list[Any]:
    """The contents for some messages after a question."""
    return body(UserMessage(content="q"), *messages, of=of)["contents"][1:]


def said(*blocks: Any, of: Model | None = None, **fields: Any) -> AssistantMessage:
    """What the model itself said."""
    of = of or model()
    return AssistantMessage(content=list(blocks), provider=of.provider, model=of.id, api=of.api, **fields)


def result(call_id: str = "c1", *blocks: Any, **fields: Any) -> ToolResultMessage:
    """A result."""
    return ToolResultMessage(tool_call_id=call_id, tool_name="read", content=list(blocks) or [TextContent(text="ok")], **fields)


# ---------------------------------------------------------------------------------------------------- prompt, tools


def test_prompt_and_tools_are_what_holds_now() -> None:
    """05 §4.4: system messages are always collapsed, tools always the current set; the conversation shows neither."""
    later = ToolDeclaration(name="later", description="L", parameters={})
    sent = body(
        SystemMessage(content="A", tools_added=[TOOL]),
        UserMessage(content="q"),
        SystemMessage(content="B", tools_added=[later], tools_removed=["read"]),
        UserMessage(content="r"),
    )
    assert sent["systemInstruction"] == {"parts": [{"text": "A\n\nB"}]}
    assert sent["tools"] == [
        {"functionDeclarations": [{"name": "later", "description": "L", "parametersJsonSchema": {"type": "object", "properties": {}}}]}
    ]
    assert sent["contents"] == [{"role": "user", "parts": [{"text": "q"}]}, {"role": "user", "parts": [{"text": "r"}]}]
    assert list(sent)[-1] == "contents"


def test_a_model_without_instructions_hears_them_from_the_user() -> None:
    """Gemma 3 refuses a system instruction."""
    sent = body(SystemMessage(content="S"), UserMessage(content="q"), of=model("gemma-3-27b-it"))
    assert "systemInstruction" not in sent
    assert [c["parts"][0]["text"] for c in sent["contents"]] == ["S", "q"]


def test_a_constant_is_a_choice_of_one() -> None:
    """05 §4.4: wherever it stands; data that only looks like a schema keyword stays as it is."""
    schema = {
        "type": "object",
        "properties": {"kind": {"const": "a"}, "n": {"type": "integer", "const": 3}, "flag": {"const": True}, "const": {"type": "string"}},
        "anyOf": [{"properties": {"kind": {"const": "b", "title": "T"}}}],
        "default": {"const": "x"},
    }
    tool = ToolDeclaration(name="t", description="", parameters=schema)
    sent = body(SystemMessage(tools_added=[tool]), UserMessage(content="q"))["tools"][0]["functionDeclarations"][0]["parametersJsonSchema"]
    properties = sent["properties"]
    assert (properties["kind"], properties["n"]) == ({"type": "string", "enum": ["a"]}, {"type": "integer", "enum": [3]})
    assert (properties["flag"], properties["const"], sent["default"]) == ({"const": True}, {"type": "string"}, {"const": "x"})
    assert sent["anyOf"][0]["properties"]["kind"] == {"title": "T", "type": "string", "enum": ["b"]}
    assert schema["properties"]["kind"] == {"const": "a"}  # type: ignore[index]  # the declaration is not touched


@pytest.mark.parametrize(
    ("choice", "strict", "of", "expected"),
    [
        (None, False, "gemini-3-flash", None),
        (None, True, "gemini-3-flash", {"mode": "VALIDATED"}),
        (None, True, "gemini-2.5-flash", None),
        ("auto", False, "gemini-3-flash", {"mode": "AUTO"}),
        ("auto", True, "gemini-3-flash", {"mode": "VALIDATED"}),
        ("none", True, "gemini-3-flash", {"mode": "NONE"}),
        ("any", True, "gemini-3-flash", {"mode": "ANY"}),
        ("required", False, "gemini-2.5-flash", {"mode": "ANY"}),
        ("read", False, "gemini-3-flash", {"mode": "ANY", "allowedFunctionNames": ["read"]}),
        ({"name": "any"}, False, "gemini-3-flash", {"mode": "ANY", "allowedFunctionNames": ["any"]}),
        ({"mode": "ANY", "allowedFunctionNames": ["a", "b"]}, True, "gemini-3-flash", {"mode": "ANY", "allowedFunctionNames": ["a", "b"]}),
    ],
)
def test_tool_choice(choice: Any, strict: bool, of: str, expected: Any) -> None:
    """05 §4.4: an explicit none or any wins; else calls are validated if a tool is strict and the model can."""
    tool = ToolDeclaration(name="read", description="", parameters={}, strict=strict or None)
    sent = body(SystemMessage(tools_added=[tool]), UserMessage(content="q"), of=model(of), tool_choice=choice)
    assert sent.get("toolConfig", {}).get("functionCallingConfig") == expected
    assert "toolConfig" not in body(UserMessage(content="q"), of=model(of), tool_choice=choice)


# ---------------------------------------------------------------------------------------------------- thinking


LEVELS: dict[str, str | None] = {"off": None, "minimal": None, "low": "low", "medium": "medium", "high": "high"}


@pytest.mark.parametrize(
    ("of", "level", "expected"),
    [
        (model("gemini-2.5-flash", reasoning=True), None, {"thinkingBudget": 0}),
        (model("gemini-2.5-flash", reasoning=True), "minimal", {"includeThoughts": True, "thinkingBudget": 128}),
        (model("gemini-2.5-flash", reasoning=True), "max", {"includeThoughts": True, "thinkingBudget": 24576}),
        (model("gemini-2.5-flash-lite", reasoning=True), "minimal", {"includeThoughts": True, "thinkingBudget": 512}),
        (model("gemini-2.5-pro", reasoning=True), "high", {"includeThoughts": True, "thinkingBudget": 32768}),
        (model("gemini-2.5-pro", reasoning=True), "off", {"thinkingBudget": 128}),
        (model("gemini-2.5-pro", reasoning=True, max_tokens=1500), "high", {"includeThoughts": True, "thinkingBudget": 476}),
        (model("gemini-2.0-x", reasoning=True), "high", {"includeThoughts": True, "thinkingBudget": -1}),
        (model("gemini-3-flash", reasoning=True, thinking_levels=LEVELS), "minimal", {"includeThoughts": True, "thinkingLevel": "LOW"}),
        (model("gemini-3-flash", reasoning=True, thinking_levels=LEVELS), None, {"thinkingLevel": "LOW"}),
        (model("gemini-flash-latest", reasoning=True), "high", {"includeThoughts": True, "thinkingLevel": "HIGH"}),
        (model("gemini-4-x", reasoning=True), None, {"thinkingBudget": 0}),
        (model("gemma-4-31b", reasoning=True, thinking_levels={"off": None, "minimal": "MINIMAL", "high": "HIGH", "low": None, "medium": None}),
         "low", {"includeThoughts": True, "thinkingLevel": "HIGH"}),
        (model("claude-x", reasoning=True), "low", {"includeThoughts": True, "thinkingBudget": -1}),
        (model("gemini-3-flash"), "high", None),
        (model("gemma-3-27b", reasoning=True), "high", None),
        (model("gemini-3-flash", reasoning=True, default_thinking_level="high"), None, {"includeThoughts": True, "thinkingLevel": "HIGH"}),
    ],
)  # fmt: skip
def test_how_much_to_think(of: Model, level: Any, expected: Any) -> None:
    """05 §1.6, §4.4: budgets for 2.5, names for 3 and later; off is the least that there is, and not shown."""
    assert body(UserMessage(content="q"), of=of, reasoning=level).get("generationConfig", {}).get("thinkingConfig") == expected


def test_budgets_of_ones_own() -> None:
    """A request may say how many tokens a level is."""
    sent = body(UserMessage(content="q"), of=model("gemini-2.5-flash", reasoning=True), reasoning="low", thinking_budgets={"low": 4000})
    assert sent["generationConfig"]["thinkingConfig"]["thinkingBudget"] == 4000


@pytest.mark.parametrize(("of", "part"), [
    (model(reasoning=True, thinking_levels={"high": "enormous"}), "enormous"), (model(compat={"no_such": 1}), "no_such"),
])  # fmt: skip
def test_a_wrong_description_of_a_model_is_an_error_that_says_what(of: Model, part: str) -> None:
    """05 §4.4: a level must be one of the protocol's words; a quirk one that exists."""
    with pytest.raises(ModelError, match=part):
        body(UserMessage(content="q"), of=of, reasoning="high")


def test_the_other_settings() -> None:
    """Temperature, the output limit (clamped to the window), sampling parameters by the protocol's names, an extra body."""
    of = model(max_tokens=1000, context_window=50_000, compat={"extra_body": {"safetySettings": []}})
    sent = body(UserMessage(content="q"), of=of, temperature=0, sampling_params={"topP": 0.5, "seed": None, "stopSequences": ["x"]})
    assert sent["generationConfig"] == {"temperature": 0, "maxOutputTokens": 1000, "topP": 0.5, "stopSequences": ["x"]}
    assert sent["safetySettings"] == []
    assert "generationConfig" not in body(UserMessage(content="q"))
    assert body(UserMessage(content="q"), max_tokens=7)["generationConfig"] == {"maxOutputTokens": 7}


# ---------------------------------------------------------------------------------------------------- contents


def test_what_the_user_says() -> None:
    """Text and images in order; a text without characters is not sent."""
    of = model(input=("text", "image"))
    sent = body(UserMessage(content=[TextContent(text="a"), IMAGE, TextContent(text="")]), of=of)["contents"]
    assert sent == [{"role": "user", "parts": [{"text": "a"}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}]}]


def test_parallel_calls_are_one_content_and_so_are_their_results() -> None:
    """B39: the signature stays on the first call, siblings get none; the results follow in the order of the calls."""
    calls = [ToolCall(id=f"c{i}", name="read", arguments={"n": i}, signature=SIG if i == 1 else None) for i in (1, 2, 3)]
    model_content, results = contents(said(*calls), result("c3"), result("c1"), result("c2"))
    assert [part.get("thoughtSignature") for part in model_content["parts"]] == [SIG, None, None]
    assert [part["functionCall"]["args"]["n"] for part in model_content["parts"]] == [1, 2, 3]
    assert (results["role"], [part["functionResponse"]["id"] for part in results["parts"]]) == ("user", ["c1", "c2", "c3"])


def test_foreign_calls_carry_the_skip_value_on_the_first_only() -> None:
    """B39: a history of another vendor; and only for models that insist on signatures."""
    foreign = AssistantMessage(
        content=[ThinkingContent(thinking="hm", signature=SIG), ToolCall(id="c1", name="read", signature=SIG), ToolCall(id="c2", name="read")],
        provider="other", model="x", api="y",
    )  # fmt: skip
    parts = contents(foreign, result("c1"), result("c2"))[0]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [SKIP_SIGNATURE, None]
    parts = contents(foreign, of=model("gemini-2.5-pro"))[0]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [None, None]


def test_thinking_goes_back_to_its_own_model_only() -> None:
    """B37, 05 sc. 117: with its signature, empty or not; to another model neither the thought nor the signature of a text."""
    blocks = (
        ThinkingContent(thinking="hm", signature=SIG), ThinkingContent(thinking="", signature=SIG), ThinkingContent(thinking="plain"),
        TextContent(text="", signature=SIG), TextContent(text="Hi", signature=SIG), TextContent(text=" "),
    )  # fmt: skip
    assert contents(said(*blocks))[0]["parts"] == [
        {"text": "hm", "thought": True, "thoughtSignature": SIG},
        {"text": "", "thought": True, "thoughtSignature": SIG},
        {"text": "plain", "thought": True},
        {"text": "", "thoughtSignature": SIG},
        {"text": "Hi", "thoughtSignature": SIG},
    ]
    assert contents(said(*blocks, of=model("gemini-4-x"))) == [{"role": "model", "parts": [{"text": "Hi"}]}]


@pytest.mark.parametrize("signature", ["abc", "ab!d", "====", "a=bc", "abcd\n", ""])
def test_what_is_no_base64_is_not_sent_as_a_signature(signature: str) -> None:
    """05 sc. 117."""
    blocks = [TextContent(text="a", signature=signature), ThinkingContent(thinking="b", signature=signature)]
    parts = contents(said(*blocks, ToolCall(id="c", name="read", signature=signature)))[0]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [None, None, SKIP_SIGNATURE]


def test_an_older_model_has_no_ids_and_no_images_in_results() -> None:
    """05 sc. 116: Gemini 2.5 gets the images as a content of their own; Gemini 3 inside of the result."""

    def sent(of: Model) -> list[Any]:
        both = [ToolCall(id="c1", name="read"), ToolCall(id="c2", name="read")]
        return contents(said(*both, of=of), result("c1", IMAGE), result("c2", TextContent(text="t"), IMAGE), of=of)

    image = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
    calls, results, images = sent(model("gemini-2.5-pro", input=("text", "image")))
    assert all("id" not in part["functionCall"] for part in calls["parts"])
    assert [part["functionResponse"] for part in results["parts"]] == [
        {"name": "read", "response": {"output": "(see the image in the next user message)"}},
        {"name": "read", "response": {"output": "t"}},
    ]
    assert images == {"role": "user", "parts": [{"text": "Image from the result of read:"}, image] * 2}
    calls, results = sent(model("gemini-3-pro", input=("text", "image")))
    assert [part["functionCall"]["id"] for part in calls["parts"]] == ["c1", "c2"]
    assert [part["functionResponse"] for part in results["parts"]] == [
        {"name": "read", "response": {"output": "(see the attached image)"}, "id": "c1", "parts": [image]},
        {"name": "read", "response": {"output": "t"}, "id": "c2", "parts": [image]},
    ]


def test_errors_and_silence_are_said() -> None:
    """B43: an error stands under its own name; an empty result says so; a call without a result gets one."""
    _, results = contents(
        said(ToolCall(id="c1", name="read"), ToolCall(id="c2", name="read"), ToolCall(id="c3", name="read")),
        result("c1", TextContent(text="boom"), is_error=True),
        result("c2", TextContent(text="")),
    )
    responses = [part["functionResponse"]["response"] for part in results["parts"]]
    assert responses[:2] == [{"error": "boom"}, {"output": "(no output)"}]
    assert list(responses[2]) == ["error"]


def test_a_response_without_anything_to_send_is_left_out() -> None:
    """B42: no empty content, no blank part."""
    for blocks in ([], [TextContent(text="")], [TextContent(text=" \n")]):
        assert contents(said(*blocks), UserMessage(content="next")) == [{"role": "user", "parts": [{"text": "next"}]}]


def test_ids_of_another_vendor_are_made_to_fit() -> None:
    """B36: the call and its result agree; at most 64 legal characters; two that begin alike stay distinct."""
    ids = ["call_abc|fc_def", "call_abc|fc_xyz", "x" * 100, "ü"]
    foreign = AssistantMessage(content=[ToolCall(id=i, name="my.tool") for i in ids], provider="o", model="x", api="y")
    calls, results = contents(foreign, *[result(i) for i in ids])
    sent = [part["functionCall"]["id"] for part in calls["parts"]]
    assert sent == [part["functionResponse"]["id"] for part in results["parts"]]
    assert len(set(sent)) == 4
    assert all(len(i) <= 64 and i.replace("_", "").isalnum() and i.isascii() for i in sent)
    assert all("." not in part["functionCall"]["name"] for part in calls["parts"])


def test_text_that_is_no_unicode_is_repaired() -> None:
    """B44, 05 sc. 146: every place where text can stand."""
    half = "x\ud83d y😀"
    sent = body(
        SystemMessage(content=half), UserMessage(content=half), said(TextContent(text=half), ToolCall(id="c1", name="read", arguments={"a": half})),
        result("c1", TextContent(text=half)), UserMessage(content=[TextContent(text=half)]),
    )  # fmt: skip
    assert json.dumps(sent, ensure_ascii=False).count("x\ufffd y😀") == 6


def test_a_longer_conversation_begins_with_the_bytes_of_the_shorter_one() -> None:
    """Prompt caches go by the prefix: request after request, in every family."""
    for of in (model(), model("gemini-2.5-pro", input=("text", "image")), model("gemma-3-27b-it")):
        messages: list[Message] = [SystemMessage(content="S", tools_added=[TOOL])]
        before = b""
        for turn in range(4):
            call = said(TextContent(text="I look."), ToolCall(id=f"c{turn}", name="read", signature=SIG), of=of)
            for more in ([UserMessage(content=f"q{turn}")], [call, result(f"c{turn}", IMAGE)]):
                messages += more
                sent = encode_body(encode(of, Transcript(messages=list(messages)), StreamOptions()))
                assert sent.startswith(before)
                before = sent.removesuffix(b"]}")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemini-2.5-pro-preview", ("budget", False)), ("gemini-1.5-flash", ("budget", False)), ("models/gemini-3.1-pro", ("level", True)),
        ("gemini-pro-latest", ("level", True)), ("gemini-pro", ("budget", False)), ("gemini-12-x", ("level", True)),
        ("publishers/google/models/gemini-4-argon", ("level", True)), ("gemma-4-31b-it", ("level", False)), ("gpt-oss-120b", ("budget", True)),
        ("tunedModels/mine", ("budget", False)),
    ],
)  # fmt: skip
def test_families_are_known_by_their_names(name: str, expected: tuple[str, bool]) -> None:
    """Quirks are data: the row for a name, and the model's own word over it."""
    compat = resolve_compat(model(name))
    assert (compat.thinking, compat.call_ids) == expected
    assert resolve_compat(model(name, compat={"call_ids": not expected[1]})).call_ids is not expected[1]
