"""The whole tree of a session, for people who look at it or move in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

from msgspec import Struct, field

from laneway.storage.base import Entry, EntryScan, Storage

_PAGE = 2000


class TreeNode(Struct, kw_only=True, eq=False):
    """An entry in its place. `branches` are the names of those whose tip it is; `active` says that it is on the active path."""

    entry: Entry
    parent: TreeNode | None = None
    children: list[TreeNode] = field(default_factory=list["TreeNode"])
    label: str | None = None
    branches: list[str] = field(default_factory=list[str])
    active: bool = False


class TreeRow(Struct, frozen=True):
    """A node and what is drawn before it."""

    node: TreeNode
    indent: str


class SessionTree(Struct, kw_only=True):
    """Every entry by id, and the roots in the order of their seqs. `tips` maps each branch to its tip."""

    nodes: dict[str, TreeNode]
    roots: list[TreeNode]
    tips: dict[str, str | None]

    def path(self, entry_id: str | None) -> list[TreeNode]:
        """Return the nodes from a root to the entry; none for None or an unknown id."""
        found: list[TreeNode] = []
        node = self.nodes.get(entry_id) if entry_id is not None else None
        while node is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def activate(self, branch: str) -> list[TreeNode]:
        """Mark the path of a branch as the active one and return it."""
        for node in self.nodes.values():
            node.active = False
        path = self.path(self.tips.get(branch))
        for node in path:
            node.active = True
        return path

    def rows(self, keep: Callable[[Entry], bool] = lambda _: True) -> Iterator[TreeRow]:
        """Return the kept nodes in drawing order: a line of descent is one column, and only a fork indents.

        The children of a node that is left out move up to the nearest node that is kept.
        """
        stack: list[tuple[TreeNode, str, str]] = _fork(_kept(self.roots, keep), "")
        while stack:
            node, indent, below = stack.pop()
            yield TreeRow(node, indent)
            stack.extend(_fork(_kept(node.children, keep), below))


def _kept(nodes: Iterable[TreeNode], keep: Callable[[Entry], bool]) -> list[TreeNode]:
    found: list[TreeNode] = []
    waiting = list(nodes)[::-1]
    while waiting:
        node = waiting.pop()
        if keep(node.entry):
            found.append(node)
        else:
            waiting.extend(reversed(node.children))
    return found


def _fork(nodes: list[TreeNode], below: str) -> list[tuple[TreeNode, str, str]]:
    """Return what goes on the stack for siblings: (node, what is drawn before it, what is drawn before its children)."""
    if len(nodes) == 1:
        return [(nodes[0], below, below)]
    last = len(nodes) - 1
    drawn = [(n, below + ("└─ " if i == last else "├─ "), below + ("   " if i == last else "│  ")) for i, n in enumerate(nodes)]
    return drawn[::-1]


async def read_tree(storage: Storage, *, labels: Mapping[str, str], tips: Mapping[str, str | None]) -> SessionTree:
    """Read every entry and link it. An entry whose parent is gone becomes a root, so damaged history stays visible."""
    nodes: dict[str, TreeNode] = {}
    async for entry in all_entries(storage):
        nodes[entry.id] = TreeNode(entry=entry, label=labels.get(entry.id))
    roots: list[TreeNode] = []
    for node in nodes.values():
        parent = nodes.get(node.entry.parent_id) if node.entry.parent_id is not None else None
        if parent is not None and parent.entry.seq < node.entry.seq:
            node.parent = parent
            parent.children.append(node)
        else:
            roots.append(node)
    for name, tip in tips.items():
        if tip is not None and tip in nodes:
            nodes[tip].branches.append(name)
    return SessionTree(nodes=nodes, roots=roots, tips=dict(tips))


async def all_entries(storage: Storage, *, to_seq: int | None = None) -> AsyncIterator[Entry]:
    """Yield every entry by seq, in pages, up to the seq `to_seq`."""
    from_seq = 1
    while True:
        page = await storage.scan_entries(EntryScan(from_seq=from_seq, to_seq=to_seq, limit=_PAGE))
        for entry in page:
            yield entry
        if len(page) < _PAGE:
            return
        from_seq = page[-1].seq + 1
