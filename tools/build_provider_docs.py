#!/usr/bin/env python3
"""Write docs/providers.md from the data: vendors, wires, the flags of their quirks, the catalogue.

    python tools/build_provider_docs.py            write the page
    python tools/build_provider_docs.py --check    only say whether the committed one is what would be written

For developers; needs laneway installed, no network. What only code knows (a variable that a vendor's own resolver reads) is in NOTES, by hand;
tests/docs/test_provider_docs.py tells what is missing there.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec.structs import fields as struct_fields
from msgspec.structs import replace

from laneway.llm import THINKING_LEVELS, Model, Provider, supported_thinking_levels
from laneway.llm.vendors import builtin_providers

PAGE = Path(__file__).resolve().parent.parent / "docs" / "providers.md"
SAME_FLAGS = {"azure": "openai_responses", "google_vertex": "google_generate"}
COMPATS = {
    "openai_chat": "ChatCompat", "anthropic_messages": "AnthropicCompat", "openai_responses": "ResponsesCompat", "google_generate": "GoogleCompat",
    "mistral": "MistralCompat", "bedrock_converse": "BedrockCompat",
}  # fmt: skip
"""The wires that have flags of their own, and the class that holds them."""
REQUESTS = {
    "openai_chat": "`POST {base}/chat/completions`, key as `Authorization: Bearer`",
    "anthropic_messages": "`POST {base}/v1/messages`, key as `x-api-key` (a token as `Authorization: Bearer`)",
    "openai_responses": "`POST {base}/responses`, key as `Authorization: Bearer`",
    "azure": "`POST {base}/responses?api-version=…`, key as `api-key` (a directory token as `Authorization: Bearer`)",
    "google_generate": "`POST {base}/models/{id}:streamGenerateContent?alt=sse`, key as `x-goog-api-key`",
    "google_vertex": "`POST {base}/v1beta1/…/publishers/google/models/{id}:streamGenerateContent?alt=sse`, key as `x-goog-api-key`, "
    "or an access token of Google Cloud",
    "mistral": "`POST {base}/v1/chat/completions`, key as `Authorization: Bearer`",
    "bedrock_converse": "`POST {base}/model/{id}/converse-stream`, a bearer token, or a request signed with AWS credentials",
}
NOTES = {
    "azure": "Name your resource with `AZURE_OPENAI_BASE_URL` (also read: `AZURE_OPENAI_ENDPOINT`), or only its name with "
    "`AZURE_OPENAI_RESOURCE_NAME`. Azure asks for deployments, not models: `AZURE_OPENAI_DEPLOYMENT_NAME_MAP` is `model=deployment,…` or one name "
    "for all (also read: `AZURE_OPENAI_DEPLOYMENT`); without it the model's id is the deployment's name.",
    "vertex": "A key alone is enough. Without one, Google Cloud's application default credentials are used (`gcloud auth "
    "application-default login`, or the file that `GOOGLE_APPLICATION_CREDENTIALS` names; `CLOUDSDK_CONFIG` moves gcloud's folder), and "
    "`GOOGLE_CLOUD_PROJECT` says who pays. The location `global` has a host of its own.",
    "bedrock": "Without a bearer token, requests are signed with the credentials that AWS's own tools would find: `AWS_PROFILE`, "
    "`AWS_ACCESS_KEY_ID` with `AWS_SECRET_ACCESS_KEY` (and `AWS_SESSION_TOKEN`), `AWS_ROLE_ARN`, `AWS_WEB_IDENTITY_TOKEN_FILE`, "
    "`AWS_CONTAINER_CREDENTIALS_RELATIVE_URI` or `AWS_CONTAINER_CREDENTIALS_FULL_URI`, and the files at `AWS_SHARED_CREDENTIALS_FILE` and "
    "`AWS_CONFIG_FILE`. On a machine of AWS with a role, set the region so that laneway looks there. `AWS_BEDROCK_SKIP_AUTH=1` sends requests "
    "without credentials, for a gateway that adds them; `AWS_BEDROCK_FORCE_CACHE=1` sends cache points to a model that is not known to take them.",
    "ollama": "`OLLAMA_HOST`, Ollama's own variable, is understood too; `OLLAMA_API_KEY` is sent if it is set.",
    "custom": "See [Any other server](#any-other-server).",
    "local": "`local/smollm2` is tiny and there to show and test the machine. `local//path/to/model.gguf` is any other file, `local/default` the one "
    "that `LANEWAY_LOCAL_MODEL` names. See `laneway local`.",
}
HEAD = """# Providers

Made from the data by `python tools/build_provider_docs.py`; a test keeps it so.

A model is named `provider/id`, with a thinking level behind a colon if you like: `anthropic/claude-sonnet-5-5:high`. `laneway models` lists what is
known, `laneway models --available` what could be asked now, `laneway doctor` says what is missing.
"""
KEYS = """
## Which key is used

