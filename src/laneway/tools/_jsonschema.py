"""Compiles a tool's JSON Schema for validation, on the assumption that the schema is not to be trusted.

Nothing is ever fetched: a `$ref` that does not resolve inside the schema, or a pattern that no engine can run, becomes a node that
rejects every value there, so that the rest of the tool still works. Patterns run on a linear-time engine; those that need look-around
run on a backtracking one with a limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from laneway.messages import clean_json
from laneway.tools._plain import copy_json

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

_URI = "urn:laneway:tool-schema"
_BACKTRACK_LIMIT = 100_000
_MAX_NODES = 50_000

_ONE = {
    "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems", "propertyNames", "contains", "not", "if", "then", "else",
}  # fmt: skip
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DIALECT = re.compile(r"https?://json-schema\.org/(draft-0[467]|draft/20(19-09|20-12))/schema#?")


class SchemaError(Exception):
    """The tool's own schema is not a valid JSON Schema."""


class CompiledSchema:
    """A tool's schema, made safe: `root` is the schema that validation uses, `refused` says why a place rejects everything."""

    __slots__ = ("_options", "_parts", "_registry", "_validator", "refused", "root")

    def __init__(self, schema: dict[str, Any]) -> None:
        self.root: dict[str, Any] = copy_json(schema)
        self.refused: dict[str, str] = {}
        self._parts: dict[str, Validator] = {}
        self._registry: Any = None
        self._options: dict[str, Any] = {}
        self._sanitise()
        self._validator = self._compile(self.root)

    def errors(self, value: Any) -> list[ValidationError]:
        """Return what is wrong with an arguments object; [] if nothing is."""
        try:
            return list(self._validator.iter_errors(value))
        except UnicodeEncodeError:  # half a surrogate pair; the replacement has the same length
            return list(self._validator.iter_errors(clean_json(value)))

    def is_valid_at(self, pointer: str, value: Any) -> bool:
        """Whether `value` is valid against the part of the schema at a JSON pointer ("/properties/a/anyOf/0")."""
        part = self._parts.get(pointer)
        if part is None:
            from jsonschema_rs import Registry

            if self._registry is None:
                self._registry = Registry([(_URI, self.root)])
            self._options["registry"] = self._registry
            part = self._parts[pointer] = self._compile({"$ref": f"{_URI}#{_quote(pointer)}"})
        try:
            return part.is_valid(value)
        except UnicodeEncodeError:
            return part.is_valid(clean_json(value))

    def resolve(self, ref: str) -> tuple[str, Any] | None:
        """Return pointer and node of a `$ref` into the schema itself, None for any other."""
        if not ref.startswith("#"):
            return None
        pointer = unquote(ref[1:])
        node: Any = self.root
        for token in pointer.split("/")[1:]:
            token = token.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and token in node:
                node = cast("dict[str, Any]", node)[token]
            elif isinstance(node, list) and token.isdecimal() and int(token) < len(cast("list[Any]", node)):
                node = cast("list[Any]", node)[int(token)]
            else:
                return None
        return (pointer, node) if pointer == "" or pointer.startswith("/") else None

    # ------------------------------------------------------------------------------------------------ making it safe

    def _compile(self, schema: dict[str, Any]) -> Validator:
        from jsonschema_rs import validator_for

        try:
            return validator_for(schema, offline=True, validate_formats=False, **self._options)
        except Exception as error:
            raise SchemaError(str(error).strip().splitlines()[0]) from error

    def _sanitise(self) -> None:
        from jsonschema_rs import FancyRegexOptions, RegexOptions

        root = self.root
        base = root.pop("$id", None)
        if not _DIALECT.fullmatch(str(root.get("$schema", ""))):
            root.pop("$schema", None)  # read it as the current one
        anchors: set[str] = set()
        patterns: dict[str, bool | None] = {}
        nodes = list(_walk(root))
        for _, node, _, _ in nodes:
            anchors.update(node[key] for key in ("$anchor", "$dynamicAnchor") if isinstance(node.get(key), str))
            if isinstance(node.get("$id"), str) and node["$id"].startswith("#"):  # how drafts 4 to 7 write an anchor
                anchors.add(node["$id"][1:])
            if isinstance(base, str) and str(node.get("$ref", "")).startswith(f"{base}#"):
                node["$ref"] = node["$ref"][len(base) :]
        for pointer, node, parent, key in nodes:
            reason = self._unusable_ref(node, anchors) or _unusable_pattern(node, patterns)
            if reason is None:
                continue
            self.refused[pointer] = reason
            if parent is None:
                node.clear()
                node["not"] = {}
            else:
                parent[key] = False
        backtracks = any(linear is False for linear in patterns.values())
        self._options["pattern_options"] = FancyRegexOptions(backtrack_limit=_BACKTRACK_LIMIT) if backtracks else RegexOptions()

    def _unusable_ref(self, node: dict[str, Any], anchors: set[str]) -> str | None:
        ref = node.get("$ref")
        if not isinstance(ref, str) or self.resolve(ref) is not None or (ref.startswith("#") and ref[1:] in anchors):
            return None
        return f"the tool's schema refers to {ref!r}, which is not part of it"


def _unusable_pattern(node: dict[str, Any], known: dict[str, bool | None]) -> str | None:
    """Note for each pattern whether the linear engine takes it (True), only the other one (False) or none (None)."""
    from jsonschema_rs import FancyRegexOptions, RegexOptions, validator_for

    found = [node["pattern"]] if isinstance(node.get("pattern"), str) else []
    if isinstance(node.get("patternProperties"), dict):
        found += node["patternProperties"]
    for pattern in found:
        if pattern not in known:
            known[pattern] = None
            for linear, options in ((True, RegexOptions()), (False, FancyRegexOptions(backtrack_limit=_BACKTRACK_LIMIT))):
                try:
                    validator_for({"pattern": pattern}, pattern_options=options, offline=True)
                except Exception:
                    continue
                known[pattern] = linear
                break
        if known[pattern] is None:
            return f"the tool's schema has the pattern {pattern!r}, which is not a regular expression"
    return None


def _walk(root: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], Any, Any]]:
    """Yield every schema node below `root` (itself first): its pointer, the node, and where it hangs (container and key)."""
    pending: list[tuple[str, Any, Any, Any]] = [("", root, None, None)]
    count = 0
    while pending:
        pointer, node, parent, key = pending.pop()
        if not isinstance(node, dict):
            continue
        count += 1
        if count > _MAX_NODES:
            raise SchemaError(f"it has more than {_MAX_NODES} parts")
        node = cast("dict[str, Any]", node)
        yield pointer, node, parent, key
        for name, value in node.items():
            if name in _ONE or (name == "items" and not isinstance(value, list)):
                pending.append((f"{pointer}/{name}", value, node, name))
            elif (name in _MANY or name == "items") and isinstance(value, list):
                pending += [(f"{pointer}/{name}/{i}", item, value, i) for i, item in enumerate(cast("list[Any]", value))]
            elif (name in _NAMED or name == "dependencies") and isinstance(value, dict):
                pending += [(f"{pointer}/{name}/{escape(k)}", item, value, k) for k, item in cast("dict[str, Any]", value).items()]


def escape(token: str) -> str:
    """Escape one token of a JSON pointer."""
    return token.replace("~", "~0").replace("/", "~1")


def _quote(pointer: str) -> str:
    """Return a pointer as a URI fragment."""
    return re.sub(r"[^A-Za-z0-9/~$_.-]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "replace")), pointer)
