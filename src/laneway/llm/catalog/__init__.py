"""The models that laneway knows without asking anybody: one JSON shard per provider, read when its provider is first asked for.

The shards are built by `tools/build_catalog.py` and hold facts only (see `manifest.json` for their sources and the day they are of). A person's own
models are in `models.toml` in the configuration folder; see `user_models`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from laneway.errors import ModelError
from laneway.llm.base import Modality, Model, ModelCost

__all__ = ["UserModels", "load_shard", "shard", "shard_names", "user_models"]

_FOLDER = Path(__file__).parent


class _Entry(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A model as a shard or a `models.toml` has it: wire and URL are its provider's unless they are given."""

    id: str
    provider: str = ""
    name: str = ""
    api: str = ""
    base_url: str = ""
    reasoning: bool = False
    input: tuple[Modality, ...] = ("text",)
    context_window: int = 0
    max_tokens: int = 0
    cost: ModelCost = msgspec.field(default_factory=ModelCost)
    compat: dict[str, Any] = {}
    thinking_levels: dict[str, str | bool | None] = {}
    headers: dict[str, str] = {}
    sampling_params: dict[str, Any] = {}
    sampling_params_by_thinking_level: dict[str, dict[str, Any]] = {}

    def model(self, provider: str) -> Model:
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        levels = {level: level if word is True else (word or None) for level, word in self.thinking_levels.items()}
        fields |= {"provider": provider, "name": self.name or self.id, "thinking_levels": levels}
        return Model(**fields)


def shard(provider: str) -> Callable[[], Sequence[Model]]:
    """Return a function that gives the provider's models, reading them once; none where there is no shard."""
    return lambda: load_shard(provider)


@cache
def load_shard(provider: str) -> tuple[Model, ...]:
    """Read a shard. A model's `api` and `base_url` are empty where they are its provider's.

    Raises:
        ModelError: the file is damaged.
    """
    path = _FOLDER / f"{provider}.json"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    try:
        return tuple(entry.model(provider) for entry in msgspec.json.decode(data, type=list[_Entry]))
    except msgspec.MsgspecError as error:
        raise ModelError(f"the model list {path} is damaged ({error}); install laneway again") from error


def shard_names() -> list[str]:
    """Return the providers that have a shard."""
    return sorted(path.stem for path in _FOLDER.glob("*.json") if path.stem != "manifest")


# ---------------------------------------------------------------------------------------------------- the person's own


class UserProvider(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A provider in `models.toml`. `key_env` names the variable that holds its key; without one no key is needed."""

    id: str
    base_url: str
    name: str = ""
    api: str = "openai_chat"
    key_env: str | None = None
    headers: dict[str, str] = {}
    compat: dict[str, Any] = {}


class _UserFile(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    provider: list[UserProvider] = []
    model: list[_Entry] = []


class UserModels(Struct, kw_only=True, frozen=True):
    """What a person's `models.toml` says."""

    providers: list[UserProvider]
    models: list[Model]


def user_models(path: Path) -> UserModels:
    """Read a `models.toml`; a file that is not there says nothing.

    It has `[[provider]]` tables (id, base_url, api, key_env, …) and `[[model]]` tables with the fields of `Model`; in
    `thinking_levels` true is the level's own name and false a level that the model lacks.

    Raises:
        ModelError: it cannot be read; the text names the place.
    """
    import tomllib

    try:
        text = path.read_text(encoding="utf-8")
        found = msgspec.convert(tomllib.loads(text), _UserFile)
    except FileNotFoundError:
        return UserModels(providers=[], models=[])
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise ModelError(f"{path}: {error}; correct the file or move it away") from error
    if any(not model.provider for model in found.model):
        raise ModelError(f"{path}: every [[model]] needs a `provider`; name a known one, or one of your [[provider]] tables")
    return UserModels(providers=found.provider, models=[model.model(model.provider) for model in found.model])
