"""`@tool`: what a function becomes, and how it is called."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import subprocess
import sys
import threading
from contextvars import ContextVar
from typing import Annotated, Any, Literal, Optional, TypedDict

import pytest

from laneway.abort import AbortController
from laneway.agent import Agent
from laneway.errors import ToolError
from laneway.llm._grammar import RawInput, raw_input
from laneway.messages import (
    AssistantMessage,
    SystemMessage,
    TextContent,
    ToolCall,
    ToolGrammar,
    ToolResult,
    ToolResultMessage,
    decode_message,
    encode,
)
from laneway.testing import Scripted, call, calls, provider_ready, text
from laneway.tools import AgentTool, ToolRun, tool
from laneway.tools._validate import validate_arguments
from laneway.tools.base import set_current_host


async def run(a_tool: AgentTool, arguments: dict[str, Any] | None = None, updates: list[ToolResult] | None = None) -> ToolResult:
    """Call a tool the way an engine does."""
    args = validate_arguments(a_tool, ToolCall(id="c1", name=a_tool.name, arguments=arguments or {}))
    return await a_tool.execute("c1", args, AbortController().signal, (updates if updates is not None else []).append)


def text_of(result: ToolResult) -> str:
    """Return the text of a result of one block."""
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


# ---------------------------------------------------------------------------------------------------- what it becomes


def test_a_bare_decorator_takes_everything_from_the_function():
    """Name, description, parameter descriptions, types, defaults and which are required."""

    @tool
    async def forecast(city: str, days: int = 3, unit: Literal["c", "f"] = "c", tags: list[str] | None = None) -> str:
        """Look up the weather.

        Args:
            city: The city.
            days: How many days.
        """
        return f"{city} {days} {unit} {tags}"

    assert isinstance(forecast, AgentTool)
    assert (forecast.name, forecast.label, forecast.description) == ("forecast", "forecast", "Look up the weather.")
    assert (forecast.execution_mode, forecast.replay, forecast.timeout, forecast.strict) == (None, "never", None, None)
    assert forecast.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city."},
            "days": {"type": "integer", "description": "How many days.", "default": 3},
            "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    assert forecast.declaration.parameters == forecast.parameters


def test_options_override_what_the_function_says():
    """`@tool(...)` with every option of 10-api."""

    @tool(name="wx", description="  Weather.\n  Now.", execution_mode="sequential", replay="safe", timeout=2.5, strict=True, label="Weather")
    def forecast(city: str) -> str:
        """Not this."""
        return city

    assert (forecast.name, forecast.description, forecast.label) == ("wx", "Weather.\nNow.", "Weather")
    assert (forecast.execution_mode, forecast.replay, forecast.timeout, forecast.strict) == ("sequential", "safe", 2.5, True)


def test_a_grammar_is_part_of_the_declaration():
    """05 §1.8: and only where there is one, so that stored declarations keep their bytes."""
    grammar = ToolGrammar(lark="start: WORD", regex="[a-z]+")

    @tool(grammar=grammar)
    def say(word: str) -> str:
        """Say a word."""
        return word

    @tool
    def shout(word: str) -> str:
        """Shout it."""
        return word

    assert say.declaration.grammar == grammar
    assert raw_input(say.declaration) == RawInput(syntax="lark", definition="start: WORD", property="word")
    message = SystemMessage(tools_added=[say.declaration], timestamp=0)
    assert decode_message(encode(message)) == message
    assert b"grammar" not in encode(shout.declaration)


async def test_the_function_is_usable_as_before():
    """Calling the tool calls the function; its name, docstring and signature are still there."""

    @tool
    def double(n: int) -> int:
        """Double it."""
        return n * 2

    @tool
    async def triple(n: int) -> int:
        return n * 3

    assert double(4) == 8
    assert await triple(4) == 12
    assert (double.__name__, double.__doc__) == ("double", "Double it.")
    assert len({double, triple}) == 2


async def test_a_tool_can_be_renamed_with_replace():
    """`dataclasses.replace` gives a whole tool of another name, declaration and running call included."""

    @tool
    async def whoami(run: ToolRun) -> str:
        return run.tool_name

    other = dataclasses.replace(whoami, name="other")
    assert other.declaration.name == "other"
    assert text_of(await run(other)) == "other"
    assert text_of(await run(whoami)) == "whoami"


async def test_unannotated_parameters_take_any_json():
    """No annotation means Any."""

    @tool
    async def echo(value, other=None):
        return [value, other]

    assert echo.parameters["properties"] == {"value": {}, "other": {"default": None}}
    assert text_of(await run(echo, {"value": {"a": [1]}})) == '[{"a":[1]},null]'


async def test_a_tool_without_parameters_takes_an_empty_object():
    """B20: no arguments are `{}`."""

    @tool
    async def now() -> str:
        return "noon"

    assert now.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert text_of(await run(now)) == "noon"


def test_annotated_with_a_text_describes_the_parameter_and_needs_no_pydantic():
    """The text wins over the docstring's."""

    @tool
    def find(where: Annotated[str, "A directory."], depth: Annotated[int, "How deep."] = 1) -> str:
        """Find.

        Args:
            where: not this
        """
        return where

    assert find.parameters["properties"] == {
        "where": {"type": "string", "description": "A directory."},
        "depth": {"type": "integer", "description": "How deep.", "default": 1},
    }


