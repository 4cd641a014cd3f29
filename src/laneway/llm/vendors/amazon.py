"""Amazon Bedrock: a bearer token, or AWS credentials that the wire finds the way AWS's own tools do (with the extra `bedrock`)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from laneway.errors import ModelError
from laneway.llm._auth import Auth, AuthRequest, authorise_plainly, env_value
from laneway.llm._provider import Provider, Setting
from laneway.llm.base import Model
from laneway.llm.catalog import shard

_URL = "https://bedrock-runtime.{region}.amazonaws.com"
_REGION = "us-east-1"
_VARIABLES = (
    "AWS_BEDROCK_SKIP_AUTH", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_ROLE_ARN",
)  # fmt: skip
_FOR_THE_WIRE = (
    *_VARIABLES, "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_BEDROCK_FORCE_CACHE",
)  # fmt: skip
"""What the wire looks up by itself, and so has to be told where it does not stand in the process's own environment."""


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


def _bedrock(request: AuthRequest) -> Auth | None:
    """Leave the region open where only a profile can name it: the wire reads the profile.

    Raises:
        ModelError: there are AWS credentials, and nothing that could use them.
    """
    auth, env = authorise_plainly(request), request.env
    if auth is None:
        return None
    signed = auth.api_key is None and not auth.headers and env_value(env, "AWS_BEDROCK_SKIP_AUTH") != "1"
    if signed and find_spec("botocore") is None:
        text = "pip install 'laneway[bedrock]', or set AWS_BEARER_TOKEN_BEDROCK"
        raise ModelError(f"{request.provider.id}: AWS credentials were found ({auth.source}), but using them needs botocore: {text}")
    given = {name: value for name in _FOR_THE_WIRE if (value := env_value(env, name)) and value != os.environ.get(name)}
    own = env_value(env, *request.provider.base_url_env)
    region = env_value(env, "region", "AWS_REGION", "AWS_DEFAULT_REGION")
    by_profile = region is None and (env_value(env, "AWS_PROFILE") is not None or (signed and "files" in auth.source))
    url = own or (_URL if by_profile else _URL.replace("{region}", region or _REGION))
    return replace(auth, env={**given, **auth.env}, base_url=url)


_GEOGRAPHIES = ("us.", "eu.", "", "global.")
"""Whose data a model of another geography has, best first: profiles of a geography cost the same in most of them."""


class _Bedrock(Provider):
    """Ids that the list does not have are other geographies' (`au.…`), or ARNs; where one names a model of the list, its data are known."""

    def model(self, model_id: str, **fields: Any) -> Model:
        """Return a model of this provider; what is not given is a listed relative's, else the provider's."""
        name = model_id.rpartition("/")[2]
        bare = re.sub(r"\A(?:[a-z-]+\.)(?=[a-z0-9-]+\.)", "", name)
        listed = {model.id: model for model in self.models()}
        found = next((listed[known] for known in (name, *(area + bare for area in _GEOGRAPHIES)) if known in listed), None)
        if found is None or fields:
            return super().model(model_id, **fields)
        return replace(found, id=model_id, provider=self.id, api=self.api, base_url=self.base_url)


PROVIDERS = (
    _Bedrock(
        id="bedrock",
        name="Amazon Bedrock",
        api="bedrock_converse",
        base_url=_URL,
        base_url_env=("AWS_ENDPOINT_URL_BEDROCK_RUNTIME",),
        keys=("AWS_BEARER_TOKEN_BEDROCK",),
        settings=(Setting(name="region", env=("AWS_REGION", "AWS_DEFAULT_REGION")),),
        auth=_bedrock,
        ambient=_aws_credentials,
        help="AWS_BEARER_TOKEN_BEDROCK, or AWS credentials (AWS_PROFILE, AWS_ACCESS_KEY_ID, …) with pip install 'laneway[bedrock]'",
        models=shard("bedrock"),
        open_ended=True,
        extra="bedrock",
    ),
)
