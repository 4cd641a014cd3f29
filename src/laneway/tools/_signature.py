"""Reads the signature of a function that becomes a tool: its parameters, their types, and which of them get the `ToolRun`."""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from laneway.tools.base import ToolRun

EMPTY: Any = inspect.Parameter.empty
# texts, compiled at their first use: see `_docstring`
_NAMES_TOOL_RUN = r"(?:(?:\w+\.)*Optional\[)?(?:\w+\.)*ToolRun\]?(?:\|None)?"
_NOISE = r"""ForwardRef\(|["'()\s]"""


@dataclass(slots=True, frozen=True)
class Parameter:
    """One parameter that the model may give: `annotation` is resolved (`Any` if there is none), `default` is EMPTY if required."""

    name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is EMPTY

    @property
    def has_pydantic_default(self) -> bool:
        """Whether the default is a `Field(...)`: it belongs to pydantic, not to the function."""
        return type(self.default).__module__.partition(".")[0] == "pydantic"


@dataclass(slots=True, frozen=True)
class Signature:
    """What a tool's function takes. `injected` names the parameters that get the `ToolRun`."""

    parameters: list[Parameter]
    injected: tuple[str, ...]


def read_signature(function: Callable[..., Any], *, tool_name: str, skip_first: bool, namespace: Mapping[str, Any]) -> Signature:
    """Read the signature of `function`; `skip_first` leaves `self` out, `namespace` holds the names known where it was declared.

    Raises:
        TypeError: it has a parameter that a model cannot give, or an annotation that cannot be resolved.
    """
    core, bound = _unwrap_partial(function)
    annotations = _annotations(core)
    parameters: list[Parameter] = []
    injected: list[str] = []
    for name, parameter in list(_signature(function).parameters.items())[1 if skip_first else 0 :]:
        _check_kind(parameter, tool_name)
        if name in bound:  # partial(f, key=…): the key is the application's, not the model's
            continue
        annotation = _resolve(annotations.get(name, EMPTY), core, name, tool_name, namespace)
        if _is_tool_run(annotation):
            injected.append(name)
        else:
            parameters.append(Parameter(name, Any if annotation is EMPTY else annotation, parameter.default))
    return Signature(parameters, tuple(injected))


def _unwrap_partial(function: Callable[..., Any]) -> tuple[Callable[..., Any], set[str]]:
    bound: set[str] = set()
    while isinstance(function, partial):
        bound |= set(function.keywords)
        function = function.func
    return function, bound


def function_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the plain function below partials, wrappers, methods and callable objects: the one with name, docstring and globals."""
    core = inspect.unwrap(_unwrap_partial(function)[0])
    if isinstance(core, types.MethodType):
        return core.__func__
    method = _call_method(core)
    return core if method is None else method


def _call_method(function: Any) -> Callable[..., Any] | None:
    """Return the `__call__` that a callable object's class defines, None for a plain function."""
    kind: Any = function.__class__
    method = None if kind is types.FunctionType else getattr(kind, "__call__", None)  # noqa: B004 - its value is wanted
    return inspect.unwrap(method) if isinstance(method, types.FunctionType) else None


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling `function` gives a coroutine."""
    core = _unwrap_partial(function)[0]
    return inspect.iscoroutinefunction(core) or inspect.iscoroutinefunction(_call_method(core))


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling `function` gives a generator, sync or async."""
    core = function_of(function)
    return inspect.isgeneratorfunction(core) or inspect.isasyncgenfunction(core)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    core = function_of(function)
    if sys.version_info >= (3, 14):  # there, reading them evaluates them; a name that only type checkers know stays a string
        from annotationlib import Format, get_annotations

        try:
            return dict(get_annotations(core))
        except NameError:
            return dict(get_annotations(core, format=Format.STRING))
    return dict(getattr(core, "__annotations__", {}))


def _check_kind(parameter: inspect.Parameter, tool_name: str) -> None:
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise TypeError(f"tool {tool_name!r}: parameter {parameter.name!r} is positional-only, but a model names its arguments; remove the '/'")
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        raise TypeError(f"tool {tool_name!r}: '*{parameter.name}' cannot be described to a model; use one parameter of type list[...]")
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        raise TypeError(f"tool {tool_name!r}: '**{parameter.name}' cannot be described to a model; use one parameter of type dict[str, ...]")


def _resolve(annotation: Any, function: Callable[..., Any], name: str, tool_name: str, namespace: Mapping[str, Any]) -> Any:
    """Evaluate an annotation that is (or contains) a string, with the names known where the function was declared."""
    if not _has_text(annotation):
        return annotation
    core = function_of(function)
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    known = {**namespace, **_closure(core)}
    try:
        return typing.get_type_hints(holder, getattr(core, "__globals__", {}), known, include_extras=True)[name]
    except NameError as error:
        if re.fullmatch(_NAMES_TOOL_RUN, re.sub(_NOISE, "", str(annotation))):
            return ToolRun  # imported for type checkers only
        raise TypeError(
            f"tool {tool_name!r}: the annotation {annotation!r} of parameter {name!r} cannot be resolved ({error}); "
            "define or import that name at module level, not only under TYPE_CHECKING"
        ) from error
    except Exception as error:
        raise TypeError(f"tool {tool_name!r}: the annotation {annotation!r} of parameter {name!r} is not a type ({error})") from error


def _has_text(annotation: Any) -> bool:
    if isinstance(annotation, (str, typing.ForwardRef)):
        return True
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return False
    return any(_has_text(arg) for arg in (args[:1] if origin is Annotated else args))


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or not cells:
        return {}
    found: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars, cells, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _is_tool_run(annotation: Any) -> bool:
    if annotation is ToolRun:
        return True
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _is_tool_run(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not types.NoneType]
        return bool(members) and all(_is_tool_run(member) for member in members)
    return False
