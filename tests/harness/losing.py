"""A process that loses its session while an effect runs: `losing.py sqlite PATH WHAT` or `losing.py postgres DSN SCHEMA SESSION WHAT`.

WHAT is "tool" or "model": what hangs until it is told to stop. It says "running" when it does, and then how it ended.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from laneway.errors import HarnessFault
from laneway.harness import AgentHarness
from laneway.session import Session
from laneway.storage.base import Storage
from laneway.testing import Scripted, call, text
from laneway.tools.base import AgentTool, text_result

LIFE, HEARTBEAT = 0.6, 0.2


def say(line: object) -> None:
    os.write(1, f"{line}\n".encode())


async def open_store(kind: str, *where: str) -> Storage:
    if kind == "sqlite":
        from laneway.storage.sqlite import SqliteStorage

        return await SqliteStorage.open(where[0], lease_life=LIFE, heartbeat=HEARTBEAT)
    from laneway.storage.postgres import PostgresStorage

    return await PostgresStorage.open(where[0], where[2], schema=where[1], lease_life=LIFE, heartbeat=HEARTBEAT)


async def main(kind: str, *rest: str) -> None:
    *where, what = rest
    stopped: list[str] = []

    async def work(call_id: str, args: Any, signal: Any, update: Any) -> Any:
        say("running")
        await signal.wait()
        stopped.append("told")
        return text_result("too late")

    script = Scripted([text("a long answer", gate=asyncio.Event())] if what == "model" else [call("work")])
    tool = AgentTool(name="work", description="works", parameters={"type": "object"}, execute=work)
    session = Session.over(await open_store(kind, *where))
    harness, _ = await AgentHarness.create(session=session, model=script.model, stream_fn=script.stream_fn, tools=[tool])
    faults: list[Any] = []
    harness.events.on("fault", faults.append)
    lane = await harness.lane("main")
    prompted = asyncio.ensure_future(lane.prompt("go"))
    if what == "model":
        while not script.requests:
            await asyncio.sleep(0.01)
        say("running")
    try:
        await prompted
    except HarnessFault as fault:
        say(f"{type(fault.__cause__).__name__} {[each.code for each in faults]} {stopped}")
    await harness.close()
    say("closed")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
