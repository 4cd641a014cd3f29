"""Google's Gemini API, and the same models on Vertex AI (a key, or Google Cloud credentials with a project and a location)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from laneway.llm._auth import Auth, AuthRequest, authorise_plainly, env_value
from laneway.llm._provider import Provider, Setting
from laneway.llm.catalog import shard


def _cloud_credentials(env: Mapping[str, str]) -> str | None:
    """Return where Google Cloud credentials are, without reading them; the wire does that."""
    if env_value(env, "GOOGLE_APPLICATION_CREDENTIALS"):
        return "GOOGLE_APPLICATION_CREDENTIALS"
    usual = Path(env.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud") / "application_default_credentials.json"
    return "application default credentials" if usual.is_file() else None


def _vertex(request: AuthRequest) -> Auth | None:
    """The location "global" is the one whose host has no location in it."""
    auth = authorise_plainly(request)
    location = env_value(request.env, "location", "GOOGLE_CLOUD_LOCATION")
    return replace(auth, base_url="https://aiplatform.googleapis.com") if auth is not None and location == "global" else auth


PROVIDERS = (
    Provider(
        id="google",
        name="Google Gemini",
        api="google_generate",
        base_url="https://generativelanguage.googleapis.com/v1beta",
        base_url_env=("GEMINI_BASE_URL",),
        keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        help="a key from aistudio.google.com",
        models=shard("google"),
        default_model="gemini-3.5-flash",
    ),
    Provider(
        id="vertex",
        name="Google Vertex AI",
        api="google_vertex",
        base_url="https://{location}-aiplatform.googleapis.com",
        base_url_env=("VERTEX_BASE_URL",),
        keys=("GOOGLE_CLOUD_API_KEY",),
        settings=(
            Setting(name="project", env=("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT")),
            Setting(name="location", env=("GOOGLE_CLOUD_LOCATION",), default="us-central1"),
        ),
        auth=_vertex,
        ambient=_cloud_credentials,
        help="GOOGLE_CLOUD_API_KEY, or `gcloud auth application-default login` with GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION",
        models=shard("vertex"),
        extra="vertex",
    ),
)
