"""`@tool`: a typed Python function becomes an `AgentTool`, and stays a function."""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast, get_args, overload

from laneway.abort import AbortSignal
from laneway.errors import ToolError
from laneway.messages import ToolGrammar, ToolResult
from laneway.tools._docstring import parse_docstring
from laneway.tools._results import to_result
from laneway.tools._schema import plain_arguments
from laneway.tools._signature import Signature, function_of, is_async, is_generator, read_signature
from laneway.tools._threads import run_in_thread
from laneway.tools.base import AgentTool, ExecutionMode, Replay, ToolRun, UpdateFn, current_host

if TYPE_CHECKING:
    from pydantic import BaseModel

P = ParamSpec("P")
R = TypeVar("R")
_Fields = tuple[tuple[str, str, bool], ...]
_Binds = Literal["instance", "class"]
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(kw_only=True, eq=False)
class FunctionTool(AgentTool, Generic[P, R]):
    """The `AgentTool` that `@tool` makes. Calling it calls the function as before; `function` is that function.

    Declared on a method, it is bound like one: `obj.method` is the tool to give to an agent.
    """

    function: Callable[P, R]
    _binds: _Binds | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.execute, _Execute) and self.execute.tool_name != self.name:
            self.execute = self.execute.renamed(self.name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> FunctionTool[..., R]:
        target = owner if self._binds == "class" else instance
        if self._binds is None or target is None:
            return cast("FunctionTool[..., R]", self)
        bound = cast("FunctionTool[..., R]", copy.copy(self))
        bound.function = cast("Any", self.function).__get__(target)
        bound._binds = None
        if isinstance(self.execute, _Execute):
            bound.execute = self.execute.bound(bound.function)
        return bound

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FunctionTool):
            return NotImplemented
        return self is other or (self.function == other.function and self.declaration == other.declaration)

    def __hash__(self) -> int:
        return hash((self.name, self.function))


class _Execute:
    """What runs when a model calls the tool: injects the `ToolRun`, calls the function, turns its value into a result."""

    __slots__ = ("_fields", "_function", "_injected", "_is_async", "_model", "_unbound", "tool_name")

    def __init__(
        self,
        function: Callable[..., Any],
        tool_name: str,
        *,
        injected: tuple[str, ...],
        model: type[BaseModel] | None,
        fields: _Fields,
        unbound: bool,
    ) -> None:
        self._function, self.tool_name, self._injected = function, tool_name, injected
        self._model, self._fields = model, fields
        self._is_async = is_async(function)
        self._unbound = unbound

    def renamed(self, name: str) -> _Execute:
        changed = copy.copy(self)
        changed.tool_name = name
        return changed

    def bound(self, function: Callable[..., Any]) -> _Execute:
        changed = copy.copy(self)
        changed._function, changed._unbound = function, False
        return changed

    async def __call__(self, tool_call_id: str, args: Any, signal: AbortSignal, update: UpdateFn) -> ToolResult:
        kwargs = self._kwargs(args)
        if self._injected:
            host = current_host()
            key = tool_call_id if host is None else host.idempotency_key
            run = ToolRun(tool_call_id, self.tool_name, signal, key, update, host)
            kwargs.update(dict.fromkeys(self._injected, run))
        try:
            if self._is_async:
                value = await self._function(**kwargs)
            else:
                value = await run_in_thread(self._function, kwargs)
                if inspect.isawaitable(value):
                    value = await value
        except SystemExit as error:
            raise ToolError(f"The tool {self.tool_name} tried to end the process (exit status {error.code}).") from error
        return to_result(value, self.tool_name)

    def _kwargs(self, args: Any) -> dict[str, Any]:
        if self._unbound:
            raise ToolError(f"The tool {self.tool_name} is a method without its object: give the agent `object.method`, not `Class.method`.")
        if self._model is None:
            return dict(cast("dict[str, Any]", args))
        model = self._model.model_validate(args) if isinstance(args, dict) else cast("BaseModel", args)
        given = model.model_fields_set  # what was not given keeps the function's own default
        return {name: getattr(model, attribute) for name, attribute, always in self._fields if always or attribute in given}


