"""Glob patterns over paths, matched one component at a time in linear time, so that no pattern from a repository can hang a search.

`*` and `?` do not cross a slash, `**` as a whole component stands for any number of components, `[a-z]`, `[!a-z]` and `[[:alpha:]]` are
classes, a backslash takes the next character as it is. Braces (`{a,b}`) are understood where the caller expands them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

ANY_DEPTH = "**"
_MOST_ALTERNATIVES = 1000
POSIX_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": r" \t", "cntrl": r"\x00-\x1f\x7f", "digit": "0-9", "graph": "!-~", "lower": "a-z",
    "print": " -~", "punct": r"!-/:-@\[-`{-~", "space": r"\s", "upper": "A-Z", "xdigit": "0-9a-fA-F", "word": r"\w",
}  # fmt: skip


class Glob:
    """A compiled pattern: `matches(parts)` tells whether it fits a path given as its components."""

    __slots__ = ("_parts",)

    def __init__(self, pattern: str, *, ignore_case: bool = False) -> None:
        flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
        self._parts: list[re.Pattern[str] | None] = []
        for component in pattern.split("/"):
            if component != ANY_DEPTH:
                self._parts.append(re.compile(component_regex(component), flags))
            elif not self._parts or self._parts[-1] is not None:
                self._parts.append(None)

    def matches(self, parts: Sequence[str]) -> bool:
        """Return whether the whole path fits."""
        pattern = self._parts
        if not any(part is None for part in pattern):
            return len(parts) == len(pattern) and all(part is not None and part.fullmatch(name) for part, name in zip(pattern, parts, strict=True))
        # `at` walks the path; on a mismatch the last `**` takes one component more, which is enough because it is greedy for nothing else
        index = at = 0
        retry_index, retry_at = -1, 0
        while at < len(parts):
            part = pattern[index] if index < len(pattern) else False
            if part is None:
                retry_index, retry_at = index, at
                index += 1
            elif part is not False and part.fullmatch(parts[at]):
                index += 1
                at += 1
            elif retry_index >= 0:
                retry_at += 1
                index, at = retry_index + 1, retry_at
            else:
                return False
        return index == len(pattern)  # a last `**` must have had something to stand for


class PathFilter:
    """The `glob` of a search: which files of a tree it is about.

    Without a slash it fits names at any depth, with one the path from the search's root; a leading `!` means all others; braces are expanded.
    """

    __slots__ = ("_globs", "_negated", "alternatives")

    def __init__(self, pattern: str, *, ignore_case: bool = False) -> None:
        self._negated = pattern.startswith("!")
        self.alternatives = [rooted(choice) for choice in expand_braces(pattern[1:] if self._negated else pattern)]
        self._globs = [Glob(choice, ignore_case=ignore_case) for choice in self.alternatives]

    def fits(self, parts: Sequence[str]) -> bool:
        """Return whether a path, given as components from the search's root, is meant."""
        return any(glob.matches(parts) for glob in self._globs) != self._negated

    @property
    def simple(self) -> bool:
        """Whether every search tool understands the alternatives in the same way."""
        return not self._negated and all(re.fullmatch(r"[\w.*?/ +,=@%~-]+", choice) for choice in self.alternatives)


def rooted(pattern: str) -> str:
    """Return a pattern over whole paths: one without a slash is for any depth, and a leading `./` or `/` means nothing more."""
    trimmed = pattern
    while trimmed.startswith("./"):
        trimmed = trimmed[2:].lstrip("/")
    if "/" not in trimmed and trimmed == pattern:
        return f"{ANY_DEPTH}/{trimmed}"
    return trimmed.lstrip("/")


@lru_cache(maxsize=4096)
def component_regex(component: str) -> str:
    """Return the regular expression of one path component's pattern; possessive, so it never backtracks over more than one star."""
    out: list[str] = []
    star = False  # whether what is in `pending` follows a star
    pending: list[str] = []

    def flush(*, last: bool) -> None:
        literal = "".join(pending)
        pending.clear()
        if not star:
            out.append(literal)
        elif last:
            out.append(f".*{literal}" if literal else ".*")
        else:
            out.append(f"(?>.*?{literal})")

    at = 0
    while at < len(component):
        char = component[at]
        at += 1
        if char == "*":
            if pending or not star:
                flush(last=False)
            star = True
        elif char == "?":
            pending.append(".")
        elif char == "\\" and at < len(component):
            pending.append(re.escape(component[at]))
            at += 1
        elif char == "[" and (found := _class(component, at)) is not None:
            pending.append(found[0])
            at = found[1]
        else:
            pending.append(re.escape(char))
    flush(last=True)
    return "".join(out)


def expand_braces(pattern: str) -> list[str]:
    """Return the patterns that `{a,b}` groups stand for, nested ones too; a brace without a partner stands for itself."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        if len(done) + len(waiting) > _MOST_ALTERNATIVES:
            return [pattern]
        current = waiting.pop()
        group = _first_group(current)
        if group is None:
            done.append(current)
        else:
            start, stop, choices = group
            waiting += [current[:start] + choice + current[stop:] for choice in reversed(choices)]
    return done


def _first_group(pattern: str) -> tuple[int, int, list[str]] | None:
    depth, start = 0, -1
    cuts: list[int] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif char == "{":
            if depth == 0:
                start, cuts = at, [at]
            depth += 1
        elif char == "," and depth == 1:
            cuts.append(at)
        elif char == "}" and depth:
            depth -= 1
            if depth == 0:
                cuts.append(at)
                if len(cuts) > 2:
                    return start, at + 1, [pattern[left + 1 : right] for left, right in pairwise(cuts)]
        at += 1
    return None


def _class(component: str, at: int) -> tuple[str, int] | None:
    """Return the regular expression of a class whose `[` is before `at`, and where it ends; None if it does not end."""
    negated = at < len(component) and component[at] in "!^"
    at += negated
    items: list[str] = []
    first = True
    while at < len(component):
        char = component[at]
        if char == "]" and not first:
            body = "".join(items)
            if not body:
                return "." if negated else "(?!)", at + 1
            return f"[{'^' if negated else ''}{body}]", at + 1
        first = False
        if char == "[" and component.startswith("[:", at) and (stop := component.find(":]", at + 2)) > 0:
            items.append(POSIX_CLASSES.get(component[at + 2 : stop], ""))
            at = stop + 2
            continue
        low, at = _literal(component, at)
        if component.startswith("-", at) and at + 1 < len(component) and component[at + 1] != "]":
            high, at = _literal(component, at + 1)
            items.append(f"{re.escape(low)}-{re.escape(high)}" if low <= high else "")
        else:
            items.append(re.escape(low))
    return None


def _literal(component: str, at: int) -> tuple[str, int]:
    if component[at] == "\\" and at + 1 < len(component):
        return component[at + 1], at + 2
    return component[at], at + 1
