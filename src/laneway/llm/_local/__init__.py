"""The local model: finding a GGUF file, and running llama.cpp on it in a process of its own that ends with this one."""

from __future__ import annotations

from laneway.llm._local.files import LocalSetup, ensure_local_model, find_model_file, local_setup
from laneway.llm._local.process import LocalServer, ensure_server, stop_servers

__all__ = ["LocalServer", "LocalSetup", "ensure_local_model", "ensure_server", "find_model_file", "local_setup", "stop_servers"]
