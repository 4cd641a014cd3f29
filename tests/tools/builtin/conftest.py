"""What the tests of the built-in tools share."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from laneway.abort import AbortController
from laneway.errors import ToolError
from laneway.messages import TextContent, ToolResult
from laneway.tools.base import AgentTool

Call = Callable[..., Awaitable[ToolResult]]


@pytest.fixture
def call() -> Call:
    """Call a tool as the loop does, arguments prepared first; returns its result."""

    async def run(
        tool: AgentTool, /, *, abort: AbortController | None = None, update: Callable[[ToolResult], None] | None = None, **args: Any
    ) -> ToolResult:
        prepared = tool.prepare_arguments(args) if tool.prepare_arguments else args
        return await tool.execute("call-1", prepared, (abort or AbortController()).signal, update or (lambda partial: None))

    return run


@pytest.fixture
def fails(call: Call) -> Callable[..., Awaitable[ToolError]]:
    """Call a tool that must fail; returns its error."""

    async def run(tool: AgentTool, /, **args: Any) -> ToolError:
        with pytest.raises(ToolError) as caught:
            await call(tool, **args)
        return caught.value

    return run


@pytest.fixture
def ask(call: Call) -> Callable[..., Awaitable[str]]:
    """Call a tool and return its text, which must be one block."""

    async def run(tool: AgentTool, /, **args: Any) -> str:
        (block,) = (await call(tool, **args)).content
        assert isinstance(block, TextContent)
        return block.text

    return run


@pytest.fixture(params=["python", *(["rg"] if shutil.which("rg") else [])])
def backend(request: pytest.FixtureRequest) -> str:
    """Each way to search that this machine has."""
    return request.param
