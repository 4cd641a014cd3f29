"""Checks the model's arguments against a tool's schema, and says what is wrong in words that the model can act on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from laneway.errors import ToolArgumentsError
from laneway.messages import ToolCall
from laneway.tools._plain import MISS, compile_plain, copy_json
from laneway.tools.base import AgentTool

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    from laneway.tools._coerce import Coercer
    from laneway.tools._jsonschema import CompiledSchema

_MAX_PROBLEMS = 20
_MAX_SHOWN = 4000  # characters of the received arguments in an error text
_Problem = tuple[str, str]  # dotted path, what is wrong there


def validate_arguments(tool: AgentTool, call: ToolCall) -> Any:
    """Return the arguments that `tool` gets for `call`: a dict of its own, or an instance of the tool's pydantic model.

    `call` is never changed. Values are coerced where that keeps their meaning (see `laneway.tools._coerce`; for a model, pydantic decides).
    `prepare_arguments` is not applied here: pass what it returns to `validate_value`.

    Raises:
        ToolArgumentsError: the arguments were not parseable, or do not fit; the text lists every problem with its path.
    """
    if call.arguments_error is not None:
        raise ToolArgumentsError(
            f'Validation failed for tool "{tool.name}": {call.arguments_error}\n\n'
            "Nothing was executed. Call the tool again with complete, valid JSON arguments."
        )
    return validate_value(tool, call.arguments)


def validate_value(tool: AgentTool, args: Any) -> Any:
    """Return `args`, prepared or replaced by the application, validated and coerced like the model's own. `args` is not changed.

    Raises:
        ToolArgumentsError: as `validate_arguments`.
    """
    plan = tool._validator  # pyright: ignore[reportPrivateUsage] - the field is this module's own
    if plan is None or plan.parameters is not tool.parameters:
        plan = _SchemaPlan(tool.parameters) if isinstance(tool.parameters, dict) else _ModelPlan(tool.parameters)
        tool._validator = plan  # pyright: ignore[reportPrivateUsage]
    try:
        return plan.validate(tool.name, args)
    except RecursionError:
        raise ToolArgumentsError(f'Validation failed for tool "{tool.name}":\n  - root: the arguments are nested too deeply') from None


class _SchemaPlan:
    """Validation against a JSON Schema: the fast check first, then coercion and the validator."""

    __slots__ = ("_coercer", "_compiled", "_fast", "parameters")

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.parameters = parameters
        self._fast = compile_plain(parameters)
        self._compiled: CompiledSchema | None = None
        self._coercer: Coercer | None = None

    def validate(self, name: str, value: Any) -> Any:
        fast = self._fast
        if fast is not None and (copied := fast(value)) is not MISS:
            return copied
        return self.validate_fully(name, value)

    def validate_fully(self, name: str, value: Any) -> Any:
        from laneway.tools._jsonschema import SchemaError

        if not isinstance(value, dict):
            raise _error(name, [("root", f"expected an object, got {_shown(value)}")], value)
        try:
            compiled, coercer = self._prepare()
            changed = coercer.coerce(copy_json(value))
            errors = compiled.errors(changed)
        except SchemaError as error:
            text = f'Tool "{name}" cannot be called: its own parameter schema is not valid ({error}). Nothing was executed.'
            raise ToolArgumentsError(text) from error
        except ValueError as error:  # not JSON, or too deep for the validator
            raise _error(name, [("root", f"the arguments cannot be checked ({error})")], cast(Any, value)) from error
        if errors:
            raise _error(name, _schema_problems(errors, compiled.refused), cast(Any, value))
        return changed

    def _prepare(self) -> tuple[CompiledSchema, Coercer]:
        if self._compiled is None or self._coercer is None:
            from laneway.tools._coerce import Coercer
            from laneway.tools._jsonschema import CompiledSchema

            self._compiled = CompiledSchema(self.parameters)
            self._coercer = Coercer(self._compiled)
        return self._compiled, self._coercer


class _ModelPlan:
    """Validation by a pydantic model; if it fails, once more without the nulls that the model wrote for optional fields."""

    __slots__ = ("_coercer", "parameters")

    def __init__(self, parameters: type[BaseModel]) -> None:
        if not hasattr(parameters, "model_validate"):
            raise TypeError(f"a tool's parameters must be a JSON Schema (a dict) or a pydantic model, not {parameters!r}")
        self.parameters = parameters
        self._coercer: Coercer | None = None

    def validate(self, name: str, value: Any) -> Any:
        from pydantic import ValidationError

        if isinstance(value, self.parameters):
            return value
        if not isinstance(value, dict):
            raise _error(name, [("root", f"expected an object, got {_shown(value)}")], value)
        data = copy_json(cast(Any, value))
        try:
            try:
                return self.parameters.model_validate(data)
            except ValidationError:
                if (changed := self._without_nulls(data)) == data:
                    raise
                return self.parameters.model_validate(changed)
        except ValidationError as error:
            problems = [_model_problem(detail, data) for detail in error.errors(include_url=False, include_context=False)]
            raise _error(name, problems, data) from error

    def _without_nulls(self, data: Any) -> Any:
        from laneway.tools._coerce import Coercer
        from laneway.tools._jsonschema import CompiledSchema, SchemaError

        try:
            if self._coercer is None:
                self._coercer = Coercer(CompiledSchema(self.parameters.model_json_schema()), types=False)
            return self._coercer.coerce(data)
        except (SchemaError, ValueError):
            return data


# ---------------------------------------------------------------------------------------------------- the text


def _error(name: str, problems: Iterable[_Problem], received: Any) -> ToolArgumentsError:
    listed = list(dict.fromkeys(f"  - {path}: {message}" for path, message in problems))
    if len(listed) > _MAX_PROBLEMS:
        listed[_MAX_PROBLEMS:] = [f"  - … and {len(listed) - _MAX_PROBLEMS} more"]
    import json  # where something is wrong, and only there

    shown = json.dumps(received, indent=2, ensure_ascii=False, default=repr)
    if len(shown) > _MAX_SHOWN:
        shown = f"{shown[:_MAX_SHOWN]}… ({len(shown) - _MAX_SHOWN} more characters)"
    return ToolArgumentsError("\n".join([f'Validation failed for tool "{name}":', *listed, "", "Received arguments:", shown]))


def _path(parts: Iterable[Any]) -> str:
    return ".".join(str(part) for part in parts) or "root"


def _shown(value: Any) -> str:
    """Return what a value is, with the value itself if it is short."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if value is None:
        return "null"
    import json

    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _schema_problems(errors: list[ValidationError], refused: dict[str, str]) -> Iterable[_Problem]:
    for error in errors:
        parts = list(error.instance_path)
        kind = cast(Any, error.kind)
        match type(kind).__name__:
            case "Required":
                yield _path([*parts, kind.property]), "required, but missing"
            case "AdditionalProperties" | "UnevaluatedProperties":
                for name in kind.unexpected:
                    yield _path([*parts, name]), "unknown; there is no such argument"
            case _:
                yield _path(parts), _message(error, refused)


