"""Layer 2: an Agent keeps the conversation. Watch it with a listener, or iterate over a run.

Run it with any model:  python examples/02_agent.py anthropic/claude-sonnet-5-5
"""

import asyncio
import sys

from laneway import AbortSignal, Agent, AgentEvent, StreamOptions, read_tool


def show(event: AgentEvent, _: AbortSignal) -> None:
    if event.type == "tool_execution_start":
        print(f"[{event.tool_name} {event.args}]")
    elif event.type == "message_update" and event.event.type == "text_delta":
        print(event.event.delta, end="", flush=True)


async def main(spec: str = "local/smollm2", folder: str = "examples/sample") -> None:
    agent = Agent(
        model=spec,
        system_prompt="Answer from the files in the folder.",
        tools=[read_tool(folder)],
        stream_options=StreamOptions(max_tokens=1000 if not spec.startswith("local/") else 80),  # the embedded model may not find an end
    )
    agent.subscribe(show)
    await agent.prompt("What does notes.txt say about the launch?")
    print()
    async for event in agent.stream("Thank you. Was there anything about the budget?"):
        if event.type == "turn_end":
            print(f"\n(a turn used {event.message.usage.total_tokens} tokens)")
    if agent.state.error_message:
        print("the last turn failed:", agent.state.error_message)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
