"""AWS's signature (version 4), written from its description: what a server does to check one. Not the code that makes them."""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from urllib.parse import quote

from llm.loopback import Request

_AUTHORIZATION = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, SignedHeaders=([^,]+), Signature=(\w+)")


def scope(request: Request) -> tuple[str, str, str]:
    """The access key, region and service of a signed request."""
    found = _AUTHORIZATION.fullmatch(request.headers["authorization"])
    assert found is not None, request.headers["authorization"]
    return found.group(1), found.group(3), found.group(4)


def signed_headers(request: Request) -> list[str]:
    """The headers that the signature covers."""
    found = _AUTHORIZATION.fullmatch(request.headers["authorization"])
    assert found is not None
    return found.group(5).split(";")


def is_signed(request: Request, secret: str) -> bool:
    """Whether the signature of a request is right."""
    found = _AUTHORIZATION.fullmatch(request.headers["authorization"])
    assert found is not None
    _, date, region, service, _, given = found.groups()
    time = request.headers["x-amz-date"]
    key = f"AWS4{secret}".encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    to_sign = f"AWS4-HMAC-SHA256\n{time}\n{date}/{region}/{service}/aws4_request\n{sha256(_canonical(request).encode()).hexdigest()}"
    return time.startswith(date) and hmac.compare_digest(given, hmac.new(key, to_sign.encode(), sha256).hexdigest())


def _canonical(request: Request) -> str:
    path, _, query = request.path.partition("?")
    headers = signed_headers(request)
    lines = [f"{name}:{' '.join(request.headers[name].split())}" for name in headers]
    parts = [request.method, quote(path, safe="/-._~"), "&".join(sorted(query.split("&"))), *lines, "", ";".join(headers)]
    return "\n".join([*parts, sha256(request.body).hexdigest()])
