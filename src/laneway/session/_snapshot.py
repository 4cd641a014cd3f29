"""What of a session can change, as it is at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from laneway.errors import ForkError

if TYPE_CHECKING:
    from laneway.session._session import Session
    from laneway.storage.base import Enumerable, Storage, Values


async def values_of(storage: Storage) -> Values:
    """Return every cell and list of a store at this moment.

    Raises:
        ForkError: the store cannot say what it holds.
    """
    if not hasattr(storage, "read_values"):
        raise ForkError(f"{type(storage).__name__} has no read_values(), so a copy might not be whole: use the session through its repository")
    return await cast("Enumerable", storage).read_values()


async def values_in_line(session: Session) -> Values:
    """Return what `values_of` does, at this place in the line of the session's writers."""
    return await session.mutate(lambda _: values_of(session.storage))
