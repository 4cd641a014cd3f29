"""What decoding a stream costs, against its floor: splitting the same bytes into events and decoding their JSON, and nothing else.

    python benchmarks/bench_decode.py [--chunks 20000] [--repeats 7]

Prints one line per workload with the median CPU time, the floor's, and their ratio; all from one run, alternating. With the vendor's SDK
installed (`openai`; `botocore` for Bedrock's binary frames) its decoding of the same bytes is measured too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from struct import pack
from typing import Any
from zlib import crc32

import msgspec

from laneway.llm._sse import SseDecoder
from laneway.llm._writer import StreamWriter
from laneway.llm.base import Model
from laneway.llm.wire.bedrock_converse import Decoder as BedrockDecoder
from laneway.llm.wire.bedrock_converse._events import decode_delta
from laneway.llm.wire.bedrock_converse._frames import FrameDecoder
from laneway.llm.wire.openai_chat import ChatCompat, Decoder
from laneway.llm.wire.openai_chat._chunks import decode_chunk

MODEL = Model(id="gpt-bench", provider="bench", api="openai_chat", base_url="http://127.0.0.1:1/v1")
NETWORK_CHUNK = 8192


def text_body(chunks: int) -> bytes:
    """A response of text deltas, each chunk with the fields that servers really send."""
    return b"".join(_chunk({"content": f" word{i % 10}"}) for i in range(chunks)) + _chunk({}, "stop") + b"data: [DONE]\n\n"


def call_body(chunks: int, size: int = 10) -> bytes:
    """A response of one tool call whose arguments come in pieces of 10 characters."""
    text = json.dumps({"path": "a.txt", "content": "x" * (chunks * size)})
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    head = _chunk({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "write", "arguments": ""}}]})
    deltas = (_chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}) for piece in pieces)
    return head + b"".join(deltas) + _chunk({}, "tool_calls") + b"data: [DONE]\n\n"


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    chunk = {"id": "chatcmpl-AbCdEfGhIjKlMnOp", "object": "chat.completion.chunk", "created": 1767225600, "model": "gpt-bench-2026-01-01"}
    return b"data: " + json.dumps({**chunk, "system_fingerprint": "fp_0123456789", "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


def pieces(body: bytes) -> Iterator[bytes]:
    """The body as it comes from a socket."""
    return (body[i : i + NETWORK_CHUNK] for i in range(0, len(body), NETWORK_CHUNK))


def floor(body: bytes, decode: Callable[[bytes], Any] = msgspec.json.decode) -> int:
    """Split and decode the JSON, nothing else."""
    sse = SseDecoder()
    seen = 0
    for piece in pieces(body):
        for event in sse.feed(piece):
            if event.data != b"[DONE]":
                decode(event.data)
                seen += 1
    return seen


def typed_floor(body: bytes) -> int:
    """The same with the wire's own typed decoder, which skips what it does not want: the lowest there is."""
    return floor(body, decode_chunk)


def laneway(body: bytes, look_every: int = 0) -> int:
    """Bytes to assistant events; `look_every` reads the partial message at every so many events, as a screen does."""
    sse, writer = SseDecoder(), StreamWriter(MODEL)
    decoder = Decoder(MODEL, ChatCompat(), writer)
    seen = 0
    for piece in pieces(body):
        for event in sse.feed(piece):
            for _ in decoder.feed(event.data):
                seen += 1
                if look_every and seen % look_every == 0:
                    len(writer.partial.content)
    return seen + len(decoder.finish())


def sdk(body: bytes) -> int:
    """The vendor's SDK on the same bytes: its own decoder and its own chunk objects."""
    from openai._models import construct_type
    from openai._streaming import SSEDecoder as TheirDecoder
    from openai.types.chat import ChatCompletionChunk

    async def arriving() -> AsyncIterator[bytes]:
        for piece in pieces(body):
            yield piece

    async def run() -> int:
        seen = 0
        async for event in TheirDecoder().aiter_bytes(arriving()):
            if event.data != "[DONE]":
                construct_type(value=event.json(), type_=ChatCompletionChunk)
                seen += 1
        return seen

    return asyncio.run(run())


# ---------------------------------------------------------------------------------------------------- Bedrock


BEDROCK = Model(id="anthropic.claude-bench", provider="bench", api="bedrock_converse", base_url="http://127.0.0.1:1")


