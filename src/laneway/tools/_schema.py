"""JSON Schema of plain annotations, without pydantic.

Plain is what JSON itself has: str, int, float, bool, None, Any, list, dict with string keys, Literal of JSON values, unions of these,
and TypedDicts of these. For plain parameters the value that JSON gives is the value that the function wants, so the
schema and the validation of `laneway.tools._validate` are enough; anything richer goes to `laneway.tools._rich`.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired, Required, Union, cast, is_typeddict

from laneway.tools._signature import EMPTY, Parameter

Schema = dict[str, Any]
_SCALARS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", None: "null"}


def plain_arguments(parameters: Sequence[Parameter], descriptions: dict[str, str]) -> Schema | None:
    """Return the JSON Schema of an arguments object, None if any parameter is richer than plain JSON.

    Keys are in the order of the parameters; unknown arguments are forbidden; a default that is JSON is stated.
    """
    properties: dict[str, Schema] = {}
    for parameter in parameters:
        schema = plain_schema(parameter.annotation)
        if schema is None or parameter.has_pydantic_default:
            return None
        description = schema.pop("description", None) or descriptions.get(parameter.name)
        if description:
            schema["description"] = description
        if is_json(parameter.default):
            schema["default"] = parameter.default
        properties[parameter.name] = schema
    required = [parameter.name for parameter in parameters if parameter.required]
    return _object(properties, required)


def _object(properties: dict[str, Schema], required: list[str]) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False
    return schema


def plain_schema(annotation: Any, _inside: tuple[Any, ...] = ()) -> Schema | None:
    """Return the JSON Schema of a plain annotation, None for a richer one."""
    if annotation is Any or annotation is EMPTY:
        return {}
    if annotation is None or (isinstance(annotation, type) and annotation in _SCALARS):
        return {"type": _SCALARS[annotation]}
    if annotation is list:
        return {"type": "array", "items": {}}
    if annotation is dict:
        return {"type": "object", "additionalProperties": True}
    if is_typeddict(annotation):
        return None if annotation in _inside else _typed_dict(annotation, (*_inside, annotation))
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is list:
        items = plain_schema(args[0], _inside)
        return None if items is None else {"type": "array", "items": items}
    if origin is dict:
        values = plain_schema(args[1], _inside) if args[0] is str else None
        return None if values is None else {"type": "object", "additionalProperties": values or True}
    if origin is Literal:
        return _literal(args)
    if origin is Union or origin is types.UnionType:
        members = [plain_schema(member, _inside) for member in args]
        return None if None in members else {"anyOf": members}
    if origin is Annotated:
        return _annotated(args, _inside)
    return None


def _literal(values: tuple[Any, ...]) -> Schema | None:
    if not all(type(value) in (str, int, bool, type(None)) for value in values):
        return None
    kinds = {_SCALARS[type(value)] for value in values}
    schema: Schema = {"type": kinds.pop()} if len(kinds) == 1 else {}
    schema["enum"] = list(values)
    return schema


def _annotated(args: tuple[Any, ...], inside: tuple[Any, ...]) -> Schema | None:
    """`Annotated[T, "text"]` describes the parameter; any other metadata is pydantic's."""
    annotation, *metadata = args
    if not all(isinstance(item, str) for item in metadata):
        return None
    schema = plain_schema(annotation, inside)
    return None if schema is None else {**schema, "description": " ".join(cast("list[str]", metadata))}


def _typed_dict(annotation: Any, inside: tuple[Any, ...]) -> Schema | None:
    try:
        fields = typed_dict_fields(annotation)
    except NameError:
        return None
    properties: dict[str, Schema] = {}
    for name, hint, _ in fields:
        schema = plain_schema(hint, inside)
        if schema is None:
            return None
        properties[name] = schema
    return _object(properties, [name for name, _, required in fields if required])


def typed_dict_fields(annotation: Any) -> list[tuple[str, Any, bool]]:
    """Return name, type and whether it is required, for each key of a TypedDict."""
    fields: list[tuple[str, Any, bool]] = []
    for name, hint in typing.get_type_hints(annotation, include_extras=True).items():
        required = name in annotation.__required_keys__
        while typing.get_origin(hint) in (Required, NotRequired):  # not in __required_keys__ when annotations are postponed
            required = typing.get_origin(hint) is Required
            hint = typing.get_args(hint)[0]
        fields.append((name, hint, required))
    return fields


def is_json(value: Any) -> bool:
    """Whether `value` is JSON as it stands, so that it can be a default in a schema."""
    if value is None or type(value) in (str, int, bool):
        return True
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is list:
        return all(is_json(item) for item in cast("list[Any]", value))
    if type(value) is dict:
        return all(type(key) is str and is_json(item) for key, item in cast("dict[Any, Any]", value).items())
    return False
