"""Parameters that need pydantic: their schema, their validation, and what the function gets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from pydantic import BaseModel, ConfigDict, Field

from laneway.abort import AbortController
from laneway.errors import ToolArgumentsError
from laneway.messages import ToolCall
from laneway.tools import AgentTool, ToolRun, tool
from laneway.tools._validate import validate_arguments, validate_value


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    """A line of an order."""

    sku: str
    quantity: int = Field(default=1, ge=1, description="How many.")
    note: str | None = None


@dataclass
class Box:
    width: float
    height: float = 1.0


class Window(TypedDict):
    since: date
    limit: int


class Plain:
    """A class that has no JSON form."""


async def run(a_tool: AgentTool, arguments: dict[str, Any]) -> Any:
    """Call a tool the way an engine does and return the details of its result."""
    args = validate_arguments(a_tool, ToolCall(id="c1", name=a_tool.name, arguments=arguments))
    return (await a_tool.execute("c1", args, AbortController().signal, lambda _: None)).details


def refusal(a_tool: AgentTool, arguments: dict[str, Any]) -> str:
    """Return the text of a refused call."""
    with pytest.raises(ToolArgumentsError) as caught:
        validate_arguments(a_tool, ToolCall(id="c1", name=a_tool.name, arguments=arguments))
    return str(caught.value)


async def test_models_dataclasses_enums_and_typed_dicts_arrive_as_themselves():
    """The function gets what its annotations promise."""
    seen: list[Any] = []

    @tool
    async def order(items: list[Item], box: Box, colour: Colour, window: Window, folder: Path, day: date = date(2024, 1, 2)) -> None:
        """Order.

        Args:
            items: What to order.
            colour: Of the box.
        """
        seen.extend([items, box, colour, window, folder, day])

    await run(
        order,
        {
            "items": [{"sku": "a"}, {"sku": "b", "quantity": "3"}],
            "box": {"width": 2},
            "colour": "blue",
            "window": {"since": "2024-05-01", "limit": 4},
            "folder": "/tmp/x",
        },
    )
    items, box, colour, window, folder, day = seen
    assert [type(item) for item in items] == [Item, Item]
    assert items[1].quantity == 3
    assert box == Box(2.0)
    assert colour is Colour.BLUE
    assert window == {"since": date(2024, 5, 1), "limit": 4}
    assert folder == Path("/tmp/x")
    assert day == date(2024, 1, 2)
    properties = order.declaration.parameters["properties"]
    assert properties["items"]["description"] == "What to order."
    assert properties["colour"]["description"] == "Of the box."
    assert order.declaration.parameters["required"] == ["items", "box", "colour", "window", "folder"]
    assert order.declaration.parameters["additionalProperties"] is False


def test_generated_titles_are_left_out_of_the_schema():
    """They only cost tokens; a title that the author wrote, and a property named title, stay."""

    @tool
    def paint(title: Annotated[str, Field(min_length=1)], item: Item, size: Annotated[int, Field(title="Size in mm", gt=0)] = 5) -> str:
        return title

    schema = paint.declaration.parameters
    assert "title" not in schema
    assert schema["properties"]["title"] == {"type": "string", "minLength": 1}
    assert schema["properties"]["size"]["title"] == "Size in mm"
    assert "title" not in schema["$defs"]["Item"]
    assert schema["$defs"]["Item"]["properties"]["sku"] == {"type": "string"}


async def test_field_metadata_counts_wherever_it_is_written():
    """`Annotated[..., Field(...)]`, and `Field(...)` as the default; the author's description wins over the docstring's."""

    @tool
    async def search(query: Annotated[str, Field(description="What to find.", max_length=5)], limit: int = Field(10, le=50), tags: list[str] = Field(default_factory=list)) -> Any:  # fmt: skip # noqa: B008, E501
        """Search.

        Args:
            query: not this
            limit: At most.
        """
        return [query, limit, tags]

    properties = search.declaration.parameters["properties"]
    assert properties["query"] == {"type": "string", "maxLength": 5, "description": "What to find."}
    assert properties["limit"] == {"type": "integer", "maximum": 50, "default": 10, "description": "At most."}
    assert await run(search, {"query": "x"}) == ["x", 10, []]
    assert "query" in refusal(search, {"query": "too long"})
    assert "limit" in refusal(search, {"query": "x", "limit": 51})


async def test_annotated_text_works_beside_a_rich_type():
    """`Annotated[T, "text"]` is a description for pydantic's types, too."""

    @tool
    async def move(folder: Annotated[Path, "Where to."], names: list[Annotated[Path, "One."]]) -> int:
        return len(names)

    properties = move.declaration.parameters["properties"]
    assert properties["folder"] == {"type": "string", "format": "path", "description": "Where to."}
    assert await run(move, {"folder": "a", "names": ["b", "c"]}) == 2


async def test_the_functions_own_default_is_used_for_what_was_not_given():
    """Not a copy of it: sentinels and mutable defaults behave as in a direct call."""
    default = Item(sku="own")

    @tool
    async def take(item: Item = default, day: date | None = None) -> bool:
        return item is default and day is None

    assert await run(take, {}) is True


async def test_names_that_pydantic_keeps_for_itself_can_be_parameters():
    """`schema`, `copy`, `json`, `model_config`, `_private`: the model sees the names as written."""

    @tool
    async def odd(schema: Path, copy: Item, json: str = "j", model_config: str = "m", _private: int = 1) -> Any:
        return [str(schema), copy.sku, json, model_config, _private]

    assert list(odd.declaration.parameters["properties"]) == ["schema", "copy", "json", "model_config", "_private"]
    arguments = {"schema": "s", "copy": {"sku": "a"}, "json": "x", "_private": 2}
    assert await run(odd, arguments) == ["s", "a", "x", "m", 2]
    dumped = validate_value(odd, arguments).model_dump(mode="json")
    assert dumped == {"schema": "s", "copy": {"sku": "a", "quantity": 1, "note": None}, "json": "x", "model_config": "m", "_private": 2}
    assert (await odd.execute("c", validate_value(odd, dumped), AbortController().signal, lambda _: None)).details[0] == "s"