An explicit one first (`StreamOptions.api_key`, or what an agent's `get_api_key` returns), then what is stored for the provider, then the first
environment variable in the table that is set. A stored key owns its provider: if it does not work, the environment is not tried behind your
back. Keys are never part of logs, errors, telemetry or sessions.

Stored keys are in `auth.json` in laneway's configuration folder (`LANEWAY_HOME`, else the system's usual place), which only you can read; with
`LANEWAY_CREDENTIALS=keyring` they are in the system's keyring. This stores one:

```python
import asyncio

from laneway.llm import Credential, Models


async def keep(stored):
    return Credential(key="the key")


asyncio.run(Models().credentials.modify("mistral", keep))
```
"""
OTHERS = """
## Any other server

A server that speaks Chat Completions needs two variables, and any id is a model of it:

```sh
export LANEWAY_CUSTOM_BASE_URL=https://llm.example.com/v1
export LANEWAY_CUSTOM_API_KEY=…          # only if it wants one
laneway run --model custom/some-model "Say hello."
```

Several servers, other wires, limits and prices go into `models.toml` in the configuration folder. `api` is a [wire](#wires), `key_env` the variable
that holds the key, `compat` holds the wire's flags:

```toml
[[provider]]
id = "work"
base_url = "https://llm.example.com"
api = "anthropic_messages"
key_env = "WORK_LLM_KEY"
compat = { supports_strict_tools = true }

[[model]]
provider = "work"
id = "claude-at-work"
reasoning = true
context_window = 200000
max_tokens = 32000
cost = { input = 3.0, output = 15.0 }
```

In Python a model is data; another URL, or a flag, is a field of it:

```python
from msgspec.structs import replace

from laneway import model

elsewhere = replace(model("openai/gpt-5.6"), base_url="https://llm.example.com/v1", compat={"supports_max_output_tokens": False})
```

For tests, `laneway.testing.serve_wire` is such a server: it speaks any wire and answers from a script.

## Servers on this machine

`ollama/…`, `lmstudio/…`, `vllm/…` and `llama.cpp/…` need no key and no configuration where the server listens at its usual address; set the
variable of the base URL for another one. Every id is a model. `laneway models --refresh` asks the servers that are running what they have, and
with how much context. `local/…` needs no server at all: laneway starts llama.cpp in a process of its own on a GGUF file.
"""


# ---------------------------------------------------------------------------------------------------- facts


def compat_class(api: str) -> type[Any]:
    """The flags of a wire."""
    wire = SAME_FLAGS.get(api, api)
    return getattr(import_module(f"laneway.llm.wire.{wire}.compat"), COMPATS[wire])


def defaults(api: str) -> dict[str, Any]:
    """The flags of a wire for a model of which nothing is known."""
    made = compat_class(api)()
    return {field.name: getattr(made, field.name) for field in struct_fields(compat_class(api))}


def quirks(provider: Provider, models: list[Model]) -> list[str]:
    """Where the models of a provider differ from the defaults of their wire, and how many do."""
    found: Counter[tuple[str, str, str]] = Counter()
    asked = models or [provider.model("any-model")]
    for model in asked:
        resolve = import_module(f"laneway.llm.wire.{SAME_FLAGS.get(model.api, model.api)}.compat").resolve_compat
        own = {name: value for name, value in model.compat.items() if not name.startswith("guided_")}
        compat = resolve(replace(model, compat=own))
        for name, default in defaults(model.api).items():
            value = getattr(compat, name)
            if value != default:
                found[model.api, name, json.dumps(value)] += 1
    totals = Counter(model.api for model in asked)
    return [
        f"`{name}` = `{value.strip(chr(34))}`" + (f" ({count} of {totals[api]})" if count < totals[api] else "")
        for (api, name, value), count in sorted(found.items(), key=lambda item: (-item[1], item[0]))
    ]


def levels(models: list[Model]) -> str:
    """Which thinking levels there are, and how many of the models that think have each."""
    thinking = [model for model in models if model.reasoning]
    if not thinking:
        return ""
    counts = Counter(level for model in thinking for level in supported_thinking_levels(model))
    shown = [f"{level}{f' ({counts[level]})' if counts[level] < len(thinking) else ''}" for level in THINKING_LEVELS if counts[level]]
    return f"{len(thinking)} of {len(models)} models: {', '.join(shown)}"


def keys(provider: Provider) -> str:
    """The variables that may hold the key."""
    shown = [f"`{key}`" if isinstance(key, str) else f"`{key.name}`{' (sent as a bearer token)' if key.bearer else ''}" for key in provider.keys]
    return ", ".join(shown)


def settings(provider: Provider) -> str:
    """Further variables, with their defaults."""
    shown: list[str] = []
    for setting in provider.settings:
        names = [name for name in (setting.name, *setting.env) if name.isupper()]
        shown.append(" or ".join(f"`{name}`" for name in names) + (f" (default `{setting.default}`)" if setting.default else ""))
    return ", ".join(shown)


def counted(provider: Provider, models: list[Model]) -> str:
    """What models there are."""
    parts = [f"{len(models)} known" if models else "none listed"]
    if provider.default_model:
        parts.append(f"`{provider.default_model}` is the default")
    if provider.open_ended:
        parts.append("any other id is taken too" if models else "any id is taken")
    if provider.refresh is not None:
        parts.append("`laneway models --refresh` asks for the list")
    return "; ".join(parts)


def wires(provider: Provider, models: list[Model]) -> list[str]:
    """The wires of a provider's models, its own first."""
    return list(dict.fromkeys([provider.api, *(model.api for model in models)]))


def models_of(provider: Provider) -> list[Model]:
    """The models of a provider as they are asked; those of `local` that come with laneway only."""
    listed = [model for model in provider.models() if not (provider.id == "local" and model.id == "default")]
    return [replace(model, api=model.api or provider.api, base_url=model.base_url or provider.base_url) for model in listed]


# ---------------------------------------------------------------------------------------------------- the page


def link(name: str) -> str:
    """A link to the section of a wire."""
    return f"[`{name}`](#{name})"


def row(*cells: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def anchor(provider: Provider) -> str:
    """The anchor of a provider's section, as it is made of the heading."""
    return re.sub(r"[^a-z0-9 _-]", "", f"{provider.name or provider.id} ({provider.id})".lower()).replace(" ", "-")


def overview(providers: Iterable[Provider]) -> list[str]:
    """The table on top."""
    lines = ["", row("provider", "name", "wire", "key", "models", "needs"), row(*["---"] * 6)]
    for provider in providers:
        models = models_of(provider)
        needs = f"`laneway[{provider.extra}]`" + unless(provider) if provider.extra else ""
        key = keys(provider) + (" (optional)" if provider.key_optional else "") if provider.keys else "none needed"
        number = str(len(models) or ("any" if provider.open_ended else 0))
        name = f"[{provider.name or provider.id}](#{anchor(provider)})"
        lines.append(row(f"`{provider.id}`", name, ", ".join(map(link, wires(provider, models))), key, number, needs))
    return lines


def unless(provider: Provider) -> str:
    """When the extra is needed: only for credentials that are no key, where a key is enough."""
    return " (only without a key)" if provider.ambient is not None else ""


def section(provider: Provider) -> list[str]:
    """What there is to know about one provider."""
    models = models_of(provider)
    urls = [f"`{provider.base_url}`"] if provider.base_url else []
    urls += [f"`{name}` replaces it" if provider.base_url else f"`{name}`" for name in provider.base_url_env]
    optional = " (optional)" if provider.key_optional and provider.keys else ""
    needs = f"`pip install 'laneway[{provider.extra}]'`" + unless(provider) if provider.extra else ""
    facts = {
        "key": f"{keys(provider)}{optional}" if provider.keys else ("none needed" if provider.key_optional else ""),
        "how to get it": provider.help,
        "settings": settings(provider),
        "base URL": "; ".join(urls),
        "wire": ", ".join(map(link, wires(provider, models))),
        "models": counted(provider, models),
        "thinking": levels(models),
        "quirks": ", ".join(quirks(provider, models)),
        "needs": needs,
    }
    lines = ["", f"### {provider.name or provider.id} (`{provider.id}`)", "", row("", ""), row("---", "---")]
    lines += [row(name, value) for name, value in facts.items() if value]
    return [*lines, "", *wrapped(NOTES[provider.id])] if provider.id in NOTES else lines


def wrapped(text: str) -> list[str]:
    """Break a paragraph into lines."""
    return textwrap.wrap(text, 150, break_long_words=False, break_on_hyphens=False)


def wire_section(api: str) -> list[str]:
    """A wire: what is sent where, and its flags."""
    lines = ["", f"### {api}", "", f"{REQUESTS[api]}."]
    if api in SAME_FLAGS:
        return [*lines, "", f"Bodies, stream and flags are those of {link(SAME_FLAGS[api])}."]
    flags = ", ".join(f"`{name}` = `{_written(value)}`" for name, value in defaults(api).items())
    return [*lines, "", *wrapped(f"Flags and their defaults: {flags}."), "", "```text", inspect.getdoc(compat_class(api)) or "", "```"]


def _written(value: Any) -> str:
    return json.dumps(value, default=str).strip('"') if not isinstance(value, tuple) else ", ".join(map(str, value))


def build() -> str:
    """Return the whole page."""
    providers = list(builtin_providers().values())
    lines = [*HEAD.splitlines(), *overview(providers), *KEYS.splitlines(), *OTHERS.splitlines(), "", "## The providers"]
    lines += [
        "",
        "Quirks are flags of the wire that differ from its defaults. A number in brackets says how many of the listed models have the quirk, or the",
        "thinking level, where not all do. A model's `compat` overrides the quirks.",
    ]
    for provider in providers:
        lines += section(provider)
    lines += ["", "## Wires", "", "A wire is a protocol; `api` of a model or provider names one. Its flags may stand in `compat`."]
    for api in REQUESTS:
        lines += wire_section(api)
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, or compare it."""
    page = build()
    if "--check" not in arguments:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") != page:
        print("docs/providers.md is stale: run python tools/build_provider_docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
