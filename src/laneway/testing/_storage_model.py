"""Any store against `MemoryStorage`: random commits and reads, closed and opened again at random points.

::

    def test_it_behaves_like_memory(tmp_path):
        assert_behaves_like_memory(lambda name: MyStorage.open(tmp_path / name))
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct, structs

from laneway.errors import LanewayError
from laneway.messages import AssistantMessage, Cost, TextContent, ToolCall, Usage, UserMessage
from laneway.storage.base import (
    AppendList,
    BranchScan,
    BranchSummaryEntry,
    CommitResult,
    CompactionEntry,
    CustomEntry,
    DeleteList,
    DeleteValue,
    Entry,
    EntryScan,
    InsertEntry,
    InsertUsage,
    MessageEntry,
    SetValue,
    Storage,
    UsageRow,
    UsageScan,
    Write,
)
from laneway.storage.memory import MemoryStorage
from laneway.testing._storage_rows import everything

OpenStorage: TypeAlias = Callable[[str], Awaitable[Storage]]
"""Open the session of this name, creating it if it is not there."""

_NAMESPACES = ("n", "m")
_KEYS = ("", "k", "k2", "q/1")
_IDS = tuple(f"id{i}" for i in range(24))
_TYPES = (None, "message", "compaction", "branch_summary", "custom")
_REFUSALS = (LanewayError, ValueError, TypeError)


class Commit(Struct, frozen=True):
    """Commit these writes."""

    writes: list[Write]


class Reopen(Struct, frozen=True):
    """Close the store and open it again."""


class Read(Struct, frozen=True):
    """Call a reading method."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Step: TypeAlias = Commit | Reopen | Read

# ---------------------------------------------------------------------------------------------------- strategies

