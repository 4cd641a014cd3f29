"""What a tool, a listener or the caller can do wrong, over the whole way: Agent, loop, wire and a provider on loopback.

After each fault: every call has exactly one result in the order of the calls, the request that follows is made from them, the
conversation can be sent again, and nothing hangs.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cli.running import run
from cli.serving import asked, at, calling, saying, text_of
from helpers import unsendable
from laneway import Agent, AgentTool, ToolError, bash_tool, tool
from laneway.abort import AbortSignal
from laneway.events import AgentEvent
from laneway.messages import AssistantMessage, ToolResultMessage
from llm.chat import chat_model, chunk, fragment, tools
from llm.loopback import Answer, Loopback, sse_reply

HANG = 20.0


def results(agent: Agent) -> list[ToolResultMessage]:
    return [message for message in agent.state.messages if isinstance(message, ToolResultMessage)]


def settled(agent: Agent) -> None:
    """Promise 1, and a conversation that can go on."""
    calls = [
        call.id
        for m in agent.state.messages
        if isinstance(m, AssistantMessage) and m.stop_reason in ("tool_use", "stop", "length")
        for call in m.tool_calls
    ]
    assert [result.tool_call_id for result in results(agent)] == calls
    assert unsendable(agent.state.messages) == []
    assert not agent.state.is_streaming
    assert agent.state.pending_tool_calls == frozenset()


def over(server: Loopback, *tools: Any, **options: Any) -> Agent:
    """An agent that asks the server."""
    return Agent(model=chat_model(base_url=server.url), tools=tools, **options)


def two_calls(*names: str) -> Answer:
    pieces = [fragment("{}", index=n, call_id=f"c{n}", name=name) for n, name in enumerate(names)]
    return sse_reply(tools(*pieces), chunk(finish="tool_calls"), "[DONE]")


@tool
async def fine() -> str:
    """Do what was asked."""
    return "all well"


# ---------------------------------------------------------------------------------------------------- tools


@tool
async def raises() -> str:
    """Fail."""
    raise ZeroDivisionError("nothing left to divide")


@tool
async def refuses() -> str:
    """Fail in the tool's own words."""
    raise ToolError("The printer is out of paper.")


@tool
def raises_in_a_thread() -> str:
    """Fail in a thread."""
    raise OSError(5, "the disk is gone")


@tool
async def nonsense() -> Any:
    """Return what no message can hold."""
    return object()


@tool
async def cancels_itself() -> str:
    """Raise what only a cancellation raises."""
    raise asyncio.CancelledError


@tool
async def leaves() -> str:
    """Try to end the program."""
    raise KeyError


@tool(timeout=0.05)
async def hangs() -> str:
    """Never come back."""
    await asyncio.Event().wait()
    return "?"


@tool(timeout=0.05)
async def swallows() -> str:
    """Refuse to be cancelled, for a while."""
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(end - time.monotonic())
    return "late"


async def not_a_result(*_: Any) -> Any:
    return ["neither", "text"]


by_hand = AgentTool(name="by_hand", description="Return no ToolResult.", parameters={"type": "object", "properties": {}}, execute=not_a_result)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (raises, "nothing left to divide"),
        (refuses, "The printer is out of paper."),
        (raises_in_a_thread, "the disk is gone"),
        (nonsense, "object"),
        (cancels_itself, "cancel"),
        (leaves, "KeyError"),
        (hangs, "0.05"),
        (swallows, "late"),
        (by_hand, "ToolResult"),
    ],
)
async def test_a_tool_that_fails_is_told_to_the_model(bad: AgentTool, said: str):
    """Beside a tool that works: both have results, in order, the model reads what went wrong and answers."""
    async with Loopback([two_calls(bad.name, "fine"), saying("I see.")]) as server, asyncio.timeout(HANG):
        agent = over(server, bad, fine)
        await agent.prompt("go")
    settled(agent)
    assert [result.tool_name for result in results(agent)] == [bad.name, "fine"]
    told = [text_of(message) for message in asked(server) if message["role"] == "tool"]
    assert said in told[0], told
    assert told[1] == "all well"
    assert agent.state.messages[-1].text == "I see."  # type: ignore[union-attr]
    assert agent.state.error_message is None


