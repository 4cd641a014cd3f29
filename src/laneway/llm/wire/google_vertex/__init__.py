"""The Gemini protocol on Vertex AI: the bodies and the stream of `google_generate`, other URLs, and Google Cloud's credentials."""

from laneway.llm.wire.google_vertex.client import stream

API = "google_vertex"

__all__ = ["API", "stream"]
