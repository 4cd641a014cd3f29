"""Lanes: several agents over one history, at once, each with its own tip, model, queue and operation.

Needs no model: a scripted one plays its part.
"""

import asyncio

from laneway.harness import AgentHarness
from laneway.session import MemoryRepo
from laneway.storage import MessageEntry
from laneway.testing import Scripted, text


async def main() -> None:
    scripted = Scripted([text("A function that adds."), text("Reviewed: fine."), text("Documented.")])
    session = await MemoryRepo().create()
    harness, _ = await AgentHarness.create(session=session, model=scripted.model, stream_fn=scripted.stream_fn)
    async with harness:
        author = await harness.lane("main")
        await author.prompt("Write a function.")
        here = await author.get_tip()
        reviewer = await harness.lane("review", create_at=here)
        writer = await harness.lane("docs", create_at=here)
        await writer.set_thinking_level("high")
        watch = await harness.watch_session()
        watch.start(lambda event: print(f"{event.lane}: {event.type}") if event.type in ("run_start", "run_end") else None)
        await asyncio.gather(reviewer.prompt("Review it."), writer.prompt("Document it."))
        for info in await harness.lanes():
            lane = await harness.lane(info.name)
            entries = await lane.find_entries(order="oldest_first")
            print(info.name, [entry.message.role for entry in entries if isinstance(entry, MessageEntry)])
        await author.navigate(None, label=None)
        print("main begins anew:", await author.find_entries(), "- the others are untouched")


if __name__ == "__main__":
    asyncio.run(main())