@pytest.mark.parametrize("stubborn", ["ignores", "swallows", "thread"])
async def test_a_tool_that_ignores_its_abort_does_not_hold_the_run(stubborn: str):
    """It is given a moment, then the run ends without it; its call says so, and the one beside it too."""
    release = threading.Event()
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def in_the_loop() -> str:
        begun.set()
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return "much too late"

    def in_a_thread() -> str:
        loop.call_soon_threadsafe(begun.set)
        release.wait(60)
        return "much too late"

    async def blind() -> str:
        begun.set()
        task = asyncio.ensure_future(asyncio.to_thread(release.wait, 60))
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                continue
        return "much too late"

    work: Callable[[], Any] = {"swallows": in_the_loop, "thread": in_a_thread, "ignores": blind}[stubborn]
    stuck = tool(work, name="stuck", description="Get stuck.")
    async with Loopback([two_calls("stuck", "hangs_too")]) as server, asyncio.timeout(HANG):
        agent = over(server, stuck, tool(_forever, name="hangs_too", description="Wait."), tool_abort_grace=0.05)
        running = asyncio.ensure_future(agent.prompt("go"))
        await begun.wait()
        agent.abort("enough")
        await running
        release.set()
    settled(agent)
    assert [result.is_error for result in results(agent)] == [True, True]
    assert len(server.requests) == 1
    await asyncio.sleep(0.05)  # what was abandoned ends


async def _forever() -> str:
    await asyncio.Event().wait()
    return "?"


async def test_a_command_that_prints_without_end_costs_no_memory(env: dict[str, str], work: Path):
    """A gigabyte of output: the model gets the end of it and the name of a file, the process stays small."""
    program = (
        "import sys\n"
        "from laneway.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        "status = open('/proc/self/status').read()\n"  # not getrusage: its peak includes the process that started this one
        "print('peak', int(status.split('VmHWM:')[1].split()[0]) // 1024, file=sys.stderr)\n"
        "sys.exit(code)"
    )
    command = "head -c 1000000000 /dev/zero | tr '\\0' 'x' | fold -w 1000; echo; echo the end"
    async with Loopback([calling("bash", {"command": command}), saying("That was a lot.")]) as server:
        arguments = ["run", "--no-session", "-m", "custom/m", "-q", "go"]
        done = await run(arguments, {**at(server, env), "TMPDIR": str(work)}, cwd=work, command=[sys.executable, "-c", program], guard=180)
    done.check(0)
    told = text_of(asked(server)[-1])
    assert "the end" in told
    assert len(told) < 60_000
    assert int(done.err.split("peak ")[1]) < 250
    for file in work.glob("*"):
        if file.stat().st_size > 1_000_000:
            file.unlink()


async def test_a_daemon_that_a_command_leaves_holds_nothing_up(env: dict[str, str], work: Path):
    """It keeps the pipe; the call returns with what was printed, and names what still runs."""
    script = "sleep 300 & echo $! > daemon; echo started"
    async with Loopback([calling("bash", {"command": script}), saying("ok")]) as server:
        done = await run(["run", "--no-session", "-m", "custom/m", "--json", "go"], at(server, env), cwd=work)
    pid = int((work / "daemon").read_text())
    try:
        done.check(0)
        done.check_transcript()
        assert "started" in text_of(asked(server)[-1])
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# ---------------------------------------------------------------------------------------------------- listeners


@pytest.mark.parametrize("kind", ["message_start", "message_update", "tool_execution_start", "tool_execution_end", "turn_end"])
async def test_a_listener_that_raises_gets_its_exception_back(kind: str):
    """The run is stopped and settled, the exception is raised by `prompt`, and the agent can go on afterwards."""
    async with Loopback([calling("fine", {}), saying("never"), saying("again")]) as server, asyncio.timeout(HANG):
        agent = over(server, fine)
        failed = False

        def listener(event: AgentEvent, _: AbortSignal) -> None:
            nonlocal failed
            if event.type == kind and not failed:
                failed = True
                raise LookupError(kind)

        agent.subscribe(listener)
        with pytest.raises(LookupError, match=kind):
            await agent.prompt("go")
        settled(agent)
        await agent.prompt("and now?")
        settled(agent)
    assert agent.state.messages[-1].stop_reason == "stop"  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["message_update", "tool_execution_start", "agent_end"])
async def test_a_listener_that_blocks_can_be_left(kind: str):
    """The run waits for its listeners; whoever waits for the run can still leave, and finds the agent usable."""
    async with Loopback([calling("fine", {}), saying("done")]) as server, asyncio.timeout(HANG):
        agent = over(server, fine, abort_grace=0.1)
        reached = asyncio.Event()

        async def listener(event: AgentEvent, _: AbortSignal) -> None:
            if event.type == kind and not reached.is_set():
                reached.set()
                await asyncio.Event().wait()

        unsubscribe = agent.subscribe(listener)
        running = asyncio.ensure_future(agent.prompt("go"))
        await reached.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await agent.wait_for_idle()
        unsubscribe()
        settled(agent)


