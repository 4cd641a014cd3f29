"""From the path a model wrote to a file: how it is read, where it leads, and whether it may be touched.

A path is relative to the tool's working directory; `~` and `file://` are understood, and a leading `@` (which models copy from chat) is
dropped unless such a name exists. A file that should exist is also found when the name differs only in ways that nobody can see: Unicode
spaces, composed or decomposed accents, curly quotes, undecodable bytes, control characters.

A confined workspace touches nothing outside its root. What counts is the path with every link resolved, and the file is then opened from the
root one component at a time without following links, so that a link planted in between leads nowhere.
"""

from __future__ import annotations

import difflib
import errno
import os
import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from laneway.errors import ToolError
from laneway.tools._truncate import one_line_name, printable

_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_MAX_SHOWN = 400
_LOOKALIKES = str.maketrans(dict.fromkeys("‘’‚‛", "'") | dict.fromkeys("“”„‟", '"') | dict.fromkeys("‐‑‒–—―−", "-"))


@dataclass(kw_only=True, frozen=True, slots=True)
class Place:
    """Where a path leads: `shown` is what the model wrote, `path` is absolute, `real` has every link resolved."""

    shown: str
    path: str
    real: str


@dataclass(kw_only=True, frozen=True, slots=True)
class Directory:
    """A directory to work in: by path, or by `fd` when it was opened under a root; pass `name(x)` and `dir_fd=fd` to `os` functions."""

    path: str
    fd: int | None = None

    def name(self, entry: str) -> str:
        """Return what to pass to `os` functions for an entry of this directory."""
        return entry if self.fd is not None else os.path.join(self.path, entry)

    def close(self) -> None:
        """Close the directory."""
        if self.fd is not None:
            os.close(self.fd)


