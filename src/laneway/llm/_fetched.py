"""Model lists that were fetched from a provider, kept for later processes in the cache folder. A file that cannot be read counts as not there."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from laneway.llm.base import Model


class FetchedLists:
    """One JSON file per provider. With `enabled=False`, and no folder given, nothing leaves memory."""

    def __init__(self, folder: Path | None, *, enabled: bool) -> None:
        self._given = folder
        self._enabled = enabled or folder is not None
        self._known: dict[str, Sequence[Model]] = {}

    def get(self, provider: str) -> Sequence[Model]:
        """Return the list that was fetched last, by this process or an earlier one; empty if none was."""
        if provider not in self._known:
            self._known[provider] = self._read(provider) if self._enabled else ()
        return self._known[provider]

    def keep(self, provider: str, models: Sequence[Model]) -> None:
        """Keep a list. It is stored before it is used; where it cannot be stored it is used all the same."""
        models = [msgspec.structs.replace(model, provider=provider) for model in models]
        if self._enabled:
            self._write(provider, models)
        self._known[provider] = models

    def restore(self, provider: str) -> None:
        """Go back to the list that is stored."""
        self._known.pop(provider, None)

    def forget(self, provider: str) -> None:
        """Use no list of the provider from now on (the file stays until the next one replaces it)."""
        self._known[provider] = ()

    def _path(self, provider: str) -> Path:
        from laneway.llm._paths import cache_dir

        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in provider)
        return (self._given or cache_dir()) / "models" / f"{safe}.json"

    def _read(self, provider: str) -> Sequence[Model]:
        try:
            return msgspec.json.decode(self._path(provider).read_bytes(), type=list[Model])
        except (OSError, msgspec.MsgspecError):
            return ()

    def _write(self, provider: str, models: Sequence[Model]) -> None:
        path = self._path(provider)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(models))
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