_text = st.text(st.characters(exclude_categories=()), max_size=6)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=3,
)
_not_json = st.sampled_from([float("nan"), {1: 2}, b"x", {"a": {3}}])
_ids = st.sampled_from(_IDS)
_parents = st.none() | _ids
_counts = st.integers(-5, 1_000_000)
_usage = st.builds(Usage, input=_counts, reasoning=st.none() | _counts, cost=st.builds(Cost, total=st.floats(-1, 1)))
_user = st.builds(UserMessage, content=_text, timestamp=st.just(1))
_assistant = st.builds(
    AssistantMessage,
    content=st.lists(
        st.builds(TextContent, text=_text) | st.builds(ToolCall, id=_text, name=_text, arguments=st.dictionaries(_text, _json, max_size=2)),
        max_size=2,
    ),
    stop_reason=st.sampled_from(["stop", "length", "tool_use", "error", "aborted", "deferred"]),
    timestamp=st.just(1),
)
_messages = _user | _assistant
_entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(MessageEntry, id=_ids, parent_id=_parents, message=_messages, terminate=st.booleans()),
    st.builds(CompactionEntry, id=_ids, parent_id=_parents, summary=_text, retained_tail=st.lists(_user, max_size=2), details=_json),
    st.builds(BranchSummaryEntry, id=_ids, parent_id=_parents, from_id=st.none() | _ids, summary=_text),
    st.builds(CustomEntry, id=_ids, parent_id=_parents, custom_type=st.sampled_from(["x", "y"]), data=_json),
)
_namespaces, _keys = st.sampled_from(_NAMESPACES), st.sampled_from(_KEYS)
_other_writes: st.SearchStrategy[Write] = st.one_of(
    st.builds(InsertUsage, st.builds(UsageRow, id=_ids, usage=_usage, entry_id=st.none() | _ids, adjustment=st.booleans(), details=_json)),
    st.builds(SetValue, _namespaces, _keys, _json),
    st.builds(DeleteValue, _namespaces, _keys),
    st.builds(AppendList, _namespaces, _keys, _json),
    st.builds(DeleteList, _namespaces, _keys),
)
_cell_writes = st.builds(SetValue, _namespaces, _keys, _counts) | st.builds(AppendList, _namespaces, _keys, _counts)
_writes = st.builds(InsertEntry, _entries) | _other_writes
_refused: st.SearchStrategy[Write] = st.one_of(
    st.builds(SetValue, _namespaces, _keys, _not_json),
    st.builds(InsertEntry, st.builds(CustomEntry, id=_ids, parent_id=st.none(), custom_type=st.just("x"), data=_not_json)),
    st.builds(
        InsertEntry,
        st.builds(MessageEntry, id=_ids, parent_id=st.none(), message=st.just(AssistantMessage(content=[], stop_reason="pending", timestamp=1))),
    ),
)
_commits = st.one_of(
    st.builds(Commit, st.lists(_writes, max_size=4)),  # entries with any parents and ids: often refused by the tree's rules
    st.builds(Commit, st.tuples(_writes, _refused).map(list)),
    st.builds(Commit, st.lists(_other_writes, min_size=1, max_size=4)),
)
_seqs = st.one_of(st.none(), st.none(), st.integers(-1, 60))
_limits = st.sampled_from([None, None, None, 1, 2, 5, 0])
_branch_scans = st.builds(
    BranchScan,
    start=_ids,
    stop_at_type=st.sampled_from(_TYPES),
    stop_at_id=st.none() | _ids,
    type=st.sampled_from(_TYPES),
    custom_type=st.sampled_from([None, None, "x"]),
    order=st.sampled_from(["newest_first", "oldest_first"]),
    limit=_limits,
    cursor=_seqs,
)
_asc_desc = st.sampled_from(["asc", "desc"])
_entry_scans = st.builds(
    EntryScan,
    type=st.sampled_from(_TYPES),
    custom_type=st.sampled_from([None, None, "x"]),
    from_seq=_seqs,
    to_seq=_seqs,
    order=_asc_desc,
    limit=_limits,
)
_usage_scans = st.builds(UsageScan, from_seq=_seqs, to_seq=_seqs, order=_asc_desc, limit=_limits)
_pages = st.fixed_dictionaries({"after": _seqs, "order": _asc_desc, "limit": st.integers(0, 12)})
_nothing = st.just(dict[str, Any]())
_reads = st.one_of(
    st.builds(Read, st.just("get_entries"), st.tuples(st.lists(_ids, max_size=4)), _nothing),
    st.builds(Read, st.just("get_value"), st.tuples(_namespaces, _keys), _nothing),
    st.builds(Read, st.just("scan_values"), st.tuples(_namespaces, st.sampled_from(["", "k", "q/"])), _nothing),
    st.builds(Read, st.just("read_list"), st.tuples(_namespaces, _keys), _pages),
    st.builds(Read, st.just("scan_entries"), st.tuples(_entry_scans), _nothing),
    st.builds(Read, st.just("scan_usage"), st.tuples(_usage_scans), _nothing),
)
_branch_reads = st.builds(Read, st.sampled_from(["scan_branch", "scan_branch_structure"]), st.tuples(_branch_scans), _nothing)


@st.composite
def _growth(draw: st.DrawFn, known: list[str], fresh: list[str]) -> Commit:
    """A commit that is taken: a run of new entries, each a child of the one before, from any known entry or a new root."""
    parent: str | None = draw(st.sampled_from([None, *known, *known[-1:] * 6]))
    writes: list[Write] = []
    for _ in range(min(draw(st.integers(1, 4)), len(fresh))):
        id = fresh.pop(0)
        writes.append(InsertEntry(structs.replace(draw(_entries), id=id, parent_id=parent)))
        writes.append(draw(_cell_writes))
        known.append(id)
        parent = id
    return Commit(writes)


