"""Regions, endpoints, AWS credentials and signatures."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laneway.abort import AbortController
from laneway.llm import MemoryCredentialStore, Models
from laneway.llm._auth import authorise
from laneway.llm._credentials import Credential
from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.llm.vendors import builtin_providers
from laneway.llm.wire.bedrock_converse import _credentials, stream
from laneway.llm.wire.bedrock_converse._places import endpoint, known_region, model_url
from laneway.messages import AssistantMessage, UserMessage
from llm.loopback import Loopback, Request, error_reply
from llm.wire.bedrock_converse.protocol import HELLO, model, reply
from llm.wire.bedrock_converse.signing import is_signed, scope, signed_headers

pytest.importorskip("botocore", reason="AWS credentials are found with botocore")

SECRET = "planted+secret/0123456789"
TOKEN = "planted-session-token-0123456789"
BEARER = "bedrock-api-key-planted"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDPLANTED", "AWS_SECRET_ACCESS_KEY": SECRET}


@pytest.fixture(autouse=True)
def no_credentials(clean_env: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Nobody's credentials are found, and the test's are forgotten."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            clean_env.delenv(name)
    clean_env.setenv("AWS_EC2_METADATA_DISABLED", "true")
    _credentials.forget_credentials()
    yield clean_env
    _credentials.forget_credentials()


def bedrock(server: Loopback, **fields: Any) -> Model:
    """A model of Amazon's, at the test's server."""
    return model(**{"provider": "bedrock", "base_url": server.url, **fields})


async def ask(of: Model, **options: Any) -> AssistantMessage:
    """The final message, which must come in time."""
    async with asyncio.timeout(20):
        return await stream(of, Transcript(messages=[UserMessage(content="hi")]), StreamOptions(**options)).result()


def write_files(home: Path, **files: str) -> None:
    """Write AWS's files."""
    (home / ".aws").mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (home / ".aws" / name).write_text(content)


# ---------------------------------------------------------------------------------------------------- places


@pytest.mark.parametrize(
    ("model_id", "base_url", "env", "expected"),
    [
        ("m", "", {}, None),
        ("m", "", {"AWS_DEFAULT_REGION": "eu-west-1"}, "eu-west-1"),
        ("m", "", {"AWS_REGION": "eu-west-3", "AWS_DEFAULT_REGION": "eu-west-1"}, "eu-west-3"),
        ("m", "", {"region": "sa-east-1", "AWS_REGION": "eu-west-3"}, "sa-east-1"),
        ("m", "https://bedrock-runtime.eu-west-2.amazonaws.com", {"AWS_REGION": "eu-west-3"}, "eu-west-2"),
        ("m", "https://bedrock-runtime-fips.us-gov-west-1.amazonaws.com", {}, "us-gov-west-1"),
        ("m", "https://vpce-1.bedrock-runtime.ap-south-1.vpce.amazonaws.com", {}, "ap-south-1"),
        ("m", "https://gateway.example.com", {"AWS_REGION": "eu-west-3"}, "eu-west-3"),
        ("arn:aws:bedrock:us-west-2:1:inference-profile/x", "https://bedrock-runtime.eu-west-2.amazonaws.com", {}, "us-west-2"),
        ("arn:aws:bedrock:us-west-2::foundation-model/x", "", {"AWS_REGION": "eu-west-3"}, "us-west-2"),
    ],
)
def test_the_region(model_id: str, base_url: str, env: dict[str, str], expected: str | None) -> None:
    """05 §4.5: the model's own ARN, the endpoint that somebody chose, the environment."""
    assert known_region(model_id, base_url, env) == expected


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("", "https://bedrock-runtime.eu-west-1.amazonaws.com"),
        ("https://bedrock-runtime.{region}.amazonaws.com", "https://bedrock-runtime.eu-west-1.amazonaws.com"),
        ("https://bedrock-runtime.us-east-1.amazonaws.com/", "https://bedrock-runtime.eu-west-1.amazonaws.com"),
        ("https://gateway.example.com/bedrock/", "https://gateway.example.com/bedrock"),
    ],
)
def test_the_endpoint_is_in_the_region(base_url: str, expected: str) -> None:
    """Amazon's follow the region; others are what they are."""
    assert endpoint(base_url, "eu-west-1") == expected


