"""Strands: jobs in order on a few shared threads that end when they are not needed."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time

import pytest

from laneway.storage import _strand
from laneway.storage._strand import MAX_THREADS, Strand


def storage_threads() -> int:
    """Return how many of the shared threads run."""
    return sum(thread.name == "laneway-storage" for thread in threading.enumerate())


async def test_jobs_of_a_strand_run_one_at_a_time_in_order() -> None:
    """Whatever threads they run on, and however long each takes."""
    strand = Strand()
    done: list[int] = []
    running = 0

    def job(i: int) -> int:
        nonlocal running
        running += 1
        assert running == 1
        time.sleep(0.001 if i % 7 else 0.01)
        done.append(i)
        running -= 1
        return i * i

    results = await asyncio.gather(*(strand.run(lambda i=i: job(i)) for i in range(100)))
    strand.close()
    assert done == list(range(100))
    assert results == [i * i for i in range(100)]


async def test_strands_run_beside_each_other_on_few_threads() -> None:
    """Five hundred strands need no more than `MAX_THREADS`; one that waits does not hold up the others."""
    strands = [Strand() for _ in range(500)]
    gate = threading.Event()
    blocked = asyncio.create_task(strands[0].run(gate.wait))
    async with asyncio.timeout(20):
        await asyncio.gather(*(strand.run(lambda: time.sleep(0.001)) for strand in strands[1:]))
    assert storage_threads() <= MAX_THREADS
    assert not blocked.done()
    gate.set()
    await blocked
    for strand in strands:
        strand.close()


async def test_the_threads_end_with_the_last_strand() -> None:
    """Nothing is left running; a later strand starts anew."""
    for _ in range(20):
        strand = Strand()
        assert await strand.run(lambda: threading.current_thread().name) == "laneway-storage"
        strand.close()
        strand.close()
    async with asyncio.timeout(20):
        while storage_threads():
            await asyncio.sleep(0.01)


async def test_an_exception_is_its_callers_and_harms_nobody_else() -> None:
    """The next job runs."""
    strand = Strand()
    with pytest.raises(ZeroDivisionError):
        await strand.run(lambda: 1 // 0)
    strand.post(lambda: 1 // 0)
    assert await strand.run(lambda: 5) == 5
    strand.close()


async def test_a_cancelled_caller_stops_waiting_and_the_job_is_done() -> None:
    """In its turn."""
    strand = Strand()
    gate = threading.Event()
    done: list[int] = []
    first = asyncio.create_task(strand.run(gate.wait))
    second = asyncio.create_task(strand.run(lambda: done.append(2)))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.set()
    await first
    await strand.run(lambda: None)
    assert done == [2]
    strand.close()


async def test_a_closed_strand_finishes_what_it_was_given_and_takes_no_more() -> None:
    """A post is dropped and says so; a caller is told."""
    strand = Strand()
    given = [asyncio.create_task(strand.run(lambda i=i: i)) for i in range(50)]
    await asyncio.sleep(0)
    strand.close()
    assert await asyncio.gather(*given) == list(range(50))
    assert strand.post(lambda: None) is False
    with pytest.raises(RuntimeError, match="closed"):
        await strand.run(lambda: None)


async def test_a_loop_that_is_gone_loses_only_its_own_answer() -> None:
    """A job whose event loop was closed meanwhile is done, and the strand goes on."""
    strand = Strand()
    gate = threading.Event()
    done: list[int] = []

    def other_loop() -> None:
        async def ask_and_leave() -> None:
            task = asyncio.create_task(strand.run(lambda: (gate.wait(), done.append(1))))
            await asyncio.sleep(0.01)
            task.cancel()

        asyncio.run(ask_and_leave())

    await asyncio.to_thread(other_loop)
    gate.set()
    await strand.run(lambda: None)
    assert done == [1]
    strand.close()


def test_loops_that_come_and_go_leave_no_open_files() -> None:
    """What wakes a loop is closed with it; the strand goes on with the next one, and with two at once."""
    strand = Strand()

    async def work() -> list[int]:
        return await asyncio.gather(*(strand.run(lambda i=i: i) for i in range(5)))

    def loop() -> None:
        assert asyncio.run(work()) == list(range(5))

    loop()
    gc.collect()
    before = open_files()
    for _ in range(20):
        beside = threading.Thread(target=loop)
        beside.start()
        loop()
        beside.join()
    gc.collect()
    assert open_files() <= before + MAX_THREADS
    strand.close()


def open_files() -> int:
    """Return how many there are, where the system says it."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


async def test_where_there_is_no_eventfd_queues_and_sockets_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other systems than Linux: slower, and the same otherwise."""
    monkeypatch.delattr(os, "eventfd", raising=False)
    monkeypatch.setattr(_strand, "_pool", _strand._Pool())  # pyright: ignore[reportPrivateUsage] - threads that were not started yet

    def elsewhere() -> None:
        async def work() -> None:
            strand = Strand()
            assert await asyncio.gather(*(strand.run(lambda i=i: i) for i in range(50))) == list(range(50))
            with pytest.raises(ZeroDivisionError):
                await strand.run(lambda: 1 // 0)
            strand.close()

        asyncio.run(work())

    await asyncio.to_thread(elsewhere)
    monkeypatch.undo()
    async with asyncio.timeout(20):
        while storage_threads():
            await asyncio.sleep(0.01)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
async def test_a_forked_child_has_threads_of_its_own() -> None:
    """A child of a process that uses strands can use them too."""
    strand = Strand()
    await strand.run(lambda: None)
    child = os.fork()
    if child == 0:
        strand = Strand()
        done = threading.Event()
        strand.post(done.set)
        os._exit(0 if done.wait(20) else 1)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert status == 0
    strand.close()
