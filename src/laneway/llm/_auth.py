"""How a request is paid for: an explicit key, else what is stored for the provider, else the environment; never a guess beyond that.

A stored credential owns its provider: if it cannot be used, the environment is not tried behind the person's back.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import ChainMap
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from laneway.errors import ModelError
from laneway.llm._credentials import Credential, CredentialStore
from laneway.llm._errors import redact
from laneway.llm._provider import EnvKey, OAuthHandler, Provider

REFRESH_EARLY_MS = 5 * 60 * 1000
"""A login is refreshed when it has less than this left."""
REFRESH_SECONDS = 15.0
_PLACEHOLDER = re.compile(r"\A<.*>\Z")
_FIELD = re.compile(r"\{(\w+)\}")
_T = TypeVar("_T")


class Auth(Struct, kw_only=True, frozen=True):
    """How one request is authorised. `source` says in words where the key came from and may be shown; the rest may not.

    `headers` go under the model's and the request's own. `base_url`, where it is not empty, is where the provider is reached with this key.
    `env` are the provider's settings by name (see `Setting`).
    """

    api_key: str | None = None
    headers: dict[str, str] = {}
    base_url: str = ""
    env: dict[str, str] = {}
    source: str = ""

    def __repr__(self) -> str:
        return f"Auth(source={self.source!r})"


class AuthRequest(Struct, kw_only=True, frozen=True):
    """What a provider's own `auth` resolver gets. `env` is the process's environment under the request's own values."""

    provider: Provider
    env: Mapping[str, str]
    api_key: str | None = None
    credential: Credential | None = None

    def __repr__(self) -> str:
        return f"AuthRequest({self.provider.id!r})"


def env_value(env: Mapping[str, str], *names: str) -> str | None:
    """Return the first variable that is set; one that is blank, or a `<placeholder>` left in an example, counts as unset."""
    for name in names:
        value = env.get(name, "").strip()
        if value and not _PLACEHOLDER.match(value):
            return value
    return None


