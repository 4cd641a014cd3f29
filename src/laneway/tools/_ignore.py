"""Which files version control leaves out, and a walk over the ones that are left.

`.gitignore` files (also without a repository), `.git/info/exclude`, and the `.ignore` and `.rgignore` files of search tools count, in every
directory from the top of the file system down; of several rules the one nearest to the file wins, in one file the last. A repository inside
another does not inherit its `.gitignore` rules. `.git` itself is always left out, and so are the drafts of files that are being written. This
is what ripgrep does with `--hidden --no-require-git`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from laneway.tools._globs import Glob, component_regex

DRAFT = (".laneway-", ".tmp")  # how the names of drafts begin and end
_KINDS = (".rgignore", ".ignore", ".gitignore", "exclude")  # in order of precedence
_GIT_KINDS = frozenset({".gitignore", "exclude"})
_MAX_RULES_FILE = 256 * 1024
_MAX_DEPTH = 2000


def is_draft(name: str) -> bool:
    """Return whether a file is the draft of another one that is being written right now."""
    return name.startswith(DRAFT[0]) and name.endswith(DRAFT[1])


@dataclass(frozen=True, slots=True)
class _Rule:
    """One line of an ignore file: a name or a pattern of one component that fits at any depth, or a path from the file's directory."""

    ignored: bool
    only_directories: bool
    name: str | re.Pattern[str] | None
    path: Glob | None

    def fits(self, parts: list[str]) -> bool:
        """Return whether the pattern fits a path."""
        if self.path is not None:
            return self.path.matches(parts)
        if isinstance(self.name, str):
            return self.name == parts[-1]
        return self.name is not None and self.name.fullmatch(parts[-1]) is not None


class Rules:
    """The rules of one ignore file."""

    __slots__ = ("_any_pattern", "_has_paths", "_names", "_rules")

    def __init__(self, text: str) -> None:
        rules = [rule for line in text.split("\n") if (rule := _parse(line.removesuffix("\r"))) is not None]
        self._rules = rules[::-1]  # the last line that fits decides
        self._names = {rule.name for rule in rules if isinstance(rule.name, str)}
        patterns = [rule.name.pattern for rule in rules if isinstance(rule.name, re.Pattern)]
        self._any_pattern = re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.DOTALL) if patterns else None
        self._has_paths = any(rule.path is not None for rule in rules)

    def verdict(self, parts: list[str], is_directory: bool) -> bool | None:
        """Return whether a path, given as components from the file's directory, is ignored; None if no rule fits."""
        named = parts[-1] in self._names or (self._any_pattern is not None and self._any_pattern.fullmatch(parts[-1]) is not None)
        if not named and not self._has_paths:
            return None
        for rule in self._rules:
            if (rule.only_directories and not is_directory) or (rule.path is None and not named):
                continue
            if rule.fits(parts):
                return rule.ignored
        return None

    def __bool__(self) -> bool:
        return bool(self._rules)


def _parse(line: str) -> _Rule | None:
    line = _without_trailing_spaces(line)
    if not line or line.startswith("#"):
        return None
    ignored = not line.startswith("!")
    pattern = line[0 if ignored else 1 :]
    only_directories = pattern.endswith("/")
    pattern = pattern.removesuffix("/") if only_directories else pattern
    anchored = "/" in pattern
    pattern = pattern.removeprefix("/")
    if not pattern:
        return None
    try:
        if anchored:
            return _Rule(ignored, only_directories, None, Glob(pattern))
        plain = not any(char in pattern for char in "*?[\\")
        return _Rule(ignored, only_directories, pattern if plain else re.compile(component_regex(pattern), re.DOTALL), None)
    except re.error:
        return None


def _without_trailing_spaces(line: str) -> str:
    """Return a line without the spaces at its end, but with the first of them if a backslash is meant for it."""
    bare = line.rstrip(" ")
    escaped = (len(bare) - len(bare.rstrip("\\"))) % 2 == 1
    return line[: len(bare) + escaped]


class Level:
    """The rules of one directory, and the directories above it."""

    __slots__ = ("_above", "_depth", "_is_repository", "_rules")

    def __init__(self, path: str, above: Level | None, names: set[str] | None = None) -> None:
        self._above = above
        self._depth = 0 if above is None else above._depth + 1
        self._is_repository = ".git" in names if names is not None else os.path.lexists(os.path.join(path, ".git"))
        self._rules: dict[str, Rules] = {}
        for kind in _KINDS[:3]:
            if names is None or kind in names:
                self._load(kind, os.path.join(path, kind))
        if self._is_repository:
            self._load("exclude", os.path.join(path, ".git", "info", "exclude"))

    def ignores(self, parts: list[str], is_directory: bool) -> bool:
        """Return whether an entry of this directory, given as components from the top of the file system, is left out."""
        for kind in _KINDS:
            level: Level | None = self
            while level is not None:
                rules = level._rules.get(kind)
                verdict = None if rules is None else rules.verdict(parts[level._depth :], is_directory)
                if verdict is not None:
                    return verdict
                if level._is_repository and kind in _GIT_KINDS:
                    break
                level = level._above
        return False

    def _load(self, kind: str, path: str) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        except OSError:
            return
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                rules = Rules(os.read(fd, _MAX_RULES_FILE).decode("utf-8", "surrogateescape").removeprefix("\ufeff"))
                if rules:
                    self._rules[kind] = rules
        except OSError:
            return
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class Found:
    """One entry of a walk: its components from the root, its absolute path and its kind (a link is neither file nor directory)."""

    parts: tuple[str, ...]
    path: str
    is_directory: bool
    is_file: bool


class Walk:
    """Walks a directory in the order of its names, leaving out what is ignored and following no links below the root.

    `unreadable` has the directories that could not be listed.
    """

    def __init__(self, root: str, check: Callable[[], None]) -> None:
        self._root = os.path.realpath(root)
        self._check = check
        self.unreadable: list[str] = []

    def __iter__(self) -> Iterator[Found]:
        top = [part for part in self._root.split(os.sep) if part]
        level: Level | None = None
        for depth in range(len(top)):  # the root's own level is made when it is listed
            level = Level(os.sep + os.sep.join(top[:depth]), level)
        stack = [self._list(self._root, level, top, ())]
        while stack:
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
                continue
            entry, here = found
            yield entry
            if entry.is_directory and len(stack) < _MAX_DEPTH:
                stack.append(self._list(entry.path, here, [*top, *entry.parts], entry.parts))

    def _list(self, path: str, above: Level | None, parts: list[str], relative: tuple[str, ...]) -> Iterator[tuple[Found, Level]]:
        """Yield the entries of one directory that are not ignored, with the level that its subdirectories are under."""
        entries = self._entries(path)
        level = Level(path, above, {name for name, _, _ in entries})
        for name, is_directory, is_file in entries:
            if name != ".git" and not is_draft(name) and not level.ignores([*parts, name], is_directory):
                yield Found((*relative, name), os.path.join(path, name), is_directory, is_file), level

    def _entries(self, path: str) -> list[tuple[str, bool, bool]]:
        flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        entries: list[tuple[str, bool, bool]] = []
        try:
            fd = os.open(path, flags)
        except OSError:
            self.unreadable.append(os.path.relpath(path, self._root))
            return entries
        try:
            with os.scandir(fd) as found:
                for entry in found:
                    self._check()
                    entries.append((entry.name, entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)))
        except OSError:
            self.unreadable.append(os.path.relpath(path, self._root))
        finally:
            os.close(fd)
        entries.sort(key=lambda entry: os.fsencode(entry[0]))
        return entries
