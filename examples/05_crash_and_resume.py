"""Kill an agent in the middle of its work, then let another process finish it. The tool that was done is not done again.

Needs no model: a scripted one plays its part. What the tools did in the world is in `world.txt`.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from laneway import ToolRun, tool
from laneway.harness import AgentHarness
from laneway.session import SqliteRepo
from laneway.testing import Scripted, call, calls, text

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())


def did(what: str) -> None:
    with (FOLDER / "world.txt").open("a") as world:
        world.write(f"{what}\n")


@tool
async def charge(amount: float, run: ToolRun) -> str:
    """Charge the customer: must never happen twice."""
    did(f"charged {amount}")
    return "charged"


@tool(replay="safe")
async def report() -> str:
    """Write the report: slow, and harmless to do again."""
    did("report begun")
    await asyncio.sleep(0 if "--resume" in sys.argv else 60)
    return "reported"


async def main() -> None:
    resuming = "--resume" in sys.argv
    replies = [text("All done.")] if resuming else [call("charge", amount=5.0), calls(call("report"))]
    scripted = Scripted(replies)
    repo = SqliteRepo(FOLDER)
    session = await repo.open("demo", wait=5.0) if resuming else await repo.create(id="demo")
    harness, found = await AgentHarness.create(session=session, model=scripted.model, stream_fn=scripted.stream_fn, tools=[charge, report])
    async with harness:
        lane = await harness.lane("main")
        print("found open:", [operation.kind for operation in found])
        print("ended:", (await (lane.resume() if resuming else lane.prompt("Charge 5 and report."))).status)


if __name__ == "__main__":
    if "--work" in sys.argv or "--resume" in sys.argv:
        asyncio.run(main())
    else:
        worker = subprocess.Popen([sys.executable, __file__, str(FOLDER), "--work"])
        while not (FOLDER / "world.txt").exists() or "report" not in (FOLDER / "world.txt").read_text():
            os.sched_yield()
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        subprocess.run([sys.executable, __file__, str(FOLDER), "--resume"], check=True)
        print((FOLDER / "world.txt").read_text(), end="")
