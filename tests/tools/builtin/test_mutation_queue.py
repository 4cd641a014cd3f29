"""One change at a time to each file, in request order."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from laneway.abort import AbortController
from laneway.errors import ToolError
from laneway.tools import _mutation_queue
from laneway.tools._mutation_queue import exclusive
from laneway.tools._paths import Place, Workspace

nobody = AbortController().signal


def place(key: str) -> Place:
    """Return a place that is known by `key`."""
    return Place(shown=key, path=key, real=key)


async def test_changes_of_one_file_wait_and_others_do_not(tmp_path: Path):
    """B115: a file is not delayed by another one."""
    release, begun = asyncio.Event(), asyncio.Event()
    order: list[str] = []

    async def change(name: str, key: str, wait: bool = False) -> None:
        async with exclusive(lambda: place(key), nobody, aborted="aborted"):
            order.append(name)
            begun.set()
            if wait:
                await release.wait()

    async with asyncio.timeout(5):
        tasks = [asyncio.create_task(change("first", "a", wait=True))]
        await begun.wait()
        tasks += [asyncio.create_task(change("second", "a")), asyncio.create_task(change("other", "b"))]
        await tasks[2]
        assert order == ["first", "other"]
        release.set()
        await asyncio.gather(*tasks)
    assert order == ["first", "other", "second"]


async def test_a_slow_look_up_does_not_lose_its_turn():
    """4.5: key resolution is serialised, so request order cannot flip."""
    order: list[int] = []

    def slow() -> Place:
        time.sleep(0.05)
        return place("a")

    async def change(number: int) -> None:
        async with exclusive(slow if number == 0 else lambda: place("a"), nobody, aborted="aborted"):
            order.append(number)

    async with asyncio.timeout(5):
        await asyncio.gather(*(change(number) for number in range(10)))
    assert order == list(range(10))


async def test_an_abort_leaves_the_line_and_the_others_go_on():
    """Whoever holds the file keeps it; whoever waits behind the aborted one gets it next."""
    release, begun = asyncio.Event(), asyncio.Event()
    abort = AbortController()
    order: list[str] = []

    async def change(name: str, signal_of: AbortController | None = None) -> None:
        async with exclusive(lambda: place("a"), signal_of.signal if signal_of else nobody, aborted=f"{name} aborted"):
            order.append(name)
            begun.set()
            await release.wait()

    async with asyncio.timeout(5):
        holder = asyncio.create_task(change("holder"))
        await begun.wait()
        waiting, last = asyncio.create_task(change("waiting", abort)), asyncio.create_task(change("last"))
        await asyncio.sleep(0.05)
        abort.abort()
        with pytest.raises(ToolError, match="waiting aborted"):
            await waiting
        assert order == ["holder"]
        release.set()
        await asyncio.gather(holder, last)
    assert order == ["holder", "last"]


@pytest.mark.parametrize("steps", range(12))
async def test_a_cancellation_at_any_moment_leaves_no_lock_behind(steps: int):
    """Cancelled at every await: the next change gets through, and nothing is kept of the line."""

    async def change() -> None:
        async with exclusive(lambda: place("a"), nobody, aborted="aborted"):
            await asyncio.sleep(0)

    async with asyncio.timeout(5):
        task = asyncio.create_task(change())
        for _ in range(steps):
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await change()
    assert _mutation_queue._queues[asyncio.get_running_loop()].lines == {}


def test_links_and_detours_stand_in_one_line(tmp_path: Path):
    """The key is the real path, also of a file that does not exist yet."""
    (tmp_path / "link").symlink_to("new.txt")
    (tmp_path / "dir").symlink_to(".")
    workspace = Workspace(tmp_path)
    keys = {workspace.target(path).real for path in ("new.txt", "./x/../new.txt", "link", "dir/new.txt", str(tmp_path / "new.txt"))}
    assert keys == {str(tmp_path.resolve() / "new.txt")}


def test_loops_in_different_threads_do_not_share_a_queue():
    """An asyncio future belongs to its loop; a program may have several."""

    async def change() -> None:
        async with exclusive(lambda: place("a"), nobody, aborted="aborted"):
            await asyncio.sleep(0.01)

    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(change())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert not failures
