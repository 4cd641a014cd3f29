"""What the documents say of the machine is true of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from crash.enumeration import Kept, process
from crash.scripts import SCRIPTS
from laneway.harness import _diagram
from laneway.harness.state import END, NEXT, Leaf
from laneway.storage.base import DeleteValue, SetValue

ROOT = Path(__file__).parents[2]


def test_the_page_of_the_states_is_made_of_the_code() -> None:
    """Run `python -m laneway.harness._diagram > docs/harness/states.md` after a change."""
    assert (ROOT / "docs/harness/states.md").read_text() == _diagram.page()


def test_every_leaf_is_in_the_map_and_can_be_left() -> None:
    """Thirteen leaves, no more; none is a trap."""
    leaves = [leaf.at for leaf in get_args(Leaf)]
    assert sorted(leaves) == sorted(NEXT)
    assert len(leaves) == 13
    assert all(to == END or to in NEXT for following in NEXT.values() for to in following)


def test_the_tables_name_what_exists() -> None:
    """Every file and leaf that the pages name is there."""
    harness = ROOT / "src/laneway/harness"
    for page in (harness / "README.md", ROOT / "docs/harness/writes.md"):
        for name in re.findall(r"`([\w/]+\.py)`", page.read_text()):
            assert (harness / name).exists(), name
    crashes = (ROOT / "docs/harness/crashes.md").read_text()
    assert all(f"`{at}`" in crashes for at in NEXT)


async def test_the_scripts_take_steps_of_the_map_only() -> None:
    """Each step that a script commits is one that the map allows (the line would have refused another)."""
    seen: set[tuple[str, str]] = set()
    for script in SCRIPTS:
        world = script.world()
        recording = Kept(world.storage)
        await process(script, world, recording, script.play)
        at: dict[str, str] = {}
        for write in (write for commit in recording.commits for write in commit):
            if isinstance(write, SetValue) and write.namespace == "op.state":
                if write.key in at:
                    seen.add((at[write.key], write.value["at"]))
                at[write.key] = write.value["at"]
            elif isinstance(write, DeleteValue) and write.namespace == "op.state":
                seen.add((at.pop(write.key), END))
    allowed = {(at, to) for at, following in NEXT.items() for to in following} | {(at, at) for at in NEXT}
    assert seen <= allowed
    assert len(seen) >= 15
