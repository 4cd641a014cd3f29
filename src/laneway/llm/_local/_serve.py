"""The program of a local server's process: loads one model, says where it listens, and serves until its standard input closes.

Started by `laneway.llm._local.process` as a file of its own; it imports nothing of laneway.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from typing import Any
from urllib.request import Request, urlopen


def main() -> None:
    """Serve until the process that started this one closes the pipe or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the agent; it decides when the server ends
    told: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the engine prints belongs to the log, not among the answers
    server = start(told)
    print(json.dumps(facts(server, told["key"])), file=answers, flush=True)
    answers.close()
    sys.stdin.buffer.read()
    os._exit(0)  # the engine would wait for responses that nobody reads any more


def start(told: dict[str, Any]) -> Any:
    """Load the model and start to listen on a free port of the loopback interface."""
    engine: Any = import_module("xllamacpp")  # by name: it has no types
    params = engine.CommonParams()
    params.model.path = told["path"]
    params.model_alias = [told["name"]]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [told["key"]]
    params.cors_origins = ""
    params.n_ctx, params.n_parallel, params.kv_unified = told["context"], told["slots"], True
    params.cache_ram_mib = 256
    params.verbosity = 0
    params.ui = params.endpoint_slots = False
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads, threads.poll = told["threads"], 0
    return engine.Server(params)


def facts(server: Any, key: str) -> dict[str, Any]:
    """Ask the server about itself."""
    url: str = server.listening_address
    props = _get(f"{url}/props", key)
    listed: list[dict[str, Any]] = _get(f"{url}/v1/models", key).get("data") or [{}]
    meta: dict[str, Any] = listed[0].get("meta") or {}
    settings: dict[str, Any] = props.get("default_generation_settings") or {}
    template: dict[str, Any] = props.get("chat_template_caps") or {}
    return {
        "url": url,
        "context": int(settings.get("n_ctx") or 0),
        "parameters": int(meta.get("n_params") or 0),
        "calls_tools": bool(template.get("supports_tools")),
    }


def _get(url: str, key: str) -> dict[str, Any]:
    with urlopen(Request(url, headers={"authorization": f"Bearer {key}"}), timeout=30) as response:
        return json.load(response)


if __name__ == "__main__":
    main()