async def test_an_alias_is_what_the_model_sees():
    """`Field(alias="from")` for a name that Python keeps."""

    @tool
    async def mail(from_: Annotated[str, Field(alias="from")], to: Annotated[str, Field(pattern=r"@")]) -> Any:
        return [from_, to]

    assert list(mail.declaration.parameters["properties"]) == ["from", "to"]
    assert await run(mail, {"from": "a", "to": "b@c"}) == ["a", "b@c"]


async def test_tool_run_is_injected_beside_rich_parameters():
    """It is not a field of the model."""

    @tool
    async def order(item: Item, run: ToolRun) -> str:
        return run.tool_call_id

    assert list(order.declaration.parameters["properties"]) == ["item"]
    args = validate_arguments(order, ToolCall(id="c9", name="order", arguments={"item": {"sku": "a"}}))
    result = await order.execute("c9", args, AbortController().signal, lambda _: None)
    assert result.content[0].text == "c9"  # pyright: ignore[reportAttributeAccessIssue] - it is text


def test_the_text_of_a_refusal_lists_each_problem_with_its_path():
    """05/66 for a model: tool first, a dash per problem, the received arguments; pydantic's inner names are left out."""

    @tool
    def order(items: list[Item], colour: Colour | int) -> None: ...

    text = refusal(order, {"items": [{"sku": "a", "quantity": 0}, {"quantity": "x"}], "colour": "green", "size": 1})
    lines = text.split("\n\n")[0].splitlines()
    assert lines[0] == 'Validation failed for tool "order":'
    assert [line.split(":")[0] for line in lines[1:]] == [
        "  - items.0.quantity",
        "  - items.1.sku",
        "  - items.1.quantity",
        "  - colour",
        "  - colour",
        "  - size",
    ]
    assert "  - items.1.sku: required, but missing" in lines
    assert "  - size: unknown; there is no such argument" in lines
    assert text.split("\n\n")[1].startswith('Received arguments:\n{\n  "items"')


async def test_nulls_for_optional_fields_are_left_out():
    """A model that writes null for what it leaves out is understood, at any depth; a required null is refused."""

    @tool
    async def order(item: Item, box: Box | None = None, limit: Annotated[int, Field(ge=1)] = 7) -> Any:
        return [item.quantity, item.note, limit]

    assert await run(order, {"item": {"sku": "a", "quantity": None, "note": None}, "box": None, "limit": None}) == [1, None, 7]
    assert "item.sku" in refusal(order, {"item": {"sku": None}})


async def test_a_number_for_a_string_is_understood():
    """05/60 holds for rich tools, too."""

    @tool
    async def order(item: Item, note: str) -> str:
        return note

    args = validate_arguments(order, ToolCall(id="c", name="order", arguments={"item": {"sku": "a"}, "note": 5}))
    assert args.note == "5"


def test_the_long_form_takes_the_authors_own_model_as_it_is():
    """`AgentTool(parameters=Model)`: strictness and extras are what its config says."""

    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        n: int
        name: str = "x"

    async def execute(*_: Any) -> Any: ...

    strict = AgentTool(name="t", description="d", parameters=Strict, execute=execute)
    assert validate_value(strict, {"n": 1, "other": 2}) == Strict(n=1)
    assert validate_value(strict, {"n": 1, "name": None}) == Strict(n=1)
    assert "n: " in refusal(strict, {"n": "1"})
    assert "root: expected an object, got an array" in _refused_value(strict, [1])
    ready = Strict(n=4)
    assert validate_value(strict, ready) is ready


def _refused_value(a_tool: AgentTool, value: Any) -> str:
    with pytest.raises(ToolArgumentsError) as caught:
        validate_value(a_tool, value)
    return str(caught.value)


def test_the_call_is_never_changed():
    """05/67: what a validator or the tool does to its arguments does not reach the transcript."""

    class Loose(BaseModel):
        anything: Any

    async def execute(*_: Any) -> Any: ...

    loose = AgentTool(name="t", description="d", parameters=Loose, execute=execute)
    call = ToolCall(id="c", name="t", arguments={"anything": [{"a": 1}]})
    validate_arguments(loose, call).anything[0]["a"] = 2
    assert call.arguments == {"anything": [{"a": 1}]}


@pytest.mark.parametrize(
    ("annotation", "says"),
    [(Plain, "parameter 'value' has the type Plain"), (type(lambda: 0), "no JSON form"), (dict[str, Plain], "parameter 'value'")],
)
def test_a_type_without_json_form_is_refused_at_once(annotation: Any, says: str):
    """The error names the parameter and what could be used instead."""

    def f(good: Item, value: Any) -> None: ...

    f.__annotations__["value"] = annotation
    with pytest.raises(TypeError, match=says) as caught:
        tool(f)
    assert "a dataclass, a TypedDict or an Enum" in str(caught.value)


def test_two_parameters_of_one_name_are_refused():
    """An alias must not repeat another parameter."""
    with pytest.raises(TypeError, match="same name"):

        @tool
        def f(a: Annotated[Path, Field(alias="b")], b: Path) -> None: ...  # pyright: ignore[reportUnusedFunction] - never made
