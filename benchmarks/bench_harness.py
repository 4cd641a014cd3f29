"""The durable workloads of `benchlib` on `AgentHarness`: the same fake model as the floors.

Variants of w5: "memory", "sqlite" (durability "process"), "power" (SQLite, fsync), "jsonl", and "postgres" (a libpq string in --db).
w5resume reopens what w5 wrote; w2 streams with a watcher; w6 runs many sessions at once, on SQLite if --variant sqlite.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench_laneway import MODEL, FakeModel, add, nap, write
from benchlib import Timer, cli, emit, rss_mb, version
from laneway.harness import AgentHarness, AgentLane
from laneway.session import Session
from laneway.storage.base import Storage


async def store_of(variant: str, path: str) -> Storage:
    """Open the store of a variant."""
    if variant in ("sqlite", "power"):
        from laneway.storage.sqlite import SqliteStorage

        return await SqliteStorage.open(path, durability="power" if variant == "power" else "process")
    if variant == "jsonl":
        from laneway.storage.jsonl import JsonlStorage

        return await JsonlStorage.open(path)
    if variant == "postgres":
        from laneway.storage.postgres import PostgresStorage

        return await PostgresStorage.open(path, f"bench-{uuid.uuid4().hex}")
    from laneway.storage.memory import MemoryStorage

    return MemoryStorage()


async def open_lane(store: Storage, model: FakeModel) -> tuple[AgentHarness, AgentLane]:
    """Start a harness as a user would."""
    harness, _ = await AgentHarness.create(session=Session.over(store), model=MODEL, stream_fn=model, tools=[add, nap, write])
    return harness, await harness.lane("main")


async def run_turns(variant: str, path: str, turns: int) -> tuple[float, float, Storage]:
    """Run N turns; returns wall and CPU seconds."""
    store = await store_of(variant, path)
    harness, lane = await open_lane(store, FakeModel(turns=turns))
    cpu = time.process_time()
    with Timer() as timer:
        result: Any = await lane.prompt("go")
    cpu = time.process_time() - cpu
    assert result.status == "completed", result
    await harness.close()
    return timer.seconds, cpu, store


async def resume(variant: str, path: str) -> float:
    """Reopen, prompt; returns the seconds until the model is asked."""
    asked: list[float] = []

    class Asked(FakeModel):
        def __call__(self, *given: Any) -> Any:
            asked.append(time.perf_counter())
            return super().__call__(*given)

    began = time.perf_counter()
    harness, lane = await open_lane(await store_of(variant, path), Asked())
    await lane.prompt("again")
    await harness.close()
    return asked[0] - began


async def stream(deltas: int) -> float:
    """Stream one response with a watcher."""
    store = await store_of("memory", "")
    harness, lane = await open_lane(store, FakeModel(deltas=deltas))
    seen = 0

    async def listener(event: Any) -> None:
        nonlocal seen
        seen += event.type == "message_update"

    watch = await lane.watch()
    watch.start(listener)
    with Timer() as timer:
        await lane.prompt("go")
    await asyncio.sleep(0)
    assert seen >= deltas, seen
    await harness.close()
    return timer.seconds


async def many(variant: str, agents: int, turns: int) -> float:
    """Many sessions in one process."""
    with TemporaryDirectory() as directory:
        async def one(number: int) -> None:
            store = await store_of(variant, str(Path(directory) / f"{number}.db"))
            harness, lane = await open_lane(store, FakeModel(turns=turns))
            await lane.prompt("go")
            await harness.close()

        with Timer() as timer:
            await asyncio.gather(*(one(number) for number in range(agents)))
    return timer.seconds


async def main() -> None:
    a = cli()
    v = version("laneway")
    variant = a.variant or "memory"
    await run_turns("memory", "", 20)
    base = rss_mb()
    if a.workload == "w5":
        if variant != "postgres" and os.path.exists(a.db):
            os.remove(a.db)
        seconds, cpu, _ = await run_turns(variant, a.db, a.turns)
        size = os.path.getsize(a.db) if variant not in ("memory", "postgres") else 0
        emit("laneway", v, a, a.turns, seconds, cpu_per_turn_us=round(cpu / a.turns * 1e6, 1), bytes_per_turn=size // max(a.turns, 1))
    elif a.workload == "w5resume":
        emit("laneway", v, a, 1, await resume(variant, a.db))
    elif a.workload == "w2":
        emit("laneway", v, a, a.deltas, await stream(a.deltas))
    elif a.workload == "w6":
        seconds = await many(variant, a.agents, a.turns)
        emit("laneway", v, a, a.agents * a.turns, seconds, grown_mb=round(rss_mb() - base, 1))


if __name__ == "__main__":
    asyncio.run(main())
