"""The registry: which providers and models there are, and the one door through which a model is asked.

Everything is looked up when it is needed: a provider's shard when its models are asked for, a wire when a model of it is first called.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from laneway.errors import LanewayError, ModelError
from laneway.llm._auth import Auth, authorise, fresh_credential, needs_refresh
from laneway.llm._credentials import CredentialStore, default_credential_store
from laneway.llm._fetched import FetchedLists
from laneway.llm._late import as_stream, explained_stream, failed_stream, late_stream
from laneway.llm._provider import Provider, RefreshContext
from laneway.llm._specs import split_level, split_provider, unknown_model, unknown_provider
from laneway.llm.base import AssistantStream, Model, ProviderFailure, ResponseStream, StreamFn, StreamOptions, Transcript
from laneway.messages import DeferredHandle

if TYPE_CHECKING:
    pass

ModelList: TypeAlias = "list[Model]"  # inside `Models`, `list` is a method
ProviderList: TypeAlias = "list[Provider]"


class RefreshResult(Struct, kw_only=True, frozen=True):
    """What `Models.refresh` did: how many models each provider listed, and why a provider could not. Lists of providers in `errors` are as before."""

    counts: dict[str, int]
    errors: dict[str, str]


class Models:
    """Providers and models by name, and the way to ask one.

    Without arguments it has the providers that laneway knows, the person's own from `models.toml`, stored keys and the environment; with
    `builtin=False` nothing but what is set. `env` goes over the process's environment. Safe to use from several threads.
    """

    def __init__(
        self,
        *,
        builtin: bool = True,
        credentials: CredentialStore | None = None,
        env: Mapping[str, str] | None = None,
        config_dir: Path | str | None = None,
        cache_dir: Path | str | None = None,
    ) -> None:
        self._builtin = builtin
        self._credentials = credentials
        self._env = dict(env or {})
        self._config_dir = Path(config_dir) if config_dir is not None else None
        self._lock = threading.RLock()
        self._set: dict[str, Provider] = {}
        self._loaded: dict[str, Provider] | None = None
        self._added: dict[str, dict[str, Model]] = {}
        self._lists: dict[str, dict[str, Model]] = {}
        self._fetched = FetchedLists(Path(cache_dir) if cache_dir is not None else None, enabled=builtin)
        self._generation: dict[str, int] = {}

    # -- providers and models

    @property
    def credentials(self) -> CredentialStore:
        """Where stored keys are."""
        if self._credentials is None:
            from laneway.llm._credentials import MemoryCredentialStore

            self._credentials = default_credential_store() if self._builtin else MemoryCredentialStore()
        return self._credentials

    def providers(self) -> ProviderList:
        """Return every provider, laneway's own first."""
        return list(self._providers().values())

    def provider(self, provider: str) -> Provider | None:
        """Return a provider by id, None if there is none."""
        return self._set.get(provider) or self._providers().get(provider)

    def set_provider(self, provider: Provider) -> None:
        """Register a provider; one of the same id is replaced, and what a refresh of the old one still fetches is dropped."""
        with self._lock:
            if provider.id in self._providers():
                self._fetched.forget(provider.id)
            self._set[provider.id] = provider
            self._loaded = None
            self._supersede(provider.id)

    def remove_provider(self, provider: str) -> None:
        """Forget a provider that was set and its added models; a built-in one of that id shows again."""
        with self._lock:
            self._set.pop(provider, None)
            self._added.pop(provider, None)
            self._loaded = None
            self._supersede(provider)

    def add(self, model: Model) -> Model:
        """Add a model, or replace the one of its provider and id; what it leaves empty (wire, URL, headers, compat) is its provider's.

        Returns the model as it will be found. A provider that nobody registered is fine if the model says its wire and URL.

        Raises:
            ModelError: the model can never be asked.
        """
        known = self.provider(model.provider)
        if known is None and not (model.api and model.base_url):
            raise ModelError(f"{model.spec} cannot be added: there is no provider {model.provider!r}, so the model needs `api` and `base_url`")
        with self._lock:
            self._added.setdefault(model.provider, {})[model.id] = model
            self._lists.pop(model.provider, None)
        return _complete(known, model)

    def get(self, provider: str, model_id: str) -> Model | None:
        """Return a model, None if the provider has none of that id. An open-ended provider has every id."""
        found = self._models(provider).get(model_id)
        if found is not None:
            return found
        known = self.provider(provider)
        return known.model(model_id) if known is not None and known.open_ended and model_id.strip() else None

    def list(self, provider: str | None = None) -> ModelList:
        """Return the models of one provider, or of all. A provider whose list fails has none; the others are not affected."""
        if provider is not None:
            return [*self._models(provider).values()]
        names = dict.fromkeys([*self._providers(), *self._added])
        return [model for name in names for model in self._models(name).values()]

    def model(self, spec: str) -> Model:
        """Return the model that a spec names: `provider/id`, or `provider/id:level` for a default thinking level.

        Ids may hold slashes and colons; only a thinking level is split off, and only where no model has the whole as its id.

        Raises:
            ModelNotFound: there is none; the text lists near names.
        """
        provider, model_id = split_provider(spec)
        known = self._models(provider)
        if model_id in known:
            return known[model_id]
        bare, level = split_level(model_id)
        if level is not None and (found := self.get(provider, bare)) is not None:
            return replace(found, default_thinking_level=level)
        if (found := self.get(provider, model_id)) is not None:
            return found
        if self.provider(provider) is None and not known:
            raise unknown_provider(spec, provider, self._providers())
        raise unknown_model(spec, provider, bare, known)

    def get_available(self) -> ModelList:
        """Return the models that could be asked right now: those whose provider is configured. No network is used."""
        return [model for provider in self.providers() if self.is_configured(provider) for model in self._askable(provider)]

    def _askable(self, provider: Provider) -> ModelList:
        models = self.list(provider.id)
        return [model for model in models if model.base_url] if models and self._lacks_url(provider) else models

    def _lacks_url(self, provider: Provider) -> bool:
        """Whether nobody has said yet where the provider is reached."""
        if provider.base_url or not provider.base_url_env:
            return False
        auth = authorise(provider, credential=self.credentials.read(provider.id), env=self._env)
        return auth is None or not auth.base_url

    def is_configured(self, provider: Provider) -> bool:
        """Whether requests to the provider can be authorised with what is there, and its optional parts are installed."""
        try:
            if provider.available is not None and not provider.available():
                return False
            return authorise(provider, credential=self.credentials.read(provider.id), env=self._env) is not None
        except LanewayError:
            return False

    # -- asking

    def stream(self, model: Model, transcript: Transcript, options: StreamOptions | None = None) -> AssistantStream:
        """Ask a model. Never raises: an unknown provider, a missing key, a wire that is not there end the stream with an error that says what to do.

        The options win over what the registry finds: `api_key`, `headers`, `env`; a `base_url` of the model's own is kept.
        """
        options = options or StreamOptions()
        try:
            provider = self.provider(model.provider)
            if provider is not None and self._must_wait(provider, model, options):
                return late_stream(model, options, lambda: self._open_later(provider, model, transcript, options))
            return as_stream(self._open(provider, model, transcript, options, self._auth(provider, options)), model, options)
        except Exception as error:
            return failed_stream(model, error, options)

    def _must_wait(self, provider: Provider, model: Model, options: StreamOptions) -> bool:
        """Whether something slow comes before the request: a server to start, a login to refresh."""
        if provider.prepare is not None:
            return True
        return provider.oauth is not None and options.api_key is None and needs_refresh(self.credentials.read(provider.id))

    async def _open_later(self, provider: Provider, model: Model, transcript: Transcript, options: StreamOptions) -> ResponseStream:
        credential = None if options.api_key else await fresh_credential(provider, self.credentials)
        auth = authorise(provider, api_key=options.api_key, credential=credential, env=self._request_env(options))
        if provider.prepare is not None:
            prepared = await provider.prepare(model)
            model = prepared.model
            auth = replace(auth or Auth(), api_key=options.api_key or prepared.api_key or (auth.api_key if auth is not None else None))
        opened = self._open(provider, model, transcript, options, auth)
        return await opened if isinstance(opened, Awaitable) else opened

    def _auth(self, provider: Provider | None, options: StreamOptions) -> Auth | None:
        if provider is None:
            return None
        credential = None if options.api_key or provider.stream_fn is not None else self.credentials.read(provider.id)
        return authorise(provider, api_key=options.api_key, credential=credential, env=self._request_env(options))

    def _request_env(self, options: StreamOptions) -> Mapping[str, str]:
        return {**self._env, **(options.env or {})}

    def _open(
        self, provider: Provider | None, model: Model, transcript: Transcript, options: StreamOptions, auth: Auth | None
    ) -> ResponseStream | Awaitable[ResponseStream]:
        """Start the request, everything it needs being known."""
        if provider is None and not model.base_url:
            raise unknown_provider(model.spec, model.provider, self._providers())
        model, options = _authorised(provider, _complete(provider, model), options, auth)
        stream_fn = provider.stream_fn if provider is not None else None
        if stream_fn is None:
            from laneway.llm._guided import with_guidance
            from laneway.llm.wire import load_wire

            stream_fn = with_guidance(load_wire(model.api), model)
            if provider is not None and _sends_no_key(provider, model, options, auth):
                opened = as_stream(stream_fn(model, transcript, options), model, options)
                return explained_stream(opened, options, f"No key was sent, for none was found: {_ways_to_a_key(provider)}.")
        return stream_fn(model, transcript, options)

    async def get_auth(self, provider: str | Model, *, api_key: str | None = None) -> Auth | None:
        """Return how requests to a provider (or a model's) are authorised; None if it is unknown or nothing is configured.

        A stored login is refreshed if it must be.

        Raises:
            ModelError: what is configured cannot be used.
        """
        name = provider.provider if isinstance(provider, Model) else provider
        known = self.provider(name)
        if known is None:
            return None
        credential = None if api_key else await fresh_credential(known, self.credentials)
        return authorise(known, api_key=api_key, credential=credential, env=self._env)

    # -- deferred responses

    def fetch_deferred(self, handle: DeferredHandle, options: StreamOptions | None = None) -> AssistantStream:
        """Ask for a deferred response. The stream ends `deferred` again while it is not ready. Never raises."""
        options = options or StreamOptions()
        model = Model(id=handle.model_id, provider=handle.provider, api=handle.api)
        try:
            known = self.get(handle.provider, handle.model_id)
            deferred = self._deferred(handle)
            return as_stream(deferred.fetch(known, handle, options), known or model, options)
        except Exception as error:
            return failed_stream(model, error, options)

    async def cancel_deferred(self, handle: DeferredHandle, options: StreamOptions | None = None) -> None:
        """Tell the provider that a deferred response is no longer wanted; best effort.

        Raises:
            ModelError: the provider has no deferred responses, or refuses.
        """
        await self._deferred(handle).cancel(handle, options or StreamOptions())

    def _deferred(self, handle: DeferredHandle) -> Any:
        provider = self.provider(handle.provider)
        if provider is None:
            raise unknown_provider(f"{handle.provider}/{handle.model_id}", handle.provider, self._providers())
        if provider.deferred is None:
            raise ModelError(f"{provider.id} cannot complete responses later: register a provider with `deferred` operations for {handle.id!r}")
        return provider.deferred

    # -- refreshing lists

    async def refresh(self, provider: str | None = None, *, offline: bool = False) -> RefreshResult:
        """Fetch the model lists of one provider, or of every provider that is configured and can list; with `offline` only read what was kept.

        A list that was fetched goes over the built-in one and is kept for later processes. A failure leaves the list as it was, and a fetch
        that a newer refresh, `set_provider` or `remove_provider` overtook is dropped.
        """
        everyone = (known for known in self.providers() if self.is_configured(known) and not self._lacks_url(known))
        wanted = [self.provider(provider)] if provider is not None else list(everyone)
        counts: dict[str, int] = {}
        errors: dict[str, str] = {}
        for known in wanted:
            if known is None or known.refresh is None:
                if provider is not None:
                    errors[provider] = "there is no such provider" if known is None else "its list cannot be fetched; it comes with laneway"
                continue
            try:
                counts[known.id] = await self._refresh_one(known, offline)
            except Exception as error:
                errors[known.id] = str(error) or type(error).__name__
        return RefreshResult(counts=counts, errors=errors)

    async def _refresh_one(self, provider: Provider, offline: bool) -> int:
        assert provider.refresh is not None
        with self._lock:
            generation = self._supersede(provider.id)
        if offline:
            self._fetched.restore(provider.id)
        else:
            if self._lacks_url(provider):
                raise ModelError(f"nobody has said where it is; set {provider.base_url_env[0]}")
            auth = await self.get_auth(provider.id) or Auth()
            context = RefreshContext(
                provider=provider.id, base_url=(auth.base_url or provider.base_url).rstrip("/"), api_key=auth.api_key, headers=auth.headers
            )
            found = await provider.refresh(context)
            with self._lock:
                if self._generation.get(provider.id) == generation:
                    self._fetched.keep(provider.id, found)
                    self._lists.pop(provider.id, None)
        return len(self._models(provider.id))

    def _supersede(self, provider: str) -> int:
        """Make a refresh of the provider that is under way one of the past."""
        self._lists.pop(provider, None)
        self._generation[provider] = self._generation.get(provider, 0) + 1
        return self._generation[provider]

    # -- lists

    def _providers(self) -> dict[str, Provider]:
        loaded = self._loaded
        if loaded is None:
            with self._lock:
                loaded = {**(self._load_builtin() if self._builtin else {}), **self._set}
                self._loaded = loaded
        return loaded

    def _load_builtin(self) -> dict[str, Provider]:
        from laneway.llm._paths import config_dir
        from laneway.llm.catalog import user_models
        from laneway.llm.vendors import builtin_providers

        own = user_models((self._config_dir or config_dir()) / "models.toml")
        for model in own.models:
            self._added.setdefault(model.provider, {}).setdefault(model.id, model)
        theirs = {
            entry.id: Provider(
                id=entry.id, name=entry.name, base_url=entry.base_url, api=entry.api, headers=entry.headers, compat=entry.compat,
                keys=(entry.key_env,) if entry.key_env else (), key_optional=entry.key_env is None, open_ended=True,
            )
            for entry in own.providers
        }  # fmt: skip
        return {**builtin_providers(), **theirs}

    def _models(self, provider: str) -> dict[str, Model]:
        """The models of a provider by id: its own list, what was fetched over it, what was added over both."""
        found = self._lists.get(provider)
        if found is None:
            with self._lock:
                known = self._providers().get(provider)
                layers = (
                    _safely(known),
                    self._fetched.get(provider) if known is not None and known.refresh else (),
                    self._added.get(provider, {}).values(),
                )
                found = {model.id: _complete(known, model) for layer in layers for model in layer}
                self._lists[provider] = found
        return found


