"""Wires are found by name and imported on first use."""

from __future__ import annotations

import pytest

from laneway.errors import ModelError
from laneway.llm.wire import load_wire
from laneway.llm.wire.openai_chat import stream


def test_a_wire_is_found_by_the_model_s_api() -> None:
    """`Model.api` is the wire's name."""
    assert load_wire("openai_chat") is stream


@pytest.mark.parametrize("api", ["", "no_such_wire", "../x", "_private", "openai chat"])
def test_an_unknown_wire_is_an_error_that_names_it(api: str) -> None:
    """A typo in a user's model says what it is."""
    with pytest.raises(ModelError, match="does not speak"):
        load_wire(api)