@st.composite
def storage_scripts(draw: st.DrawFn, max_steps: int = 15) -> list[Step]:
    """A script for `replay`: commits that grow a tree, commits that mostly do not fit, reads, and reopenings."""
    known: list[str] = []
    fresh = [f"e{i}" for i in range(5 * max_steps)]
    script: list[Step] = [draw(_growth(known, fresh))]
    for _ in range(draw(st.integers(1, max_steps - 1))):
        kind = draw(st.sampled_from(["grow", "grow", "commit", "read", "branch", "branch", "reopen"]))
        if kind == "grow":
            script.append(draw(_growth(known, fresh)))
        elif kind == "commit":
            script.append(draw(_commits))
        elif kind == "reopen":
            script.append(Reopen())
        else:
            read = draw(_branch_reads if kind == "branch" else _reads)
            script.append(_about(read, known, draw))
    return script


def _about(read: Read, known: list[str], draw: st.DrawFn) -> Read:
    """Point a read of a path at entries that are likely there."""
    if read.method == "get_entries":
        return structs.replace(read, args=(draw(st.lists(st.sampled_from([*known, "absent"]), max_size=4)),))
    if isinstance(read.args[0], BranchScan):
        stop = draw(st.none() | st.sampled_from(known)) if read.args[0].stop_at_id else None
        return structs.replace(read, args=(structs.replace(read.args[0], start=draw(st.sampled_from([*known, "absent"])), stop_at_id=stop),))
    return read


# ---------------------------------------------------------------------------------------------------- the comparison


async def replay(script: list[Step], reopen: Callable[[], Awaitable[Storage]], while_closed: Callable[[], None] | None = None) -> None:
    """Do every step on a store and on a `MemoryStorage`; both must answer alike, refusals included.

    `reopen` opens the store, the first time empty; `while_closed` runs while it is closed (to tear a file's tail, say).
    """
    model = MemoryStorage()
    storage = await reopen()
    try:
        for step in script:
            if isinstance(step, Reopen):
                await storage.close()
                if while_closed is not None:
                    while_closed()
                storage = await reopen()
            else:
                expected, answer = await _outcome(model, step), await _outcome(storage, step)
                assert answer == expected, f"{step}: {answer} instead of {expected}"
        lists = {"namespaces": _NAMESPACES, "list_keys": _KEYS}
        assert (await everything(storage, **lists)).timeless() == (await everything(model, **lists)).timeless()
    finally:
        await storage.close()


async def _outcome(storage: Storage, step: Commit | Read) -> Any:
    try:
        if isinstance(step, Commit):
            return _timeless(await storage.commit(step.writes))
        return _timeless(await getattr(storage, step.method)(*step.args, **step.kwargs))
    except _REFUSALS as refusal:
        return type(refusal).__name__


def _timeless(answer: Any) -> Any:
    if isinstance(answer, list):
        return [_timeless(item) for item in answer]  # pyright: ignore[reportUnknownVariableType] - rows of any kind
    if isinstance(answer, dict):
        return {id: _timeless(entry) for id, entry in answer.items()}  # pyright: ignore[reportUnknownVariableType] - entries by id
    if isinstance(answer, CommitResult) or "timestamp" in getattr(answer, "__struct_fields__", ()):
        return structs.replace(answer, timestamp=0)
    return answer


def assert_behaves_like_memory(
    open_storage: OpenStorage, *, examples: int = 50, max_steps: int = 15, while_closed: Callable[[str], None] | None = None
) -> None:
    """Run random scripts against the stores that `open_storage` opens, each under a name of its own.

    Args:
        open_storage: opens the session of that name, creating it if need be.
        examples: how many scripts.
        max_steps: how long they may be.
        while_closed: called with the session's name between a close and the open after it.
    """
    numbers = itertools.count()

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(script=storage_scripts(max_steps))
    def run(script: list[Step]) -> None:
        name = f"model{next(numbers)}"

        def between() -> None:
            if while_closed is not None:
                while_closed(name)

        asyncio.run(replay(script, lambda: open_storage(name), between))

    run()
