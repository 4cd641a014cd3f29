"""OpenAI, and its models on Azure (one resource per customer: the URL comes from the environment)."""

from __future__ import annotations

from laneway.errors import ModelError
from laneway.llm._auth import Auth, AuthRequest, env_value
from laneway.llm._provider import Provider, Setting
from laneway.llm.catalog import shard


def _azure(request: AuthRequest) -> Auth | None:
    stored = request.credential.key if request.credential is not None else None
    variable = env_value(request.env, "AZURE_OPENAI_API_KEY")
    key, source = next(
        ((value, where) for value, where in ((request.api_key, "explicit key"), (stored, "stored key"), (variable, "AZURE_OPENAI_API_KEY")) if value),
        (None, ""),
    )
    return None if key is None else Auth(api_key=key, source=source, base_url=_azure_url(request))


def _azure_url(request: AuthRequest) -> str:
    url = env_value(request.env, "AZURE_OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT")
    resource = env_value(request.env, "AZURE_OPENAI_RESOURCE_NAME")
    if url is None and resource is None:
        raise ModelError("azure needs to know your resource: set AZURE_OPENAI_BASE_URL (or AZURE_OPENAI_RESOURCE_NAME)")
    return url or f"https://{resource}.openai.azure.com/openai/v1"


PROVIDERS = (
    Provider(
        id="openai",
        name="OpenAI",
        api="openai_responses",
        base_url="https://api.openai.com/v1",
        base_url_env=("OPENAI_BASE_URL",),
        keys=("OPENAI_API_KEY",),
        help="a key from platform.openai.com",
        models=shard("openai"),
        default_model="gpt-5.6",
    ),
    Provider(
        id="azure",
        name="Azure OpenAI",
        api="azure",
        keys=("AZURE_OPENAI_API_KEY",),
        auth=_azure,
        settings=(
            Setting(name="AZURE_OPENAI_API_VERSION", env=()),
            Setting(name="AZURE_OPENAI_DEPLOYMENT_NAME_MAP", env=("AZURE_OPENAI_DEPLOYMENT",)),
        ),
        help="the key and the URL of your Azure OpenAI resource",
        models=shard("azure"),
        open_ended=True,
    ),
)