# ---------------------------------------------------------------------------------------------------- the caller


@asynccontextmanager
async def _world(work: Path) -> AsyncIterator[tuple[Loopback, Callable[[], Agent]]]:
    """A provider that asks for a command and a sync tool at once, then answers."""
    script = "echo one; sleep 0.05; echo two"

    def count(text: str) -> str:
        time.sleep(0.02)
        return str(len(text))

    counting = tool(count, name="count", description="Count characters.")
    arguments = (("bash", json.dumps({"command": script})), ("count", '{"text": "abc"}'))
    pieces = [fragment(given, index=n, call_id=f"c{n}", name=name) for n, (name, given) in enumerate(arguments)]
    first = sse_reply(chunk("Let me "), 0.01, chunk("look."), tools(*pieces), chunk(finish="tool_calls"), "[DONE]")
    async with Loopback([]) as server:
        server.answers = [first, saying("It is ", 0.01, "three.")]

        def fresh() -> Agent:
            server.requests.clear()
            return over(server, bash_tool(work), counting, tool_abort_grace=0.05)

        yield server, fresh


async def test_the_task_is_cancelled_at_any_moment(work: Path):
    """After each of the first steps of the event loop, then after longer and longer: promises hold, the cancellation arrives, nothing is left."""
    async with _world(work) as (_, fresh):
        base = len(asyncio.all_tasks())
        moments: list[float] = [-steps for steps in range(60)] + [1.15**n / 1000 for n in range(1, 80)]
        for moment in moments:
            agent = fresh()
            ends: list[AgentEvent] = []
            agent.subscribe(lambda event, _, ends=ends: ends.append(event) if event.type == "agent_end" else None)
            task = asyncio.ensure_future(agent.prompt("go"))
            await _reach(moment, task)
            done = task.done()
            task.cancel()
            async with asyncio.timeout(HANG):
                with suppress(asyncio.CancelledError):
                    await task
            assert task.cancelled() or done, moment
            settled(agent)
            assert len(ends) == 1 or moment == 0, moment  # at 0 it had not begun
            if done:
                break
        assert done, "the last run was cancelled too: it never came to its end"
        await asyncio.sleep(0.1)
        assert len(asyncio.all_tasks()) <= base + 1  # the provider's connection


async def _reach(moment: float, task: asyncio.Future[Any]) -> None:
    """Wait for so many seconds, or (below 0) for so many steps of the event loop."""
    if moment > 0:
        await asyncio.wait([task], timeout=moment)
    for _ in range(int(-moment)):
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", ["agent_start", "message_start", "message_update", "message_end", "tool_execution_start", "tool_execution_update",
                                  "tool_execution_end", "turn_end", "agent_end"])  # fmt: skip
async def test_the_task_is_cancelled_at_every_event(work: Path, kind: str):
    """Real tools, a real connection: at each occurrence of each event."""
    async with _world(work) as (_, fresh):
        occurrence = 0
        while True:
            agent, seen, task = fresh(), 0, None

            async def listener(event: AgentEvent, _: AbortSignal) -> None:
                nonlocal seen
                if event.type == kind:
                    seen += 1
                    if seen == occurrence + 1 and task is not None:
                        task.cancel()
                        await asyncio.sleep(0)

            agent.subscribe(listener)
            task = asyncio.ensure_future(agent.prompt("go"))
            async with asyncio.timeout(HANG):
                with suppress(asyncio.CancelledError):
                    await task
            settled(agent)
            if seen <= occurrence:
                break
            occurrence += 1
        assert occurrence >= 1 or kind == "tool_execution_update"


async def test_an_agent_that_was_cancelled_goes_on(work: Path):
    """The transcript that a cancellation leaves is a good start: the next prompt is answered."""
    async with _world(work) as (server, fresh):
        agent = fresh()
        begun = asyncio.Event()
        agent.subscribe(lambda event, _: begun.set() if event.type == "tool_execution_start" else None)
        task = asyncio.ensure_future(agent.prompt("go"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        settled(agent)
        server.answers = [saying("Fine.")]
        async with asyncio.timeout(HANG):
            await agent.prompt("never mind")
        settled(agent)
        assert agent.state.messages[-1].text == "Fine."  # type: ignore[union-attr]
        roles = [message["role"] for message in asked(server)]
        assert roles == ["user", "assistant", "tool", "tool", "user"]
