"""The Gemini protocol (`generateContent`): Google's own API; the same bodies go to Vertex AI through `google_vertex`."""

from laneway.llm.wire.google_generate.client import stream
from laneway.llm.wire.google_generate.compat import GoogleCompat, resolve_compat
from laneway.llm.wire.google_generate.decode import Decoder
from laneway.llm.wire.google_generate.encode import encode

API = "google_generate"

__all__ = ["API", "Decoder", "GoogleCompat", "encode", "resolve_compat", "stream"]