def test_a_default_that_is_not_json_is_not_stated():
    """The function's own default is still used when the model leaves the argument out."""
    sentinel = object()

    @tool
    def find(where: str = sentinel, names: list[str] = ()) -> str:  # pyright: ignore[reportArgumentType] - odd defaults on purpose
        return f"{where is sentinel} {names}"

    assert find.parameters["properties"] == {"where": {"type": "string"}, "names": {"type": "array", "items": {"type": "string"}}}
    assert "required" not in find.parameters


# ---------------------------------------------------------------------------------------------------- what can be a tool


class Shelf:
    """Holds books."""

    def __init__(self, owner: str) -> None:
        self.owner = owner

    @tool
    async def lend(self, title: str, run: ToolRun) -> str:
        """Lend a book."""
        return f"{self.owner} lends {title} ({run.tool_call_id})"

    @tool
    @staticmethod
    def count(titles: list[str]) -> int:
        return len(titles)

    @tool
    @classmethod
    def kind(cls, n: int = 1) -> str:
        return cls.__name__ * n

    def plain(self, title: str) -> str:
        """Return a book."""
        return f"{self.owner} takes {title}"


async def test_methods_are_bound_to_their_object():
    """`obj.method` is a tool of its own per object; `self` is not shown to the model."""
    ada, bob = Shelf("Ada"), Shelf("Bob")
    assert list(ada.lend.parameters["properties"]) == ["title"]
    assert text_of(await run(ada.lend, {"title": "Emma"})) == "Ada lends Emma (c1)"
    assert text_of(await run(bob.lend, {"title": "Emma"})) == "Bob lends Emma (c1)"
    assert ada.lend == ada.lend
    assert ada.lend != bob.lend


async def test_static_and_class_methods_are_tools():
    """The decorator goes above @staticmethod or @classmethod."""
    assert text_of(await run(Shelf("Ada").count, {"titles": ["a", "b"]})) == "2"
    assert text_of(await run(Shelf.kind, {"n": 2})) == "ShelfShelf"


async def test_a_method_without_its_object_says_so():
    """`Class.method` cannot run; the error says what to give instead."""
    with pytest.raises(ToolError, match=r"object\.method"):
        await run(Shelf.lend, {"title": "Emma"})


async def test_a_bound_method_can_be_made_a_tool_later():
    """`tool(obj.method, name=...)` works on a class that knows nothing of tools."""
    give_back = tool(Shelf("Ada").plain, name="give_back", replay="safe")
    assert give_back.description == "Return a book."
    assert text_of(await run(give_back, {"title": "Emma"})) == "Ada takes Emma"


async def test_a_partial_hides_what_is_already_bound():
    """A bound argument is the application's: the model never sees it, not even as a default."""

    def fetch(url: str, key: str, *, retries: int = 1) -> str:
        """Fetch a page."""
        return f"{url} {key} {retries}"

    by_name = tool(functools.partial(fetch, key="secret"))
    by_place = tool(functools.partial(fetch, "http://x"), name="fetch_x")
    assert (by_name.name, by_name.description) == ("fetch", "Fetch a page.")
    assert "secret" not in repr(by_name.declaration)
    assert list(by_name.parameters["properties"]) == ["url", "retries"]
    assert list(by_place.parameters["properties"]) == ["key", "retries"]
    assert text_of(await run(by_name, {"url": "u"})) == "u secret 1"
    assert text_of(await run(by_place, {"key": "k", "retries": 2})) == "http://x k 2"


