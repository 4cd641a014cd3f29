"""The state diagram, drawn from `state.NEXT`: `python -m laneway.harness._diagram` prints what docs/harness/states.md holds."""

from __future__ import annotations

from typing import get_args

from laneway.harness.state import END, NEXT, Leaf

_FIRST = {
    "starting": "accept a run",
    "summary.deciding": "accept a compaction, or a navigation with a summary",
    "navigation.ready_to_commit": "accept a navigation",
}


def mermaid() -> str:
    """Return the diagram as Mermaid text."""
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {_name(at)}: {why}" for at, why in _FIRST.items()]
    for at, following in NEXT.items():
        lines += [f"    {_name(at)} --> {'[*]' if to == END else _name(to)}" for to in sorted(following)]
    return "\n".join(lines)


def table() -> str:
    """Return the leaves as a Markdown table: what each means, and where it can go."""
    rows = ["| leaf | meaning | next |", "|---|---|---|"]
    for leaf in get_args(Leaf):
        meaning = " ".join((leaf.__doc__ or "").split())
        following = ", ".join(f"`{to}`" for to in sorted(NEXT[leaf.at]))
        rows.append(f"| `{leaf.at}` | {meaning} | {following} |")
    return "\n".join(rows)


def page() -> str:
    """Return the page of the documentation."""
    return f"""# The states of an operation

Made from the code by `python -m laneway.harness._diagram`; a test keeps it so.

```mermaid
{mermaid()}
```

{table()}
"""


def _name(at: str) -> str:
    return at.replace(".", "_")


if __name__ == "__main__":
    print(page(), end="")
