"""Validation and coercion of arguments against JSON Schema: 05 section 3.5 and its scenarios 55 to 68."""

from __future__ import annotations

import contextlib
import copy
import socket
import threading
from typing import Any

import pytest

from laneway.errors import ToolArgumentsError
from laneway.llm._partial_json import parse_arguments
from laneway.messages import ToolCall
from laneway.tools import AgentTool
from laneway.tools._validate import validate_arguments, validate_value

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def made(schema: Any) -> AgentTool:
    """Return a tool with these parameters, as an MCP client would make it."""

    async def execute(*_: Any) -> Any: ...

    return AgentTool(name="t", description="d", parameters=schema, execute=execute)


def of(**properties: Any) -> dict[str, Any]:
    """Return an object schema; a property whose name ends in "_" is required (without the "_")."""
    required = [name[:-1] for name in properties if name.endswith("_")]
    return {"type": "object", "properties": {name.rstrip("_"): schema for name, schema in properties.items()}, "required": required}


def accept(schema: dict[str, Any], arguments: Any) -> Any:
    """Return the validated arguments, of the same types as expected when compared by `same`."""
    return validate_value(made(schema), arguments)


def refuse(schema: dict[str, Any], arguments: Any) -> list[str]:
    """Return the problem lines of a refused value."""
    with pytest.raises(ToolArgumentsError) as caught:
        validate_value(made(schema), arguments)
    return [line.removeprefix("  - ") for line in str(caught.value).split("\n\n")[0].splitlines()[1:]]


def same(value: Any, expected: Any) -> bool:
    """Whether two values are equal and of the same types: True is not 1, 5 is not 5.0."""
    return repr(value) == repr(expected)


INT, NUM, STR, BOOL, NULL = ({"type": name} for name in ("integer", "number", "string", "boolean", "null"))


# ---------------------------------------------------------------------------------------------------- coercion


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (INT, "5", 5),
        (INT, " -7 ", -7),
        (INT, "5.0", 5),
        (INT, "1e3", 1000),
        (INT, 5.0, 5),
        (INT, True, 1),
        (INT, "123456789012345678901234567890", 123456789012345678901234567890),
        (NUM, "1e3", 1000.0),
        (NUM, "5", 5),
        (NUM, "-0.5", -0.5),
        (NUM, False, 0),
        (NUM, 5.0, 5.0),
        (BOOL, "true", True),
        (BOOL, "false", False),
        (BOOL, 1, True),
        (BOOL, 0, False),
        (STR, 5, "5"),
        (STR, 1.5, "1.5"),
        (STR, True, "true"),
        (NULL, "", None),
        (NULL, 0, None),
        (NULL, False, None),
        ({"type": ["string", "null"]}, None, None),
        ({"type": ["integer", "boolean"]}, "true", True),
        ({"type": ["integer", "string"]}, "5", "5"),
        ({"type": ["integer", "null"]}, 5.0, 5),
        ({"anyOf": [INT, STR]}, "7", "7"),
        ({"anyOf": [INT, NULL]}, "7", 7),
        ({"anyOf": [INT, NULL]}, None, None),
        ({"oneOf": [BOOL, {"type": "array", "items": INT}]}, ["1", 2.0], [1, 2]),
        ({"allOf": [INT, {"minimum": 3}]}, "5", 5),
        ({"type": "array", "items": INT}, ["1", 2, "3"], [1, 2, 3]),
        ({"type": "array", "prefixItems": [INT, STR], "items": BOOL}, ["1", 2, "true"], [1, "2", True]),
        ({"type": "object", "additionalProperties": INT}, {"x": "1"}, {"x": 1}),
        ({"type": "object", "properties": {"y": STR}, "additionalProperties": INT}, {"x": "1", "y": 2}, {"x": 1, "y": "2"}),
        ({"enum": [1, 2], "type": "integer"}, "2", 2),
    ],
)
def test_values_that_mean_the_same_are_coerced(schema: dict[str, Any], value: Any, expected: Any):
    """05/57, 59, 60, 61, 62: what a model writes loosely becomes what the schema asks for."""
    assert same(accept(of(v_=schema), {"v": value}), {"v": expected})


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        (INT, "5.5", 'v: expected integer, got "5.5"'),
        (INT, 5.5, "v: expected integer, got 5.5"),
        (INT, "", 'v: expected integer, got ""'),
        (INT, "0x10", 'v: expected integer, got "0x10"'),
        (INT, "1_000", 'v: expected integer, got "1_000"'),
        (INT, "٣", 'v: expected integer, got "٣"'),
        (INT, None, "v: expected integer, got null"),
        (NUM, "", 'v: expected number, got ""'),
        (NUM, "1e999", 'v: expected number, got "1e999"'),
        (NUM, "nan", 'v: expected number, got "nan"'),
        (BOOL, "yes", 'v: expected boolean, got "yes"'),
        (BOOL, 2, "v: expected boolean, got 2"),
        (BOOL, None, "v: expected boolean, got null"),
        (STR, None, "v: expected string, got null"),
        (STR, ["a"], "v: expected string, got an array"),
        (STR, {"a": 1}, "v: expected string, got an object"),
        ({"type": "array", "items": INT}, "1", 'v: expected array, got "1"'),
        ({"type": "array", "items": INT}, "[1, 2]", 'v: expected array, got "[1, 2]"'),
        ({"type": "object"}, '{"a": 1}', 'v: expected object, got "{\\"a\\": 1}"'),
        ({"anyOf": [INT, NULL]}, "x", 'v: expected integer or null, got "x"'),
        ({"enum": ["a", "b"]}, "c", 'v: expected one of "a", "b", got "c"'),
        ({"const": 3}, 4, "v: expected 3, got 4"),
        ({"type": "string", "minLength": 2}, "x", 'v: "x" is shorter than 2 characters'),
    ],
)
def test_values_that_do_not_mean_the_same_are_refused(schema: dict[str, Any], value: Any, problem: str):
    """05/57 to 62: nothing is invented, cut, parsed or wrapped."""
    assert refuse(of(v_=schema), {"v": value}) == [problem]


