"""The one line of writers: order, exclusion, one commit, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from laneway.errors import MessageError, StorageClosed, WouldDeadlock
from laneway.messages import AssistantMessage, UserMessage
from laneway.session import Mutation, Session
from laneway.storage.base import CommitResult, InsertEntry, MessageEntry, SetValue, Write
from laneway.storage.memory import MemoryStorage


class GatedStorage(MemoryStorage):
    """Commits wait for the gate; `asked` counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        self.asked += 1
        await self.gate.wait()
        return await super().commit(writes)


@pytest.fixture
def storage() -> GatedStorage:
    return GatedStorage()


@pytest.fixture
def gated(storage: GatedStorage) -> Session:
    return Session.over(storage)


def put(key: str, value: object = None):
    async def plan(mutation: Mutation) -> str:
        await mutation.commit([SetValue("app.t", key, value)])
        return key

    return plan


async def value(session: Session, key: str) -> object:
    stored = await session.get_value("app.t", key)
    return None if stored is None else stored.value


async def test_scopes_run_one_at_a_time_in_the_order_of_their_calls(gated: Session, storage: GatedStorage):
    """First come, first served; nobody is inside while another is."""
    order: list[str] = []
    inside = 0

    def plan(name: str):
        async def run(mutation: Mutation) -> None:
            nonlocal inside
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            await mutation.commit([SetValue("app.t", name, 1)])
            order.append(name)
            inside -= 1

        return run

    storage.gate.clear()
    waiting = [asyncio.create_task(gated.mutate(plan(str(i)))) for i in range(20)]
    await asyncio.sleep(0)
    storage.gate.set()
    await asyncio.gather(*waiting)
    assert order == [str(i) for i in range(20)]


async def test_a_scope_returns_what_its_plan_returns_and_may_write_nothing(session: Session):
    """A plan may read and return without a commit, and may be a plain function."""
    assert await session.mutate(put("a", 5)) == "a"

    async def look(mutation: Mutation) -> object:
        stored = await mutation.get_value("app.t", "a")
        return stored and stored.value

    assert await session.mutate(look) == 5
    assert await session.mutate(lambda mutation: 7) == 7


async def test_a_scope_commits_at_most_once(session: Session):
    """A second commit in one scope, and one after the scope, is the plan's mistake."""
    kept: list[Mutation] = []

    async def twice(mutation: Mutation) -> None:
        kept.append(mutation)
        await mutation.commit([SetValue("app.t", "a", 1)])
        await mutation.commit([SetValue("app.t", "a", 2)])

    with pytest.raises(RuntimeError, match="one commit"):
        await session.mutate(twice)
    with pytest.raises(RuntimeError, match="ended"):
        await kept[0].commit([])
    assert await value(session, "a") == 1


async def test_reads_bypass_the_line(session: Session):
    """A read outside returns at once with what was committed before the scope (S-20)."""
    await session.mutate(put("a", "before"))
    inside, go = asyncio.Event(), asyncio.Event()

    async def slow(mutation: Mutation) -> None:
        inside.set()
        await go.wait()
        await mutation.commit([SetValue("app.t", "a", "after")])

    scope = asyncio.create_task(session.mutate(slow))
    await inside.wait()
    second = asyncio.create_task(session.mutate(put("b")))
    assert await value(session, "a") == "before"
    await asyncio.sleep(0)
    assert not second.done()
    go.set()
    await asyncio.gather(scope, second)
    assert await value(session, "a") == "after"


async def test_writing_from_inside_a_scope_is_refused_instead_of_hanging(session: Session):
    """Awaiting a public writer inside the scope could never end; it says so (S-20)."""

    async def plan(mutation: Mutation) -> None:
        await session.set_name("x")

    with pytest.raises(WouldDeadlock, match="inside"):
        await session.mutate(plan)
    await session.set_name("y")
    assert await session.get_name() == "y"


async def test_a_cancelled_waiter_leaves_no_trace(gated: Session, storage: GatedStorage):
    """Its plan never runs, and those behind it move up."""
    storage.gate.clear()
    first = asyncio.create_task(gated.mutate(put("first")))
    second = asyncio.create_task(gated.mutate(put("second")))
    third = asyncio.create_task(gated.mutate(put("third")))
    await asyncio.sleep(0.01)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    storage.gate.set()
    assert await asyncio.gather(first, third) == ["first", "third"]
    assert storage.asked == 2


async def test_a_commit_under_way_is_completed_when_its_caller_is_cancelled(gated: Session, storage: GatedStorage):
    """The commit and the rest of the plan are done, then the cancellation is raised, and the line goes on."""
    published: list[str] = []

    async def plan(mutation: Mutation) -> None:
        await mutation.commit([SetValue("app.t", "a", 1)])
        published.append("memory")

    storage.gate.clear()
    task = asyncio.create_task(gated.mutate(plan))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    behind = asyncio.create_task(gated.mutate(put("b")))
    task.cancel()
    storage.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert published == ["memory"]
    assert await value(gated, "a") == 1
    assert await behind == "b"


