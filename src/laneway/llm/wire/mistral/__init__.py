"""Mistral's chat protocol: related to the chat-completions protocol, with ids, thinking and an order of roles of its own."""

from laneway.llm.wire.mistral.client import stream
from laneway.llm.wire.mistral.compat import MistralCompat, resolve_compat
from laneway.llm.wire.mistral.decode import Decoder
from laneway.llm.wire.mistral.encode import encode

API = "mistral"

__all__ = ["API", "Decoder", "MistralCompat", "encode", "resolve_compat", "stream"]
