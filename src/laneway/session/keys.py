"""Where a session keeps what is not an entry: the namespaces of the value store.

=================== ================= ============================================================= =============
namespace           key               content                                                       who writes
=================== ================= ============================================================= =============
`branch.tip`        branch name       id of the entry that the next append goes after, or None      session, lane
`session.name`      `""`              display name                                                  session
`session.metadata`  `""`              `SessionMetadata`                                             repository
`session.creating`  `""`              there while a repository fills a new session                  repository
`session.rewrites`  `""`              how often entries were erased, for whoever keeps copies       session
`entry.label`       entry id          a person's bookmark                                           session, lane
`lane.*`            lane name         configuration and inbox of a lane                             lane
`op.*`, `pending.*` see the harness   the open operation, queued input, partial output              lane
`app.*`             the application's the application's own data                                    application
=================== ================= ============================================================= =============

Every other namespace is application data too, unless its first word is one of ours: such a cell was written by a newer
laneway, and what this one does not understand it does not copy (see `kind_of`).
"""

from __future__ import annotations

import re
from typing import Literal

BRANCH_TIP = "branch.tip"
SESSION_NAME = "session.name"
SESSION_METADATA = "session.metadata"
SESSION_CREATING = "session.creating"
SESSION_REWRITES = "session.rewrites"
ENTRY_LABEL = "entry.label"
LANE_CONFIG = "lane.config"
LANE_STATE = "lane.state"

APP_PREFIX = "app."
MAIN_BRANCH = "main"

NamespaceKind = Literal["tip", "name", "metadata", "label", "lane_config", "lane_state", "runtime", "app", "unknown"]

_KINDS: dict[str, NamespaceKind] = {
    BRANCH_TIP: "tip",
    SESSION_NAME: "name",
    SESSION_METADATA: "metadata",
    SESSION_CREATING: "runtime",
    SESSION_REWRITES: "runtime",
    ENTRY_LABEL: "label",
    LANE_CONFIG: "lane_config",
    LANE_STATE: "lane_state",
    "op.meta": "runtime",
    "op.state": "runtime",
    "op.tool_args": "runtime",
    "op.tool_memo": "runtime",
    "op.preparation": "runtime",
    "op.result": "runtime",
    "pending.entry": "runtime",
    "pending.tool_output": "runtime",
    "pending.assistant_frames": "runtime",
}
_RESERVED_WORDS = frozenset(name.partition(".")[0] for name in _KINDS)


def kind_of(namespace: str) -> NamespaceKind:
    """Say what a namespace holds. "unknown" is a reserved name that this version does not know: do not guess at it."""
    known = _KINDS.get(namespace)
    if known is not None:
        return known
    return "unknown" if namespace.partition(".")[0] in _RESERVED_WORDS else "app"


_SESSION_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")


def is_session_id(text: str) -> bool:
    """Whether `text` can be a session's id, and so a file's name: letters, digits, and `.`, `_`, `-` inside; at most 128."""
    return _SESSION_ID.fullmatch(text) is not None
