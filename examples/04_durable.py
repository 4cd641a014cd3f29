"""Layer 3: the harness keeps everything in a store, so a conversation goes on in the next process.

Needs no model: a scripted one plays its part. Run it twice; the second run remembers the first.
"""

import asyncio
import sys

from laneway import tool
from laneway.harness import AgentHarness
from laneway.session import SqliteRepo
from laneway.storage import MessageEntry
from laneway.testing import Scripted, call, text


@tool
async def add(a: float, b: float) -> str:
    """Add two numbers."""
    return str(a + b)


async def main(folder: str = "sessions") -> None:
    scripted = Scripted([call("add", a=2, b=40), text("It is 42.")])
    repo = SqliteRepo(folder)
    known = await repo.list()
    session = await repo.open(known[0].id) if known else await repo.create()
    harness, open_operations = await AgentHarness.create(session=session, model=scripted.model, stream_fn=scripted.stream_fn, tools=[add])
    async with harness:
        lane = await harness.lane("main")
        harness.events.on("tool_end", lambda event: print(f"[{event.tool_name}: {event.result.content[0].text}]"))
        await lane.next_run("Use your tools.")  # durable when this returns; the next prompt takes it along
        result = await lane.prompt("What is 2 + 40?")
        print(result.status, "- open when we came:", len(open_operations))
        for entry in await lane.find_entries(order="oldest_first"):
            print(f"  {entry.message.role if isinstance(entry, MessageEntry) else entry.type}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
