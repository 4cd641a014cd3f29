"""Where a request goes: the region, the endpoint, the path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from laneway.llm._auth import env_value

DEFAULT_REGION = "us-east-1"
_ARN = re.compile(r"arn:[\w-]+:[\w-]+:([a-z0-9-]+):")
_HOST = re.compile(r"bedrock-runtime(?:-fips)?\.([a-z0-9-]+)(?=\.(?:vpce\.)?(?:amazonaws\.com|api\.aws))")
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")


def arn_region(model_id: str) -> str | None:
    """Return the region of a model that is named by its ARN."""
    found = _ARN.match(model_id)
    return found.group(1) if found else None


def endpoint_region(base_url: str) -> str | None:
    """Return the region that an endpoint of Amazon's is in."""
    found = _HOST.search(urlsplit(base_url).hostname or "")
    return found.group(1) if found else None


def is_amazon(base_url: str) -> bool:
    """Whether an endpoint is Amazon's own."""
    return not base_url or (urlsplit(base_url).hostname or "").endswith(_AMAZON)


def known_region(model_id: str, base_url: str, env: Mapping[str, str]) -> str | None:
    """Return the region that a request goes to: the model's own, the endpoint's, the environment's; None if none of them says.

    The endpoint comes before the environment, because a signature for another region is refused; laneway's own endpoints follow the environment.
    """
    return arn_region(model_id) or endpoint_region(base_url) or env_value(env, "region", "AWS_REGION", "AWS_DEFAULT_REGION")


def endpoint(base_url: str, region: str) -> str:
    """Return the URL for the region: a `{region}` is filled in, and an endpoint of Amazon's in another region is changed to this one."""
    url = (base_url or "https://bedrock-runtime.{region}.amazonaws.com").rstrip("/").replace("{region}", region)
    other = endpoint_region(url)
    return url.replace(f".{other}.", f".{region}.", 1) if other and other != region else url


def model_url(base_url: str, region: str, model_id: str) -> str:
    """Return the URL that a model is asked at."""
    return f"{endpoint(base_url, region)}/model/{quote(model_id, safe='-._~')}/converse-stream"
