"""How the models of the Gemini protocol differ: one flag per quirk, found by the model's id, overridden per model."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from laneway.errors import ModelError
from laneway.llm.base import Model


class GoogleCompat(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The quirks of one model. Any of these fields may stand in `Model.compat`; the defaults are a present Gemini's.

    Thinking:
        thinking: whether thinking is steered by a level's name, by a number of tokens, or not at all.
        budgets: tokens per level (minimal, low, medium, high); a level that is not named thinks as much as it likes.
        min_budget: the least that the model can think; above 0 it cannot do without.

    Messages:
        call_ids: calls and results carry ids; else a result belongs to the call of its place and name.
        images_in_results: images are part of a result; else they follow the results as what the user says.
        needs_signatures: the first call of a response is refused without a signature.
        supports_system_instruction: else the prompt is the first thing that the user says.

    Request:
        validated_calls: the server can hold the model to the tools' schemas.
        keyless: no key is needed.
        extra_body: sent as it is.
    """

    thinking: Literal["level", "budget", "none"] = "level"
    budgets: dict[str, int] = field(default_factory=dict[str, int])
    min_budget: int = 0
    call_ids: bool = True
    images_in_results: bool = True
    needs_signatures: bool = True
    supports_system_instruction: bool = True
    validated_calls: bool = True
    keyless: bool = False
    extra_body: dict[str, Any] | None = None


class Family(Struct, kw_only=True, frozen=True):
    """Models that are alike: `pattern` is found at the beginning of the id's last part."""

    pattern: str
    flags: dict[str, Any]


_OLDER: dict[str, Any] = {
    "thinking": "budget", "call_ids": False, "images_in_results": False, "needs_signatures": False, "validated_calls": False,
}  # fmt: skip
_GUEST: dict[str, Any] = {"thinking": "budget", "needs_signatures": False, "validated_calls": False}

FAMILIES: tuple[Family, ...] = (
    Family(pattern=r"gemini-2\.5-pro", flags={**_OLDER, "budgets": {"minimal": 128, "low": 2048, "medium": 8192, "high": 32768}, "min_budget": 128}),
    Family(pattern=r"gemini-2\.5-flash-lite", flags={**_OLDER, "budgets": {"minimal": 512, "low": 2048, "medium": 8192, "high": 24576}}),
    Family(pattern=r"gemini-2\.5-flash", flags={**_OLDER, "budgets": {"minimal": 128, "low": 2048, "medium": 8192, "high": 24576}}),
    Family(pattern=r"gemini-(?:[12](?!\d)|exp|pro\b(?!-latest))", flags=_OLDER),
    Family(pattern=r"gemma-[1-3]", flags={**_OLDER, "thinking": "none", "supports_system_instruction": False}),
    Family(pattern=r"gemma", flags={**_OLDER, "thinking": "level", "images_in_results": True}),
    Family(pattern=r"gemini", flags={}),
    Family(pattern=r"claude|gpt-oss", flags=_GUEST),
)
"""The first row that matches counts; a model of no row is taken for a guest without ids."""
_UNKNOWN: dict[str, Any] = {**_GUEST, "call_ids": False}


def find_family(model: Model) -> Family | None:
    """Return the row for a model's id; the path before it (`publishers/google/models/`) does not matter."""
    name = model.id.rpartition("/")[2].lower()
    return next((family for family in FAMILIES if re.match(family.pattern, name)), None)


def resolve_compat(model: Model) -> GoogleCompat:
    """Return the quirks that hold for a model: its family's, then the model's own `compat`.

    Raises:
        ModelError: `model.compat` has an unknown flag or a wrong value.
    """
    family = find_family(model)
    flags: dict[str, Any] = {**(family.flags if family is not None else _UNKNOWN), **model.compat}
    try:
        return msgspec.convert(flags, GoogleCompat)
    except msgspec.ValidationError as error:
        text = f"{model.spec}: `compat` does not fit the {model.api} wire: {error}; the flags are the fields of GoogleCompat"
        raise ModelError(text) from error
