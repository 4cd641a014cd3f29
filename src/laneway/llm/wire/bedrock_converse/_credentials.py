"""AWS credentials and signatures, through botocore (the extra `bedrock`), found the way AWS's own tools find them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from laneway.llm._auth import env_value
from laneway.llm._errors import redact
from laneway.llm._http import HttpRequest
from laneway.llm.base import ProviderFailure

SERVICE = "bedrock"
_UNSIGNED = frozenset({"accept", "accept-encoding", "connection", "content-length", "user-agent"})
"""Headers that a machine on the way may change; they are sent, but no part of the signature."""
_HOW = "set AWS_BEARER_TOKEN_BEDROCK, AWS_PROFILE, or AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, or run `aws configure`"
_FILES = (("AWS_SHARED_CREDENTIALS_FILE", "credentials_file", "credentials"), ("AWS_CONFIG_FILE", "config_file", "config"))


class Credentials(Struct, kw_only=True, frozen=True):
    """What a request is signed with."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return "Credentials(***)"


class Place(Struct, kw_only=True, frozen=True):
    """Where credentials are looked for. Files are named with the time of their last change: edited ones are read again.

    `explicit` says that the request itself names the profile, which then goes before keys in the environment.
    """

    profile: str | None
    explicit: bool
    files: tuple[tuple[str, str, int], ...]
    hints: tuple[str | None, ...]

    @property
    def promising(self) -> bool:
        """Whether anything says that there might be credentials."""
        return bool(self.profile) or any(changed for _, _, changed in self.files) or any(self.hints[:-1])


_ENV_HINTS = (
    "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_EC2_METADATA_DISABLED",
)  # fmt: skip
_known: dict[Place, tuple[Any, Any]] = {}
_lock = threading.Lock()
_KNOWN_LIMIT = 32


def installed() -> bool:
    """Whether botocore is there."""
    return find_spec("botocore") is not None


def find_place(env: Mapping[str, str], scoped: Mapping[str, str] | None) -> Place:
    """Return where to look, given the environment and (under it) what the request itself says."""
    explicit = env_value(scoped or {}, "profile", "AWS_PROFILE")
    files: list[tuple[str, str, int]] = []
    for variable, setting, name in _FILES:
        path = Path(env_value(env, variable) or Path.home() / ".aws" / name).expanduser()
        try:
            files.append((setting, str(path), path.stat().st_mtime_ns))
        except OSError:
            files.append((setting, str(path), 0))
    profile = explicit or env_value(env, "AWS_PROFILE", "AWS_DEFAULT_PROFILE")
    return Place(profile=profile, explicit=explicit is not None, files=tuple(files), hints=tuple(env.get(name) for name in _ENV_HINTS))


def profile_region(env: Mapping[str, str], scoped: Mapping[str, str] | None) -> str | None:
    """Return the region that the profile in the configuration files names. Blocking; None without botocore."""
    if not installed():
        return None
    try:
        region = _session(find_place(env, scoped)).get_config_variable("region")
    except Exception:  # a file that cannot be read, a profile that is not there: the look-up of credentials says so
        return None
    return region if isinstance(region, str) and region else None


def find_credentials(
    env: Mapping[str, str], scoped: Mapping[str, str] | None, provider: str, *, optional: bool = False
) -> Credentials | None:  # fmt: skip
    """Return credentials that are valid now, None if there are none. Blocking: files, processes and metadata services are asked.

    Keys in the environment are used as they are, unless the request itself names a profile. What botocore alone reads (the variables of roles,
    web identities and containers) it reads from the process's own environment. With `optional`, nothing is searched for where nothing says
    that there might be credentials.

    Raises:
        ProviderFailure: botocore is not installed, or the credentials that are configured cannot be used.
    """
    place = find_place(env, scoped)
    keys = env_value(env, "AWS_ACCESS_KEY_ID"), env_value(env, "AWS_SECRET_ACCESS_KEY")
    given = bool(keys[0] and keys[1]) and not place.explicit
    if optional and not given and not place.promising:
        return None
    if not installed():
        raise ProviderFailure(missing_botocore(provider), kind="configuration")
    if given:
        return Credentials(access_key=keys[0] or "", secret_key=keys[1] or "", token=env_value(env, "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"))
    try:
        found = _look_up(place)
        frozen = found.get_frozen_credentials() if found is not None else None
    except Exception as error:  # botocore's own errors, AWS's answers to it, files that cannot be read
        with _lock:
            _known.pop(place, None)
        raise _failure(error, provider) from None
    if frozen is None or not frozen.access_key:
        return None
    return Credentials(access_key=frozen.access_key, secret_key=frozen.secret_key, token=frozen.token)


def missing_botocore(provider: str) -> str:
    """Return the sentence that says what to install."""
    return f"{provider} needs botocore for AWS credentials: pip install 'laneway[bedrock]', or use a Bedrock API key (AWS_BEARER_TOKEN_BEDROCK)"


def no_credentials(provider: str) -> ProviderFailure:
    """Return the failure of a request for which nothing was found."""
    return ProviderFailure(f"{provider}: there are no AWS credentials; {_HOW}", kind="auth")


def forget_credentials() -> None:
    """Look for the credentials again at the next request."""
    with _lock:
        _known.clear()


def _look_up(place: Place) -> Any:
    """Return botocore's credentials, which refresh themselves; found once for each place."""
    with _lock:
        known = _known.get(place)
    if known is None:
        session = _session(place)
        known = session, session.get_credentials()
        if known[1] is not None:
            with _lock:
                while len(_known) >= _KNOWN_LIMIT:
                    _known.pop(next(iter(_known)))
                _known[place] = known
    return known[1]


def _session(place: Place) -> Any:
    session_type: Any = import_module("botocore.session").Session
    session = session_type(profile=place.profile if place.explicit else None)
    for setting, path, _ in place.files:
        session.set_config_variable(setting, path)
    if place.profile and not place.explicit:
        session.set_config_variable("profile", place.profile)
    return session


def _failure(error: Exception, provider: str) -> ProviderFailure:
    names = {cls.__name__ for cls in type(error).__mro__}
    text = redact(str(error) or type(error).__name__)
    if names & {"HTTPClientError", "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError"}:
        return ProviderFailure(f"{provider}: the server that gives AWS credentials was not reached: {text}", kind="network")
    how = "run `aws sso login`" if "SSO" in text or any("SSO" in name for name in names) else _HOW
    return ProviderFailure(f"{provider}: there are no usable AWS credentials ({text}); {how}", kind="auth")


# ---------------------------------------------------------------------------------------------------- signatures


def sign(request: HttpRequest, credentials: Credentials, region: str) -> HttpRequest:
    """Return the request with AWS's signature (version 4) over its body and headers."""
    kept = {
        name: value for name, value in request.headers.items()
        if name not in ("authorization", "host") and not name.startswith("x-amz-")
    }  # fmt: skip
    signer: Any = import_module("botocore.auth").SigV4Auth
    request_type: Any = import_module("botocore.awsrequest").AWSRequest
    keys: Any = import_module("botocore.credentials").Credentials(credentials.access_key, credentials.secret_key, credentials.token)
    signed_part = {name: value for name, value in kept.items() if name not in _UNSIGNED}
    draft = request_type(method=request.method, url=request.url, data=request.body, headers=signed_part)
    signer(keys, SERVICE, region).add_auth(draft)
    added = {name.lower(): value for name, value in draft.headers.items()}
    return replace(request, headers={**kept, **added})
