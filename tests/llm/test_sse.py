"""The SSE decoder: whatever the cuts, the events are the same, and the cost is linear."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.llm._sse import SseDecoder, SseEvent, SseTooLarge


def decode(*chunks: bytes) -> list[tuple[str, bytes]]:
    """All events of a body that arrives in these chunks."""
    decoder = SseDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.finish()
    return [(event.event, event.data) for event in events]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"data: a\n\n", [("", b"a")]),
        (b"data:a\n\ndata:  b\n\n", [("", b"a"), ("", b" b")]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [("", b"a"), ("", b"b")]),
        (b"data: a\r\rdata: b\r\r", [("", b"a"), ("", b"b")]),
        (b"event: x\ndata: a\n\ndata: b\n\n", [("x", b"a"), ("", b"b")]),
        (b"event:x\r\ndata:a\r\n\r\n", [("x", b"a")]),
        (b"data: a\ndata: b\n\n", [("", b"a\nb")]),
        (b"data\ndata: b\n\n", [("", b"\nb")]),
        (b"data: a\nevent: late\n\n", [("late", b"a")]),
        (b": comment\n\n: another\ndata: a\nid: 7\nretry: 10\n\n", [("", b"a")]),
        (b"data: a", [("", b"a")]),
        (b"data: a\n", [("", b"a")]),
        (b"event: only a name\n\n", []),
        (b"data:\n\n", []),
        (b"\n\n\n\ndata: a\n\n\n\n", [("", b"a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("", b"a")]),
        ("data: grüße 😀\n\n".encode(), [("", "grüße 😀".encode())]),
        (b"data: \xff\xfe\n\n", [("", b"\xff\xfe")]),
        (b"", []),
    ],
)
def test_events_are_read_whatever_the_line_ends(body: bytes, expected: list[tuple[str, bytes]]) -> None:
    """LF, CRLF, CR, comments, names, several data lines, a byte order mark, and a last event without its blank line (05 sc. 88)."""
    assert decode(body) == expected


@pytest.mark.parametrize(
    "body", [b"event: x\r\ndata: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n", "\ufeffdata: 😀\n\n: c\ndata: ü\n\n".encode(), b"data: a\r\rdata: b"]
)
def test_every_cut_gives_the_same_events(body: bytes) -> None:
    """The same bytes cut at every place, also inside CRLF, a UTF-8 character and the byte order mark, give the same events (05 sc. 88)."""
    whole = decode(body)
    for i in range(len(body) + 1):
        for j in range(i, len(body) + 1):
            assert decode(body[:i], body[i:j], body[j:]) == whole
    assert decode(*(body[i : i + 1] for i in range(len(body)))) == whole


def reference(body: bytes) -> list[tuple[str, bytes]]:
    """A slow, plain reading of the format."""
    events: list[tuple[str, bytes]] = []
    name, data = "", []
    for line in [*re.split(rb"\r\n|\r|\n", body.removeprefix(b"\xef\xbb\xbf")), b""]:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            if any(data):
                events.append((name, b"\n".join(data)))
            name, data = "", []
        elif field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    return events


@given(
    st.lists(
        st.sampled_from([b"data: ", b"data:", b"data", b"event: ", b"id: ", b":", b"\n", b"\r\n", b"\r", b"\n\n", b"x", b"{}", b"\xc3", b"\xbc"])
    ),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_any_bytes_in_any_chunks_are_read_like_the_format_says(pieces: list[bytes], cuts: list[int]) -> None:
    """Fuzz over contents and chunkings against a plain reading of the format; nothing ever raises."""
    body = b"".join(pieces)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    assert decode(*(body[a:b] for a, b in itertools.pairwise(edges))) == reference(body)


def test_a_large_event_costs_linear_work() -> None:
    """05 sc. 148: an event of 5 MiB in small chunks is joined once: no chunk is copied again when the next one arrives."""
    decoder = SseDecoder()
    payload = b"x" * 1000
    decoder.feed(b"data: ")
    for _ in range(5 * 1024):
        assert decoder.feed(payload) == []
        assert all(len(piece) <= 1000 for piece in decoder._open)
    assert [len(event.data) for event in decoder.feed(b"\n\n")] == [5 * 1024 * 1000]


def test_many_lines_of_one_event_cost_linear_work() -> None:
    """An event of very many data lines is not joined before it ends."""
    decoder = SseDecoder()
    for _ in range(20_000):
        decoder.feed(b"data: xxxx\n")
    assert len(decoder._open) == 20_000
    assert decoder.feed(b"\n")[0].data == b"\n".join([b"xxxx"] * 20_000)


def test_an_endless_event_is_refused() -> None:
    """A body that never ends an event cannot fill the memory."""
    decoder = SseDecoder(max_event_bytes=1000)
    assert decoder.feed(b"data: 0123456789\n" * 50) == []
    with pytest.raises(SseTooLarge, match="larger than 1000 bytes"):
        decoder.feed(b"data: 0123456789\n" * 50)
    decoder = SseDecoder(max_event_bytes=1000)
    assert len(decoder.feed(b"data: 0123456789\n\n" * 200)) == 200
    with pytest.raises(SseTooLarge):
        decoder.feed(b"data: " + b"x" * 2000 + b"\n\n")


def test_what_is_no_event_stream_is_kept_for_the_error() -> None:
    """05 sc. 148: plain JSON or HTML instead of events is in `stray`, so that the error can show it."""
    decoder = SseDecoder()
    decoder.feed(b'{"error": {\n "message": "no"\n}}\n')
    decoder.finish()
    assert decoder.stray == b'{"error": {\n "message": "no"\n}}'


def test_an_event_is_a_frozen_value() -> None:
    """Events can be compared and kept."""
    assert SseEvent("a", b"b") == SseEvent("a", b"b")
