"""What a running call may do beside returning: report progress, checkpoint it, keep memos. All of it ends with the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from laneway.errors import ToolError
from laneway.harness import keys
from laneway.harness._events import ToolUpdate
from laneway.harness._procedures._results import MAX_DETAILS, capped
from laneway.harness.state import Call, Operation, PendingCall, Tools
from laneway.messages import ToolCall, ToolResult
from laneway.storage.base import DeleteValue, SetValue, Write

if TYPE_CHECKING:
    from laneway.harness._drive import Drive


class CallHost:
    """The `ToolHost` of one call. `idempotency_key` is the id that its result will have, the same in every replay."""

    def __init__(self, drive: Drive, call: Call, asked: ToolCall, turn_id: str, *, context: Any, recovery: bool) -> None:
        self.idempotency_key = call.result_entry_id
        self.context = context
        self._drive, self._asked, self._turn_id, self._recovery = drive, asked, turn_id, recovery
        self._open = True

    def close(self) -> None:
        """End the call's rights."""
        self._open = False

    async def update(self, partial: ToolResult, checkpoint: bool) -> None:
        """Deliver a partial result; with `checkpoint` it is durable when this returns. After the call has ended it does nothing."""
        if not self._open:
            return
        if checkpoint:
            value = keys.plain(ToolResult(content=partial.content, details=capped(partial.details), usage=partial.usage))
            await self._write([SetValue(keys.PENDING_TOOL_OUTPUT, self._key(), value)])
        if self._open:
            await self.tell(partial)

    async def tell(self, partial: ToolResult) -> None:
        """Tell listeners of a partial result and wait for them."""
        drive, asked = self._drive, self._asked
        drive.line.live.progress[self.idempotency_key] = partial
        bus = drive.runtime.bus
        if bus.listened:
            bus.post(
                ToolUpdate(
                    **drive.told, recovery=self._recovery, turn_id=self._turn_id, tool_call_id=asked.id, tool_name=asked.name,
                    args=asked.arguments, partial_result=partial,
                )
            )  # fmt: skip
            await bus.deliver()

    async def get_memo(self, name: str) -> Any:
        """Return a stored memo of this call, None if there is none."""
        self._check(name)
        stored = await self._drive.runtime.session.get_value(keys.OP_TOOL_MEMO, self._key(name))
        return None if stored is None else stored.value

    async def set_memo(self, name: str, value: Any) -> None:
        """Store a memo (JSON of at most 1 MiB; None deletes it), durable when this returns."""
        self._check(name)
        key = self._key(name)
        if len(encoded := msgspec.json.encode(value)) > MAX_DETAILS:
            raise ToolError(f"the memo {name!r} has {len(encoded)} bytes of JSON; at most {MAX_DETAILS} can be stored: keep a file's path instead")
        write = DeleteValue(keys.OP_TOOL_MEMO, key) if value is None else SetValue(keys.OP_TOOL_MEMO, key, msgspec.json.decode(encoded))
        if not await self._write([write]):
            raise self._ended()

    def _check(self, name: str) -> None:
        if not name or ":" in name:
            raise ToolError(f"{name!r} is no name for a memo: use at least one character, and no colon")
        if not self._open:
            raise self._ended()

    def _ended(self) -> ToolError:
        return ToolError(f"this call of {self._asked.name} is settled and no longer owns its memos")

    def _key(self, *parts: str) -> str:
        return keys.under(self._drive.operation_id, self.idempotency_key, *parts)

    async def _write(self, writes: list[Write]) -> bool:
        def owns(operation: Operation) -> bool:
            state = operation.state
            return (
                operation.id == self._drive.operation_id
                and isinstance(state, Tools)
                and any(isinstance(call, PendingCall) and call.result_entry_id == self.idempotency_key for call in state.batch.calls)
            )

        return await self._drive.line.write(writes, while_=owns)