def test_the_model_is_part_of_the_path() -> None:
    """Colons and slashes of ids and ARNs are encoded, as botocore does."""
    assert model_url("http://h", "r", "us.a.b-v1:0") == "http://h/model/us.a.b-v1%3A0/converse-stream"
    assert model_url("http://h", "r", "arn:aws:x/y") == "http://h/model/arn%3Aaws%3Ax%2Fy/converse-stream"


# ---------------------------------------------------------------------------------------------------- signatures


def test_the_check_of_signatures_is_right() -> None:
    """Amazon's published example."""
    authorization = (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, SignedHeaders=content-type;host;x-amz-date, "
        "Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
    )
    headers = {
        "content-type": "application/x-www-form-urlencoded; charset=utf-8", "host": "iam.amazonaws.com", "x-amz-date": "20150830T123600Z",
        "authorization": authorization,
    }  # fmt: skip
    request = Request("GET", "/?Action=ListUsers&Version=2010-05-08", headers, b"")
    assert is_signed(request, "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    assert not is_signed(request, "another")
    assert not is_signed(Request("GET", "/?Action=Other", headers, b""), "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")


@pytest.mark.parametrize(
    "model_id",
    [
        "anthropic.claude-sonnet-4-5-20250929-v1:0", "us.amazon.nova-pro-v1:0", "global.anthropic.claude-opus-4-8",
        "arn:aws:bedrock:us-west-2:123456789012:application-inference-profile/ab12cd34ef56",
    ],
)  # fmt: skip
async def test_a_request_is_signed(model_id: str) -> None:
    """The server checks the signature of the bytes that it got; the session's token is part of it."""
    async with Loopback([reply(*HELLO)]) as server:
        env = {**KEYS, "AWS_SESSION_TOKEN": TOKEN, "AWS_REGION": "eu-west-1"}
        message = await ask(bedrock(server, id=model_id), env=env, headers={"x-custom": "two  words"})
        (request,) = server.requests
    assert message.text == "Hello"
    assert is_signed(request, SECRET)
    assert scope(request) == ("AKIDPLANTED", "us-west-2" if model_id.startswith("arn") else "eu-west-1", "bedrock")
    assert request.headers["x-amz-security-token"] == TOKEN
    assert {"host", "content-type", "x-amz-date", "x-amz-security-token", "x-custom"} == set(signed_headers(request))


async def test_headers_that_the_signature_sets_cannot_be_given() -> None:
    """05 §4.5: neither host nor x-amz-…; they would break it."""
    async with Loopback([reply(*HELLO)]) as server:
        await ask(bedrock(server), env=KEYS, headers={"x-amz-date": "now", "host": "elsewhere", "X-Amz-Security-Token": "t"})
        (request,) = server.requests
    assert is_signed(request, SECRET)
    assert "x-amz-security-token" not in request.headers


async def test_every_try_has_a_signature_of_its_own() -> None:
    """A signature has a time in it, and a wait may be long."""
    async with Loopback([error_reply(503), reply(*HELLO)]) as server:
        assert (await ask(bedrock(server), env=KEYS, max_retries=1)).text == "Hello"
        assert [is_signed(request, SECRET) for request in server.requests] == [True, True]


# ---------------------------------------------------------------------------------------------------- how a request is let in


async def test_a_bearer_token_goes_before_everything() -> None:
    """05 §4.5: given, or in the environment; no signature then."""
    async with Loopback([reply(*HELLO)]) as server:
        await ask(bedrock(server), api_key=BEARER, env=KEYS)
        await ask(bedrock(server), env={**KEYS, "AWS_BEARER_TOKEN_BEDROCK": BEARER})
        await ask(bedrock(server), headers={"Authorization": "Bearer mine"}, env={**KEYS, "AWS_BEARER_TOKEN_BEDROCK": BEARER})
        await ask(model(base_url=server.url), api_key=BEARER)
        sent = [request.headers["authorization"] for request in server.requests]
    assert sent == [f"Bearer {BEARER}", f"Bearer {BEARER}", "Bearer mine", f"Bearer {BEARER}"]


async def test_a_bearer_token_needs_no_botocore(no_credentials: pytest.MonkeyPatch) -> None:
    """Neither for letting in nor for reading frames."""
    no_credentials.setitem(sys.modules, "botocore", None)  # type: ignore[arg-type]  # this is how a module is made unimportable
    no_credentials.setattr(_credentials, "find_spec", lambda name: None)
    async with Loopback([reply(*HELLO)]) as server:
        assert (await ask(bedrock(server), api_key=BEARER)).text == "Hello"
        message = await ask(bedrock(server), env=KEYS)
    assert message.error is not None
    assert (message.error.kind, "laneway[bedrock]" in (message.error_message or "")) == ("configuration", True)


async def test_nothing_is_sent_where_nothing_is_wanted() -> None:
    """AWS_BEDROCK_SKIP_AUTH for a gateway that has credentials of its own; a server of somebody else's; a local one."""
    async with Loopback([reply(*HELLO)]) as server:
        await ask(bedrock(server), api_key=BEARER, env={**KEYS, "AWS_BEDROCK_SKIP_AUTH": "1"})
        await ask(bedrock(server))
        await ask(model(base_url=server.url))
        await ask(bedrock(server, compat={"keyless": True}), env=KEYS)
        assert ["authorization" in request.headers for request in server.requests] == [False] * 4
        await ask(model(base_url=server.url, compat={"sign": True}), env=KEYS)
        await ask(model(base_url=server.url), env=KEYS)
        assert [is_signed(request, SECRET) for request in server.requests[4:]] == [True, True]


async def test_no_credentials_is_an_error_that_says_how() -> None:
    """05 sc. 42: before anything is sent."""
    message = await ask(model(provider="bedrock", base_url="https://bedrock-runtime.us-east-1.amazonaws.com"))
    assert message.error is not None
    assert (message.error.kind, "AWS_BEARER_TOKEN_BEDROCK" in (message.error_message or "")) == ("auth", True)


# ---------------------------------------------------------------------------------------------------- botocore's chain

FILE = "[default]\naws_access_key_id = AKIDDEFAULT\naws_secret_access_key = default-secret\n"
WORK = "[work]\naws_access_key_id = AKIDWORK\naws_secret_access_key = work-secret\naws_session_token = work-token\n"
CONFIG = "[profile work]\nregion = ap-south-1\n"


async def test_the_files_of_aws(no_credentials: pytest.MonkeyPatch) -> None:
    """The default profile, the one that is named, its region; keys in the environment go before a profile that is there too."""
    write_files(Path.home(), credentials=FILE + WORK, config=CONFIG)
    async with Loopback([reply(*HELLO)]) as server:
        await ask(bedrock(server))
        no_credentials.setenv("AWS_PROFILE", "work")
        await ask(bedrock(server))
        for name, value in KEYS.items():
            no_credentials.setenv(name, value)
        await ask(bedrock(server))
        requests = server.requests
    assert [scope(request)[:2] for request in requests] == [
        ("AKIDDEFAULT", "us-east-1"), ("AKIDWORK", "ap-south-1"), ("AKIDPLANTED", "ap-south-1"),
    ]  # fmt: skip
    assert [is_signed(*pair) for pair in zip(requests, ("default-secret", "work-secret", SECRET), strict=True)] == [True] * 3
    assert requests[1].headers["x-amz-security-token"] == "work-token"


async def test_a_profile_of_the_request_goes_before_keys_in_the_environment(no_credentials: pytest.MonkeyPatch) -> None:
    """05 §4.5: explicit beats ambient; its files may be elsewhere."""
    write_files(Path.home() / "other", credentials=WORK, config=CONFIG)
    for name, value in KEYS.items():
        no_credentials.setenv(name, value)
    env = {
        "AWS_PROFILE": "work", "AWS_SHARED_CREDENTIALS_FILE": str(Path.home() / "other/.aws/credentials"),
        "AWS_CONFIG_FILE": str(Path.home() / "other/.aws/config"),
    }  # fmt: skip
    async with Loopback([reply(*HELLO)]) as server:
        await ask(bedrock(server), env=env)
        assert scope(server.requests[0]) == ("AKIDWORK", "ap-south-1", "bedrock")


async def test_a_file_that_changed_is_read_again() -> None:
    """Tools that log in write new keys during the night."""
    write_files(Path.home(), credentials=FILE)
    async with Loopback([reply(*HELLO)]) as server:
        await ask(bedrock(server))
        write_files(Path.home(), credentials=FILE.replace("AKIDDEFAULT", "AKIDNEW"))
        os.utime(Path.home() / ".aws" / "credentials", ns=(1, 1))
        await ask(bedrock(server))
        assert [scope(request)[0] for request in server.requests] == ["AKIDDEFAULT", "AKIDNEW"]


async def test_a_process_that_gives_credentials(tmp_path: Path) -> None:
    """It runs once, in a thread: the event loop goes on meanwhile; what it gave serves several requests."""
    script = tmp_path / "login.py"
    script.write_text(
        "import json, pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'runs')!r}).open('a').write('x')\n"
        "time.sleep(0.5)\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': 'AKIDPROCESS', 'SecretAccessKey': 'process-secret',"
        " 'Expiration': '2099-01-01T00:00:00Z'}))\n"
    )
    write_files(Path.home(), config=f"[default]\ncredential_process = {sys.executable} {script}\n")
    async with Loopback([reply(*HELLO)]) as server:
        task = asyncio.create_task(ask(bedrock(server)))
        turns = 0
        while not task.done():
            await asyncio.sleep(0.01)
            turns += 1
        await ask(bedrock(server))
        assert [scope(request)[0] for request in server.requests] == ["AKIDPROCESS"] * 2
        assert is_signed(server.requests[1], "process-secret")
    assert turns > 10
    assert (tmp_path / "runs").read_text() == "x"


@pytest.mark.parametrize(
    ("files", "profile", "part"),
    [
        ({"config": "[default]\nregion = us-east-1\n"}, "absent", "absent"),
        ({"credentials": "[default]\naws_access_key_id = A\n"}, None, "aws_secret_access_key"),
        ({"config": "this is [no configuration"}, None, "there are no usable AWS credentials"),
        ({"config": f"[default]\ncredential_process = {sys.executable} -c exit(3)\n"}, None, "process"),
    ],
)
async def test_credentials_that_cannot_be_used_are_an_error(files: dict[str, str], profile: str | None, part: str) -> None:
    """Kind auth, and what to do."""
    write_files(Path.home(), **files)
    of = model(provider="bedrock", base_url="https://bedrock-runtime.us-east-1.amazonaws.com")
    message = await ask(of, env={"AWS_PROFILE": profile} if profile else {})
    assert message.error is not None
    assert message.error.kind == "auth"
    assert part in (message.error_message or "")


async def test_an_abort_does_not_wait_for_credentials(tmp_path: Path) -> None:
    """05 sc. 40: whoever gives them may take long."""
    script = tmp_path / "slow.py"
    script.write_text("import time\ntime.sleep(1)\nprint('{}')\n")
    write_files(Path.home(), config=f"[default]\ncredential_process = {sys.executable} {script}\n")
    controller = AbortController()
    asyncio.get_running_loop().call_later(0.1, controller.abort, "enough")
    async with Loopback([reply(*HELLO)]) as server:
        message = await ask(bedrock(server), signal=controller.signal)
        assert server.requests == []
    assert message.stop_reason == "aborted"


# ---------------------------------------------------------------------------------------------------- the vendor


def test_the_vendor_s_url_follows_the_region() -> None:
    """05 §4.5: us-east-1, unless a profile may name another one; an endpoint of one's own is kept."""
    provider = builtin_providers()["bedrock"]
    url = "https://bedrock-runtime.{}.amazonaws.com"
    for env, expected in (
        ({"AWS_BEARER_TOKEN_BEDROCK": "b"}, url.format("us-east-1")),
        ({"AWS_BEARER_TOKEN_BEDROCK": "b", "AWS_REGION": "eu-west-1"}, url.format("eu-west-1")),
        (KEYS, url.format("us-east-1")),
        ({"AWS_PROFILE": "work"}, url.format("{region}")),
        ({"AWS_PROFILE": "work", "AWS_REGION": "eu-west-1"}, url.format("eu-west-1")),
        ({**KEYS, "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "http://127.0.0.1:9/x"}, "http://127.0.0.1:9/x"),
    ):
        auth = authorise(provider, env=env)
        assert auth is not None
        assert auth.base_url == expected
    assert authorise(provider, env={}) is None


@pytest.mark.parametrize(
    "model_id",
    [
        "au.anthropic.claude-opus-4-8", "us-gov.anthropic.claude-opus-4-8",
        "arn:aws:bedrock:eu-west-1:1:inference-profile/eu.anthropic.claude-opus-4-8",
        "arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-opus-4-8",
    ],
)  # fmt: skip
def test_ids_that_name_a_listed_model_have_its_data(model_id: str) -> None:
    """Other geographies, ARNs: limits and prices are known; a profile of one's own is what its owner says."""
    models = Models(credentials=MemoryCredentialStore())
    found = models.model(f"bedrock/{model_id}")
    listed = models.model("bedrock/us.anthropic.claude-opus-4-8")
    assert (found.id, found.api, found.reasoning, found.context_window) == (model_id, "bedrock_converse", True, listed.context_window)
    assert found.cost.output == (25 if "foundation" in model_id else listed.cost.output)
    own = models.model("bedrock/arn:aws:bedrock:us-east-1:1:application-inference-profile/ab12")
    assert (own.context_window, own.reasoning) == (0, False)


def test_the_vendor_says_what_is_missing(no_credentials: pytest.MonkeyPatch) -> None:
    """AWS credentials without botocore: not configured, and a request says why; a bearer token is enough."""
    from laneway.llm.vendors import amazon

    no_credentials.setattr(amazon, "find_spec", lambda name: None)
    models = Models(credentials=MemoryCredentialStore(), env=KEYS)
    provider = models.provider("bedrock")
    assert provider is not None
    assert not models.is_configured(provider)
    assert Models(credentials=MemoryCredentialStore(), env={"AWS_BEARER_TOKEN_BEDROCK": "b"}).is_configured(provider)


async def test_the_registry_finds_the_wire(no_credentials: pytest.MonkeyPatch) -> None:
    """A model of the vendor: keys of the registry's own environment reach the signature; a stored key is a bearer token."""
    async with Loopback([reply(*HELLO)]) as server:
        no_credentials.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", server.url)
        transcript = Transcript(messages=[UserMessage(content="hi")])
        models = Models(credentials=MemoryCredentialStore(), env={**KEYS, "AWS_REGION": "eu-central-1"})
        found = await models.stream(models.model("bedrock/eu.anthropic.claude-sonnet-4-5-20250929-v1:0:high"), transcript).result()
        store = MemoryCredentialStore()
        await store.modify("bedrock", _stored)
        stored = Models(credentials=store)
        await stored.stream(stored.model("bedrock/arn:aws:bedrock:us-west-2:1:application-inference-profile/ab"), transcript).result()
        one, two = server.requests
    assert (found.text, found.thinking_level, found.response_id, found.error_message) == ("Hello", "high", "req-1", None)
    assert found.usage.cost.total > 0
    assert (is_signed(one, SECRET), scope(one)[1]) == (True, "eu-central-1")
    assert one.path == "/v1/model/eu.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse-stream"
    assert one.json["additionalModelRequestFields"]["thinking"]["budget_tokens"] == 16384
    assert two.headers["authorization"] == f"Bearer {BEARER}"


async def _stored(_: Credential | None) -> Credential:
    return Credential(key=BEARER)
