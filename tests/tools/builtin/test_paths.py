"""From the path a model wrote to a file."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from laneway.errors import ToolError
from laneway.tools._paths import Workspace


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A working directory with a neighbour whose name begins alike."""
    (tmp_path / "app" / "sub").mkdir(parents=True)
    (tmp_path / "app-evil").mkdir()
    (tmp_path / "app-evil" / "x").write_text("secret")
    (tmp_path / "app" / "a.txt").write_text("inside")
    return tmp_path / "app"


def opened(workspace: Workspace, path: str) -> str:
    """Return what reading the path gives."""
    fd = workspace.open(workspace.existing(path))
    with os.fdopen(fd) as file:
        return file.read()


def test_a_relative_path_is_relative_to_the_working_directory(app: Path):
    """Also with detours, through directories that need not exist."""
    workspace = Workspace(app)
    assert opened(workspace, "a.txt") == "inside"
    assert opened(workspace, "./missing/../a.txt") == "inside"
    assert opened(workspace, str(app / "a.txt")) == "inside"


def test_the_working_directory_is_fixed_when_the_tool_is_made(app: Path, monkeypatch: pytest.MonkeyPatch):
    """A later chdir of the program changes nothing."""
    monkeypatch.chdir(app)
    workspace = Workspace()
    monkeypatch.chdir("/")
    assert opened(workspace, "a.txt") == "inside"


def test_home_and_file_urls_are_understood(app: Path, monkeypatch: pytest.MonkeyPatch):
    """1.10: `~`, and file URLs with percent codes."""
    monkeypatch.setenv("HOME", str(app))
    (app / "with space.txt").write_text("spaced")
    workspace = Workspace("/")
    assert opened(workspace, "~/a.txt") == "inside"
    assert opened(workspace, f"file://{app}/with%20space.txt") == "spaced"
    assert opened(workspace, f"file://localhost{app}/a.txt") == "inside"
    with pytest.raises(ToolError, match="only local files"):
        workspace.existing("file://elsewhere/a.txt")


def test_a_leading_at_sign_is_dropped_unless_it_belongs_to_the_name(app: Path):
    """1.10: models copy `@file` from chat, but `@types` is a real directory."""
    (app / "@types").mkdir()
    (app / "@types" / "t.ts").write_text("types")
    workspace = Workspace(app)
    assert opened(workspace, "@a.txt") == "inside"
    assert opened(workspace, "@types/t.ts") == "types"
    assert workspace.target("@new.txt").path == str(app / "new.txt")
    assert workspace.target("@types/new.ts").path == str(app / "@types" / "new.ts")


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("Screenshot 1.00\u202fPM.png", "Screenshot 1.00 PM.png"),
        ("caf\u0065\u0301.txt", "café.txt"),
        ("it\u2019s.txt", "it's.txt"),
        ("a b.txt", "a\u00a0b.txt"),
        ("trailing.txt", " trailing.txt\n"),
    ],
)
def test_a_name_that_only_looks_the_same_is_found_for_reading(app: Path, name: str, written: str):
    """1.10: Unicode spaces, composed accents, curly apostrophes, stray blanks."""
    (app / name).write_text("found")
    assert opened(Workspace(app), written) == "found"


def test_a_name_with_undecodable_bytes_can_be_read_as_it_was_shown(app: Path):
    """B44: what ls shows with a mark can be passed to read."""
    with open(os.fsencode(app) + b"/\xff.txt", "w") as file:
        file.write("odd")
    assert opened(Workspace(app), "\ufffd.txt") == "odd"
    assert opened(Workspace(app), os.fsdecode(b"\xff.txt")) == "odd"


def test_of_two_names_that_look_the_same_none_is_guessed(app: Path):
    """Guessing could read the wrong file."""
    (app / "a\u00a0b").write_text("1")
    (app / "a\u2003b").write_text("2")
    with pytest.raises(ToolError, match="does not exist"):
        Workspace(app).existing("a b")


def test_a_missing_file_is_named_with_what_is_near(app: Path):
    """The model can go on without another look."""
    with pytest.raises(ToolError, match=r"b\.txt does not exist .*Similar names there: a\.txt"):
        Workspace(app).existing("b.txt")
    with pytest.raises(ToolError, match=r"there is no directory .*/nowhere"):
        Workspace(app).existing("nowhere/deep/b.txt")


@pytest.mark.parametrize("bad", ["", "a\0b", "\ud83d.txt"])
def test_a_path_that_no_file_can_have_is_an_error(app: Path, bad: str):
    """B44: no crash on lone surrogates, NUL or nothing."""
    with pytest.raises(ToolError):
        Workspace(app).existing(bad)