@pytest.mark.parametrize("late", [False, True])
async def test_a_commit_to_a_real_store_is_completed_when_its_caller_is_cancelled(session: Session, late: bool):
    """On every backend, whenever the cancellation comes: the plan's end is reached, and what it wrote is there."""
    for i in range(20):
        published: list[int] = []

        async def plan(mutation: Mutation, i: int = i, published: list[int] = published) -> None:
            result = await mutation.commit([SetValue("app.t", "a", i)])
            published.append(result.first_seq)

        task = asyncio.create_task(session.mutate(plan))
        for _ in range(i % 5 if late else 1):
            await asyncio.sleep(0)
        task.cancel()
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        stored = await session.get_value("app.t", "a")
        if published:
            assert stored is not None
            assert (stored.value, stored.seq) == (i, published[0])
        else:
            assert isinstance(outcome, asyncio.CancelledError)
        await session.mutate(put("b", i))


async def test_a_store_of_ones_own_may_use_timeouts():
    """A wrapped store's own cancellations stay its own."""

    class Impatient(MemoryStorage):
        async def commit(self, writes: Sequence[Write]) -> CommitResult:
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.Event().wait()
            except TimeoutError:
                pass
            return await super().commit(writes)

    session = Session.over(Impatient())
    assert await session.mutate(put("a", 1)) == "a"


async def test_a_timeout_around_a_commit_is_told_as_a_timeout(gated: Session, storage: GatedStorage):
    """The late cancellation still belongs to the timeout that asked for it."""
    storage.gate.clear()
    asyncio.get_running_loop().call_later(0.05, storage.gate.set)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await gated.mutate(put("a", 1))
    assert await value(gated, "a") == 1


async def test_a_plan_that_is_cancelled_before_its_commit_writes_nothing(gated: Session, storage: GatedStorage):
    """Reading can be cancelled; the line is free at once."""
    inside = asyncio.Event()

    async def plan(mutation: Mutation) -> None:
        inside.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(gated.mutate(plan))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert storage.asked == 0
    assert await gated.mutate(put("a")) == "a"


async def test_a_plan_that_raises_frees_the_line(session: Session):
    """The exception is the caller's and nothing was written."""

    async def plan(mutation: Mutation) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await session.mutate(plan)
    assert await session.mutate(put("a")) == "a"


async def test_a_failed_commit_raises_in_the_plan_and_frees_the_line(session: Session):
    """What the store refuses is the plan's to see."""
    with pytest.raises(TypeError, match=r"\$"):
        await session.mutate(put("a", object()))
    assert await value(session, "a") is None
    assert await session.mutate(put("b")) == "b"


async def test_a_response_that_still_streams_is_refused_before_the_store_is_called(gated: Session, storage: GatedStorage):
    """No half message is ever stored; every settled stop reason is (S-21)."""
    branch = await gated.create_branch("main")
    asked = storage.asked
    with pytest.raises(MessageError, match="pending"):
        await branch.append_message(AssistantMessage(content=[], stop_reason="pending"))
    assert storage.asked == asked
    assert await branch.get_tip() is None
    for reason in ("stop", "length", "tool_use", "error", "aborted", "deferred"):
        entry = await gated.get_entry(await branch.append_message(AssistantMessage(content=[], stop_reason=reason)))
        assert isinstance(entry, MessageEntry)
        assert isinstance(entry.message, AssistantMessage)
        assert entry.message.stop_reason == reason


async def test_closing_seals_the_line(gated: Session, storage: GatedStorage):
    """The scope that runs ends, those that wait are refused, nothing starts afterwards."""
    storage.gate.clear()
    running = asyncio.create_task(gated.mutate(put("a", 1)))
    waiting = asyncio.create_task(gated.mutate(put("b", 1)))
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(gated.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    storage.gate.set()
    assert await running == "a"
    with pytest.raises(StorageClosed):
        await waiting
    await closing
    await gated.close()
    with pytest.raises(StorageClosed):
        await gated.mutate(put("c"))


async def test_closing_from_inside_a_scope_is_refused_instead_of_hanging(session: Session):
    """It would wait for its own end."""

    async def plan(mutation: Mutation) -> None:
        await session.close()

    with pytest.raises(WouldDeadlock):
        await session.mutate(plan)
    assert not session.closed
    await session.set_name("still open")


async def test_a_message_of_an_unknown_role_is_refused_before_the_store_is_called(gated: Session, storage: GatedStorage):
    """The text says to register the role."""

    class Stranger(UserMessage.__base__, kw_only=True, frozen=True, tag="stranger"):  # type: ignore[misc] - a class nobody registered
        content: str = ""

    with pytest.raises(MessageError, match="register_message"):
        await gated.mutate(lambda m: m.commit([InsertEntry(MessageEntry(id="x", parent_id=None, message=Stranger()))]))
    assert storage.asked == 0