def _safely(provider: Provider | None) -> Iterable[Model]:
    try:
        return list(provider.models()) if provider is not None else ()
    except Exception:  # a provider's list is somebody's code: without it the provider has no models, and everything else still works
        return ()


def _complete(provider: Provider | None, model: Model) -> Model:
    """Fill in what the model leaves to its provider."""
    if provider is None:
        return model
    return replace(
        model,
        api=model.api or provider.api,
        base_url=model.base_url or provider.base_url,
        name=model.name or model.id,
        headers={**provider.headers, **model.headers} if provider.headers else model.headers,
        compat={**provider.compat, **model.compat} if provider.compat else model.compat,
    )


_KEY_HEADERS = frozenset({"authorization", "api-key", "x-api-key", "x-goog-api-key", "cf-aig-authorization"})
"""Headers that authorise a request by themselves, whichever wire it goes over."""


def _authorised(provider: Provider | None, model: Model, options: StreamOptions, auth: Auth | None) -> tuple[Model, StreamOptions]:
    """Lay the authorisation under the model and the options.

    Raises:
        ProviderFailure: the provider needs a key and there is none.
    """
    if provider is None or provider.stream_fn is not None:
        return model, options
    if auth is None:
        from laneway.llm._http import is_local

        if provider.key_optional or _has_key_header(model, options) or is_local(model.base_url):
            return model, options
        raise ProviderFailure(missing_key(provider), kind="auth")
    if auth.base_url and model.base_url == provider.base_url:
        model = replace(model, base_url=auth.base_url)
    headers = options.headers
    if auth.headers:  # they go into the options, which never show them: a model's headers are seen by callbacks
        layers = (auth.headers, model.headers, options.headers or {})
        headers = {name.lower(): value for layer in layers for name, value in layer.items()}
    env = {**auth.env, **(options.env or {})} if auth.env else options.env
    return model, replace(options, api_key=options.api_key or auth.api_key, headers=headers, env=env)


