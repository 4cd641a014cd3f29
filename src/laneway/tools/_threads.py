"""Runs the sync functions of tools in threads of their own.

Not `asyncio.to_thread`: a thread cannot be killed, so a tool that hangs would take one of the event loop's few workers for
ever, and would keep the process from ending. These threads are daemons, there are as many as calls under way, and
idle ones are used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

_KEEP_IDLE = 8
_Job = Callable[[], None]
_idle: list[queue.SimpleQueue[_Job]] = []


async def run_in_thread(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """Call `function(**kwargs)` in a thread, with the caller's context variables, and return or raise what it does.

    If the awaiting task is cancelled, the call goes on unseen and what it returns or raises is dropped.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def job() -> None:
        value, error = None, None
        try:
            value = context.run(function, **kwargs)
        except StopIteration as stop:  # a future cannot carry it
            error = RuntimeError(f"the function raised {stop!r}")
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            loop.call_soon_threadsafe(settle, value, error)
        del value, error  # an exception's traceback holds this frame

    try:
        _idle.pop().put(job)
    except IndexError:
        inbox: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        inbox.put(job)
        threading.Thread(target=_work, args=(inbox,), name="laneway-tool", daemon=True).start()
    return await future


def _work(inbox: queue.SimpleQueue[_Job]) -> None:
    while True:
        inbox.get()()
        if len(_idle) >= _KEEP_IDLE:
            return
        _idle.append(inbox)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # threads do not survive a fork
