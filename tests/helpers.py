"""Helpers for tests of the loop and the Agent: a recorder of events in shorthand, and small tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from laneway import (
    AbortSignal,
    AgentContext,
    AgentEvent,
    AgentMessage,
    AgentTool,
    AssistantMessage,
    LoopConfig,
    SystemMessage,
    TextContent,
    ToolResult,
    ToolResultMessage,
    UserMessage,
    run_agent_loop,
)
from laneway.messages import role_of
from laneway.testing import Scripted, provider_ready
from laneway.transcript import normalise


class Names:
    """Gives each message a short name in the order of appearance: s1 system, u1 user, a1 assistant, r1 tool result, c1 custom."""

    def __init__(self) -> None:
        self._known: list[tuple[object, str]] = []
        self._counts: dict[str, int] = {}

    def of(self, message: AgentMessage, final: bool = False) -> str:
        letter = {"system": "s", "user": "u", "assistant": "a", "tool_result": "r"}.get(role_of(message) or "", "c")
        for known, name in self._known:
            if known is message:
                return name
        if isinstance(message, AssistantMessage) and final and self._known and self._known[-1][1].startswith("a"):
            return self._known[-1][1]
        self._counts[letter] = self._counts.get(letter, 0) + 1
        name = f"{letter}{self._counts[letter]}"
        self._known.append((message, name))
        return name


class Recorder:
    """An event sink that keeps the events and tells them in shorthand; repeated updates are told once."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []
        self.names = Names()
        self.trace: list[str] = []

    def __call__(self, event: AgentEvent, _: AbortSignal | None = None) -> None:
        self.events.append(event)
        told = self._tell(event)
        if not (told.startswith(("MU", "TU")) and self.trace and self.trace[-1] == told):
            self.trace.append(told)

    def _tell(self, event: AgentEvent) -> str:
        match event.type:
            case "message_start":
                return f"MS({self.names.of(event.message)})"
            case "message_update":
                return f"MU({self.names.of(event.message)})"
            case "message_end":
                return f"ME({self.names.of(event.message, final=True)})"
            case "tool_execution_start":
                return f"TS({event.tool_call_id})"
            case "tool_execution_update":
                return f"TU({event.tool_call_id})"
            case "tool_execution_end":
                return f"TE({event.tool_call_id})"
            case "turn_end":
                return f"turn_end({len(event.tool_results)})"
            case "agent_end":
                return f"agent_end({event.reason})"
            case other:
                return other

    def of_type(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.type == kind]

    @property
    def end(self) -> Any:
        ends = self.of_type("agent_end")
        assert len(ends) == 1, self.trace
        assert self.events[-1] is ends[0], self.trace
        return ends[0]


def make_tool(
    name: str = "echo",
    run: Callable[..., Any] | None = None,
    *,
    parameters: dict[str, Any] | None = None,
    **options: Any,
) -> AgentTool:
    """A tool from a function `(args, signal, update) -> str | ToolResult`, sync or async; by default it echoes its arguments."""

    async def execute(call_id: str, args: Any, signal: AbortSignal, update: Callable[[ToolResult], None]) -> ToolResult:
        value = run(args, signal, update) if run is not None else f"{name}:{args}"
        if asyncio.iscoroutine(value):
            value = await value
        return value if isinstance(value, ToolResult) or value is None else ToolResult(content=[TextContent(text=str(value))])

    schema = parameters or {"type": "object", "properties": {}, "additionalProperties": True}
    return AgentTool(name=name, description=f"{name} for tests", parameters=schema, execute=execute, **options)


def declared(*tools: AgentTool) -> SystemMessage:
    return SystemMessage(content="", tools_added=[tool.declaration for tool in tools], timestamp=0)


def context(*messages: AgentMessage, tools: Sequence[AgentTool] = ()) -> AgentContext:
    """A context whose tools are declared already, so that traces show only what a test is about."""
    return AgentContext(messages=[*([declared(*tools)] if tools else []), *messages], tools=list(tools))


def user(text: str) -> UserMessage:
    return UserMessage(content=text)


def texts(messages: Sequence[Any]) -> list[str]:
    """The text of each message, for short assertions."""
    out: list[str] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            out.append(message.text)
        elif isinstance(message, (UserMessage, ToolResultMessage)):
            content = message.content
            out.append(content if isinstance(content, str) else "".join(b.text for b in content if isinstance(b, TextContent)))
        else:
            out.append(getattr(message, "content", ""))
    return out


async def run(
    script: Scripted,
    *prompts: AgentMessage,
    base: AgentContext | None = None,
    tools: Sequence[AgentTool] = (),
    signal: AbortSignal | None = None,
    **hooks: Any,
) -> tuple[Recorder, list[AgentMessage]]:
    """Run the loop on a scripted model and return what was recorded and the new messages."""
    recorder = Recorder()
    config = LoopConfig(model=hooks.pop("model", script.model), **hooks)
    messages = await run_agent_loop(
        list(prompts) or [user("go")], base or context(tools=tools), config, recorder, signal=signal, stream_fn=script.stream_fn
    )
    assert recorder.end.messages == messages
    return recorder, messages


def unsendable(messages: Sequence[Any]) -> list[str]:
    """What a provider would refuse if the conversation went on from here; [] is good."""
    return provider_ready(normalise([*messages, user("and now?")]))


def queue(*batches: list[AgentMessage]) -> Callable[[], list[AgentMessage]]:
    """A poll that gives one batch per call, then nothing."""
    left = list(batches)
    return lambda: left.pop(0) if left else []
