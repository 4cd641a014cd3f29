"""Looking a session over, and making anew what can be derived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laneway.session._mutation import Mutation
from laneway.session.keys import BRANCH_TIP

if TYPE_CHECKING:
    from laneway.session._session import Session


async def repair(session: Session) -> list[str]:
    """See `Session.repair`."""
    storage: Any = session.storage

    async def plan(mutation: Mutation) -> list[str]:
        if hasattr(storage, "repair"):
            await storage.repair()
        problems: list[str] = list(await storage.verify()) if hasattr(storage, "verify") else []
        return problems + await _lost_tips(mutation)

    return await session.mutate(plan)


async def _lost_tips(mutation: Mutation) -> list[str]:
    tips = {stored.key: stored.value for stored in await mutation.scan_values(BRANCH_TIP)}
    there = await mutation.get_entries([tip for tip in tips.values() if tip is not None])
    return [f"the tip of branch {name!r} is {tip}, which is no entry: move it" for name, tip in tips.items() if tip is not None and tip not in there]