def test_a_bool_is_not_an_integer():
    """10.6: True satisfies `integer` only by becoming 1; it never slips through as a bool."""
    assert same(accept(of(n_=INT), {"n": True}), {"n": 1})
    assert same(accept(of(n_={"anyOf": [INT, BOOL]}), {"n": True}), {"n": True})


def test_nulls_of_optional_properties_are_left_out():
    """05/58: also nested, in arrays, behind a `$ref` and in an alternative; a nullable one keeps its null."""
    inner = of(a_=STR, b=INT)
    schema = {
        **of(
            n=INT,
            keep={"anyOf": [INT, NULL]},
            colour={"enum": ["red"]},
            one=inner,
            many={"type": "array", "items": inner},
            ref={"$ref": "#/$defs/inner"},
            maybe={"anyOf": [inner, NULL]},
        ),
        "$defs": {"inner": inner},
    }
    nested = {"a": "x", "b": None}
    arguments = {"n": None, "keep": None, "colour": None, "one": nested, "many": [nested], "ref": nested, "maybe": nested}
    assert accept(schema, arguments) == {"keep": None, "one": {"a": "x"}, "many": [{"a": "x"}], "ref": {"a": "x"}, "maybe": {"a": "x"}}


def test_a_required_null_is_refused():
    """05/58, our choice: null is not turned into "" or 0 for a property that must be there."""
    assert refuse(of(s_=STR, n_=NUM), {"s": None, "n": None}) == ["s: expected string, got null", "n: expected number, got null"]


def test_coercion_works_on_a_copy():
    """T-07, 05/67: the call still says "3", and the tool's dict shares nothing with it, whichever way it was accepted."""
    schema = of(n_=INT, deep={"type": "object"}, items={"type": "array", "items": {"type": "object"}})
    for arguments in ({"n": "3", "deep": {"a": [1]}, "items": [{"b": 1}]}, {"n": 3, "deep": {"a": [1]}, "items": [{"b": 1}]}):
        call = ToolCall(id="c", name="t", arguments=arguments)
        before = copy.deepcopy(arguments)
        validated = validate_arguments(made(schema), call)
        assert same(validated["n"], 3)
        validated["deep"]["a"].append(2)
        validated["items"][0]["b"] = 5
        validated["items"].append({})
        assert call.arguments == before


