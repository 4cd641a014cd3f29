"""Ids are UUIDv7, never go backwards, and can inherit a time."""

from __future__ import annotations

import uuid

import pytest

from laneway.session import Ids


def test_ids_are_uuid_version_7_of_now():
    """An id is a valid UUIDv7 whose time is that of the clock."""
    made = Ids(clock=lambda: 1_700_000_000_123).new()
    assert uuid.UUID(made).version == 7
    assert uuid.UUID(made).variant == uuid.RFC_4122
    assert Ids.timestamp_of(made) == 1_700_000_000_123


def test_ten_thousand_ids_of_one_millisecond_rise_and_differ():
    """More ids than the counter of one millisecond holds still sort in the order in which they were made."""
    ids = Ids(clock=lambda: 5)
    made = [ids.new() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_a_clock_that_jumps_back_does_not_make_ids_go_back():
    """After a step of the system clock new ids still sort after the old ones."""
    times = iter([1000, 400, 400, 1001])
    ids = Ids(clock=lambda: next(times))
    made = [ids.new() for _ in range(4)]
    assert made == sorted(made)


def test_an_id_after_another_inherits_its_time_and_sorts_behind_it():
    """A tool result's id sorts right behind its response, before everything of later milliseconds."""
    time = 1000
    ids = Ids(clock=lambda: time)
    response = ids.new()
    time = 99_000
    later = ids.new()
    results = [ids.after(response) for _ in range(3)]
    assert [Ids.timestamp_of(r) for r in results] == [1000] * 3
    assert sorted([later, *results[::-1], response]) == [response, *results, later]


def test_ids_after_an_id_of_another_process_work_too():
    """After a restart the response's id comes from elsewhere; its results still sort behind it."""
    response = Ids(clock=lambda: 1000).new()
    ids = Ids(clock=lambda: 5000)
    first, second = ids.after(response), ids.after(response)
    assert response < first < second


def test_what_is_no_uuid7_has_no_time_to_inherit():
    """Foreign ids are refused with the reason."""
    for foreign in ("", "m1", str(uuid.uuid4()), "not-a-uuid"):
        with pytest.raises(ValueError, match="UUIDv7"):
            Ids().after(foreign)


def test_ids_of_two_makers_do_not_collide():
    """Two processes at the same millisecond draw from 62 random bits."""
    first, second = Ids(clock=lambda: 7), Ids(clock=lambda: 7)
    assert not {first.new() for _ in range(1000)} & {second.new() for _ in range(1000)}
