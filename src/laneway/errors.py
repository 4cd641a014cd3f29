"""Every exception that laneway raises on purpose, in one tree.

::

    LanewayError
    ├── Aborted                     an AbortSignal was set
    ├── AgentBusy                   one run at a time: use steer() or follow_up()
    ├── WouldDeadlock               awaiting the run from inside the run
    ├── LoopInputError              the loop was given nothing that it can continue
    ├── MessageError                a message cannot be encoded or decoded
    ├── MissingExtra                an optional dependency is not installed
    ├── ModelNotFound               no such model in the catalogue
    ├── ModelError                  a model or provider cannot be used as configured
    ├── ToolError                   a tool reports failure to the model
    ├── ToolArgumentsError          the model's arguments do not fit the tool's schema
    ├── StorageError
    │   ├── StorageClosed           the store was used after close()
    │   ├── StorageCorruption       stored data breaks a rule of the store
    │   ├── StorageVersionError     the file was written by a newer laneway
    │   ├── LeaseLost               another process took over the session
    │   ├── CommitUnknown           the server went away during a commit; the next call finds out what became of it
    │   ├── SessionLocked           another process owns the session
    │   ├── SessionExists           a session with this id is already there
    │   └── SessionNotFound         there is no session with this id
    ├── SessionError                a session cannot do what was asked; nothing was written
    │   ├── InvalidName             a session id, branch or label name that cannot be used
    │   ├── BranchExists            a branch with this name is already there
    │   ├── BranchNotFound          there is no branch with this name
    │   ├── EntryNotFound           there is no entry with this id
    │   ├── DuplicateToolResult     the tool call has its result already
    │   ├── ForkError               the fork point or the source does not allow the fork
    │   ├── RewriteError            the entries to erase cannot be erased alone
    │   ├── SessionImportError      a file to import is not what it should be
    │   └── SearchQueryError        the search text is not a query
    └── HarnessError
        ├── HarnessClosed           the harness was used after close()
        └── HarnessFault            a broken invariant or a failed commit

Each message says what happened, where, and what to do next.
"""

from __future__ import annotations

from typing import Any


class LanewayError(Exception):
    """Base of every exception that laneway raises on purpose."""


class Aborted(LanewayError):
    """An `AbortSignal` was set. `reason` is what `AbortController.abort` was given."""

    def __init__(self, reason: object = None) -> None:
        super().__init__("aborted" if reason is None else f"aborted: {reason}")
        self.reason = reason


class AgentBusy(LanewayError, RuntimeError):
    """The agent already runs: queue the message with `steer()` or `follow_up()` instead."""


class WouldDeadlock(LanewayError, RuntimeError):
    """The call would wait for the very run that it is made from."""


class LoopInputError(LanewayError, ValueError):
    """The loop cannot start or continue from what it was given."""


class MessageError(LanewayError, ValueError):
    """A message cannot be encoded or decoded; the text names the place."""


class MissingExtra(LanewayError, ImportError):
    """An optional dependency is not installed; the text names the extra that brings it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'laneway[{extra}]'")
        self.extra = extra


class ModelNotFound(LanewayError, LookupError):
    """No such model; the text lists near names."""


class ModelError(LanewayError):
    """A model or provider cannot be used as configured (no key, unknown wire, bad option)."""


class ToolError(LanewayError):
    """Raised by a tool to report failure; its text is what the model reads.

    `details` (JSON data) becomes the error result's `details`, for a user interface.
    """

    def __init__(self, message: str = "", *, details: Any = None) -> None:
        super().__init__(message)
        self.details = details


class ToolArgumentsError(LanewayError, ValueError):
    """The model's arguments do not fit the tool's schema; the text is what the model reads."""


class StorageError(LanewayError):
    """Base of what can go wrong with a session's store."""


class StorageClosed(StorageError):
    """The store was used after `close()`."""


class StorageCorruption(StorageError):
    """Stored data, or a commit, breaks a rule of the store; nothing was written."""


class StorageVersionError(StorageError):
    """The session was written by a newer version of laneway; nothing was changed."""


class LeaseLost(StorageError):
    """Another process took the session over; this one can no longer write to it."""


class CommitUnknown(StorageError):
    """The connection to the server broke during a commit, and whether it happened is not known; the store's next call finds out."""


class SessionLocked(StorageError):
    """Another process owns the session. `owner` says which, when it is known."""

    def __init__(self, message: str, *, owner: str | None = None) -> None:
        super().__init__(message)
        self.owner = owner


class SessionExists(StorageError):
    """A session with this id is already there."""


class SessionNotFound(StorageError, LookupError):
    """There is no session with this id."""


class SessionError(LanewayError):
    """Base of refusals of a session or repository; nothing was written."""


class InvalidName(SessionError, ValueError):
    """A session id or branch name that cannot be used; the text says which names can."""


class BranchExists(SessionError):
    """A branch with this name is already there."""


class BranchNotFound(SessionError, LookupError):
    """There is no branch with this name."""


class EntryNotFound(SessionError, LookupError):
    """There is no entry with this id where it was looked for."""


class DuplicateToolResult(SessionError):
    """The tool call has its one result already."""


class ForkError(SessionError):
    """The fork point, or the state of the source, does not allow the fork; no session was created."""


class RewriteError(SessionError):
    """What is to be erased cannot be erased alone; the session is unchanged."""


class SessionImportError(SessionError, ValueError):
    """A file to import is not a session of the expected format; it is unchanged and no session was created."""


class SearchQueryError(SessionError, ValueError):
    """The search text is not a query; the text says where and what is understood."""


class HarnessError(LanewayError):
    """Base of the durable harness's own exceptions."""


class HarnessClosed(HarnessError):
    """The harness was closed; reopen the session to go on."""


class HarnessFault(HarnessError):
    """A broken invariant or a failed commit stopped the harness; `__cause__` says why.

    Everything committed before it is kept; reopening the session restores it.
    """
