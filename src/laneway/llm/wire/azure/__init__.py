"""OpenAI's models on Azure: the Responses protocol behind another door (address, key header, deployments instead of models).

The one wire that stands on another: what is said is `openai_responses`, and only where and to whom is here.
"""

from laneway.llm.wire.azure.client import stream
from laneway.llm.wire.azure.encode import deployment_of, encode, responses_url
from laneway.llm.wire.openai_responses import Decoder

API = "azure"

__all__ = ["API", "Decoder", "deployment_of", "encode", "responses_url", "stream"]
