"""The Anthropic messages protocol: Anthropic's own API, and the servers that speak it too."""

from laneway.llm.wire.anthropic_messages.client import stream
from laneway.llm.wire.anthropic_messages.compat import AnthropicCompat, resolve_compat
from laneway.llm.wire.anthropic_messages.decode import Decoder
from laneway.llm.wire.anthropic_messages.encode import encode

API = "anthropic_messages"

__all__ = ["API", "AnthropicCompat", "Decoder", "encode", "resolve_compat", "stream"]