# ---------------------------------------------------------------------------------------------------- what is refused, in words


def test_paths_name_what_is_missing_and_what_is_unknown():
    """05/63, 64: dotted paths; a missing property and each unknown one have their own."""
    schema = {**of(o_=of(x_=NUM), items={"type": "array", "items": of(sku_=STR)}), "additionalProperties": False}
    assert accept(schema, {"o": {"x": "3"}}) == {"o": {"x": 3}}
    assert refuse(schema, {"o": {}, "items": [{"sku": "a"}, {}], "b": 1, "c": 2}) == [
        "o.x: required, but missing",
        "items.1.sku: required, but missing",
        "b: unknown; there is no such argument",
        "c: unknown; there is no such argument",
    ]
    assert refuse(schema, {"o": '{"x": 3}'}) == ['o: expected object, got "{\\"x\\": 3}"']


def test_arguments_that_are_no_object_have_the_path_root():
    """05/65: whatever `prepare_arguments` or a hook made of them."""
    for value, shown in (([1], "an array"), ("x", '"x"'), (None, "null"), (5, "5")):
        assert refuse(of(), value) == [f"root: expected an object, got {shown}"]
        assert refuse({}, value) == [f"root: expected an object, got {shown}"]


def test_the_text_is_the_tool_the_problems_and_what_was_received():
    """T-06, 05/66."""
    with pytest.raises(ToolArgumentsError) as caught:
        validate_arguments(made(of(path_=STR, n=INT)), ToolCall(id="c", name="t", arguments={"n": "x", "größe": ["é"]}))
    assert str(caught.value) == (
        'Validation failed for tool "t":\n'
        "  - path: required, but missing\n"
        '  - n: expected integer, got "x"\n'
        "\n"
        "Received arguments:\n"
        '{\n  "n": "x",\n  "größe": [\n    "é"\n  ]\n}'
    )


def test_the_text_stays_short():
    """A megabyte of wrong arguments is not sent back to the model; neither are a hundred problems."""
    with pytest.raises(ToolArgumentsError) as caught:
        validate_value(made(of(text_=INT, items={"type": "array", "items": INT})), {"text": "x" * 1_000_000, "items": ["y"] * 100})
    text = str(caught.value)
    assert len(text) < 8000
    assert "more characters)" in text
    assert "  - … and 81 more" in text


def test_unparseable_arguments_are_refused_with_the_parsers_words():
    """05/55, B21: the tool is not run with {}, and the text quotes what was wrong and what was received."""
    arguments, problem = parse_arguments('{"path": "a')
    call = ToolCall(id="c", name="t", arguments=arguments, arguments_error=problem)
    with pytest.raises(ToolArgumentsError) as caught:
        validate_arguments(made(of(path=STR)), call)
    text = str(caught.value)
    assert text.startswith('Validation failed for tool "t": the arguments are not complete, valid JSON')
    assert '{"path": "a' in text
    assert "Nothing was executed" in text
    assert "missing" not in text


@pytest.mark.parametrize("received", ["", "   ", "null", "{}"])
def test_no_arguments_are_an_empty_object(received: str):
    """B20, 05/56: a tool without parameters runs, again and again."""
    arguments, problem = parse_arguments(received)
    assert validate_arguments(made(of()), ToolCall(id="c", name="t", arguments=arguments, arguments_error=problem)) == {}


def test_arguments_that_are_json_but_no_object_are_refused():
    """05/56: `5` is a complete JSON text, but no arguments."""
    arguments, problem = parse_arguments("5")
    with pytest.raises(ToolArgumentsError, match="must be a JSON object"):
        validate_arguments(made(of()), ToolCall(id="c", name="t", arguments=arguments, arguments_error=problem))


def test_nested_alternatives_say_what_is_wrong_in_each():
    """Where the alternatives are more than types, the first problem of each is told."""
    schema = of(v_={"oneOf": [of(kind_={"const": "a"}, n_=INT), of(kind_={"const": "b"}, s_=STR)]})
    assert accept(schema, {"v": {"kind": "b", "s": 1}}) == {"v": {"kind": "b", "s": "1"}}
    assert refuse(schema, {"v": {"kind": "c"}}) == [
        'v: fits none of the allowed forms (v.kind: expected "a", got "c"; v.kind: expected "b", got "c")'
    ]
    assert refuse(schema, {"v": {"kind": "b", "s": []}}) == ["v: fits none of the allowed forms (v.s: expected string, got an array)"]


