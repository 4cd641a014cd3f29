"""From a tip to the messages a model sees."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laneway.messages import (
    AgentMessage,
    AssistantMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ErrorInfo,
    ImageContent,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from laneway.session import EntryProjector, LaneContext, Session, build_context
from laneway.storage.base import BranchScan, CustomEntry, Entry
from laneway.storage.memory import MemoryStorage
from laneway.transcript import IMAGE_REFUSED, normalise


def user(text: str) -> UserMessage:
    return UserMessage(content=text, timestamp=1)


def says(text: str, *call_ids: str, stop: str = "stop") -> AssistantMessage:
    blocks = [TextContent(text=text), *(ToolCall(id=i, name="t") for i in call_ids)]
    return AssistantMessage(content=blocks, stop_reason=stop, timestamp=1)  # type: ignore[arg-type] - a stop reason


def result(call_id: str) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call_id, tool_name="t", timestamp=1)


def short(messages: list[AgentMessage]) -> list[str]:
    """The text of each message, or what it is."""
    fields = ("summary", "text", "tool_call_id", "content")
    return [next(str(getattr(m, name)) for name in fields if getattr(m, name, None)) for m in messages]


class CountingStorage(MemoryStorage):
    """Counts the entries that branch scans returned."""

    read = 0

    async def scan_branch(self, scan: BranchScan) -> list[Entry]:
        found = await super().scan_branch(scan)
        self.read += len(found)
        return found


async def test_a_plain_path_is_its_messages_from_root_to_tip(session: Session):
    """E-01."""
    branch = await session.create_branch("main")
    for message in (user("m1"), says("m2"), user("m3")):
        await branch.append_message(message)
    assert await branch.context() == [user("m1"), says("m2"), user("m3")]
    assert await build_context(session, None) == []


async def test_the_newest_compaction_replaces_all_before_it(session: Session):
    """E-02: its summary, its retained tail, then what follows."""
    branch = await session.create_branch("main")
    await branch.append_message(user("m1"))
    await branch.append_compaction("comp1")
    await branch.append_message(user("m2"))
    await branch.append_compaction("comp2", retained_tail=[user("m2")], tokens_before=9)
    await branch.append_message(user("m3"))
    context = await branch.context()
    assert isinstance(context[0], CompactionSummaryMessage)
    assert (context[0].summary, context[0].tokens_before) == ("comp2", 9)
    assert context[1:] == [user("m2"), user("m3")]


async def test_failed_responses_are_left_out_with_their_results(session: Session):
    """E-04, B31: neither a skipped call nor a result of it is sent; an id that is used again later is another call."""
    branch = await session.create_branch("main")
    skipped = [says("a", "k", stop="aborted"), result("k")]
    for message in (user("u"), *skipped, user("v"), says("b", "k"), result("k"), says("x", stop="error"), says("y", stop="deferred")):
        await branch.append_message(message)
    assert await branch.context() == [user("u"), user("v"), says("b", "k"), result("k")]


async def test_the_refusal_of_an_image_stays(session: Session):
    """B57: a provider's view is made from the context, and has to know which images to leave out; also after a compaction."""
    branch = await session.create_branch("main")
    shot = UserMessage(content=[ImageContent(data="aGk=", mime_type="image/png")], timestamp=1)
    refused = AssistantMessage(content=[], stop_reason="error", error=ErrorInfo(kind="image"), timestamp=1)
    await branch.append_message(shot)
    await branch.append_message(refused)
    assert await branch.context() == [shot, refused]
    await branch.append_compaction("s", retained_tail=[shot, refused])
    assert [message.text for message in normalise(await branch.context())[1:]] == [IMAGE_REFUSED]


async def test_a_response_cut_by_the_output_limit_stays(session: Session):
    """A genuine `length` is part of the conversation."""
    branch = await session.create_branch("main")
    await branch.append_message(says("half", stop="length"))
    assert short(await branch.context()) == ["half"]


