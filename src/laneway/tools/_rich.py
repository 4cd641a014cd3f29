"""Parameters that are richer than plain JSON: schema and validation by pydantic, imported only when a tool needs it."""

from __future__ import annotations

import functools
import sys
import types
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, is_typeddict

from laneway.tools._schema import typed_dict_fields
from laneway.tools._signature import EMPTY, Parameter

if TYPE_CHECKING:
    from pydantic import BaseModel

_CONFIG = {
    "extra": "forbid",
    "arbitrary_types_allowed": False,
    "coerce_numbers_to_str": True,
    "populate_by_name": True,
    "serialize_by_alias": True,
    "protected_namespaces": (),
}


def rich_arguments(tool_name: str, parameters: Sequence[Parameter], descriptions: dict[str, str]) -> tuple[type[BaseModel], dict[str, str]]:
    """Return a pydantic model of an arguments object, and for each parameter the model's attribute that holds its value.

    `model_json_schema()` of it has no generated titles, which would only cost tokens.

    Raises:
        TypeError: a parameter's type has no JSON form; the text names the parameter.
    """
    from pydantic import BaseModel, Field, create_model

    fields: dict[str, Any] = {}
    attributes: dict[str, str] = {}
    try:
        for parameter in parameters:
            attribute = _attribute(parameter.name, BaseModel, {p.name for p in parameters} | set(fields))
            attributes[parameter.name] = attribute
            extra: dict[str, Any] = {"alias": parameter.name} if attribute != parameter.name else {}
            if text := descriptions.get(parameter.name):
                extra["description"] = text
            annotation = _translate(parameter.annotation)
            annotation = _with_metadata(annotation, Field(**extra)) if extra else annotation
            fields[attribute] = (annotation, ... if parameter.default is EMPTY else parameter.default)
        model = create_model(tool_name, __base__=_untitled_base(), **fields)
        schema = model.model_json_schema()
    except Exception as error:
        raise TypeError(_explain(error, tool_name, parameters)) from error
    if len(schema.get("properties", {})) != len(fields):
        raise TypeError(f"tool {tool_name!r}: two parameters have the same name for the model (an alias repeats another name)")
    return model, attributes


@functools.cache
def _untitled_base() -> type[BaseModel]:
    from pydantic import BaseModel, ConfigDict
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    class Arguments(BaseModel):
        model_config = ConfigDict(**cast("Any", _CONFIG))

        @classmethod
        def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
            kwargs.setdefault("schema_generator", Untitled)
            schema = super().model_json_schema(*args, **kwargs)
            for node in (schema, *schema.get("$defs", {}).values()):
                node.pop("title", None)
            return schema

    return Arguments


def _attribute(name: str, base: type[BaseModel], taken: set[str]) -> str:
    """Return a name that pydantic accepts as a field: not one of its own, no underscore in front."""
    if not name.startswith("_") and not hasattr(base, name):
        return name
    attribute = f"{name.strip('_')}_"
    while attribute in taken or hasattr(base, attribute):
        attribute += "_"
    return attribute


def _with_metadata(annotation: Any, field: Any) -> Any:
    """Put `field` before the annotation's own metadata, so that what the user wrote there wins."""
    if typing.get_origin(annotation) is Annotated:
        inner, *metadata = typing.get_args(annotation)
        return Annotated[(inner, field, *metadata)]  # pyright: ignore[reportReturnType] - built at run time
    return Annotated[annotation, field]


def _explain(error: Exception, tool_name: str, parameters: Sequence[Parameter]) -> str:
    """Say which parameter is to blame, by asking pydantic for each alone."""
    from pydantic import TypeAdapter

    for parameter in parameters:
        try:
            TypeAdapter(_translate(parameter.annotation)).json_schema()
        except Exception as reason:
            shown = getattr(parameter.annotation, "__name__", None) or str(parameter.annotation)
            return (
                f"tool {tool_name!r}: parameter {parameter.name!r} has the type {shown}, which has no JSON form "
                f"({str(reason).splitlines()[0]}); use JSON types, a pydantic model, a dataclass, a TypedDict or an Enum"
            )
    return f"tool {tool_name!r}: its parameters cannot be described to a model ({str(error).splitlines()[0]})"


# ---------------------------------------------------------------------------------------------------- annotations


def _translate(annotation: Any, inside: tuple[Any, ...] = ()) -> Any:
    """Return the annotation as pydantic wants it.

    `Annotated[T, "text"]` becomes a described field; before Python 3.12, `typing.TypedDict` becomes its `typing_extensions` twin, the
    only kind that pydantic takes there.
    """
    if is_typeddict(annotation):
        return _modern_typed_dict(annotation, inside) if sys.version_info < (3, 12) else annotation
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is None or origin is Literal:
        return annotation
    if origin is Annotated:
        return _translate_annotated(args, inside)
    changed = tuple(_translate(arg, inside) for arg in args)
    if all(new is old for new, old in zip(changed, args, strict=True)):
        return annotation
    if origin is Union or origin is types.UnionType:
        return Union[changed]  # noqa: UP007  # pyright: ignore[reportReturnType] - built at run time
    return origin[changed]


def _translate_annotated(args: tuple[Any, ...], inside: tuple[Any, ...]) -> Any:
    from pydantic import Field

    inner, *metadata = args
    texts = [item for item in metadata if isinstance(item, str)]
    rest = [item for item in metadata if not isinstance(item, str)]
    if texts:
        rest.insert(0, Field(description=" ".join(texts)))
    return Annotated[(_translate(inner, inside), *rest)] if rest else _translate(inner, inside)  # pyright: ignore - built at run time


def _modern_typed_dict(annotation: Any, inside: tuple[Any, ...]) -> Any:
    if type(annotation).__module__ != "typing":
        return annotation
    if annotation in inside:
        raise TypeError(f"{annotation.__name__} contains itself; before Python 3.12 that needs typing_extensions.TypedDict")
    import typing_extensions

    fields: dict[str, Any] = {}
    for name, hint, required in typed_dict_fields(annotation):
        wrap = typing_extensions.Required if required else typing_extensions.NotRequired
        fields[name] = wrap[_translate(hint, (*inside, annotation))]
    twin: Any = typing_extensions.TypedDict(annotation.__name__, fields)  # pyright: ignore - made from run-time data
    twin.__doc__, twin.__module__ = annotation.__doc__, annotation.__module__
    return twin