async def test_a_callable_object_is_a_tool():
    """Its class gives the name and, if `__call__` has none, the docstring."""

    class WordCounter:
        """Count words."""

        async def __call__(self, text: str) -> int:
            return len(text.split())

    counter = tool(WordCounter())
    assert (counter.name, counter.description) == ("word_counter", "Count words.")
    assert text_of(await run(counter, {"text": "a b c"})) == "3"


async def test_a_wrapped_function_is_read_through_its_wrapper():
    """`functools.wraps` keeps the signature; a sync wrapper that returns a coroutine is awaited."""

    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @tool
    @logged
    async def greet(name: str) -> str:
        """Greet."""
        return f"hello {name}"

    assert list(greet.parameters["properties"]) == ["name"]
    assert text_of(await run(greet, {"name": "Ada"})) == "hello Ada"


async def test_local_names_in_postponed_annotations_are_resolved():
    """`from __future__ import annotations` and a type that only exists inside the function."""

    class Point(TypedDict):
        x: int
        y: int

    @tool
    async def move(to: Point, path: list[Point] | None = None) -> str:
        return str(to["x"] + to["y"] + len(path or []))

    assert move.parameters["properties"]["to"]["required"] == ["x", "y"]
    assert text_of(await run(move, {"to": {"x": 1, "y": 2}})) == "3"


# ---------------------------------------------------------------------------------------------------- the running call


async def test_tool_run_is_injected_and_never_in_the_schema():
    """Plain, quoted, Optional, annotated for type checkers only: the parameter gets the running call."""
    seen: list[Any] = []

    @tool
    async def one(a: int, run: ToolRun) -> None:
        seen.append(run)

    @tool
    async def two(run: "ToolRun", a: int) -> None:  # noqa: UP037 - quoted on purpose
        seen.append(run)

    @tool
    async def three(a: int, run: ToolRun | None = None) -> None:
        seen.append(run)

    @tool
    async def four(a: int, *, run: Optional["ToolRun"] = None) -> None:  # noqa: UP037, UP045 - an older way to write it
        seen.append(run)

    for one_of in (one, two, three, four):
        assert list(one_of.parameters["properties"]) == ["a"]
        await run(one_of, {"a": 1})
    assert [(call.tool_call_id, call.tool_name) for call in seen] == [("c1", name) for name in ("one", "two", "three", "four")]


def test_a_name_that_only_type_checkers_know_is_tool_run_only_by_that_name():
    """`ToolRun` under TYPE_CHECKING is understood; any other such name is an error that says what to do."""
    source = (
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING, Optional\nfrom laneway.tools import tool\n"
        "if TYPE_CHECKING:\n    from laneway.tools import ToolRun\n    import laneway\n    from datetime import date\n"
        "@tool\ndef a(x: int, run: ToolRun): ...\n"
        "@tool\ndef b(x: int, run: laneway.tools.ToolRun | None = None): ...\n"
        "@tool\ndef c(x: int, run: Optional['ToolRun'] = None): ...\n"
        "assert all(list(t.parameters['properties']) == ['x'] for t in (a, b, c))\n"
        "try:\n    @tool\n    def d(when: date): ...\nexcept TypeError as error:\n    assert 'TYPE_CHECKING' in str(error), error\n"
        "else:\n    raise SystemExit(1)\n"
    )
    exec(compile(source, "only_for_checkers", "exec"), {"__name__": "only_for_checkers"})


async def test_updates_and_reports_reach_the_engine_in_order():
    """An async tool awaits `update`, a sync one calls `report` from its thread; all come before the result."""

    @tool
    async def slow(run: ToolRun) -> str:
        await run.update("one")
        run.report(ToolResult(content=[TextContent(text="two")], details={"done": 2}))
        return "end"

    @tool
    def threaded(run: ToolRun) -> str:
        for n in range(3):
            run.report(str(n))
        return "end"

    updates: list[ToolResult] = []
    await run(slow, updates=updates)
    assert [text_of(update) for update in updates] == ["one", "two"]
    updates.clear()
    await run(threaded, updates=updates)
    assert [text_of(update) for update in updates] == ["0", "1", "2"]


