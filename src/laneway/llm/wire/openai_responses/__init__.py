"""The Responses protocol: OpenAI's newer API, which others speak too (Azure through a door of its own)."""

from laneway.llm.wire.openai_responses.client import stream
from laneway.llm.wire.openai_responses.compat import ResponsesCompat, resolve_compat
from laneway.llm.wire.openai_responses.decode import Decoder
from laneway.llm.wire.openai_responses.encode import encode

API = "openai_responses"

__all__ = ["API", "Decoder", "ResponsesCompat", "encode", "resolve_compat", "stream"]
