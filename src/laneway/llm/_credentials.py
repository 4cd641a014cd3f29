"""Stored keys: a file that only its owner can read, or the system's keyring. No key is ever part of a `repr`, a log or an error."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from laneway.errors import ModelError

LOCK_SECONDS = 30.0
"""How long another process may hold the lock of the file before a change gives up."""


class Credential(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What is stored for one provider: an API key, or a login ("oauth") whose `key` is the access token.

    `expires_at` is Unix milliseconds. `env` are settings that belong to the key (a region, a project); `data` is the login handler's.
    """

    kind: Literal["api_key", "oauth"] = "api_key"
    key: str | None = None
    refresh_token: str | None = None
    expires_at: int | None = None
    env: dict[str, str] = {}
    data: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Credential(kind={self.kind!r}, expires_at={self.expires_at!r})"


Change: TypeAlias = "Callable[[Credential | None], Awaitable[Credential | None]]"


class CredentialStore(Protocol):
    """Where credentials are kept.

    `read` is called for every request and must be quick. `modify` is the only way to write: it holds the provider's lock over
    processes while `change` runs, stores what that returns, and returns what is stored then; None from `change` leaves it as it is.
    """

    def read(self, provider: str) -> Credential | None: ...
    def list(self) -> dict[str, str]:
        """Return the kind of credential by provider; no secrets."""
        ...

    async def modify(self, provider: str, change: Change) -> Credential | None: ...
    async def delete(self, provider: str) -> bool: ...


class MemoryCredentialStore:
    """Keeps credentials in this object only."""

    def __init__(self, credentials: dict[str, Credential] | None = None) -> None:
        self._kept = dict(credentials or {})
        self._locks: dict[str, asyncio.Lock] = {}

    def read(self, provider: str) -> Credential | None:
        return self._kept.get(provider)

    def list(self) -> dict[str, str]:
        return {provider: credential.kind for provider, credential in self._kept.items()}

    async def modify(self, provider: str, change: Change) -> Credential | None:
        async with self._locks.setdefault(provider, asyncio.Lock()):
            changed = await change(self._kept.get(provider))
            if changed is not None:
                self._kept[provider] = changed
            return self._kept.get(provider)

    async def delete(self, provider: str) -> bool:
        return self._kept.pop(provider, None) is not None


class _File(Struct, kw_only=True, omit_defaults=True):
    """What the file holds."""

    version: int = 1
    providers: dict[str, Credential] = {}


class FileCredentialStore:
    """Keeps credentials in one JSON file with mode 0600, replaced as a whole, so that a crash leaves the old or the new one.

    Locks are files beside it (`auth.json.<provider>.lock`); they work between threads, event loops and processes. A file that cannot be
    read as what it should be is reported and never overwritten.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._read: tuple[tuple[int, int, int], dict[str, Credential]] | None = None

    def __repr__(self) -> str:
        return f"FileCredentialStore({str(self.path)!r})"

    def read(self, provider: str) -> Credential | None:
        return self._load().get(provider)

    def list(self) -> dict[str, str]:
        return {provider: credential.kind for provider, credential in self._load().items()}

    async def modify(self, provider: str, change: Change) -> Credential | None:
        async with _locked(self._lock_path(provider)):
            changed = await change(self._load().get(provider))
            if changed is not None:
                await self._write(provider, changed)
            return self._load().get(provider)

    async def delete(self, provider: str) -> bool:
        async with _locked(self._lock_path(provider)):
            if provider not in self._load():
                return False
            await self._write(provider, None)
            return True

    def _load(self) -> dict[str, Credential]:
        try:
            found = self.path.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if self._read is not None and self._read[0] == stamp:
                return self._read[1]
            kept = msgspec.json.decode(self.path.read_bytes(), type=_File)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            kind = error.strerror if isinstance(error, OSError) else "it is not what laneway wrote"  # the decoder's own text could quote a key
            raise ModelError(f"the stored keys in {self.path} cannot be read ({kind}); repair or remove the file") from None
        if kept.version != 1:
            raise ModelError(f"the stored keys in {self.path} were written by a newer laneway (version {kept.version}); upgrade laneway")
        self._read = (stamp, kept.providers)
        return kept.providers

    def _lock_path(self, name: str) -> Path:
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        return self.path.with_name(f"{self.path.name}.{safe}.lock")

    async def _write(self, provider: str, credential: Credential | None) -> None:
        """Put one provider's credential into the file as it is now; the short lock is for writers of other providers."""
        async with _locked(self.path.with_name(f"{self.path.name}.lock")):
            kept = dict(self._load())
            if credential is None:
                kept.pop(provider, None)
            else:
                kept[provider] = credential
            self._read = None
            _replace(self.path, msgspec.json.format(msgspec.json.encode(_File(providers=kept)), indent=2))


