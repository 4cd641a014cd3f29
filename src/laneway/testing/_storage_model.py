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

_text = st.text(st.characters(exclude_categories=()), max_size=12)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_sometimes_not_json = st.one_of(_json, _json, _json, st.sampled_from([float("nan"), {1: 2}, b"x", {"a": {3}}]))
_ids = st.sampled_from(_IDS)
_parents = st.none() | _ids
_counts = st.integers(-5, 1_000_000)
_usage = st.builds(
    Usage,
    input=_counts,
    output=_counts,
    cache_write_1h=st.none() | _counts,
    reasoning=st.none() | _counts,
    total_tokens=_counts,
    cost=st.builds(Cost, input=st.floats(-1, 1), total=st.floats(-1, 1)),
)
_user = st.builds(UserMessage, content=_text, timestamp=st.just(1))
_assistant = st.builds(
    AssistantMessage,
    content=st.lists(
        st.builds(TextContent, text=_text)
        | st.builds(ToolCall, id=_text, name=_text, arguments=st.dictionaries(_text, _sometimes_not_json, max_size=2)),
        max_size=2,
    ),
    usage=_usage,
    stop_reason=st.sampled_from(["stop", "stop", "tool_use", "error", "pending"]),
    timestamp=st.just(1),
)
_messages = _user | _assistant
_entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(MessageEntry, id=_ids, parent_id=_parents, message=_messages, terminate=st.booleans()),
    st.builds(CompactionEntry, id=_ids, parent_id=_parents, summary=_text, retained_tail=st.lists(_user, max_size=2), details=_json),
    st.builds(BranchSummaryEntry, id=_ids, parent_id=_parents, from_id=st.none() | _ids, summary=_text),
    st.builds(CustomEntry, id=_ids, parent_id=_parents, custom_type=st.sampled_from(["x", "y"]), data=_sometimes_not_json),
)
_namespaces, _keys = st.sampled_from(_NAMESPACES), st.sampled_from(_KEYS)
_writes: st.SearchStrategy[Write] = st.one_of(
    st.builds(InsertEntry, _entries),
    st.builds(InsertEntry, _entries),
    st.builds(InsertUsage, st.builds(UsageRow, id=_ids, usage=_usage, entry_id=st.none() | _ids, adjustment=st.booleans(), details=_json)),
    st.builds(SetValue, _namespaces, _keys, _sometimes_not_json),
    st.builds(DeleteValue, _namespaces, _keys),
    st.builds(AppendList, _namespaces, _keys, _json),
    st.builds(DeleteList, _namespaces, _keys),
)
_commits = st.builds(Commit, st.lists(_writes, min_size=0, max_size=6))
_seqs = st.none() | st.integers(-1, 120)
_limits = st.none() | st.integers(0, 6)
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
    st.builds(Read, st.just("scan_branch"), st.tuples(_branch_scans), _nothing),
    st.builds(Read, st.just("scan_branch_structure"), st.tuples(_branch_scans), _nothing),
    st.builds(Read, st.just("scan_entries"), st.tuples(_entry_scans), _nothing),
    st.builds(Read, st.just("scan_usage"), st.tuples(_usage_scans), _nothing),
)


@st.composite
def _growing_commits(draw: st.DrawFn) -> Commit:
    """A commit that is likely to be taken: a run of entries, each a child of the one before or of an early one."""
    first = draw(st.integers(0, len(_IDS) - 1))
    ids = _IDS[first : first + draw(st.integers(1, 6))]
    parent: str | None = draw(st.none() | st.sampled_from(_IDS[: first + 1]))
    writes: list[Write] = []
    for id in ids:
        entry = structs.replace(draw(_entries), id=id, parent_id=None if parent == id else parent)
        writes.append(InsertEntry(entry))
        parent = id
    return Commit(writes)


def storage_scripts(max_steps: int = 25) -> st.SearchStrategy[list[Step]]:
    """Return a strategy of scripts for `replay`."""
    step = st.one_of(_growing_commits(), _commits, _reads, _reads, st.just(Reopen()))
    return st.lists(step, min_size=1, max_size=max_steps)


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
    open_storage: OpenStorage, *, examples: int = 50, max_steps: int = 25, while_closed: Callable[[str], None] | None = None
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