@overload
def tool(
    function: Callable[P, R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    label: str = "",
    prepare_arguments: Callable[[Any], Any] | None = None,
    execution_mode: ExecutionMode | None = None,
    replay: Replay = "never",
    timeout: float | None = None,
    strict: bool | None = None,
    grammar: ToolGrammar | None = None,
) -> FunctionTool[P, R]: ...
@overload
def tool(
    function: None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    label: str = "",
    prepare_arguments: Callable[[Any], Any] | None = None,
    execution_mode: ExecutionMode | None = None,
    replay: Replay = "never",
    timeout: float | None = None,
    strict: bool | None = None,
    grammar: ToolGrammar | None = None,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Make a tool of a typed function, sync or async. Use it bare (`@tool`) or with options (`@tool(replay="safe")`).

    The name is the function's; the description and each parameter's description come from the docstring (Google, NumPy or Sphinx style);
    the JSON Schema from the annotations: JSON types, Literal, unions, TypedDict, and whatever pydantic knows (models, dataclasses,
    enums, `Annotated[..., Field(...)]`). `Annotated[T, "text"]` describes a parameter, too. A parameter annotated `ToolRun` gets the running call
    and is not shown to the model.

    The function returns text, None, a content block or a list of them, a `ToolResult`, or any JSON-able value; it raises to report failure. A sync
    function runs in a thread: when the call is aborted the thread goes on, but what it returns is dropped; it can watch
    `ToolRun.signal` and report with `ToolRun.report`.

    Options are the fields of `AgentTool`; `timeout` is in seconds.

    Raises:
        TypeError: the function cannot be a tool; the text says why and what to do.
    """
    if function is not None:
        return _declare(function, options, _locals_of(inspect.currentframe()))

    def decorate(decorated: Any) -> Any:
        return _declare(decorated, options, _locals_of(inspect.currentframe()))

    return decorate


def _locals_of(frame: FrameType | None) -> Mapping[str, Any]:
    """Return the local names where the function that runs in `frame` was called."""
    caller = None if frame is None else frame.f_back
    return {} if caller is None else caller.f_locals


def _declare(function: Any, options: dict[str, Any], namespace: Mapping[str, Any]) -> FunctionTool[..., Any]:
    binds: _Binds | None = None
    if isinstance(function, (staticmethod, classmethod)):
        binds = "class" if isinstance(function, classmethod) else None
        function = cast("Any", function).__func__
    elif inspect.isfunction(function) and _is_method(function):
        binds = "instance"
    name = _name(function, options.pop("name", None))
    _check(function, name, options)
    docstring = parse_docstring(_doc(function))
    description = options.pop("description", None)
    signature = read_signature(function, tool_name=name, skip_first=binds is not None, namespace=namespace)
    parameters, model, fields = _arguments(name, signature, docstring.parameters)
    made: FunctionTool[..., Any] = FunctionTool(
        name=name,
        description=docstring.description if description is None else inspect.cleandoc(description),
        parameters=parameters,
        execute=_Execute(function, name, injected=signature.injected, model=model, fields=fields, unbound=binds is not None),
        function=function,
        _binds=binds,
        **options,
    )
    functools.update_wrapper(cast("Any", made), function, updated=())
    return made


def _arguments(name: str, signature: Signature, descriptions: dict[str, str]) -> tuple[Any, type[BaseModel] | None, _Fields]:
    """Return the tool's `parameters`, and for rich ones the model and where its values go: (parameter, attribute, even if not given)."""
    schema = plain_arguments(signature.parameters, descriptions)
    if schema is not None:
        return schema, None, ()
    from laneway.tools._rich import rich_arguments

    model, attributes = rich_arguments(name, signature.parameters, descriptions)
    fields = tuple((p.name, attributes[p.name], p.required or p.has_pydantic_default) for p in signature.parameters)
    return model, model, fields


def _is_method(function: Any) -> bool:
    """Whether the function is defined in a class body and takes the object first."""
    scope = cast(str, function.__qualname__).rpartition(".")[0]
    first = next(iter(inspect.signature(function).parameters), None)
    return bool(scope) and not scope.endswith("<locals>") and first in ("self", "cls")


def _name(function: Any, given: str | None) -> str:
    if not callable(function) or isinstance(function, (type, AgentTool)):
        shown = "the tool " + function.name if isinstance(function, AgentTool) else repr(function)
        raise TypeError(f"@tool makes a tool of a function, not of {shown}; a name is given as @tool(name=...)")
    name = given
    if name is None:
        core: Any = function
        while isinstance(core, functools.partial):
            core = cast("Any", core).func
        name = getattr(core, "__name__", None) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(core).__name__).lower()
    if not _NAME.fullmatch(name):
        raise TypeError(f"{name!r} cannot be a tool's name: providers take 1 to 64 of A-Z a-z 0-9 _ -; give one with @tool(name=...)")
    return name


def _check(function: Any, name: str, options: dict[str, Any]) -> None:
    if is_generator(function):
        raise TypeError(f"tool {name!r} is a generator; return one value, and report progress with ToolRun.update or ToolRun.report")
    known = inspect.signature(AgentTool).parameters.keys() - {"parameters", "execute"}
    if unknown := options.keys() - known:
        raise TypeError(f"tool {name!r}: @tool takes no {', '.join(sorted(unknown))}; its options are {', '.join(sorted(known))}")
    for option, allowed in (("replay", get_args(Replay)), ("execution_mode", (*get_args(ExecutionMode), None))):
        if option in options and options[option] not in allowed:
            raise TypeError(f"tool {name!r}: {option} must be one of {', '.join(map(repr, allowed))}, not {options[option]!r}")
    timeout = options.get("timeout")
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
        raise TypeError(f"tool {name!r}: timeout must be a number of seconds above 0, not {timeout!r}")


def _doc(function: Any) -> str | None:
    """Return the docstring of the function, or of the class of a callable object."""
    core = function_of(function)
    if core.__doc__:
        return core.__doc__
    return None if inspect.isroutine(function) or isinstance(function, functools.partial) else type(function).__doc__