# ---------------------------------------------------------------------------------------------------- schemas of strangers


def test_a_remote_reference_is_never_fetched_and_refuses_only_there():
    """05/68: no connection is made, the rest of the tool works, and the text says why that place cannot be used."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        contacted: list[Any] = []

        def listen() -> None:
            with contextlib.suppress(TimeoutError):
                contacted.append(server.accept()[0])

        thread = threading.Thread(target=listen)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        schema = of(
            a={"$ref": url}, b=INT, c={"$ref": "file:///etc/passwd"}, d={"$ref": "#/$defs/gone"}, e={"type": "array", "items": {"$ref": "#x"}}
        )
        assert accept(schema, {"b": "1"}) == {"b": 1}
        assert accept(schema, {"b": 1, "e": []}) == {"b": 1, "e": []}
        problems = refuse(schema, {"a": 1, "b": 1, "c": 1, "d": 1, "e": [1]})
        thread.join()
    assert contacted == []
    assert [problem.split(":")[0] for problem in problems] == ["a", "c", "d", "e.0"]
    assert problems[0] == f"a: cannot be given: the tool's schema refers to '{url}', which is not part of it"


def test_references_inside_the_schema_are_followed():
    """Pointers with escapes, anchors, `#` itself, `$id` of the root, recursion: validated and coerced."""
    tree = of(value_=INT, children={"type": "array", "items": {"$ref": "#/$defs/tree"}})
    schema = {
        "$id": "https://example.com/tool.json",
        **of(
            tree={"$ref": "#/$defs/tree"},
            odd={"$ref": "#/$defs/a~1b%20c~0d"},
            named={"$ref": "#named"},
            absolute={"$ref": "https://example.com/tool.json#/$defs/tree"},
            self={"$ref": "#"},
        ),
        "$defs": {"tree": tree, "a/b c~d": INT, "x": {"$anchor": "named", "type": "boolean"}},
    }
    good = {"value": "1", "children": [{"value": "2", "children": []}]}
    want = {"value": 1, "children": [{"value": 2, "children": []}]}
    assert accept(schema, {"tree": good, "odd": "3", "absolute": good, "self": {"odd": "4"}, "named": True}) == {
        "tree": want, "odd": 3, "absolute": want, "self": {"odd": 4}, "named": True,
    }  # fmt: skip
    assert refuse(schema, {"tree": {"value": 1, "children": [{}]}, "named": 3}) == [
        "tree.children.0.value: required, but missing",
        "named: expected boolean, got 3",
    ]


def test_references_that_go_in_circles_end():
    """A schema that only refers to itself allows anything, and neither hangs nor overflows."""
    circle = {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}
    schema = {**of(x={"$ref": "#/$defs/a"}), "$defs": circle}
    assert accept(schema, {"x": "1"}) == {"x": "1"}
    assert accept({"$ref": "#"}, {"x": 1}) == {"x": 1}


def test_alternatives_inside_alternatives_do_not_explode():
    """A recursive schema with many alternatives and a deep wrong value is refused quickly."""
    ref = {"$ref": "#/$defs/e"}
    schema = {**of(e_=ref), "$defs": {"e": {"anyOf": [of(**{"next_": ref, name: INT}) for name in "abcd"]}}}
    value: Any = "end"
    for _ in range(5):
        value = {"next": value}
    assert refuse(schema, {"e": value})


def test_a_long_array_is_coerced_to_its_end():
    """Nothing is given up for being long."""
    schema = of(v={"type": "array", "items": {"anyOf": [INT, NULL]}})
    assert accept(schema, {"v": [str(n) for n in range(5000)]}) == {"v": list(range(5000))}


def test_patterns_run_in_linear_time_and_look_around_is_bounded():
    """A catastrophic pattern cannot hang the run; look-around works; what no engine runs refuses only there."""
    evil = "a" * 5000 + "!"
    assert refuse(of(v={"type": "string", "pattern": "^(a+)+$"}), {"v": evil})
    assert refuse(of(v={"type": "string", "pattern": r"^(?=a)(a+)+\1?$"}), {"v": evil})
    look = of(v={"type": "string", "pattern": "^(?=.*[0-9]).{3,}$"})
    assert accept(look, {"v": "ab1"}) == {"v": "ab1"}
    assert refuse(look, {"v": "abc"})
    broken = of(v={"type": "string", "pattern": "("}, w=INT)
    assert accept(broken, {"w": "1"}) == {"w": 1}
    assert refuse(broken, {"v": "x"}) == ["v: cannot be given: the tool's schema has the pattern '(', which is not a regular expression"]


def test_an_invalid_schema_is_the_tools_fault_and_says_so():
    """The run goes on: the model reads that this tool cannot be called."""
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        deep = {"type": "array", "items": deep}
    for schema in (of(v={"type": "text"}), of(v={"minLength": -1, "type": "string"}), {"type": "object", "required": "v"}, of(v=deep)):
        with pytest.raises(ToolArgumentsError, match="cannot be called: its own parameter schema is not valid"):
            validate_value(made(schema), {"v": "x"})
    with pytest.raises(TypeError, match="JSON Schema"):
        validate_value(made("nothing"), {})


def test_arguments_nested_too_deeply_are_refused():
    """Neither the interpreter nor the validator overflows."""
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    for schema in (of(v={}), of(v={"type": "array", "uniqueItems": True})):
        problems = refuse_deep(schema, {"v": value})
        assert "nested too deeply" in problems


def refuse_deep(schema: dict[str, Any], arguments: Any) -> str:
    """Return the text of a refusal."""
    with pytest.raises(ToolArgumentsError) as caught:
        validate_value(made(schema), arguments)
    return str(caught.value)


def test_older_and_unknown_dialects_are_read():
    """Draft 7 tuples and definitions; an unknown `$schema` is read as the current draft; formats are only annotations."""
    old = {
        "$schema": DRAFT_7,
        **of(pair={"type": "array", "items": [INT, {"anyOf": [{"$ref": "#/definitions/flag"}, NULL]}]}, mail={"type": "string", "format": "email"}),
        "definitions": {"flag": BOOL},
    }
    assert accept(old, {"pair": ["1", "true"], "mail": "no address"}) == {"pair": [1, True], "mail": "no address"}
    assert refuse(old, {"pair": [1, "x"]}) == ['pair.1: expected boolean or null, got "x"']
    assert accept({"$schema": "https://example.com/mine", **of(n=INT)}, {"n": "1"}) == {"n": 1}


def test_half_a_surrogate_pair_does_not_break_validation():
    """A model can send "\\ud83d"; the validator wants UTF-8."""
    schema = of(s={"type": "string", "maxLength": 3, "pattern": "^x"}, n=INT)
    assert accept(schema, {"s": "x\ud83d", "n": "1"}) == {"s": "x\ud83d", "n": 1}
    assert refuse(of(s={"anyOf": [INT, {"type": "string", "maxLength": 1}]}), {"s": "\ud83dxx"})


def test_big_numbers_survive():
    """10.6: integers beyond 2^53 are not rounded; NaN is no number."""
    assert same(accept(of(n=INT), {"n": 2**80}), {"n": 2**80})
    assert same(accept(of(n={"type": "integer", "minimum": 0}), {"n": 2**63 + 1}), {"n": 2**63 + 1})
    assert refuse(of(n=NUM), {"n": float("nan")})


def test_changing_the_tools_schema_changes_the_validation():
    """The compiled validator belongs to one schema object, not to the tool for ever."""
    a_tool = made(of(n=INT))
    assert validate_value(a_tool, {"n": "1"}) == {"n": 1}
    a_tool.parameters = of(n=STR)
    assert validate_value(a_tool, {"n": 1}) == {"n": "1"}


def test_extra_keys_are_kept_unless_forbidden():
    """JSON Schema's default."""
    assert accept(of(n=INT), {"n": "1", "more": [None]}) == {"n": 1, "more": [None]}
