"""How the models of Mistral's protocol differ: one flag per quirk, found by the model's id, overridden per model."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
from msgspec import Struct

from laneway.errors import ModelError
from laneway.llm.base import Model


class MistralCompat(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The quirks of one model. Any of these fields may stand in `Model.compat`.

    thinking: whether thinking is steered by an effort ("effort"), switched on by the prompt's mode ("prompt_mode"), or not at all.
    requires_assistant_after_tool_result: a user message may not follow a tool's result directly.
    supports_images_in_tool_results: else images follow the results as a user message.
    supports_strict_mode: tools may carry `strict`.
    supports_prompt_cache_key: requests of one session may say so.
    keyless: no key is needed.
    extra_body: sent as it is.
    """

    thinking: Literal["effort", "prompt_mode", "none"] = "effort"
    requires_assistant_after_tool_result: bool = True
    supports_images_in_tool_results: bool = True
    supports_strict_mode: bool = True
    supports_prompt_cache_key: bool = True
    keyless: bool = False
    extra_body: dict[str, Any] | None = None


FAMILIES: tuple[tuple[str, dict[str, Any]], ...] = ((r"magistral", {"thinking": "prompt_mode"}),)
"""Patterns for the beginning of a model's id, and what differs from the defaults. The first that matches counts."""


def resolve_compat(model: Model) -> MistralCompat:
    """Return the quirks that hold for a model: its family's, then the model's own `compat`.

    Raises:
        ModelError: `model.compat` has an unknown flag or a wrong value.
    """
    name = model.id.rpartition("/")[2].lower()
    flags: dict[str, Any] = dict(next((flags for pattern, flags in FAMILIES if re.match(pattern, name)), ()))
    try:
        return msgspec.convert({**flags, **model.compat}, MistralCompat)
    except msgspec.ValidationError as error:
        raise ModelError(f"{model.spec}: `compat` does not fit the mistral wire: {error}; the flags are the fields of MistralCompat") from error