def _replace(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read; it is complete on disk before it takes the old one's place."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


@asynccontextmanager
async def _locked(path: Path) -> AsyncGenerator[None]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        give_up = time.monotonic() + LOCK_SECONDS
        while not _try_lock(handle):
            if time.monotonic() > give_up:
                raise ModelError(f"another process has held the lock on the stored keys ({path}) for {LOCK_SECONDS:.0f} s; end it and try again")
            await asyncio.sleep(0.02)
        yield
    finally:
        os.close(handle)  # releases the lock


def _try_lock(handle: int) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - Windows only
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class KeyringCredentialStore:
    """Keeps credentials in the system's keyring, through the package `keyring`. What was read stays in memory.

    Raises:
        ModelError: `keyring` is not installed, or the system has no keyring.
    """

    def __init__(self, service: str = "laneway") -> None:
        try:
            import keyring  # pyright: ignore[reportMissingImports] - optional: not a dependency of laneway
        except ImportError:
            raise ModelError("keys cannot be kept in the system's keyring: pip install keyring, or unset LANEWAY_CREDENTIALS") from None
        self._ring: Any = keyring
        self._service = service
        self._cache: dict[str, Credential | None] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def read(self, provider: str) -> Credential | None:
        if provider not in self._cache:
            text = self._get(provider)
            self._cache[provider] = msgspec.json.decode(text, type=Credential) if text else None
        return self._cache[provider]

    def list(self) -> dict[str, str]:
        kept = {name: self.read(name) for name in self._names()}
        return {name: credential.kind for name, credential in kept.items() if credential is not None}

    async def modify(self, provider: str, change: Change) -> Credential | None:
        async with self._locks.setdefault(provider, asyncio.Lock()):
            self._cache.pop(provider, None)
            changed = await change(self.read(provider))
            if changed is not None:
                self._set(provider, msgspec.json.encode(changed).decode())
                self._set(_INDEX, " ".join(sorted({*self._names(), provider})))
                self._cache.pop(provider, None)
            return self.read(provider)

    async def delete(self, provider: str) -> bool:
        if self.read(provider) is None:
            return False
        self._ring.delete_password(self._service, provider)
        self._set(_INDEX, " ".join(name for name in self._names() if name != provider))
        self._cache.pop(provider, None)
        return True

    def _names(self) -> list[str]:
        return (self._get(_INDEX) or "").split()

    def _get(self, name: str) -> str | None:
        try:
            return self._ring.get_password(self._service, name)
        except Exception as error:  # every keyring backend has errors of its own
            raise ModelError(f"the system's keyring cannot be read ({type(error).__name__}); unset LANEWAY_CREDENTIALS to use a file") from None

    def _set(self, name: str, text: str) -> None:
        try:
            self._ring.set_password(self._service, name, text)
        except Exception as error:
            raise ModelError(f"the system's keyring cannot be written ({type(error).__name__}); unset LANEWAY_CREDENTIALS to use a file") from None


_INDEX = "laneway:providers"
"""A keyring cannot be listed, so the names of what is in it are kept beside it."""


def default_credential_store() -> CredentialStore:
    """Return the person's own store: `auth.json` in the configuration folder, or the keyring with `LANEWAY_CREDENTIALS=keyring`."""
    from laneway.llm._paths import config_dir

    if os.environ.get("LANEWAY_CREDENTIALS", "").strip().lower() == "keyring":
        return KeyringCredentialStore()
    return FileCredentialStore(config_dir() / "auth.json")
