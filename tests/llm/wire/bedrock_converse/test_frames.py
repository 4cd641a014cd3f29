"""Binary frames: against botocore's decoder, however the bytes are cut, whatever is wrong with them."""

from __future__ import annotations

from itertools import pairwise
from struct import pack
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.llm._sse import SseEvent
from laneway.llm.wire.bedrock_converse._frames import BROKEN, FrameDecoder, read_headers
from llm.wire.bedrock_converse.protocol import HELLO, arguments, error, exception, frame, header, raw_frame, text

botocore = pytest.importorskip("botocore.eventstream", reason="botocore is the oracle of this file")

BODY = b"".join([*HELLO, arguments('{"a": "ü😀"}'), exception("throttlingException"), error("Oops", "no")])


def decode(*chunks: bytes) -> list[tuple[str, bytes]]:
    """All events of a body that arrives in these chunks."""
    decoder = FrameDecoder()
    events: list[SseEvent] = []
    for chunk in chunks:
        events += decoder.feed(chunk)
    return [(event.event, event.data) for event in [*events, *decoder.finish()]]


def theirs(body: bytes) -> list[tuple[dict[str, object], bytes]]:
    """The frames as botocore reads them."""
    buffer = botocore.EventStreamBuffer()
    buffer.add_data(body)
    return [(message.headers, message.payload) for message in buffer]


def test_frames_are_what_botocore_reads() -> None:
    """The names come from the headers, the data are the payloads; errors that are all headers get one."""
    found = decode(BODY)
    expected = theirs(BODY)
    assert [data for _, data in found][:-1] == [payload for _, payload in expected][:-1]
    assert [name for name, _ in found][:-2] == [headers[":event-type"] for headers, _ in expected[:-2]]
    assert found[-2][0] == "!throttlingException"
    assert found[-1] == ("!Oops", b'{"message":"no","code":"Oops"}')


@given(cuts=st.lists(st.integers(0, len(BODY)), max_size=12))
def test_the_cut_of_the_bytes_does_not_matter(cuts: list[int]) -> None:
    """Any chunking gives the same events."""
    edges = [0, *sorted(cuts), len(BODY)]
    assert decode(*[BODY[a:b] for a, b in pairwise(edges)]) == decode(BODY)


def test_single_bytes() -> None:
    """The smallest pieces there are."""
    assert decode(*[BODY[i : i + 1] for i in range(len(BODY))]) == decode(BODY)


def test_a_body_that_ends_inside_of_a_frame_says_so() -> None:
    """A cut at every byte: whole frames before it are there, and only a cut between two frames is silent."""
    ends = [sum(map(len, HELLO[:n])) for n in range(len(HELLO) + 1)]
    whole = b"".join(HELLO)
    for cut in range(len(whole) + 1):
        found = decode(whole[:cut])
        complete = sum(end <= cut for end in ends) - 1
        assert len([name for name, _ in found if name != BROKEN]) == complete
        assert any(name == BROKEN for name, _ in found) == (cut not in ends)


@given(at=st.integers(0, len(BODY) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_a_frame(at: int, bit: int) -> None:
    """Where botocore raises we say so, after the frames before it; nothing is invented."""
    broken = bytearray(BODY)
    broken[at] ^= 1 << bit
    found = decode(bytes(broken))
    good = decode(BODY)
    if at == 0 and broken[0] > 8:  # a body that begins like a text is no event stream at all
        assert found == []
        return
    assert found[-1][0] == BROKEN
    assert found[:-1] == good[: len(found) - 1]
    assert len(found) <= len(good)


@given(data=st.binary(max_size=400))
def test_any_bytes_are_read_without_an_exception(data: bytes) -> None:
    """Also those that begin like frames."""
    decode(data)
    decode(b"\0" + data)
    decode(raw_frame(data, b"{}"), text("x"))


def test_lengths_that_cannot_be_are_refused_at_once() -> None:
    """Not after waiting for so many bytes."""
    for total, headers, part in ((1 << 30, 10, "larger"), (20, 10, "cannot hold"), (4, 0, "cannot hold"), (16, 0xFFFFFFFF, "cannot hold")):
        lengths = pack(">II", total, headers)
        _, found = decode(text("x") + lengths + pack(">I", crc32(lengths)) + b"\0" * 8)
        assert found[0] == BROKEN
        assert part in found[1].decode()


def test_nothing_is_read_after_a_broken_frame() -> None:
    """Where the next frame begins is not known any more."""
    broken = bytearray(text("x"))
    broken[-1] ^= 1
    decoder = FrameDecoder()
    assert [event.event for event in decoder.feed(text("a") + bytes(broken) + text("b"))] == ["contentBlockDelta", BROKEN]
    assert (decoder.feed(text("c")), decoder.finish()) == ([], [])


def test_a_body_that_is_no_event_stream_is_kept() -> None:
    """JSON, a page: what was said instead; not more of it than is worth keeping."""
    decoder = FrameDecoder()
    assert (decoder.feed(b'{"message":'), decoder.feed(b'"no"}'), decoder.finish()) == ([], [], [])
    assert decoder.stray == b'{"message":"no"}'
    for _ in range(100):
        decoder.feed(b"x" * 65536)
    assert len(decoder.stray) < 512 * 1024


def test_every_type_of_header_is_passed_over() -> None:
    """The text ones count; times, numbers, bytes, UUIDs, booleans are there to be skipped."""
    others = b"\x01b\x00\x01c\x01\x01d\x02\x05\x01e\x03\x00\x05\x01f\x04\0\0\0\x05\x01g\x05" + b"\0" * 8
    more = b"\x01h\x06\x00\x03abc\x01i\x08" + b"\0" * 8 + b"\x01j\x09" + b"\0" * 16
    headers = others + header(":event-type", "ü") + more
    assert read_headers(headers) == {":event-type": "ü"}
    assert set(theirs(raw_frame(headers, b""))[0][0]) == {*"bcdefghij", ":event-type"}
    for cut in range(1, len(headers)):
        try:
            read_headers(headers[:cut])
        except (ValueError, IndexError):
            assert decode(raw_frame(headers[:cut], b""))[0][0] == BROKEN


def test_a_large_frame_costs_its_bytes_once() -> None:
    """16 MiB in pieces of 16 KiB: joined once, when it is complete."""
    body = frame("contentBlockDelta", b"x" * (16 << 20))
    (found,) = decode(*[body[i : i + 16384] for i in range(0, len(body), 16384)])
    assert (found[0], len(found[1])) == ("contentBlockDelta", 16 << 20)
