"""Steering: say something while the agent works. `steer` waits for the running tools, `interrupt=True` does not, `follow_up` waits for the end.

Needs no model: a scripted one plays its part, so that the order is plain to see.
"""

import asyncio

from laneway import Agent, AssistantMessage, ToolResultMessage, UserMessage, tool
from laneway.testing import Scripted, call, text


@tool
async def search(query: str) -> str:
    """Search for something, slowly."""
    await asyncio.sleep(0.2)
    return f"three results for {query}"


async def main() -> None:
    script = Scripted([call("search", query="hotels"), call("search", query="trains"), text("By train, then."), text("It costs 40 euros.")])
    agent = Agent(model=script.model, stream_fn=script.stream_fn, tools=[search])
    running = asyncio.create_task(agent.prompt("How do I get to Turin?"))
    await asyncio.sleep(0.1)  # the first search is running
    agent.steer("I would rather not fly.")
    agent.follow_up("And what does it cost?")
    await running
    for message in agent.state.messages:
        if isinstance(message, AssistantMessage):
            print(f"{message.role:12} {message.text or [call.name for call in message.tool_calls]}")
        elif isinstance(message, (UserMessage, ToolResultMessage)):
            print(f"{message.role:12} {message.text}")


if __name__ == "__main__":
    asyncio.run(main())
