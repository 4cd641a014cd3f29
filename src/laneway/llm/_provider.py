"""What a provider is: where its models are reached, how it is paid for, and what it can do beyond a stream. Mostly data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from msgspec import Struct

from laneway.llm.base import Model, ResponseStream, StreamFn, StreamOptions
from laneway.messages import DeferredHandle

if TYPE_CHECKING:
    from laneway.llm._auth import Auth, AuthRequest, Credential


@dataclass(frozen=True, kw_only=True)
class EnvKey:
    """An environment variable that holds a provider's key. `bearer`: it is sent as `Authorization: Bearer …`, whatever the wire does with keys."""

    name: str
    bearer: bool = False


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A value that a provider needs beside a key: `name` is what wires and base URL templates call it, `env` where else it is looked for.

    One without a value and without a `default` is an error only where a base URL needs it.
    """

    name: str
    env: tuple[str, ...]
    default: str | None = None


class OAuthHandler(Protocol):
    """What somebody who brings a login implements. laneway has no login flow of its own; it keeps what one gave fresh."""

    async def refresh(self, credential: Credential) -> Credential:
        """Return a fresh credential for one that is about to expire. Called once at a time, and never cancelled once it runs."""
        ...

    def auth(self, credential: Credential) -> Auth:
        """Return how a request is authorised with the credential."""
        ...


class RefreshContext(Struct, kw_only=True, frozen=True):
    """What a provider's `refresh` gets: where it is reached and how it is paid for."""

    provider: str
    base_url: str
    api_key: str | None = None
    headers: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"RefreshContext({self.provider!r}, {self.base_url!r})"


class PreparedModel(Struct, kw_only=True, frozen=True):
    """What a provider's `prepare` gives: the model as it is to be asked, and the key of its server if it has one of its own."""

    model: Model
    api_key: str | None = None

    def __repr__(self) -> str:
        return f"PreparedModel({self.model.spec!r})"


class DeferredOps(Protocol):
    """How a provider completes responses later. `fetch` gives a stream that ends `deferred` again or with the final message."""

    def fetch(self, model: Model | None, handle: DeferredHandle, options: StreamOptions) -> ResponseStream | Awaitable[ResponseStream]: ...
    async def cancel(self, handle: DeferredHandle, options: StreamOptions) -> None: ...


AuthResolver: TypeAlias = "Callable[[AuthRequest], Auth | None]"
Prepare: TypeAlias = "Callable[[Model], Awaitable[PreparedModel]]"
Refresh: TypeAlias = Callable[[RefreshContext], Awaitable[Sequence[Model]]]


def _no_models() -> Iterable[Model]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A provider of models. Only `id` is needed; most providers are nothing but data.

    Where:
        api: the wire of models that name none. base_url: may hold `{setting}` placeholders; `base_url_env` are variables that replace it.
        headers, compat: for every model of the provider; a model's own win.
    Paid how:
        keys: variables that may hold the key, first set one wins. settings: further values. key_optional: works without a key.
        auth: replaces the look-up in the environment. oauth: handles stored logins. ambient: the wire finds credentials itself.
        help: where to get a key, one short phrase for error texts.
    Models:
        models: the list, cheap after the first call; an exception in it means no models. open_ended: ids outside of the list are models too.
        refresh: fetches the list over the network. default_model: the id to try when the person names only the provider.
    Beyond data:
        stream_fn: asks the model instead of a wire, and needs no key. prepare: runs before a request and may change the model (a server
            is started, a URL becomes known). deferred: fetches and cancels deferred responses. available: False hides the models from
            `Models.get_available`. extra: the optional dependency that the provider needs.
    """

    id: str
    name: str = ""
    api: str = "openai_chat"
    base_url: str = ""
    base_url_env: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    compat: Mapping[str, Any] = field(default_factory=dict[str, Any])
    keys: tuple[str | EnvKey, ...] = ()
    settings: tuple[Setting, ...] = ()
    key_optional: bool = False
    auth: AuthResolver | None = None
    oauth: OAuthHandler | None = None
    ambient: Callable[[Mapping[str, str]], str | None] | None = None
    help: str = ""
    models: Callable[[], Iterable[Model]] = _no_models
    open_ended: bool = False
    refresh: Refresh | None = None
    default_model: str = ""
    stream_fn: StreamFn | None = None
    prepare: Prepare | None = None
    deferred: DeferredOps | None = None
    available: Callable[[], bool] | None = None
    extra: str | None = None

    def __post_init__(self) -> None:
        if not self.id or "/" in self.id:
            raise ValueError(f"a provider needs an id without a slash, not {self.id!r}: model specs are written provider/model-id")

    @property
    def key_names(self) -> list[str]:
        """The names of the variables that may hold the key."""
        return [key if isinstance(key, str) else key.name for key in self.keys]

    def model(self, model_id: str, **fields: Any) -> Model:
        """Return a model of this provider; what is not given is the provider's."""
        given: dict[str, Any] = {"provider": self.id, "api": self.api, "base_url": self.base_url, "name": model_id, **fields}
        given["headers"] = {**self.headers, **fields.get("headers", {})}
        given["compat"] = {**self.compat, **fields.get("compat", {})}
        return Model(id=model_id, **given)
