"""Transcript replay and the provider's view of a transcript."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from laneway import (
    AgentContext,
    AssistantMessage,
    BashExecutionMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ErrorInfo,
    ImageContent,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    UserMessage,
    current_system_message,
    current_system_prompt,
    current_tools,
    declare_tool_changes,
    tool_changes,
)
from laneway import transcript as transcript_module
from laneway.testing import provider_ready
from laneway.transcript import (
    IMAGE_REFUSED,
    NO_RESULT,
    Projection,
    ToolDeclarer,
    collapse_system_messages,
    convert_to_llm,
    has_images,
    initial_system_message,
    normalise,
    render_system,
    render_system_update,
)


class Unknown(Struct, frozen=True, tag_field="role", tag="transcript_test_unknown"):
    """A role that nobody knows."""


def declaration(name: str, description: str = "") -> ToolDeclaration:
    return ToolDeclaration(name=name, description=description, parameters={"type": "object"})


class Tool:
    """All that declaring needs of a tool."""

    def __init__(self, name: str, description: str = "") -> None:
        self.declaration = declaration(name, description)


PNG = ImageContent(data="aGk=", mime_type="image/png")


def picture(*texts: str) -> UserMessage:
    return UserMessage(content=[*(TextContent(text=text) for text in texts), PNG])


def refusal(model: str = "m", kind: Any = "image") -> AssistantMessage:
    """A response that failed because of an image."""
    return AssistantMessage(content=[], model=model, stop_reason="error", error_message="no", error=ErrorInfo(kind=kind))


def answered(model: str = "m", *calls: str) -> AssistantMessage:
    return msgspec.structs.replace(assistant(*calls, text="ok"), model=model)


def pictured(messages: list[Any]) -> str:
    """`i` for each message with an image that is sent, `-` for each with a note in its place."""
    return "".join("i" if has_images(m) else "-" if IMAGE_REFUSED in m.text else "" for m in normalise(messages))


def user(text: str = "hi") -> UserMessage:
    return UserMessage(content=text, timestamp=1)


def assistant(*calls: str, text: str = "", stop: Any = None) -> AssistantMessage:
    content: list[Any] = [TextContent(text=text)] if text else []
    content += [ToolCall(id=c, name="t") for c in calls]
    return AssistantMessage(content=content, stop_reason=stop or ("tool_use" if calls else "stop"), timestamp=1)


def result(call: str, text: str = "ok", is_error: bool = False) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call, tool_name="t", content=[TextContent(text=text)] if text else [], is_error=is_error, timestamp=1)


BASE = SystemMessage(content="base", sections={"a": "A", "b": "B"}, tools_added=[declaration("x"), declaration("y")], timestamp=5)
UPDATE = SystemMessage(
    content="more",
    sections={"a": "A2", "b": None, "c": "C"},
    tools_removed=["x"],
    tools_added=[declaration("z"), declaration("x", "new")],
    timestamp=9,
)


def test_an_initial_system_message_has_prompt_and_tools() -> None:
    """05-2, 05-3, 05-4: None if there is nothing to say; timestamp 0."""
    assert initial_system_message("", []) is None
    assert initial_system_message("S", []) == SystemMessage(content="S", timestamp=0)
    assert initial_system_message("", [declaration("a")]) == SystemMessage(tools_added=[declaration("a")], timestamp=0)


def test_system_messages_merge_in_order() -> None:
    """05-5, 05-6: contents joined, sections patched, tools replayed, the first timestamp."""
    merged = current_system_message([BASE, user(), UPDATE])
    assert merged is not None
    assert merged.content == "base\n\nmore"
    assert merged.sections == {"a": "A2", "c": "C"}
    assert merged.tools_added == [declaration("y"), declaration("z"), declaration("x", "new")]
    assert merged.timestamp == 5
    assert current_system_prompt([BASE, UPDATE]) == "base\n\nmore\n\nA2\n\nC"


def test_adding_a_tool_again_keeps_its_place() -> None:
    """05-7."""
    again = SystemMessage(tools_added=[declaration("x", "better")])
    assert current_tools([BASE, again]) == [declaration("x", "better"), declaration("y")]


def test_replay_without_system_messages() -> None:
    """05-11, 05-14: nothing, or an empty message; unknown roles are ignored."""
    assert current_system_message([user(), Unknown()]) is None
    assert current_system_prompt([Unknown()]) == ""
    assert current_tools([Unknown()]) == []
    empty = current_system_message([SystemMessage(timestamp=3)])
    assert empty == SystemMessage(timestamp=3)


def test_collapsing_puts_one_system_message_first() -> None:
    """05-12."""
    assert [m.role for m in collapse_system_messages([user(), BASE, user(), UPDATE])] == ["system", "user", "user"]
    assert [m.role for m in collapse_system_messages([user()])] == ["user"]


def test_rendering_an_update_names_sections() -> None:
    """05-13: a removed section is worded differently from a replaced one; a full prompt drops empty parts."""
    update = render_system_update(UPDATE).split("\n\n")
    assert update[0] == "more"
    assert '"b"' in update[3]
    assert "no longer" in update[3]
    assert render_system(SystemMessage(content=" ", sections={"a": "", "b": "B"})) == "B"


def test_tool_changes_compare_declarations() -> None:
    """05-9, 05-10: a changed one is in both lists, a reordering is nothing."""
    a, b, c = declaration("a"), declaration("b"), declaration("c")
    changes = tool_changes([a, b], [declaration("b", "new"), c])
    assert [d.name for d in changes.added] == ["b", "c"]
    assert changes.removed == ["a", "b"]
    assert not tool_changes([a, b], [b, a])


def test_declaring_merges_into_the_last_pending_system_message() -> None:
    """01: its own tool fields are replaced by the true difference."""
    context = AgentContext(messages=[initial_system_message("", [declaration("a")])], tools=[Tool("b")])  # type: ignore[list-item] - only declarations matter
    pending = [SystemMessage(content="rule", tools_added=[declaration("a")], timestamp=1), user()]
    out = declare_tool_changes(context, pending)
    assert out[0] == SystemMessage(content="rule", tools_added=[declaration("b")], tools_removed=["a"], timestamp=1)
    assert current_tools([*context.messages, *out]) == [declaration("b")]


def test_declaring_inserts_a_system_message_where_there_is_none() -> None:
    """01: before the first pending message that is not a system message; nothing when nothing differs."""
    context = AgentContext(messages=[user()], tools=[Tool("b")])  # type: ignore[list-item] - only declarations matter
    out = declare_tool_changes(context, [user("next")])
    assert [m.role for m in out] == ["system", "user"]
    again = AgentContext(messages=[*context.messages, *out], tools=context.tools)
    assert declare_tool_changes(again, [user("again")]) == [user("again")]
    assert declare_tool_changes(AgentContext(messages=[], tools=context.tools), [])[0].role == "system"


names = st.sampled_from("abcd")
tool_lists = st.lists(st.builds(Tool, names, st.sampled_from(["", "new"])), unique_by=lambda t: t.declaration.name, max_size=4)
pendings = st.lists(
    st.one_of(
        st.builds(user),
        st.builds(
            SystemMessage,
            tools_added=st.none() | st.lists(st.builds(declaration, names, st.just("own")), max_size=2),
            tools_removed=st.none() | st.lists(names, max_size=2),
        ),
    ),
    max_size=4,
)


@given(st.lists(st.tuples(tool_lists, pendings), max_size=5))
def test_replay_always_gives_exactly_the_tools_of_the_context(steps: list[tuple[list[Tool], list[Any]]]) -> None:
    """01: whatever was pending, and however the tools changed; the remembering declarer says the same as a fresh one."""
    transcript: list[Any] = []
    remembering = ToolDeclarer()
    for tools, pending in steps:
        out = remembering.declare(transcript, tools, pending)
        fresh = declare_tool_changes(AgentContext(messages=transcript, tools=tools), pending)  # type: ignore[arg-type] - only declarations matter
        assert [(m.role, getattr(m, "tools_added", None), getattr(m, "tools_removed", None)) for m in out] == [
            (m.role, getattr(m, "tools_added", None), getattr(m, "tools_removed", None)) for m in fresh
        ]
        transcript += out
        assert {d.name: d for d in current_tools(transcript)} == {t.declaration.name: t.declaration for t in tools}


@pytest.mark.parametrize(
    ("messages", "shape"),
    [
        ([user(), assistant("k")], "u a k!"),
        ([user(), assistant("k"), user()], "u a k! u"),
        ([user(), assistant("k", "l", "m"), result("l"), result("m"), user()], "u a k! l m u"),
        ([user(), assistant("k"), CustomMessage(custom_type="c", content="x"), result("k")], "u a k u"),
        ([user(), assistant("k"), SystemMessage(content="s"), result("k"), user()], "u a k s u"),
        ([user(), assistant("k", "l"), result("l"), SystemMessage(content="s"), user()], "u a k! l s u"),
        ([user(), assistant("k", stop="aborted"), result("k", is_error=True), user()], "u u"),
        ([user(), assistant("k", stop="error"), result("k"), user()], "u u"),
        ([user(), assistant(text="x", stop="deferred"), user()], "u u"),
        ([user(), assistant("k"), result("k"), result("k", "interrupted"), user()], "u a k u"),
        ([user(), assistant("k"), result("k"), result("never"), user()], "u a k u"),
        ([user(), result("before"), assistant(text="x"), user()], "u a u"),
        ([user(), assistant("k"), result("k"), assistant("k"), result("k", "second"), user()], "u a k a k_2 u"),
        ([user(), assistant("k", stop="length"), result("k"), user()], "u a k u"),
        ([user(" "), UserMessage(content=[TextContent(text=" ")]), assistant(text=" \n"), assistant(), user()], "u"),
        ([Unknown(), user()], "u"),
    ],
)
def test_what_a_provider_is_sent(messages: list[Any], shape: str) -> None:
    """B30, B31, B32, B33, B42, 05-121, 05-122, 05-124: `!` marks a result that was made up."""
    out = normalise(messages)
    told = [
        {"user": "u", "assistant": "a", "system": "s"}.get(m.role)
        or m.tool_call_id + ("!" if m.content[0].text == NO_RESULT else "")  # type: ignore[union-attr] - a tool result
        for m in out
    ]
    assert " ".join(told) == shape
    assert provider_ready([*out, user()]) == []
    assert normalise(out) == out, "healing what is healed changes nothing"


def test_the_first_result_wins() -> None:
    """B32: and the provider never sees the second."""
    out = normalise([user(), assistant("k"), result("k", "A"), result("k", "interrupted")])
    assert out[-1].content == [TextContent(text="A")]


def test_blank_blocks_go_and_signed_thinking_stays() -> None:
    """B38, B43: an empty result says so; an empty text rule is about text only."""
    signed = ThinkingContent(thinking="", signature="S1")
    message = AssistantMessage(content=[signed, TextContent(text=" "), ToolCall(id="k", name="t")], stop_reason="tool_use")
    out = normalise([user(), message, result("k", "")])
    assert out[1].content == [signed, ToolCall(id="k", name="t")]
    assert out[2].content == [TextContent(text="(no output)")]
    image = ImageContent(data="", mime_type="image/png")
    assert normalise([UserMessage(content=[TextContent(text=""), image])])[0].content == [image]


def test_what_needs_no_change_keeps_its_identity() -> None:
    """A wire can then reuse what it encoded before."""
    messages = [user(), assistant("k"), result("k"), assistant(text="done")]
    assert all(a is b for a, b in zip(normalise(messages), messages, strict=True))


def test_other_roles_become_user_messages() -> None:
    """E-07: commands with exit code or cancellation, summaries wrapped, excluded and unknown ones dropped."""
    out = convert_to_llm(
        [
            CustomMessage(custom_type="c", content="note"),
            BashExecutionMessage(command="false", output="", exit_code=1),
            BashExecutionMessage(command="sleep 9", output="x", cancelled=True, truncated=True, full_output_path="/tmp/x"),
            BashExecutionMessage(command="secret", exclude_from_context=True),
            CompactionSummaryMessage(summary="before"),
            Unknown(),
        ]
    )
    assert [m.role for m in out] == ["user"] * 4
    contents = [str(m.content) for m in out]
    assert "Exit code: 1" in contents[1]
    assert "cancelled" in contents[2]
    assert "/tmp/x" in contents[2]
    assert "before" in contents[3]


pool = st.sampled_from("kl")
any_message = st.one_of(
    st.builds(user, st.sampled_from(["hi", " "])),
    st.builds(
        lambda calls, stop: assistant(*calls, text="t", stop=stop),
        st.lists(pool, max_size=2, unique=True),
        st.sampled_from([None, "error", "length"]),
    ),
    st.builds(result, pool, st.sampled_from(["A", "", "B"])),
    st.builds(SystemMessage, content=st.just("s")),
    st.builds(picture),
    st.builds(refusal, st.sampled_from(["m", "other"])),
    st.builds(answered, st.sampled_from(["m", "other"])),
)


@given(st.lists(any_message, max_size=12), st.lists(st.integers(0, 12), max_size=4), st.booleans())
def test_projecting_step_by_step_is_projecting_at_once(messages: list[Any], cuts: list[int], append_only: bool) -> None:
    """B30: whatever the history, what is sent passes the check; remembering changes nothing."""
    projection = Projection()
    for cut in sorted(cuts):
        assert projection.project(messages[:cut], append_only=append_only) == normalise(messages[:cut])
    whole = projection.project([*messages, user("end")], append_only=append_only)
    assert whole == normalise([*messages, user("end")])
    assert provider_ready(whole) == []


@pytest.mark.parametrize(
    ("messages", "sent"),
    [
        ([picture(), refusal()], "-"),
        ([picture(), refusal(), picture()], "-i"),
        ([picture(), refusal(kind="invalid_request"), picture()], "ii"),
        ([picture(), answered(), picture(), refusal()], "i-"),
        ([picture(), answered(), user(), refusal(), user()], "-"),
        ([picture(), answered("other"), picture(), refusal()], "--"),
        ([picture(), answered(), picture(), answered("other"), picture(), refusal()], "i--"),
        ([picture(), answered(), picture(), refusal(), user(), answered(), picture(), refusal()], "---"),
        ([picture(), answered(), picture(), refusal(), picture(), answered(), picture(), refusal()], "i-i-"),
        ([picture(), answered(), picture(), refusal(), user(), refusal()], "--"),
        ([picture(), answered(), picture(), refusal("other"), picture(), answered("other"), picture(), refusal()], "----"),
    ],
)  # fmt: skip
def test_refused_images_are_left_out(messages: list[Any], sent: str) -> None:
    """B57: those that the model had not answered to; all before the refusal where that helped nothing; later ones are sent."""
    assert pictured(messages) == sent


def test_a_note_stands_for_refused_images_of_prompts_and_results() -> None:
    """B57: one for a run of images, in its place; nothing else changes, and what is stored least of all."""
    prompt = UserMessage(content=[TextContent(text="before"), PNG, PNG, TextContent(text="after")])
    shot = ToolResultMessage(tool_call_id="k", tool_name="t", content=[PNG], details={"x": 1})
    stored: list[Any] = [prompt, answered("other", "k"), shot, refusal(), user()]
    kept = deepcopy(stored)
    note = TextContent(text=IMAGE_REFUSED)
    out = normalise(stored)
    assert out[0] == msgspec.structs.replace(prompt, content=[TextContent(text="before"), note, TextContent(text="after")])
    assert out[2] == msgspec.structs.replace(shot, content=[note])
    assert out[1] is stored[1]
    assert stored == kept
    assert provider_ready(out) == []


def test_what_was_sent_after_a_refusal_stays_as_it_was_sent() -> None:
    """B57: each request begins with the one before it, so what a provider has cached is used."""
    projection, messages = Projection(), [user("s"), picture(), answered(), picture(), refusal()]
    sent: list[Any] = projection.project([*messages, user()])
    for step in (user(), answered(), picture(), answered(), user(), answered()):
        messages.append(step)
        if not isinstance(step, AssistantMessage):
            now = projection.project(messages, append_only=True)
            assert now[: len(sent)] == sent
            assert all(a is b for a, b in zip(now, sent, strict=False))
            sent = now


def test_many_refusals_cost_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """B57: however often images are refused, each message is looked at a few times at most."""
    looked = 0

    def counting(message: Any) -> bool:
        nonlocal looked
        looked += 1
        return has_images(message)

    monkeypatch.setattr(transcript_module, "has_images", counting)
    for turn in ([picture(), refusal()], [picture(), answered(), picture(), refusal()], [picture(), refusal("a"), refusal("b"), answered("a")]):
        looked, messages = 0, turn * 200
        projection = Projection()
        for end in range(len(turn), len(messages) + 1, len(turn)):
            projection.project(messages[:end], append_only=True)
        assert looked < 8 * len(messages)


def test_a_changed_past_is_noticed() -> None:
    """Without the promise that a list only grows, what was seen is compared."""
    projection = Projection()
    projection.project([user("a"), user("b")])
    assert projection.project([user("b")]) == [user("b")]
    assert projection.project([user("c"), user("d")]) == [user("c"), user("d")]
