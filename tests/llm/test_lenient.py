"""JSON that strict decoders refuse, and characters cut in two."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.llm._lenient import HalfPairs, lenient_json
from laneway.llm.base import ProviderFailure


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a":"\\ud83d"}', {"a": "\ud83d"}),
        (b'{"a":"x\ny"}', {"a": "x\ny"}),
        (b'{"a":"\\d"}', {"a": "\\d"}),
        (b'{"a":"\xff"}', {"a": "\ufffd"}),
        (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
        (b" [1] ", [1]),
    ],
)
def test_what_servers_send_is_read(data: bytes, value: object) -> None:
    """05 §10.6."""
    assert lenient_json(data, provider="p") == value


@pytest.mark.parametrize("data", [b"", b"oops", b'{"a":', b"[" * 200_000, b"\xff\xfe"])
def test_what_is_no_json_is_a_failure(data: bytes) -> None:
    """With the beginning of what was sent, without keys."""
    with pytest.raises(ProviderFailure, match="not JSON") as caught:
        lenient_json(data, provider="p")
    assert (caught.value.info.kind, len(str(caught.value)) < 1000) == ("protocol", True)
    with pytest.raises(ProviderFailure) as caught:
        lenient_json(b"Bearer abcdefgh12345678", provider="p")
    assert "abcdefgh" not in str(caught.value)


@given(st.text(st.sampled_from("a😀ü\u20ac"), max_size=12), st.lists(st.integers(0, 24), max_size=8))
def test_halves_meet(text: str, cuts: list[int]) -> None:
    """05 sc. 145: any cut between UTF-16 units gives the text back; nothing waits at the end."""
    units = text.encode("utf-16-le")
    edges = sorted({0, len(units), *(min(2 * cut, len(units)) for cut in cuts)})
    halves = HalfPairs()
    out = "".join(halves.join(1, units[a:b].decode("utf-16-le", "surrogatepass")) for a, b in itertools.pairwise(edges))
    assert out == text
    assert halves.flush() == {}


def test_blocks_do_not_mix_and_lone_halves_are_replaced() -> None:
    """Each block has its own waiting half."""
    halves = HalfPairs()
    assert (halves.join(1, "a\ud83d"), halves.join(2, "\ude00b")) == ("a", "\ufffdb")
    assert halves.pending
    assert halves.join(1, "\ude00") == "😀"
    assert halves.join(1, "\ud83d") == ""
    assert halves.join(1, "\ud83d") == "\ufffd"
    assert halves.flush() == {1: "\ufffd"}
    assert not halves.pending
