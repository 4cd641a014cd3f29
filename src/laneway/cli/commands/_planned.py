"""The prompts of one command line, kept in the session from before the first is asked until the last one has its answer.

Each is to become the run of an operation whose id is chosen here. So what was asked is read off the session itself, exactly, whenever
the process ended: a prompt whose operation there is has been asked, every other one has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from laneway.cli.commands._prompt import Prompt
from laneway.harness import keys
from laneway.messages import ImageContent
from laneway.session import Session
from laneway.storage.base import Storage

LANE = "main"
_APP, _KEY = "laneway.cli", "prompts"


class Planned(Struct, kw_only=True, frozen=True):
    """One prompt, and the id of the operation that it becomes."""

    operation_id: str
    text: str
    images: list[ImageContent]


class _Plan(Struct, kw_only=True, frozen=True):
    """What is stored. A fork of the whole tree copies it, but asks nothing: `session_id` is not its own."""

    session_id: str
    prompts: list[Planned]


async def store(session: Session, prompts: Sequence[Prompt]) -> list[Planned]:
    """Make prompts durable, in the order in which they are to be asked."""
    planned = [Planned(operation_id=session.ids.new(), text=prompt.text, images=prompt.images) for prompt in prompts]
    await session.app(_APP).set(_KEY, msgspec.to_builtins(_Plan(session_id=session.metadata.id, prompts=planned)))
    return planned


async def forget(session: Session) -> None:
    """Drop the prompts: they have been asked, or nobody wants them asked any more."""
    await session.app(_APP).delete(_KEY)


async def not_asked(storage: Storage, session_id: str) -> list[Planned]:
    """Return the prompts that are still to be asked, in their order; none after a run that did not end well. Only reads."""
    stored = await storage.get_value(f"app.{_APP}", _KEY)
    if stored is None:
        return []
    plan = msgspec.convert(stored.value, _Plan)
    if plan.session_id != session_id:
        return []
    current = await open_operation(storage)
    for number, prompt in enumerate(plan.prompts):
        if prompt.operation_id == current:
            return plan.prompts[number + 1 :]
        result = await storage.get_value(keys.OP_RESULT, prompt.operation_id)
        if result is None:
            return plan.prompts[number:]
        if field_of(result.value, "status") != "completed" or field_of(result.value, "limit") is not None:
            return []
    return []


async def open_operation(storage: Storage) -> str | None:
    """Return the operation of the lane that is not over."""
    state = await storage.get_value(keys.LANE_STATE, LANE)
    return field_of(state.value, "current_operation_id") if state is not None else None


def field_of(value: object, name: str) -> Any:
    """Return one field of a stored JSON object; None where it is none."""
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
