"""A provider on loopback, for end-to-end tests: `serve_wire`.

`server` has the script and the life of a request, `http` the sockets, `plan` what a reply means, `dialect` what the wires have in common;
the other modules are the wires, one each (Azure is in `openai_responses`, Vertex in `google_generate`).
"""

from laneway.testing._serve.server import WireRequest, WireServer, serve_wire

__all__ = ["WireRequest", "WireServer", "serve_wire"]
