"""The chat-completions protocol: OpenAI's older API, and what nearly every other server speaks."""

from laneway.llm.wire.openai_chat.client import stream
from laneway.llm.wire.openai_chat.compat import ChatCompat, resolve_compat
from laneway.llm.wire.openai_chat.decode import Decoder
from laneway.llm.wire.openai_chat.encode import encode

API = "openai_chat"

__all__ = ["API", "ChatCompat", "Decoder", "encode", "resolve_compat", "stream"]