class Workspace:
    """The working directory of a tool and, with `root` or `confine`, the directory that it may not leave.

    `confine=True` alone confines to the working directory. Methods block; call them off the event loop.
    """

    def __init__(self, cwd: str | os.PathLike[str] = ".", *, confine: bool = False, root: str | os.PathLike[str] | None = None) -> None:
        try:
            self.cwd: str = os.path.abspath(os.path.expanduser(str(cwd)))
        except FileNotFoundError:
            raise FileNotFoundError("the current directory was deleted: change to one that exists or pass cwd= as an absolute path") from None
        bound = str(root) if root is not None else self.cwd if confine else None
        self.root: str | None = None if bound is None else os.path.realpath(os.path.expanduser(bound))

    def existing(self, text: str) -> Place:
        """Return the place of something that exists; `ToolError` says what is missing and names what is near."""
        places = [self._place(text, candidate) for candidate in _spellings(text)]
        for place in places:
            if os.path.lexists(place.path):
                return place
        for place in places:
            twin = _lookalike(place.path)
            if twin is not None:
                return self._place(text, twin)
        raise ToolError(_not_found(places[0]))

    def target(self, text: str) -> Place:
        """Return the place of a file that may not exist yet."""
        if text.rstrip().endswith("/"):
            raise ToolError(f"{_shown(text)} names a directory: pass the path of a file")
        places = [self._place(text, candidate) for candidate in _spellings(text)]
        first = places[0]
        as_written = os.path.lexists(first.path) or (text.startswith("@") and os.path.isdir(os.path.join(self.cwd, text.split("/")[0])))
        return first if as_written else places[-1]

    def open(self, place: Place) -> int:
        """Open a regular file for reading and return its descriptor; never blocks on a pipe or device."""
        try:
            fd = self._open(place, _READ)
        except OSError as error:
            raise ToolError(f"Cannot read {place.shown}: {describe(error)} ({_shown(place.real)})") from error
        kind = os.fstat(fd).st_mode
        if stat.S_ISREG(kind):
            return fd
        os.close(fd)
        raise ToolError(wrong_kind(place, kind, "read"))

    def open_directory(self, place: Place) -> int:
        """Open a directory for listing and return its descriptor."""
        try:
            return self._open(place, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))
        except NotADirectoryError:
            raise ToolError(f"{place.shown} is not a directory: use read for a file") from None
        except OSError as error:
            raise ToolError(f"Cannot list {place.shown}: {describe(error)} ({_shown(place.real)})") from error

    def parent(self, place: Place, *, create: bool = False) -> Directory:
        """Return the directory that holds the real file; with `create` it is made. The caller closes it."""
        path = os.path.dirname(place.real)
        try:
            if self.root is None:
                if create:
                    os.makedirs(path, exist_ok=True)
                return Directory(path=path)
            return Directory(path=path, fd=self._descend(self._parts(place.real)[:-1], create=create))
        except OSError as error:
            raise ToolError(f"Cannot use the directory {_shown(path)} of {place.shown}: {describe(error)}") from error

    def relative(self, place: Place) -> str:
        """Return the path from the working directory, or the absolute one if it is not below it; for patches."""
        inside = is_inside(place.path, self.cwd)
        return _shown(os.path.relpath(place.path, self.cwd) if inside else place.path.lstrip("/"))

    def check_cwd(self) -> None:
        """Raise `ToolError` if the working directory does not exist."""
        if not os.path.isdir(self.cwd):
            raise ToolError(f"The working directory {_shown(self.cwd)} does not exist (any more): recreate it or start in another one")

    def _place(self, text: str, candidate: str) -> Place:
        try:
            path = os.path.normpath(os.path.join(self.cwd, candidate))
            real = os.path.realpath(path)
            os.fsencode(real)
        except OSError as error:  # a part of it was replaced while it was looked at, or cannot be looked at
            raise ToolError(f"Cannot tell where {_shown(text)} leads: {describe(error)}") from error
        except UnicodeEncodeError:
            raise ToolError(f"The path {_shown(text)!r} has characters that no file name can have: check the spelling") from None
        if self.root is not None and not is_inside(real, self.root):
            raise ToolError(
                f"{_shown(text)} is not allowed: it leads to {_shown(real)}, outside {_shown(self.root)}; use a path inside that directory"
            )
        return Place(shown=_shown(text), path=path, real=real)

    def _open(self, place: Place, flags: int) -> int:
        if self.root is None:
            return os.open(place.path, flags)
        parts = self._parts(place.real)
        if not parts:
            return os.open(self.root, flags | _NO_FOLLOW)
        directory = self._descend(parts[:-1])
        try:
            return os.open(parts[-1], flags | _NO_FOLLOW, dir_fd=directory)
        finally:
            os.close(directory)

    def _descend(self, parts: list[str], *, create: bool = False) -> int:
        """Open a directory below the root, one component at a time, following no link; return its descriptor."""
        assert self.root is not None
        fd = os.open(self.root, _DIRECTORY)
        try:
            for part in parts:
                if create:
                    _make_directory(part, fd)
                child = os.open(part, _DIRECTORY | _NO_FOLLOW, dir_fd=fd)
                os.close(fd)
                fd = child
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _parts(self, real: str) -> list[str]:
        assert self.root is not None
        return [part for part in os.path.relpath(real, self.root).split(os.sep) if part != "."]


def _shown(path: str) -> str:
    """Return a path as errors show it: printable, and a monstrous one cut, so that it does not fill the conversation."""
    text = printable(path)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN // 2]}…{text[-_MAX_SHOWN // 4 :]} ({len(text)} characters)"


def is_inside(path: str, root: str) -> bool:
    """Return whether the resolved `path` is `root` or below it, compared by components."""
    return path == root or path.startswith(root if root.endswith(os.sep) else root + os.sep)


def _make_directory(name: str, dir_fd: int) -> None:
    """Make a directory unless something of that name is there."""
    try:
        os.mkdir(name, dir_fd=dir_fd)
    except FileExistsError:
        return


