"""Hand-off of a transcript to one model."""

from __future__ import annotations

import os
import subprocess
import sys
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from laneway.llm import _transform
from laneway.llm._transform import (
    IMAGE_PLACEHOLDER,
    IdPolicy,
    OutgoingConversation,
    WireItems,
    convert_cached,
    encode_body,
    legal_tool_name,
    plan_tools,
    short_hash,
    split_system,
    tool_name_map,
    transform,
)
from laneway.llm.base import Model, encode_json
from laneway.messages import (
    AssistantContent,
    AssistantMessage,
    ErrorInfo,
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
from laneway.transcript import IMAGE_REFUSED, has_images

MODEL = Model(id="m", provider="p", api="openai_chat")
IMAGE = ImageContent(data="aGk=", mime_type="image/png")


def own(*content: AssistantContent) -> AssistantMessage:
    """A response of MODEL itself."""
    return AssistantMessage(content=list(content), api=MODEL.api, provider=MODEL.provider, model=MODEL.id)


def foreign(*content: AssistantContent) -> AssistantMessage:
    """A response of another model."""
    return AssistantMessage(content=list(content), api="other", provider="o", model="x")


def result(call_id: str, *content: TextContent | ImageContent, name: str = "f") -> ToolResultMessage:
    """A tool result."""
    return ToolResultMessage(tool_call_id=call_id, tool_name=name, content=list(content or (TextContent(text="ok"),)))


def call(call_id: str, name: str = "f", **fields: str) -> ToolCall:
    """A tool call."""
    return ToolCall(id=call_id, name=name, **fields)  # type: ignore[arg-type]  # test helper


def texts(message: Message) -> list[str]:
    """The text blocks of a user message or tool result."""
    assert isinstance(message, (UserMessage, ToolResultMessage))
    return [block.text for block in message.content if isinstance(block, TextContent)]


# ---------------------------------------------------------------------------------------------------- blocks


def test_foreign_thinking_is_dropped_and_signatures_stripped() -> None:
    """Decision 7: never turned into text; a signature means something only to the model that made it."""
    messages = [
        UserMessage(content="hi"),
        foreign(ThinkingContent(thinking="T", signature="s"), TextContent(text="ok", signature="sig"), call("c1", signature="sig")),
        result("c1"),
    ]
    sent = transform(messages, MODEL)[1]
    assert isinstance(sent, AssistantMessage)
    assert sent.content == [TextContent(text="ok"), call("c1")]


def test_own_thinking_is_kept_where_it_says_something() -> None:
    """05 sc. 120: empty but signed kept, redacted kept, blank and unsigned dropped."""
    kept = [
        ThinkingContent(thinking="", signature="s"),
        ThinkingContent(thinking="[redacted]", signature="x", redacted=True),
        ThinkingContent(thinking="t"),
    ]
    message = own(kept[0], ThinkingContent(thinking=" \n"), *kept[1:], TextContent(text="a", signature="sig"))
    sent = transform([UserMessage(content="q"), message], MODEL)[1]
    assert isinstance(sent, AssistantMessage)
    assert sent.content == [*kept, TextContent(text="a", signature="sig")]


@pytest.mark.parametrize("field", ["api", "provider", "model"])
def test_another_model_is_one_that_differs_in_any_part(field: str) -> None:
    """05 §5: same model means provider, wire and id are equal."""
    parts = {"api": MODEL.api, "provider": MODEL.provider, "model": MODEL.id, field: "different"}
    message = AssistantMessage(content=[ThinkingContent(thinking="t", signature="s"), TextContent(text="a")], **parts)  # type: ignore[arg-type]  # fields by name
    sent = transform([UserMessage(content="q"), message], MODEL)[1]
    assert isinstance(sent, AssistantMessage)
    assert sent.content == [TextContent(text="a")]


def test_nothing_is_copied_that_need_not_change() -> None:
    """The stored messages are sent as they are where they fit; they are never written to."""
    messages: list[Message] = [UserMessage(content="q"), own(TextContent(text="a"), call("c1")), result("c1")]
    assert all(a is b for a, b in zip(transform(messages, MODEL), messages, strict=True))


# ---------------------------------------------------------------------------------------------------- images


def test_images_become_one_note_per_run_for_a_model_that_cannot_see() -> None:
    """05 sc. 119, B56: two images, text, image → note, text, note; string content is untouched."""
    messages = [UserMessage(content=[IMAGE, IMAGE, TextContent(text="t"), IMAGE]), UserMessage(content="plain")]
    sent = transform(messages, MODEL)
    assert texts(sent[0]) == [IMAGE_PLACEHOLDER, "t", IMAGE_PLACEHOLDER]
    assert sent[1] is messages[1]


def test_images_in_results_become_notes_too() -> None:
    """B56: the pairing stays, the image is not dropped silently."""
    messages = [UserMessage(content="q"), own(call("c1")), result("c1", IMAGE)]
    assert texts(transform(messages, MODEL)[2]) == [IMAGE_PLACEHOLDER]
    vision = Model(id="m", provider="p", api="openai_chat", input=("text", "image"))
    assert transform(messages, vision)[2] is messages[2]


# ---------------------------------------------------------------------------------------------------- ids


@pytest.mark.parametrize("call_id", ["call_abc", "a" * 40, "A-b_9"])
def test_a_legal_id_is_sent_as_it_is(call_id: str) -> None:
    """05 sc. 123: nothing is rewritten without need."""
    assert IdPolicy().fit(call_id) == call_id


@pytest.mark.parametrize("call_id", ["call_1|fc_+/=1", "a" * 41, "", "ü", "x y", "\ud83d", "a|" + "b" * 100])
@pytest.mark.parametrize("policy", [IdPolicy(), IdPolicy(max_length=64), IdPolicy(max_length=9, chars="A-Za-z0-9", fixed=True)])
def test_any_id_becomes_legal(call_id: str, policy: IdPolicy) -> None:
    """Decision 15: legal characters, at most the provider's length, never empty."""
    fitted = policy.fit(call_id)
    assert policy.accepts(fitted)
    assert fitted == policy.fit(call_id)
    assert fitted != policy.fit(call_id, salt=1)


def test_the_mapping_is_the_same_in_every_process() -> None:
    """Decision 15: no hash seed, no clock, no counter is in it."""
    program = "from laneway.llm._transform import IdPolicy; print(IdPolicy().fit('call_abc|fc_def'))"
    seen = {
        subprocess.check_output([sys.executable, "-c", program], text=True, env={**os.environ, "PYTHONHASHSEED": seed}).strip() for seed in ("1", "2")
    }
    assert seen == {IdPolicy().fit("call_abc|fc_def")}
    assert short_hash("a") == "b66a2e79"


def test_ids_that_share_the_part_before_the_bar_stay_distinct() -> None:
    """Decision 15, B36: and call and result agree; the stored messages keep their ids."""
    first, second = "call_abc|fc_1", "call_abc|fc_2"
    messages = [UserMessage(content="q"), foreign(call(first), call(second)), result(first), result(second)]
    for policy in (IdPolicy(), IdPolicy(compound=True, max_length=64)):
        _, assistant, one, two = transform(messages, MODEL, policy)
        assert isinstance(assistant, AssistantMessage)
        assert isinstance(one, ToolResultMessage)
        assert isinstance(two, ToolResultMessage)
        ids = [block.id for block in assistant.tool_calls]
        assert ids == [one.tool_call_id, two.tool_call_id]
        assert len({policy.key(value) for value in ids}) == 2
    assert [block.id for block in messages[1].tool_calls] == [first, second]  # type: ignore[union-attr]  # an assistant message


def test_a_compound_id_keeps_its_shape_for_its_own_wire() -> None:
    """B36: switching back restores call id and item id."""
    assert IdPolicy(compound=True, max_length=64).fit("call_abc|fc_def") == "call_abc|fc_def"
    assert IdPolicy(compound=True, max_length=64).fit("call abc|fc_def").endswith("|fc_def")


def test_an_id_that_comes_again_in_a_later_response_is_made_distinct() -> None:
    """Local servers count from call_0 in every response; providers want ids that are distinct in the whole request."""
    messages = [
        UserMessage(content="q"), own(call("call_0")), result("call_0", TextContent(text="one")),
        own(call("call_0")), result("call_0", TextContent(text="two")),
    ]  # fmt: skip
    sent = transform(messages, MODEL)
    first, second = (message for message in sent if isinstance(message, AssistantMessage))
    assert first.tool_calls[0].id == "call_0"
    assert second.tool_calls[0].id != "call_0"
    assert [message.tool_call_id for message in sent if isinstance(message, ToolResultMessage)] == ["call_0", second.tool_calls[0].id]


@given(st.lists(st.text(st.sampled_from("ab|é \ud83d"), max_size=50), min_size=1, max_size=8))
def test_fitted_ids_are_legal_distinct_and_stable(ids: list[str]) -> None:
    """Property: any ids, repeated ones included, are mapped to legal, pairwise distinct ones, the same way each time."""
    messages: list[Message] = [UserMessage(content="q")]
    for call_id in ids:
        messages += [foreign(call(call_id)), result(call_id)]
    sent = transform(messages, MODEL)
    calls = [message.tool_calls[0].id for message in sent if isinstance(message, AssistantMessage)]
    answers = [message.tool_call_id for message in sent if isinstance(message, ToolResultMessage)]
    assert calls == answers
    assert len(set(calls)) == len(ids)
    assert all(IdPolicy().accepts(value) for value in calls)
    assert transform(messages[:-2], MODEL) == sent[:-2]


# ---------------------------------------------------------------------------------------------------- names


def test_tool_names_become_legal_and_find_their_way_back() -> None:
    """B36: letters, digits, _ and - up to 64; different names stay different; a legal name is untouched."""
    assert legal_tool_name("read_file-2") == "read_file-2"
    names = ["server.tool", "server:tool", "server tool", "x" * 65, "é", ""]
    fitted = [legal_tool_name(name) for name in names]
    assert len(set(fitted)) == len(names)
    assert all(0 < len(name) <= 64 and name.replace("_", "").replace("-", "").isascii() for name in fitted)
    tools = [ToolDeclaration(name=name, description="", parameters={}) for name in ("read", "server.tool")]
    assert tool_name_map(tools) == {legal_tool_name("server.tool"): "server.tool"}
    sent = transform([UserMessage(content="q"), own(call("c", "server.tool")), result("c", name="server.tool")], MODEL)
    assert sent[1].tool_calls[0].name == sent[2].tool_name == legal_tool_name("server.tool")  # type: ignore[union-attr]  # known roles


# ---------------------------------------------------------------------------------------------------- system and tools


def tool(name: str, description: str = "") -> ToolDeclaration:
    """A declaration."""
    return ToolDeclaration(name=name, description=description, parameters={})


def test_the_leading_system_messages_are_split_off_merged() -> None:
    """Two system messages at the head are one prompt; later ones stay."""
    later = SystemMessage(content="c")
    leading, rest = split_system([SystemMessage(content="a"), SystemMessage(content="b"), UserMessage(content="q"), later])
    assert leading is not None
    assert leading.content == "a\n\nb"
    assert rest[1] is later
    assert split_system([UserMessage(content="q")])[0] is None


def test_tools_are_declared_at_the_top_or_in_place() -> None:
    """05 sc. 15 [fix]: additions stay in place; a removal or redefinition folds everything up to it into the top."""
    user = UserMessage(content="q")
    messages: list[Message] = [
        SystemMessage(tools_added=[tool("a")]), user,
        SystemMessage(tools_added=[tool("b")], tools_removed=["a"]), user,
        SystemMessage(tools_added=[tool("c")]), user,
    ]  # fmt: skip
    none = plan_tools(messages, "none")
    assert ([t.name for t in none.declared], none.added) == (["b", "c"], {})
    additions = plan_tools(messages, "additions")
    assert ([t.name for t in additions.declared], additions.folded) == (["b"], 3)
    assert {index: [t.name for t in added] for index, added in additions.added.items()} == {4: ["c"]}
    changes = plan_tools(messages, "changes")
    assert changes.declared == []
    assert {index: [t.name for t in added] for index, added in changes.added.items()} == {0: ["a"], 2: ["b"], 4: ["c"]}
    assert changes.removed == {2: ["a"]}
    assert plan_tools(messages[:2], "additions").folded == 1
    redefined = [*messages[:2], SystemMessage(tools_added=[tool("a", "new")])]
    assert plan_tools(redefined, "additions").folded == 3


# ---------------------------------------------------------------------------------------------------- growing conversations


class Names:
    """A converter that writes what it saw, and counts its work."""

    work = 0

    def __init__(self, items: list[str] | None = None) -> None:
        self.items = items or []

    def add(self, message: Message) -> None:
        """Write one message."""
        Names.work += 1
        detail = ",".join(c.id for c in message.tool_calls) if isinstance(message, AssistantMessage) else ""
        detail = message.tool_call_id if isinstance(message, ToolResultMessage) else detail
        self.items.append(f"{message.role}:{detail}")

    def finish(self) -> list[str]:
        """Return all."""
        return self.items

    def copy(self) -> Names:
        """Return an independent one."""
        return Names(list(self.items))


def convert(messages: list[Message], key: object = "k") -> list[str]:
    """Convert through the cache."""
    return convert_cached(key, messages, lambda: OutgoingConversation(MODEL, IdPolicy(), Names()))


def test_a_growing_conversation_costs_what_is_new() -> None:
    """Promise 6: N turns are O(N) work in all, and give exactly what converting from scratch gives."""
    messages: list[Message] = [SystemMessage(content="s")]
    Names.work = 0
    for turn in range(50):
        messages += [UserMessage(content=f"q{turn}"), own(call("call_0"), call(f"c{turn}|x")), result("call_0"), result(f"c{turn}|x")]
        assert convert(messages, "grow") == convert(messages, object())
    fresh = sum(1 + 4 * (turn + 1) for turn in range(50))
    assert Names.work - fresh < 50 * 12


def test_a_conversation_that_changed_is_converted_anew() -> None:
    """An edited history, a shorter one and a branch give what they should, not what was remembered."""
    messages: list[Message] = [UserMessage(content="a"), own(call("1")), result("1"), UserMessage(content="b"), own(TextContent(text="x"))]
    assert convert(messages) == ["user:", "assistant:1", "tool_result:1", "user:", "assistant:"]
    assert convert(messages[:2]) == ["user:", "assistant:1", "tool_result:1"]
    edited = [UserMessage(content="z"), *messages[1:]]
    assert convert(edited) == convert(messages)
    assert convert([*messages[:3], UserMessage(content="other")]) == ["user:", "assistant:1", "tool_result:1", "user:"]


class Contents(Names):
    """A converter of which the items say whether there is an image."""

    def add(self, message: Message) -> None:
        """Write one message."""
        self.items.append(f"{message.role}:{'image' if has_images(message) else message.text}")

    def copy(self) -> Contents:
        """Return an independent one."""
        return Contents(list(self.items))


def test_a_refused_image_is_taken_out_of_what_was_converted_before() -> None:
    """B57: also where the transcript is given as it is stored, and what came before the refusal was converted for good."""

    def sent(messages: list[Message]) -> list[str]:
        vision = replace(MODEL, input=("text", "image"))
        return list(convert_cached("refused", messages, lambda: OutgoingConversation(vision, IdPolicy(), Contents())))

    messages: list[Message] = [UserMessage(content=[IMAGE]), own(TextContent(text="a")), UserMessage(content="b"), own(TextContent(text="c"))]
    assert sent(messages) == ["user:image", "assistant:a", "user:b", "assistant:c"]
    messages += [UserMessage(content="d"), AssistantMessage(content=[], stop_reason="error", error=ErrorInfo(kind="image"))]
    after = [f"user:{IMAGE_REFUSED}", "assistant:a", "user:b", "assistant:c", "user:d"]
    assert sent(messages) == after
    assert sent([*messages, UserMessage(content=[IMAGE])]) == [*after, "user:image"]


def test_a_late_result_still_counts() -> None:
    """A result that arrives after other messages takes the place of the error that stood in for it."""
    messages: list[Message] = [UserMessage(content="a"), own(call("1"), call("2")), result("1")]
    assert convert(messages, "late") == ["user:", "assistant:1,2", "tool_result:1", "tool_result:2"]
    messages += [UserMessage(content="b"), result("2")]
    assert convert(messages, "late") == ["user:", "assistant:1,2", "tool_result:1", "tool_result:2", "user:"]


def converted(messages: list[Message], key: object) -> WireItems[str]:
    """The wire's items with what is kept of them."""
    return convert_cached(key, messages, lambda: OutgoingConversation(MODEL, IdPolicy(), Names()))


def test_the_kept_json_is_the_json() -> None:
    """Encoding with what is kept gives the very bytes of encoding anew, whatever stands before or is replaced in it."""
    messages: list[Message] = [SystemMessage(content="s")]
    key = object()
    for turn in range(12):
        messages += [UserMessage(content="q\ud83d"), own(call(f"c{turn}")), result(f"c{turn}"), own(TextContent(text="a"))]
        items = converted(messages, key)
        for variant in (
            items,
            items.with_lead("first", "second"),
            items.with_lead("x").with_item(-1, "last"),
            items.with_item(0, "new"),
            WireItems(["a"]),
        ):
            body = {"before": 1, "items": variant, "after": [variant]}
            assert encode_body(body) == encode_json({"before": 1, "items": list(variant), "after": [list(variant)]})
    assert encode_body({"items": WireItems()}) == b'{"items":[]}'
    assert encode_body({"a": "\ud83d"}) == encode_json({"a": "\ud83d"})


def test_an_earlier_request_s_items_stay_as_they_were() -> None:
    """The kept JSON grows; a body that was made before is not changed by that."""
    key = object()
    messages: list[Message] = [UserMessage(content="q"), own(call("1")), result("1"), own(TextContent(text="a"))]
    early = converted(messages, key)
    before = encode_body({"items": early})
    converted([*messages, UserMessage(content="r"), own(TextContent(text="b")), UserMessage(content="s")], key)
    assert encode_body({"items": early}) == before
    copied = deepcopy({"items": early})
    assert type(copied["items"]) is list
    assert copied["items"] == early


def test_what_is_remembered_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few conversations, and not without bound."""
    for number in range(40):
        convert([UserMessage(content=str(number)), own(TextContent(text="x"))], ("limit", number))
    assert len(_transform._cache) <= 16
    monkeypatch.setattr(_transform, "_CACHE_BYTES", 10)
    convert([UserMessage(content="q"), own(call("1")), result("1"), own(TextContent(text="x"))], "big")
    assert _transform._cache == []