async def test_branch_summaries_count_only_with_text(session: Session):
    """E-05."""
    branch = await session.create_branch("main")
    root = await branch.append_message(user("u"))
    await branch.append_branch_summary("", from_id=root)
    await branch.append_branch_summary("went left", from_id=root)
    context = await branch.context()
    assert isinstance(context[1], BranchSummaryMessage)
    assert (context[1].summary, context[1].from_id) == ("went left", root)
    assert len(context) == 2


async def test_custom_entries_go_through_projectors(session: Session):
    """E-06: none without a projector, none for None, several in place for a list; async is fine."""
    branch = await session.create_branch("main")
    for kind in ("a", "b", "c", "d"):
        await branch.append_custom_entry(kind, kind * 2)
        await branch.append_message(user(kind))

    async def two(entry: CustomEntry) -> list[AgentMessage]:
        return [CustomMessage(custom_type="a", content=f"{entry.data}{i}", timestamp=1) for i in (1, 2)]

    projectors: dict[str, EntryProjector] = {"a": two, "b": lambda entry: None, "d": lambda entry: user(f"from {entry.data}")}
    assert short(await branch.context(projectors)) == ["aa1", "aa2", "a", "b", "c", "from dd", "d"]


async def test_nothing_before_the_newest_compaction_is_read():
    """E-08: the cost is that of the entries since it."""
    storage = CountingStorage()
    branch = await Session.over(storage).create_branch("main")
    for i in range(100):
        await branch.append_message(user(f"old {i}"))
    await branch.append_compaction("all that")
    for i in range(3):
        await branch.append_message(user(f"new {i}"))
    storage.read = 0
    assert short(await branch.context()) == ["all that", "new 0", "new 1", "new 2"]
    assert storage.read == 4


async def test_a_moving_tip_costs_what_was_added():
    """A lane that reads its context before every request reads each entry once, not once per turn."""
    storage = CountingStorage()
    session = Session.over(storage)
    branch = await session.create_branch("main")
    context = LaneContext(session)
    for i in range(200):
        await branch.append_message(user(f"m{i}"))
        assert len(await context.read(await branch.get_tip())) == i + 1
    assert storage.read <= 2 * 200
    assert await context.read(await branch.get_tip()) == await branch.context()


async def test_siblings_are_invisible(session: Session):
    """E-09."""
    left = await session.create_branch("left")
    root = await left.append_message(user("root"))
    right = await session.create_branch("right", at=root)
    await left.append_message(user("left"))
    await right.append_message(user("right"))
    assert short(await right.context()) == ["root", "right"]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.sampled_from(["stop", "length", "error", "aborted"])),
        st.tuples(st.just("custom"), st.just("")),
        st.tuples(st.just("compact"), st.just("")),
        st.tuples(st.just("back"), st.just("")),
    ),
    max_size=25,
)


@given(steps)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
async def test_a_context_only_grows_at_its_tail_except_by_compaction_or_moving(script: list[tuple[str, str]]):
    """The provider's cache depends on it; and reading on from before equals reading anew."""
    session = Session.over(MemoryStorage())
    branch = await session.create_branch("main")
    projectors: dict[str, EntryProjector] = {"p": lambda entry: user(f"p{entry.data}")}
    running = LaneContext(session, projectors)
    before: list[AgentMessage] = []
    for i, (what, stop) in enumerate(script):
        match what:
            case "say":
                await branch.append_message(says(f"m{i}", stop=stop))
            case "custom":
                await branch.append_custom_entry("p" if i % 2 else "q", i)
            case "compact":
                await branch.append_compaction(f"c{i}", retained_tail=[user("kept")])
            case _:
                entry = await branch.find_entry()
                await branch.move_to(entry.parent_id if entry else None)
        context = await running.read(await branch.get_tip())
        assert context == await branch.context(projectors)
        if what in ("say", "custom"):
            assert context[: len(before)] == before
        before = context
