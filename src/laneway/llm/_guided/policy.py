"""How a model is guided: the `guided_…` values of `Model.compat`."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from laneway.errors import ModelError
from laneway.llm.base import Model


class GuidedPolicy(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The policy of one model; each field is the `compat` value `guided_<name>`.

    tools: guided tool calling is on.
    calls: after this many tool results since the last user message, only an answer may come. A model that cannot stop needs a small number.
    small: the model has a few hundred million parameters or less. It is shown examples close to the question instead of schemas, is asked
        for required arguments only, may only name files that the conversation names, must look before it answers about one, and
        gets a short prompt to answer from a result.
    result_chars: a longer tool result is cut to this many characters, with a note (0: never).
    sampling: sampling parameters where the request has none of that name.
    """

    tools: bool = False
    calls: int = 25
    small: bool = False
    result_chars: int = 0
    sampling: dict[str, Any] = {}

    @classmethod
    def of(cls, model: Model) -> GuidedPolicy:
        """Read the policy of a model.

        Raises:
            ModelError: a value is wrong.
        """
        given = {name.removeprefix("guided_"): value for name, value in model.compat.items() if name.startswith("guided_")}
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            raise ModelError(f"{model.spec}: a guided_… value in `compat` is wrong: {error}") from error


def without_guidance(model: Model) -> Model:
    """Return the model as its wire should see it."""
    return replace(model, compat={name: value for name, value in model.compat.items() if not name.startswith("guided_")})
