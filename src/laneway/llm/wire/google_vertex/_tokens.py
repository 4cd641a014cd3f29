"""Access tokens from Google Cloud's application default credentials, through `google-auth` (the extra `vertex`)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from laneway.llm._auth import env_value
from laneway.llm._errors import redact
from laneway.llm.base import ProviderFailure

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_HOW = "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS, or use GOOGLE_CLOUD_API_KEY"


class Token(Struct, kw_only=True, frozen=True):
    """What a request is authorised with. `project` is the credentials' own project, `quota_project` the one that pays."""

    value: str
    project: str | None = None
    quota_project: str | None = None

    def __repr__(self) -> str:
        return f"Token(project={self.project!r})"


_Place = tuple[str, str | None]  # the file that the environment names ("" is the usual place), and the project that pays
_known: dict[_Place, tuple[Any, str | None]] = {}
_lock = threading.Lock()


async def access_token(env: Mapping[str, str], provider: str) -> Token:
    """Return a token that is valid now. Credentials are looked for once and refreshed (in a thread) when theirs has run out.

    Raises:
        ProviderFailure: `google-auth` is not installed, there are no credentials, or they cannot be refreshed.
    """
    place = (env_value(env, "GOOGLE_APPLICATION_CREDENTIALS") or "", env_value(env, "GOOGLE_CLOUD_QUOTA_PROJECT"))
    return await asyncio.to_thread(_access_token, place, provider)


def _access_token(place: _Place, provider: str) -> Token:
    try:
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.auth.transport.requests import Request
    except ImportError:
        text = f"{provider} needs google-auth for Google Cloud credentials: pip install 'laneway[vertex]', or use GOOGLE_CLOUD_API_KEY"
        raise ProviderFailure(text, kind="configuration") from None
    with _lock:
        try:
            if place not in _known:
                _known[place] = _find(*place)
            credentials, project = _known[place]
            if not credentials.valid:
                credentials.refresh(Request())
        except TransportError as error:
            raise ProviderFailure(f"{provider}: Google Cloud's token server was not reached: {redact(str(error))}", kind="network") from None
        except (GoogleAuthError, OSError, ValueError) as error:
            _known.pop(place, None)
            raise ProviderFailure(f"{provider}: there are no usable Google Cloud credentials ({redact(str(error))}); {_HOW}", kind="auth") from None
        return Token(value=credentials.token, project=project, quota_project=credentials.quota_project_id)


def _find(path: str, quota_project: str | None) -> tuple[Any, str | None]:
    import google.auth

    auth: Any = google.auth  # it is only partly typed
    if not path:
        return auth.default(scopes=SCOPES, quota_project_id=quota_project)
    import warnings

    with warnings.catch_warnings():  # the warning is about files from strangers; this one is named by the person's own environment
        warnings.simplefilter("ignore", DeprecationWarning)
        return auth.load_credentials_from_file(path, scopes=SCOPES, quota_project_id=quota_project)


def forget_credentials() -> None:
    """Look for the credentials again at the next request."""
    with _lock:
        _known.clear()