async def test_the_idempotency_key_is_the_hosts():
    """In a durable engine the key is stable across replays; elsewhere it is the call's id. Memos need a host."""

    class Host:
        idempotency_key = "key-1"

        async def update(self, partial: ToolResult, checkpoint: bool) -> None:
            reported.append((text_of(partial), checkpoint))

        async def get_memo(self, name: str) -> Any:
            return memos.get(name)

        async def set_memo(self, name: str, value: Any) -> None:
            memos[name] = value

    reported: list[tuple[str, bool]] = []
    memos: dict[str, Any] = {}

    @tool
    async def charge(run: ToolRun) -> str:
        await run.set_memo("paid", True)
        await run.update("half", checkpoint=True)
        return f"{run.idempotency_key} {await run.get_memo('paid')}"

    async def hosted() -> ToolResult:
        set_current_host(Host())
        return await run(charge)

    assert text_of(await asyncio.create_task(hosted())) == "key-1 True"
    assert reported == [("half", True)]
    with pytest.raises(ToolError, match="durable harness"):
        await run(charge)


# ---------------------------------------------------------------------------------------------------- sync functions


async def test_a_sync_tool_runs_in_a_thread_with_the_callers_context():
    """The event loop stays free, and context variables are those of the call."""
    who: ContextVar[str] = ContextVar("who")
    who.set("Ada")

    @tool
    def where() -> list[str]:
        return [threading.current_thread().name, who.get()]

    thread, name = (await run(where)).details
    assert thread != threading.current_thread().name
    assert name == "Ada"


async def test_a_cancelled_sync_tool_is_left_behind():
    """B15: the await ends at once; what the thread returns or raises later is dropped without a warning."""
    started, release, finished = threading.Event(), threading.Event(), threading.Event()

    @tool
    def stubborn(fail: bool) -> str:
        started.set()
        release.wait(5)
        finished.set()
        if fail:
            raise RuntimeError("too late")
        return "late"

    for fail in (False, True):
        task = asyncio.create_task(run(stubborn, {"fail": fail}))
        async with asyncio.timeout(5):
            while not started.is_set():
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not finished.is_set()
            release.set()
            while not finished.is_set():
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        for event in (started, release, finished):
            event.clear()


async def test_sync_tools_run_at_once_however_many_there_are():
    """Fifty blocking calls do not wait for each other: each has a thread of its own."""
    barrier = threading.Barrier(50)

    @tool
    def meet() -> int:
        return barrier.wait(10)

    async with asyncio.timeout(15):
        results = await asyncio.gather(*(run(meet) for _ in range(50)))
    assert sorted(result.details for result in results) == list(range(50))


def test_a_hanging_sync_tool_does_not_keep_the_process_alive():
    """A thread cannot be killed, so it must not be waited for: the program ends although the tool still blocks."""
    program = """
import asyncio, time
from laneway.abort import AbortController
from laneway.tools import tool

@tool
def hang():
    time.sleep(3600)

async def main():
    task = asyncio.create_task(hang.execute("c", {}, AbortController().signal, print))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

asyncio.run(main())
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "ended"


async def test_exceptions_are_the_tools_own():
    """A tool's exception passes unchanged; StopIteration and SystemExit, which would break the engine, are explained."""

    @tool
    def fails(how: str) -> str:
        raise {"value": ValueError("bad"), "stop": StopIteration("over"), "exit": SystemExit(3)}[how]

    @tool
    async def exits() -> str:
        raise SystemExit(4)

    with pytest.raises(ValueError, match="bad"):
        await run(fails, {"how": "value"})
    with pytest.raises(RuntimeError, match="over"):
        await run(fails, {"how": "stop"})
    with pytest.raises(ToolError, match="exit status 3"):
        await run(fails, {"how": "exit"})
    with pytest.raises(ToolError, match="exit status 4"):
        await run(exits)


# ---------------------------------------------------------------------------------------------------- in an agent