def environment(*over: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the process's environment under the given values, the first one on top."""
    return ChainMap(*(dict(layer) for layer in over if layer), os.environ)  # pyright: ignore[reportArgumentType] - only ever read


def needs_refresh(credential: Credential | None) -> bool:
    """Whether a stored login has (almost) expired."""
    if credential is None or credential.kind != "oauth" or credential.expires_at is None:
        return False
    return credential.expires_at - REFRESH_EARLY_MS <= time.time_ns() // 1_000_000


def authorise(
    provider: Provider, *, api_key: str | None = None, credential: Credential | None = None, env: Mapping[str, str] | None = None
) -> Auth | None:
    """Return how a request to the provider is authorised; None if nothing is configured. `credential` must be fresh.

    Raises:
        ModelError: what is configured cannot be used (a setting is missing, a login needs a handler that failed).
    """
    stored = credential.env if credential is not None else None
    request = AuthRequest(provider=provider, env=environment(env, stored), api_key=_clean(api_key), credential=credential)
    try:
        if provider.auth is not None and (request.api_key is not None or credential is None or credential.kind == "api_key"):
            found = provider.auth(request)
        else:
            found = authorise_plainly(request)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{provider.id}: working out how to authorise the request failed: {type(error).__name__}: {error}") from error
    return None if found is None else _complete(found, request)


def _clean(key: str | None) -> str | None:
    return (key or "").strip() or None


def authorise_plainly(request: AuthRequest) -> Auth | None:
    """Do what is done for a provider without an `auth` resolver of its own: the explicit key, what is stored, the environment."""
    provider, credential = request.provider, request.credential
    if request.api_key is not None:
        return Auth(api_key=request.api_key, source="explicit key")
    if credential is not None and credential.kind == "oauth":
        return provider.oauth.auth(credential) if provider.oauth is not None else None
    if credential is not None and _clean(credential.key) is not None:
        return Auth(api_key=_clean(credential.key), source="stored key")
    return from_environment(provider, request.env)


def from_environment(provider: Provider, env: Mapping[str, str]) -> Auth | None:
    """Return what the environment alone gives: the first key that is set, else ambient credentials, else nothing where none is needed."""
    for key in provider.keys:
        key = EnvKey(name=key) if isinstance(key, str) else key
        value = env_value(env, key.name)
        if value is not None and key.bearer:
            return Auth(headers={"authorization": f"Bearer {value}"}, source=key.name)
        if value is not None:
            return Auth(api_key=value, source=key.name)
    if provider.ambient is not None:
        where = provider.ambient(env)
        return Auth(source=where) if where else None
    return Auth(source="no key needed") if provider.key_optional or provider.stream_fn is not None else None


def _complete(auth: Auth, request: AuthRequest) -> Auth:
    """Add the provider's settings and the URL that they make."""
    settings = {**provider_settings(request.provider, request.env), **auth.env}
    return replace(auth, env=settings, base_url=auth.base_url or base_url(request.provider, request.env, settings))


def provider_settings(provider: Provider, env: Mapping[str, str]) -> dict[str, str]:
    """Return the provider's settings that are set, by their names."""
    found = ((setting.name, env_value(env, setting.name, *setting.env) or setting.default) for setting in provider.settings)
    return {name: value for name, value in found if value is not None}


def base_url(provider: Provider, env: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """Return where the provider is reached.

    Raises:
        ModelError: the URL has a placeholder for a setting that is not set.
    """
    named = env_value(env, *provider.base_url_env) if provider.base_url_env else None
    url = (named if "://" in named else f"http://{named}") if named else provider.base_url
    for name in _FIELD.findall(url):
        if name not in settings:
            variables = next((" or ".join(setting.env) for setting in provider.settings if setting.name == name and setting.env), name)
            raise ModelError(f"{provider.id} needs {variables} to know where to send requests; set it in the environment")
        url = url.replace("{" + name + "}", settings[name])
    return url


# ---------------------------------------------------------------------------------------------------- logins

_refreshing: set[asyncio.Task[Any]] = set()


async def fresh_credential(provider: Provider, store: CredentialStore) -> Credential | None:
    """Return the provider's stored credential, refreshed (and stored again) if it is about to expire.

    One refresh at a time over tasks and processes; whoever waited uses the result. Once begun it is finished even if
    the caller is cancelled, because the provider may have replaced the old token already.

    Raises:
        ModelError: the refresh failed; what is stored is left as it was.
    """
    credential, handler = store.read(provider.id), provider.oauth
    if handler is None or not needs_refresh(credential):
        return credential

    async def change(stored: Credential | None) -> Credential | None:
        return await _refresh(provider, handler, stored) if stored is not None and needs_refresh(stored) else None

    return await _to_the_end(store.modify(provider.id, change))


async def _refresh(provider: Provider, handler: OAuthHandler, stored: Credential) -> Credential:
    try:
        async with asyncio.timeout(REFRESH_SECONDS):
            return await handler.refresh(stored)
    except Exception as error:
        secrets = [secret for secret in (stored.key, stored.refresh_token) if secret]
        cause = redact(f"{type(error).__name__}: {error}", secrets)
        why = f"no answer in {REFRESH_SECONDS:.0f} s" if isinstance(error, TimeoutError) else cause
        raise ModelError(f"{provider.id}: the login has expired and could not be refreshed ({why}); log in again") from None


async def _to_the_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Await work that goes on by itself if the awaiting task is cancelled."""
    task = asyncio.ensure_future(work)
    _refreshing.add(task)
    task.add_done_callback(_finished)
    return await asyncio.shield(task)


def _finished(task: asyncio.Task[Any]) -> None:
    _refreshing.discard(task)
    if not task.cancelled():
        task.exception()  # looked at here, because the caller may be gone