def frames_body(chunks: int, *, call: bool = False) -> bytes:
    """A response of text or argument deltas in frames, padded as the service pads them."""
    start = {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": "tooluse_1", "name": "write"}}}
    inputs = ('{"path":"a"', *(" " * 10 for _ in range(chunks - 2)), "}")
    deltas = ({"toolUse": {"input": text}} for text in inputs) if call else ({"text": f" word{i % 10}"} for i in range(chunks))
    events = [_frame("contentBlockStart", start)] if call else []
    padding = "abcdefghijklmnopqrstuvwxyz0123456789"
    for i, delta in enumerate(deltas):
        events.append(_frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": delta, "p": padding[: 5 + i % 30]}))
    usage = {"usage": {"inputTokens": 10, "outputTokens": chunks, "totalTokens": chunks + 10}, "metrics": {"latencyMs": 1}}
    reason = {"stopReason": "tool_use" if call else "end_turn"}
    return b"".join([*events, _frame("contentBlockStop", {"contentBlockIndex": 0}), _frame("messageStop", reason), _frame("metadata", usage)])


def _frame(name: str, content: dict[str, Any]) -> bytes:
    headers = b"".join(
        bytes([len(key)]) + key.encode() + b"\x07" + pack(">H", len(value)) + value.encode()
        for key, value in ((":event-type", name), (":content-type", "application/json"), (":message-type", "event"))
    )
    payload = json.dumps(content, separators=(",", ":")).encode()
    lengths = pack(">II", 16 + len(headers) + len(payload), len(headers))
    before = lengths + pack(">I", crc32(lengths)) + headers + payload
    return before + pack(">I", crc32(before))


def frames_floor(body: bytes, decode: Callable[[bytes], Any] = msgspec.json.decode) -> int:
    """Split into frames, checksums checked, and decode the JSON, nothing else."""
    frames = FrameDecoder()
    seen = 0
    for piece in pieces(body):
        for event in frames.feed(piece):
            decode(event.data)
            seen += 1
    return seen


def laneway_frames(body: bytes, look_every: int = 0) -> int:
    """Bytes to assistant events."""
    frames, writer = FrameDecoder(), StreamWriter(BEDROCK)
    decoder = BedrockDecoder(BEDROCK, writer)
    seen = 0
    for piece in pieces(body):
        for event in frames.feed(piece):
            for _ in decoder.feed(event.data, event.event):
                seen += 1
                if look_every and seen % look_every == 0:
                    len(writer.partial.content)
    return seen + len(decoder.finish())


class _Arriving:
    """A body as botocore reads it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterator[bytes]:
        """The pieces."""
        return pieces(self._body)


def botocore_frames() -> Callable[[bytes], int] | None:
    """Return botocore's decoding of the same bytes into its events; None if it is not installed."""
    try:
        from botocore.eventstream import EventStream
        from botocore.parsers import create_parser
        from botocore.session import Session
    except ImportError:
        return None
    shape = Session().get_service_model("bedrock-runtime").operation_model("ConverseStream").get_event_stream_output()
    parser = create_parser("rest-json")._event_stream_parser
    return lambda body: sum(1 for _ in EventStream(_Arriving(body), shape, parser, "ConverseStream"))


def bench_frames(chunks: int, repeats: int) -> None:
    """Bedrock's frames: text and tool arguments."""
    theirs = botocore_frames()
    for title, body in (("frames of text", frames_body(chunks)), ("frames of arguments", frames_body(chunks, call=True))):
        functions: dict[str, Callable[[], Any]] = {
            "frame split + msgspec decode": lambda body=body: frames_floor(body),
            "frame split + typed decode": lambda body=body: frames_floor(body, decode_delta),
            "laneway": lambda body=body: laneway_frames(body),
            "laneway, partial read each 100th": lambda body=body: laneway_frames(body, 100),
        }
        if theirs is not None:
            functions["botocore"] = lambda body=body: theirs(body)
        report(title, measure(functions, repeats), "frame split + msgspec decode", chunks)


# ---------------------------------------------------------------------------------------------------- measuring


def measure(functions: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each, run alternately."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name, function in functions.items():
            started = time.process_time()
            function()
            times[name].append(time.process_time() - started)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def report(title: str, times: dict[str, float], base: str, count: int) -> None:
    """One line per function."""
    for name, seconds in times.items():
        print(f"{title:<28} {name:<34} {seconds * 1e3:9.2f} ms  {seconds / count * 1e6:8.2f} us each  {seconds / times[base]:6.2f} x {base}")


def bench_decode(chunks: int, repeats: int) -> None:
    """Text and tool arguments."""
    for title, body in (("text deltas", text_body(chunks)), ("argument deltas", call_body(chunks))):
        functions: dict[str, Callable[[], Any]] = {
            "split + msgspec decode": lambda body=body: floor(body),
            "split + typed decode": lambda body=body: typed_floor(body),
            "laneway": lambda body=body: laneway(body),
            "laneway, partial read each 100th": lambda body=body: laneway(body, 100),
        }
        try:
            import openai  # noqa: F401
        except ImportError:
            pass
        else:
            functions["openai SDK"] = lambda body=body: sdk(body)
        report(title, measure(functions, repeats), "split + msgspec decode", chunks)


def bench_growth(chunks: int, repeats: int) -> None:
    """The cost of a delta must not grow with the response."""
    small, large = text_body(chunks // 4), text_body(chunks)
    times = measure({"small": lambda: laneway(small), "large": lambda: laneway(large)}, repeats)
    print(f"{'growth':<28} per delta, {chunks} deltas against {chunks // 4}: {times['large'] / 4 / times['small']:.2f} x")
    small, large = call_body(chunks * 5 // 4), call_body(chunks * 5)
    times = measure({"small": lambda: laneway(small, 100), "large": lambda: laneway(large, 100)}, max(3, repeats // 2))
    print(f"{'growth of 1 MB arguments':<28} per delta, {chunks * 5} deltas against {chunks * 5 // 4}: {times['large'] / 4 / times['small']:.2f} x")


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    bench_decode(arguments.chunks, arguments.repeats)
    bench_frames(arguments.chunks, arguments.repeats)
    bench_growth(arguments.chunks, arguments.repeats)


if __name__ == "__main__":
    main()