async def test_an_agent_runs_declared_tools():
    """T-06, T-07, T-08, B15: coerced arguments, a refusal that the model reads, a legacy shape, progress from a thread."""

    @tool(prepare_arguments=lambda args: {"n": args["number"]} if "number" in args else args)
    def count(n: int, run: ToolRun) -> dict[str, int]:
        """Count to n."""
        run.report(f"counting to {n}")
        return {"counted": n}

    script = Scripted([calls(call("count", n="3"), call("count", number=4), call("count", n="x")), text("done")])
    agent = Agent(model=script.model, tools=[count], stream_fn=script.stream_fn)
    seen: list[Any] = []
    agent.subscribe(lambda event, _: seen.append(event) if event.type == "tool_execution_update" else None)
    messages = await agent.prompt("go")
    results = [message for message in messages if isinstance(message, ToolResultMessage)]
    assert [(result.is_error, result.details) for result in results] == [(False, {"counted": 3}), (False, {"counted": 4}), (True, None)]
    assert 'Validation failed for tool "count"' in text_of(ToolResult(content=results[2].content))
    assert sorted(event.partial_result.content[0].text for event in seen) == ["counting to 3", "counting to 4"]  # two threads, in any order
    assert script.requests[0].tools == [count.declaration]
    assert [c.arguments for m in messages if isinstance(m, AssistantMessage) for c in m.tool_calls] == [{"n": "3"}, {"number": 4}, {"n": "x"}]
    assert provider_ready(script.requests[1].messages) == []


# ---------------------------------------------------------------------------------------------------- what cannot be a tool


def positional(a: int, /) -> int:
    return a


def starred(*names: str) -> int:
    return len(names)


def keywords(**options: str) -> int:
    return len(options)


def generator(n: int) -> Any:
    yield n


async def async_generator(n: int) -> Any:
    yield n


def unknown_type(when: "Whenever") -> None:  # noqa: F821, UP037 # pyright: ignore[reportUndefinedVariable] - the name is missing on purpose
    """Never called."""


def not_a_type(when: "1 +") -> None:  # noqa: F722 # pyright: ignore - the annotation is broken on purpose
    """Never called."""


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (positional, "remove the '/'"),
        (starred, r"list\[\.\.\.\]"),
        (keywords, r"dict\[str, \.\.\.\]"),
        (generator, "ToolRun.update"),
        (async_generator, "ToolRun.update"),
        (unknown_type, "module level"),
        (not_a_type, "is not a type"),
        (lambda x: x, "name=..."),
        (int, r"@tool\(name=\.\.\.\)"),
        ("fetch", r"@tool\(name=\.\.\.\)"),
        (tool(functools.partial(positional, 1)), "the tool positional"),
    ],
)
def test_a_bad_declaration_says_what_to_do(function: Any, says: str):
    """Everything a model could not call is refused when it is declared, not when it runs."""
    with pytest.raises(TypeError, match=says):
        tool(function)


def test_bad_options_say_what_is_allowed():
    """Unknown options, values out of range, names that no provider takes."""

    def f(a: int) -> int:
        return a

    options: list[tuple[dict[str, Any], str]] = [
        ({"retries": 3}, "takes no retries"),
        ({"replay": "always"}, "'never', 'safe'"),
        ({"execution_mode": "fast"}, "'sequential'"),
        ({"timeout": 0}, "above 0"),
        ({"timeout": "5"}, "above 0"),
        ({"name": "two words"}, "A-Z"),
        ({"name": "n" * 65}, "64"),
        ({"name": ""}, "A-Z"),
    ]
    for given, says in options:
        with pytest.raises(TypeError, match=says):
            tool(f, **given)


def test_a_plain_tool_imports_neither_pydantic_nor_the_validator():
    """Start-up cost: declaring and validating a plain tool must not pull in pydantic, jsonschema or a vendor."""
    program = """
import sys
from laneway.messages import ToolCall
from laneway.tools import tool
from laneway.tools._validate import validate_arguments

@tool
def add(a: int, b: float | None = None, tags: list[str] = []) -> int:
    return a

validate_arguments(add, ToolCall(id="1", name="add", arguments={"a": 1, "tags": ["x"]}))
print([name for name in ("pydantic", "jsonschema_rs", "httpx2", "docstring_parser") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