def test_only_regular_files_are_opened_and_nothing_blocks(app: Path):
    """B107: a pipe without a writer, a socket, a device and a directory are refused at once."""
    os.mkfifo(app / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(app / "sock"))
        workspace = Workspace(app)
        for name, word in (("pipe", "named pipe"), ("sock", "socket"), ("/dev/zero", "device"), ("sub", "directory")):
            with pytest.raises(ToolError, match=word):
                workspace.open(workspace.existing(name))


def test_a_deleted_working_directory_is_explained(app: Path):
    """Regression 68."""
    workspace = Workspace(app / "gone")
    with pytest.raises(ToolError, match="does not exist"):
        workspace.check_cwd()


def test_a_deleted_current_directory_is_explained(app: Path, monkeypatch: pytest.MonkeyPatch):
    """Regression 68: the message says what to do."""
    (app / "brief").mkdir()
    monkeypatch.chdir(app / "brief")
    (app / "brief").rmdir()
    with pytest.raises(FileNotFoundError, match="the current directory was deleted"):
        Workspace()


class TestConfined:
    """B116: a confined workspace is not left, by no way."""

    def test_a_neighbour_with_the_same_beginning_is_outside(self, app: Path):
        """Compared by components, not by text."""
        with pytest.raises(ToolError, match=r"leads to .*/app-evil/x, outside"):
            Workspace(app, confine=True).existing("../app-evil/x")

    @pytest.mark.parametrize("path", ["/etc/passwd", "~/x", "file:///etc/passwd", "@/etc/passwd", "sub/../../app-evil/x"])
    def test_no_spelling_leads_outside(self, app: Path, path: str):
        """For reading and for writing."""
        workspace = Workspace(app, confine=True)
        with pytest.raises(ToolError, match="outside"):
            workspace.existing(path)
        with pytest.raises(ToolError, match="outside"):
            workspace.target(path)

    def test_links_that_lead_outside_are_refused_by_the_path_they_lead_to(self, app: Path):
        """A link to a directory, a file, and one whose target does not exist yet."""
        (app / "out").symlink_to(app.parent / "app-evil")
        (app / "dangling").symlink_to(app.parent / "new")
        workspace = Workspace(app, confine=True)
        for path in ("out/x", "out/new", "dangling"):
            with pytest.raises(ToolError, match=str(app.parent)):
                workspace.target(path)
        assert not (app.parent / "new").exists()

    def test_links_that_stay_inside_work_and_the_root_may_be_a_link(self, app: Path):
        """In-root links are no escape."""
        (app / "in").symlink_to("a.txt")
        (app.parent / "root").symlink_to(app)
        assert opened(Workspace(app, confine=True), "in") == "inside"
        assert opened(Workspace(app.parent / "root", confine=True), "a.txt") == "inside"
        assert opened(Workspace(app.parent / "root", confine=True), str(app / "a.txt")) == "inside"

    def test_a_root_of_its_own_can_be_wider_than_the_working_directory(self, app: Path):
        """`root` is the limit, `cwd` where paths start."""
        workspace = Workspace(app / "sub", root=app)
        assert opened(workspace, "../a.txt") == "inside"
        with pytest.raises(ToolError, match="outside"):
            workspace.existing("../../app-evil/x")

    def test_a_link_put_in_place_after_the_check_is_not_followed(self, app: Path):
        """What counts is the moment of opening: neither the file nor a directory on the way may have become a link."""
        (app / "sub" / "x").write_text("mine")
        workspace = Workspace(app, confine=True)
        by_directory, by_file = workspace.existing("sub/x"), workspace.existing("a.txt")
        os.rename(app / "sub", app / "kept")
        (app / "sub").symlink_to(app.parent / "app-evil")
        os.unlink(app / "a.txt")
        (app / "a.txt").symlink_to(app.parent / "app-evil" / "x")
        for place in (by_directory, by_file):
            with pytest.raises(ToolError, match="Cannot read"):
                workspace.open(place)
        with pytest.raises(ToolError, match="Cannot use the directory"):
            workspace.parent(by_directory, create=True)

    def test_the_root_itself_can_be_listed(self, app: Path):
        """`.` is inside."""
        workspace = Workspace(app, confine=True)
        fd = workspace.open_directory(workspace.existing("."))
        try:
            assert "a.txt" in os.listdir(fd)
        finally:
            os.close(fd)

    def test_looking_alike_does_not_lead_outside(self, app: Path):
        """A look-alike is checked like any other path."""
        (app / "a\u00a0b").symlink_to(app.parent / "app-evil")
        with pytest.raises(ToolError, match="outside"):
            Workspace(app, confine=True).existing("a b/x")


def test_a_link_in_a_circle_is_explained(app: Path):
    """No traceback, no hang."""
    (app / "loop").symlink_to("loop")
    workspace = Workspace(app)
    with pytest.raises(ToolError, match="symbolic link"):
        workspace.open(workspace.existing("loop"))