def missing_key(provider: Provider) -> str:
    """Return the sentence that says how to give a provider its key."""
    return f"{provider.name or provider.id} is not configured: no key was found for {provider.id}; {_ways_to_a_key(provider)}"


def _ways_to_a_key(provider: Provider) -> str:
    ways = [f"set {' or '.join(provider.key_names)}"] if provider.key_names else []
    ways += ["store one", "pass api_key"]
    source = f" ({provider.help})" if provider.help else ""
    return f"{', '.join(ways[:-1])} or {ways[-1]}{source}"


def _has_key_header(model: Model, options: StreamOptions) -> bool:
    return any(value and name.lower() in _KEY_HEADERS for name, value in {**model.headers, **(options.headers or {})}.items())


def _sends_no_key(provider: Provider, model: Model, options: StreamOptions, auth: Auth | None) -> bool:
    """Whether the request goes out without a key because there is none, and not because the provider is authorised in another way."""
    if options.api_key or provider.ambient is not None or (auth is not None and auth.headers):
        return False
    return not _has_key_header(model, options)


# ---------------------------------------------------------------------------------------------------- the default

_default: Models | None = None
_default_stream_fn: StreamFn | None = None
_default_lock = threading.Lock()


def default_models() -> Models:
    """Return the registry that `laneway.model` and agents without one of their own use."""
    global _default
    if _default is None:
        with _default_lock:
            _default = _default or Models()
    return _default


def model(spec: str) -> Model:
    """Return a model of the default registry; see `Models.model`.

    Raises:
        ModelNotFound: there is none; the text lists near names.
    """
    return default_models().model(spec)


def set_default_stream_fn(stream_fn: StreamFn | None) -> None:
    """Set what asks a model where nothing else was given; None goes back to the default registry's `stream`."""
    global _default_stream_fn
    _default_stream_fn = stream_fn


def get_default_stream_fn() -> StreamFn:
    """Return what asks a model where nothing else was given."""
    return _default_stream_fn or default_models().stream
