"""Amazon Bedrock: a bearer token, or AWS credentials that the wire finds the way AWS's own tools do.

The wire itself, `bedrock_converse`, is not written yet: the models are listed with their limits and prices, and a request to one says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from laneway.llm._auth import env_value
from laneway.llm._provider import Provider, Setting
from laneway.llm.catalog import shard

_VARIABLES = (
    "AWS_BEDROCK_SKIP_AUTH", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_ROLE_ARN",
)  # fmt: skip


def _aws_credentials(env: Mapping[str, str]) -> str | None:
    """Return where AWS credentials seem to be. The roles of an AWS machine are not visible here: name a profile or a region for those."""
    for name in _VARIABLES:
        if env_value(env, name):
            return name
    files = (
        env.get("AWS_SHARED_CREDENTIALS_FILE") or Path.home() / ".aws" / "credentials",
        env.get("AWS_CONFIG_FILE") or Path.home() / ".aws" / "config",
    )
    if any(Path(file).is_file() for file in files):
        return "AWS configuration files"
    return "AWS_REGION (credentials of this machine)" if env_value(env, "AWS_REGION", "AWS_DEFAULT_REGION") else None


PROVIDERS = (
    Provider(
        id="bedrock",
        name="Amazon Bedrock",
        api="bedrock_converse",
        base_url="https://bedrock-runtime.{region}.amazonaws.com",
        base_url_env=("AWS_ENDPOINT_URL_BEDROCK_RUNTIME",),
        keys=("AWS_BEARER_TOKEN_BEDROCK",),
        settings=(Setting(name="region", env=("AWS_REGION", "AWS_DEFAULT_REGION"), default="us-east-1"),),
        ambient=_aws_credentials,
        help="AWS_BEARER_TOKEN_BEDROCK, or AWS credentials (AWS_PROFILE, AWS_ACCESS_KEY_ID, …)",
        models=shard("bedrock"),
        available=lambda: False,  # until there is a wire
    ),
)
