"""How the models behind Bedrock's one protocol differ: one flag per quirk, found by the model's id, overridden per model."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec import Struct

from laneway.errors import ModelError
from laneway.llm.base import Model


class BedrockCompat(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The quirks of one model. Any of these fields may stand in `Model.compat`.

    The request's authorisation:
        sign: with AWS credentials where there is no bearer token; None: if the endpoint or the provider is Amazon's.
        keyless: nothing is needed.

    Thinking:
        thinking: how it is asked for: "adaptive" (Claude that takes an effort), "budget" (Claude that takes a number of tokens), "nova",
            "effort" (`reasoning.effort`), "flat_effort" (`reasoning_effort`), or not at all.
        interleaved_thinking: a "budget" model may think between tool calls; asked for with a beta name.
        thoughts: how a thought goes back to its model: "signed" (one without its signature becomes text), "plain" (without one),
            "encrypted" (only what came encrypted).

    What the model takes:
        supports_prompt_cache: cache points; `supports_long_cache_retention`: that last an hour.
        supports_strict_tools, supports_temperature.
        supports_result_status, supports_result_images: in tool results; else the text says that it is an error, and images follow the results.
        plain_schemas: a tool's schema may have nothing but type, properties and required at its root.
        extra_body: merged into the body.
    """

    sign: bool | None = None
    keyless: bool = False

    thinking: Literal["none", "adaptive", "budget", "nova", "effort", "flat_effort"] = "none"
    interleaved_thinking: bool = True
    thoughts: Literal["signed", "plain", "encrypted"] = "plain"

    supports_prompt_cache: bool = False
    supports_long_cache_retention: bool = False
    supports_strict_tools: bool = False
    supports_temperature: bool = True
    supports_result_status: bool = False
    supports_result_images: bool = False
    plain_schemas: bool = False
    extra_body: dict[str, Any] | None = None


_NEW_CLAUDE = r"claude-(?:[a-z]+-[5-9](?!\d)|mythos)"
FAMILIES: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        r"claude",
        {
            "thinking": "budget", "thoughts": "signed", "supports_prompt_cache": True, "supports_result_status": True,
            "supports_result_images": True,
        },
    ),
    (r"claude-(?:v\d|instant|3-(?:opus|sonnet|haiku)|3-5-sonnet-20240620)", {"supports_prompt_cache": False}),
    (r"claude-3", {"interleaved_thinking": False}),
    (rf"claude-(?:haiku|sonnet|opus)-4-[5-9](?!\d)|{_NEW_CLAUDE}", {"supports_long_cache_retention": True}),
    (rf"claude-(?:sonnet|opus)-4-[6-9](?!\d)|{_NEW_CLAUDE}", {"thinking": "adaptive"}),
    (rf"claude-opus-4-[7-9](?!\d)|{_NEW_CLAUDE}", {"supports_temperature": False}),
    (r"claude-(?:haiku|sonnet|opus)-4-[56](?!\d)", {"supports_strict_tools": True}),
    (r"\bnova-", {"supports_result_status": True, "supports_result_images": True, "plain_schemas": True}),
    (r"\bnova-2", {"thinking": "nova"}),
    (r"\bgpt-", {"thinking": "effort", "thoughts": "encrypted"}),
    (r"\bgpt-oss", {"thinking": "flat_effort", "thoughts": "plain"}),
    (r"moonshot|\bkimi-", {"thinking": "flat_effort"}),
)  # fmt: skip
"""Patterns that are looked for in a model's id, and what differs from the defaults. All that match count, later ones win."""
_FAMILIES = tuple((re.compile(pattern), flags) for pattern, flags in FAMILIES)


def resolve_compat(model: Model) -> BedrockCompat:
    """Return the quirks that hold for a model: its family's, then the model's own `compat`.

    Raises:
        ModelError: `model.compat` has an unknown flag or a wrong value.
    """
    try:
        return msgspec.convert({**_family(model.id, model.name), **model.compat}, BedrockCompat)
    except msgspec.ValidationError as error:
        text = f"{model.spec}: `compat` does not fit the bedrock_converse wire: {error}; the flags are the fields of BedrockCompat"
        raise ModelError(text) from error


@lru_cache(256)
def _family(model_id: str, name: str) -> dict[str, Any]:
    """What the id says; the ARN of somebody's own inference profile says nothing, so the model's name is asked then."""
    for text in (model_id, name):
        plain = re.sub(r"[\s._]+", "-", text.lower())
        flags: dict[str, Any] = {}
        for pattern, found in _FAMILIES:
            if pattern.search(plain):
                flags.update(found)
        if flags:
            return flags
    return {}
