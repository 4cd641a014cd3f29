"""What every part of the suite shares."""

from __future__ import annotations

import faulthandler

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """No test may hang for ever: after five minutes the stacks are printed and the process ends."""
    faulthandler.dump_traceback_later(300, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
