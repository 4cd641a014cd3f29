"""Layer 1: the loop as a function. It takes a context, gives events, returns the new messages, and forgets.

Run it with any model:  python examples/01_loop.py openai/gpt-5
"""

import asyncio
import sys

from laneway import AgentContext, LoopConfig, SystemMessage, UserMessage, agent_loop, model, tool


@tool
async def add(a: float, b: float) -> str:
    """Add two numbers."""
    return str(a + b)


async def main(spec: str = "local/smollm2") -> None:
    context = AgentContext(messages=[SystemMessage(content="You calculate with tools.")], tools=[add])
    stream = agent_loop([UserMessage(content="What is 2 + 40?")], context, LoopConfig(model=model(spec)))
    async for event in stream:
        print(event.type)
        if event.type == "message_end" and event.message.role == "assistant" and event.message.error_message:
            print("the request failed:", event.message.error_message)
    print(f"{len(await stream.result())} new messages; the context still has {len(context.messages)}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