def describe(error: OSError) -> str:
    """Return an `OSError` in a few words with its symbolic code."""
    words = {
        errno.ENOENT: "no such file or directory",
        errno.EACCES: "permission denied",
        errno.EPERM: "operation not permitted",
        errno.EISDIR: "it is a directory",
        errno.ENOTDIR: "a part of the path is not a directory",
        errno.ELOOP: "a symbolic link in the path leads nowhere or in a circle",
        errno.ENOSPC: "the disk is full",
        errno.EROFS: "the file system is read-only",
        errno.ENAMETOOLONG: "the name is too long",
        errno.ENXIO: "it is a socket or a device",
    }
    code = error.errno or 0
    return f"{words.get(code, (error.strerror or str(error)).lower())} [{errno.errorcode.get(code, 'unknown')}]"


def wrong_kind(place: Place, mode: int, verb: str) -> str:
    """Return the error text for something that is no regular file."""
    if stat.S_ISDIR(mode):
        return f"{place.shown} is a directory, not a file: use ls to see what is in it"
    kinds = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))
    kind = next((name for test, name in kinds if test(mode)), "no regular file")
    return f"Cannot {verb} {place.shown}: it is {kind}, and only regular files can be used"


def _spellings(text: str) -> list[str]:
    """Return the paths that `text` can mean, likeliest first."""
    if not text or "\0" in text:
        raise ToolError("The path is empty: pass the path of a file" if not text else "The path has a NUL character: no file name can have one")
    if text.startswith("file://"):
        return [_from_url(text)]
    stripped = text.strip() or text
    spellings = list(dict.fromkeys([text, _without_at(text), stripped, _without_at(stripped)]))
    return [os.path.expanduser(spelling) if spelling.startswith("~") else spelling for spelling in spellings]


def _without_at(text: str) -> str:
    return text[1:] if text.startswith("@") and len(text) > 1 else text


def _from_url(text: str) -> str:
    try:
        url = urlsplit(text)
    except ValueError:
        raise ToolError(f"{_shown(text)} is not a valid file URL: pass a plain path") from None
    if url.netloc not in ("", "localhost"):
        raise ToolError(f"{_shown(text)} names a file on {_shown(url.netloc)}: only local files can be used")
    path = unquote(url.path, errors="surrogateescape")
    if not path or "\0" in path:
        raise ToolError(f"{_shown(text)} names no file: pass a plain path")
    return path


def _lookalike(path: str) -> str | None:
    """Return an existing path whose every component looks like that of `path`; None if there is none or more than one."""
    found = Path(path).anchor or "/"
    for part in Path(path).parts[1:]:
        step = os.path.join(found, part)
        if not os.path.lexists(step):
            wanted = _looks(part)
            twins = [name for name in _names(found) if _looks(name) == wanted]
            if len(twins) != 1:
                return None
            step = os.path.join(found, twins[0])
        found = step
    return found


def _looks(name: str) -> str:
    """Return what a reader sees of a file name."""
    return unicodedata.normalize("NFKC", one_line_name(name)).translate(_LOOKALIKES).strip()


def _names(directory: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                yield entry.name
    except OSError:
        return


def _not_found(place: Place) -> str:
    """Return the error text for a missing file: which part is missing, and what is there instead."""
    text = f"{place.shown} does not exist (looked for {_shown(place.path)})"
    parent, name = os.path.split(place.path)
    if not os.path.isdir(parent):
        while parent != os.path.dirname(parent) and not os.path.lexists(os.path.dirname(parent)):
            parent = os.path.dirname(parent)
        return f"{text}: there is no directory {_shown(parent)}; use find or ls to look for it"
    near = difflib.get_close_matches(name, [other for other, _ in zip(_names(parent), range(5000), strict=False)], n=3)
    if near:
        return f"{text}. Similar names there: {', '.join(_shown(other) for other in near)}"
    return f"{text}: use find or ls to look for it"
