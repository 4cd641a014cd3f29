"""The one part of the Vertex wire that does I/O."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from msgspec import Struct

from laneway.llm._auth import env_value, environment
from laneway.llm._client import Prepared, stream_events
from laneway.llm.base import AssistantStream, Model, ProviderFailure, StreamOptions, Transcript
from laneway.llm.wire.google_generate.client import make_decoder, make_writer, model_path
from laneway.llm.wire.google_generate.encode import encode
from laneway.llm.wire.google_vertex._tokens import access_token

VERSION = "v1beta1"
DEFAULT_LOCATION = "us-central1"
_GLOBAL = "https://aiplatform.googleapis.com"
_REGIONAL = "-aiplatform.googleapis.com"
_TOKEN = "ya29."
"""How an access token of Google's begins; API keys do not."""


class _Access(Struct, kw_only=True, frozen=True):
    """How a request is let in. With an API key it needs no project."""

    headers: dict[str, str | None]
    express: bool = False
    project: str | None = None


def stream(model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
    """Ask the model for a response. Never raises: every failure is the stream's last event. Nothing is sent before it is read."""
    taken = Transcript(messages=list(transcript.messages))
    writer = make_writer(model, options)

    async def prepare() -> Prepared:
        body = encode(model, taken, options)
        env = environment(options.env)
        access = await _access(model, options, env)
        return Prepared(url=_url(model, access, env), body=body, headers=access.headers, decoder=make_decoder(model, taken, writer))

    return stream_events(model, options, writer, prepare)


async def _access(model: Model, options: StreamOptions, env: Mapping[str, str]) -> _Access:
    """An API key, else an access token: the one given, a header of one's own, or the application default credentials'."""
    key = (options.api_key or "").strip()
    if key.startswith(_TOKEN):
        return _Access(headers={"authorization": f"Bearer {key}"})
    if key:
        return _Access(headers={"x-goog-api-key": key}, express=True)
    given = {name.lower() for name, value in {**model.headers, **(options.headers or {})}.items() if value}
    if given & {"authorization", "x-goog-api-key"}:
        return _Access(headers={}, express="authorization" not in given)
    token = await access_token(env, model.provider)
    headers: dict[str, str | None] = {"authorization": f"Bearer {token.value}", "x-goog-user-project": token.quota_project}
    return _Access(headers=headers, project=token.project)


def _url(model: Model, access: _Access, env: Mapping[str, str]) -> str:
    location = env_value(env, "location", "GOOGLE_CLOUD_LOCATION") or DEFAULT_LOCATION
    base = model.base_url.rstrip("/").replace("{location}", location) or (_GLOBAL if location == "global" else f"https://{location}{_REGIONAL}")
    if access.express and base.endswith(_REGIONAL):
        base = _GLOBAL  # a key has no place of its own
    path = model_path(_full_id(model.id), "publishers/google/models")
    if not access.express and not path.startswith("projects/"):
        project = env_value(env, "project", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT") or access.project
        if project is None:
            text = f"{model.provider} needs the Google Cloud project that pays: set GOOGLE_CLOUD_PROJECT, or use GOOGLE_CLOUD_API_KEY"
            raise ProviderFailure(text, kind="configuration")
        path = f"projects/{quote(project, safe=':')}/locations/{quote(location, safe='')}/{path}"
    return f"{_versioned(base)}/{path}:streamGenerateContent?alt=sse"


def _full_id(model_id: str) -> str:
    """`vendor/model` is another publisher's model; a path of the API's own stays as it is."""
    publisher, slash, name = model_id.partition("/")
    if not slash or publisher in ("projects", "publishers"):
        return model_id
    return f"publishers/{publisher if publisher != 'models' else 'google'}/models/{name}"


def _versioned(base: str) -> str:
    """The version stands in the URL of a server of one's own, if it has one."""
    last = base.rpartition("/")[2]
    return base if last.startswith("v1") else f"{base}/{VERSION}"
