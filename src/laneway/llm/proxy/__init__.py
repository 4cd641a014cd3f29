"""One process asks models for others: the keys stay on the server, the clients have a `StreamFn` like any other.

Server (any ASGI server runs it)::

    app = proxy_app(Models().stream, authorize=lambda caller: caller.token in tokens)

Client::

    agent = Agent(model=…, stream_fn=proxy_stream_fn("https://models.example", auth_token=token))

A request names a model by provider and id; URL, headers and key are the server's own. See `laneway.llm.proxy._protocol` for what is on
the wire.
"""

from laneway.llm.proxy._client import proxy_stream_fn
from laneway.llm.proxy._server import ProxyCaller, proxy_app

__all__ = ["ProxyCaller", "proxy_app", "proxy_stream_fn"]
