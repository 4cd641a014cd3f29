"""Amazon Bedrock's Converse protocol: one request shape for every maker's models, answered in binary frames."""

from laneway.llm.wire.bedrock_converse.client import stream
from laneway.llm.wire.bedrock_converse.compat import BedrockCompat, resolve_compat
from laneway.llm.wire.bedrock_converse.decode import Decoder
from laneway.llm.wire.bedrock_converse.encode import encode

API = "bedrock_converse"

__all__ = ["API", "BedrockCompat", "Decoder", "encode", "resolve_compat", "stream"]