def _message(error: ValidationError, refused: dict[str, str]) -> str:
    kind, value = cast(Any, error.kind), error.instance
    match type(kind).__name__:
        case "Type":
            return f"expected {' or '.join(kind.types)}, got {_shown(value)}"
        case "Enum":
            return f"expected one of {_options(kind.options)}, got {_shown(value)}"
        case "Constant":
            return f"expected {_shown(kind.expected_value)}, got {_shown(value)}"
        case "AnyOf" | "OneOfNotValid":
            return _alternatives(kind.context, value, refused)
        case "FalseSchema":
            pointer = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.schema_path)
            return f"cannot be given: {refused[pointer]}" if pointer in refused else "no value is allowed here"
        case "Not":
            return f"cannot be given: {refused['']}" if "" in refused and not error.instance_path else error.message
        case _:
            return error.message if len(error.message) <= 300 else f"{error.message[:300]}…"


def _options(options: list[Any]) -> str:
    shown = [_shown(option) for option in options[:20]]
    return ", ".join([*shown, f"… ({len(options) - 20} more)"] if len(options) > 20 else shown)


def _alternatives(context: list[list[ValidationError]], value: Any, refused: dict[str, str]) -> str:
    """Say why none of the alternatives fits: "expected integer or null" where each wants a type, else the first problem of each.

    An alternative whose tag (a const or enum) does not match is only told of if no other is left.
    """
    alternatives = [errors for errors in context if errors]
    firsts = [errors[0] for errors in alternatives]
    if all(type(first.kind).__name__ == "Type" and first.instance == value for first in firsts):
        kinds = dict.fromkeys(kind for first in firsts for kind in cast(Any, first.kind).types)
        return f"expected {' or '.join(kinds)}, got {_shown(value)}"
    tags = [next((error for error in errors if type(error.kind).__name__ in ("Constant", "Enum")), None) for errors in alternatives]
    meant = [first for first, tag in zip(firsts, tags, strict=True) if tag is None] or [tag for tag in tags if tag is not None]
    problems = dict.fromkeys(f"{path}: {text}" for error in meant for path, text in _schema_problems([error], refused))
    return f"fits none of the allowed forms ({'; '.join(problems)})"


def _model_problem(detail: ErrorDetails, data: Any) -> _Problem:
    """Return path and text of a pydantic error, without pydantic's names for the alternatives that it tried."""
    parts: list[Any] = []
    current: Any = data
    for part in detail["loc"]:
        if isinstance(current, dict) and part in current:
            current = cast("dict[Any, Any]", current)[part]
        elif isinstance(current, list) and isinstance(part, int) and part < len(cast("list[Any]", current)):
            current = cast("list[Any]", current)[part]
        elif not (detail["type"] == "missing" and part == detail["loc"][-1]):
            continue
        parts.append(part)
    messages = {"missing": "required, but missing", "extra_forbidden": "unknown; there is no such argument"}
    return _path(parts), messages.get(detail["type"]) or f"{detail['msg']}, got {_shown(current)}"
