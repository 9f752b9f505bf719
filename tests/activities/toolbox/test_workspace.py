"""Nothing outside a session's folder is ever read, listed or written (AGT-6)."""

import ctypes
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.waiting import BOUND
from turnkeeper.activities.toolbox.workspace import (
    MAX_LEVELS,
    MAX_WRITE_BYTES,
    Entry,
    MissingError,
    Workspace,
    WorkspaceError,
)

SECRET = b"the secret"
INSIDE = b"inside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return Workspace.at(root, "")


def refusal(action, *args, **kwargs) -> str:
    with pytest.raises(WorkspaceError) as refused:
        action(*args, **kwargs)
    message = str(refused.value)
    assert message.encode()
    assert "\n" not in message
    assert message.endswith(".")
    return message


# What is read and written


def test_agt_6_a_written_file_can_be_read_and_listed(workspace):
    workspace.write("b.txt", b"B")
    workspace.write("a/deep/c.txt", b"CC")
    assert workspace.read("a/deep/c.txt") == b"CC"
    assert workspace.read("./a//deep/../../b.txt") == b"B"
    assert workspace.entries() == [Entry("a", True, 0), Entry("b.txt", False, 1)]
    assert workspace.entries("a") == [Entry("a/deep", True, 0)]
    assert [entry.path for entry in workspace.walk()] == ["a", "a/deep", "a/deep/c.txt", "b.txt"]
    assert list(workspace.walk("a/deep/c.txt")) == [workspace.entry("./a/deep/c.txt")]


def test_agt_6_a_sessions_folder_is_created_by_its_first_write(tmp_path):
    root = tmp_path / "not" / "yet"
    workspace = Workspace.at(root, "team/session-1")
    assert workspace.entries() == list(workspace.walk()) == []
    with pytest.raises(MissingError):
        workspace.read("notes.txt")
    with pytest.raises(MissingError):
        workspace.entries("folder")
    assert not root.exists()
    workspace.write("notes.txt", b"mine")
    assert (root / "team" / "session-1" / "notes.txt").read_bytes() == b"mine"
    assert Workspace.at(root, "team").read("session-1/notes.txt") == b"mine"


def test_agt_6_a_session_cannot_reach_other_sessions(root):
    Workspace.at(root, "mine").write("a.txt", b"mine")
    Workspace.at(root, "theirs").write("a.txt", SECRET)
    for path in ("../theirs/a.txt", "b/../../theirs/a.txt", str(root / "theirs" / "a.txt")):
        refusal(Workspace.at(root, "mine").read, path)


@pytest.mark.parametrize("folder", ["..", "../x", "/tmp", "a/../..", ".git", "a/.b", "\0", "\ud800"])
def test_agt_6_a_sessions_folder_obeys_the_same_rules(root, folder):
    refusal(Workspace.at, root, folder)


def test_agt_6_a_session_folder_that_is_a_symlink_is_rejected(root, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (root / "session").symlink_to(tmp_path / "elsewhere")
    session = Workspace.at(root, "session")
    assert "symbolic link" in refusal(session.entries)
    assert "symbolic link" in refusal(session.write, "a.txt", b"")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_agt_6_the_root_itself_may_be_a_symlink(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    Workspace.at(tmp_path / "link", "").write("a.txt", b"A")
    assert (root / "a.txt").read_bytes() == b"A"


# What is refused


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("..", "leaves the workspace"),
        ("../outside.txt", "leaves the workspace"),
        ("a/../../outside.txt", "leaves the workspace"),
        ("/etc/passwd", "absolute path"),
        ("//etc/passwd", "absolute path"),
        (".", "is the workspace itself"),
        ("", "is the workspace itself"),
        (".env", "is hidden"),
        (".git/config", "is hidden"),
        ("a/.git/../b", "is hidden"),
        ("...", "is hidden"),
        ("a\0b", "control character"),
        ("a\nb", "control character"),
        ("a\u2028b", "line separator"),
        ("a\ud800b", "lone surrogate"),
        ("n" * 256, "256 bytes; 255 are allowed"),
        ("é" * 128, "256 bytes; 255 are allowed"),
        ("/".join("a" * (MAX_LEVELS + 1)), "64 are allowed"),
    ],
)
def test_agt_6_a_path_that_does_not_stay_in_the_workspace_is_rejected_with_a_reason(workspace, path, why):
    assert why in refusal(workspace.read, path)
    assert why in refusal(workspace.write, path, b"")


def test_agt_6_a_very_long_path_does_not_make_a_long_message(workspace):
    assert len(refusal(workspace.read, "x" * 1_000_000)) < 300


def test_agt_6_a_path_that_leaves_the_workspace_by_symlink_is_rejected(workspace, root, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.txt").write_bytes(SECRET)
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "file").symlink_to(tmp_path / "outside" / "a.txt")
    (root / "dangling").symlink_to(tmp_path / "outside" / "new.txt")
    (root / "loop").symlink_to("loop")
    for path in ("folder/a.txt", "file", "dangling", "loop", "folder/new.txt"):
        assert "symbolic link" in refusal(workspace.read, path)
        assert "symbolic link" in refusal(workspace.write, path, b"")
    assert "symbolic link" in refusal(workspace.entries, "folder")
    assert workspace.entries() == []
    assert {item.name: item.read_bytes() for item in (tmp_path / "outside").iterdir()} == {"a.txt": SECRET}


def test_agt_6_a_symlink_within_the_workspace_is_not_followed_either(workspace, root):
    workspace.write("a.txt", b"A")
    (root / "link").symlink_to("a.txt")
    assert "symbolic link" in refusal(workspace.read, "link")


def test_agt_6_only_regular_files_are_read_and_replaced(workspace, root):
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    (root / "file").write_bytes(b"")
    for action in (workspace.read, lambda path: workspace.write(path, b"")):
        assert "device, socket or pipe" in refusal(action, "pipe")
        assert "is a folder" in refusal(action, "folder")
        assert "it is a file" in refusal(action, "file/below")
    assert "it is a file" in refusal(workspace.entries, "file")
    assert [entry.path for entry in workspace.entries()] == ["file", "folder"]


def test_agt_6_a_missing_file_is_named(workspace):
    assert refusal(workspace.read, "a/b.txt") == "'a/b.txt' does not exist in the workspace."


def test_agt_6_hidden_and_undecodable_names_are_not_listed(workspace, root):
    (root / ".env").write_bytes(SECRET)
    (root / ".git").mkdir()
    (root / "two\nlines").write_bytes(b"")
    with suppress(OSError):  # not every file system allows it
        Path(os.fsdecode(os.fsencode(root) + b"/\xff")).write_bytes(b"")
    assert list(workspace.walk()) == []


def test_agt_6_files_nested_too_deeply_are_not_listed(workspace, root):
    deepest = "/".join("d" * MAX_LEVELS)
    workspace.write(f"{deepest[2:]}/f", b"")
    (root / deepest / "too" / "deep").mkdir(parents=True)
    assert max(entry.path.count("/") + 1 for entry in workspace.walk()) == MAX_LEVELS


def test_agt_6_a_file_that_is_too_large_is_neither_read_nor_written(workspace, root):
    workspace.write("large", b"x" * MAX_WRITE_BYTES)
    assert "10 bytes can be read" in refusal(workspace.read, "large", max_bytes=10)
    message = refusal(workspace.write, "new", b"x" * (MAX_WRITE_BYTES + 1))
    assert message == "'new' was not written: 1,000,001 bytes given, 1,000,000 are allowed."
    assert not (root / "new").exists()


# How it is written


def test_agt_6_a_replaced_file_keeps_its_permissions_and_no_temporary_file_remains(workspace, root):
    workspace.write("run.sh", b"old")
    (root / "run.sh").chmod(0o755)
    workspace.write("run.sh", b"new")
    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o755
    assert [item.name for item in root.iterdir()] == ["run.sh"]


def test_agt_6_a_write_does_not_change_other_hard_links_of_the_file(workspace, root, tmp_path):
    (tmp_path / "outside.txt").write_bytes(SECRET)
    os.link(tmp_path / "outside.txt", root / "hard.txt")
    workspace.write("hard.txt", b"new")
    assert (tmp_path / "outside.txt").read_bytes() == SECRET


def test_agt_6_a_failed_write_keeps_the_old_content_and_leaves_no_other_file(workspace, root, monkeypatch):
    workspace.write("a.txt", b"old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert refusal(workspace.write, "a.txt", b"new") == "'a.txt' can't be used: No space left on device."
    assert {item.name: item.read_bytes() for item in root.iterdir()} == {"a.txt": b"old"}


def test_agt_6_a_reader_sees_the_old_or_the_new_content_but_never_a_mixture(workspace):
    contents = [b"a" * 100_000, b"b" * 100_000]
    workspace.write("a.txt", contents[0])
    with repeating(lambda: [workspace.write("a.txt", content) for content in contents]):
        assert {workspace.read("a.txt") for _ in range(300)} <= set(contents)


def test_agt_6_file_descriptors_are_always_closed(workspace, root, tmp_path):
    workspace.write("a/b/c.txt", b"")
    (root / "a" / "link").symlink_to(tmp_path)
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else pytest.skip("needs /proc")
    for path in ("a/b/c.txt", "a/b/c.txt/d", "a/link/x", "a/nope/x", "../x", "a/b"):
        for action in (workspace.read, workspace.entries, lambda path: workspace.write(path, b"")):
            with suppress(WorkspaceError):
                action(path)
    list(workspace.walk())
    assert len(os.listdir("/proc/self/fd")) == before


# Attacks

NAMES = [
    "a",
    "b",
    "link",
    "..",
    ".",
    "",
    ".hidden",
    "outside",
    "secret",
    "root",
    "\0",
    "\ud800",
    "é",
    "~",
    "C:",
    "\\..",
]
NAME_IN_TREE = st.sampled_from(["a", "b", "link", "secret", "é", ".hidden"])
PLACE = st.lists(NAME_IN_TREE, min_size=1, max_size=3).map("/".join)
TARGETS = ["../outside", "../outside/secret", "..", "../..", "/", ".", "a", "link", "../root", ".hidden"]
TREE = st.dictionaries(
    PLACE, st.just("file") | st.just("folder") | st.just("pipe") | st.sampled_from(TARGETS), max_size=6
)
PATHS = st.lists(
    st.one_of(
        st.lists(st.sampled_from(NAMES), max_size=6).map("/".join),
        st.lists(st.sampled_from(NAMES), max_size=6).map(lambda names: "/" + "/".join(names)),
        PLACE,
        st.text(max_size=20),
    ),
    min_size=10,
    max_size=10,
)


@contextmanager
def temporary_tree(tree: dict[str, str]) -> Iterator[Path]:
    """Yield a root with `tree` in it and a folder beside it that holds secrets."""
    # These tests prove nothing about disks: thousands of writes need not wait for `fsync`.
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(os, "fsync"):
        outside, root = Path(folder, "outside"), Path(folder, "root")
        (outside / "a").mkdir(parents=True)
        for place in ("secret", "b", "a/b", "a/secret"):
            (outside / place).write_bytes(SECRET)
        (root / ".hidden").mkdir(parents=True)
        (root / ".hidden" / "secret").write_bytes(SECRET)
        for place, kind in tree.items():
            with suppress(OSError):  # paths of one tree may conflict
                grow(root, place, kind)
        yield root


def grow(root: Path, place: str, kind: str) -> None:
    # Links in the tree must not be followed by the test itself.
    if any(parent.is_symlink() for parent in [root / place, *(root / place).parents]):
        return
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        (root / place).write_bytes(SECRET if "/." in f"/{place}" else INSIDE)
    elif kind == "folder":
        (root / place).mkdir()
    elif kind == "pipe":
        os.mkfifo(root / place)
    else:
        (root / place).symlink_to(kind)


def protected(top: Path) -> dict[str, bytes | None]:
    """Return everything that no path may change: what is beside the root, and what is hidden in it."""
    contents = {}
    for folder, folders, files in os.walk(top):  # does not follow links
        for item in (Path(folder, name).relative_to(top) for name in [*folders, *files]):
            if item.parts[0] != "root" or any(part.startswith(".") for part in item.parts):
                is_file = stat.S_ISREG((top / item).lstat().st_mode)
                contents[str(item)] = (top / item).read_bytes() if is_file else None
    return contents


@settings(max_examples=200, deadline=None)
@given(TREE, PATHS)
@example({"link": "../outside"}, ["link/secret", "link/new", "link/../secret", "a/../link/secret", "link"] * 2)
@example({"a/link": "/"}, ["a/link/etc/passwd", "/etc/passwd", "../../etc/passwd", "a/../..", "a/link"] * 2)
def test_agt_6_no_generated_tree_or_path_escapes_the_workspace(tree, paths):
    with temporary_tree(tree) as root:
        workspace = Workspace.at(root, "")
        before = protected(root.parent)
        for path in paths:
            with suppress(WorkspaceError):
                assert workspace.read(path) != SECRET
            with suppress(WorkspaceError):
                for entry in workspace.walk(path):
                    assert "/." not in f"/{entry.path}"
                    assert (root / entry.path).resolve() == root.resolve() / entry.path
            with suppress(WorkspaceError):
                workspace.write(path, b"written")
        assert protected(root.parent) == before


@contextmanager
def repeating(action) -> Iterator[None]:
    """Repeat `action` in a thread while the block runs."""
    ended = threading.Event()

    def repeat():
        while not ended.is_set():
            action()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(BOUND)


def exchange(one: Path, other: Path) -> None:
    """Exchange two names in one step."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        pytest.skip("needs renameat2")
    at_working_folder, rename_exchange = -100, 2
    assert libc.renameat2(at_working_folder, bytes(one), at_working_folder, bytes(other), rename_exchange) == 0


@pytest.fixture
def swapped_once_asked(root, tmp_path, monkeypatch):
    """Replace a name in the root by a link to the outside, right after the name was checked."""
    ask = os.stat

    def prepare(place: str, target: Path) -> None:
        (tmp_path / "link").symlink_to(target)

        def answer_then_swap(path, **options):
            answer = ask(path, **options)
            if path == Path(place).name:
                monkeypatch.undo()
                exchange(root / place, tmp_path / "link")
            return answer

        monkeypatch.setattr(os, "stat", answer_then_swap)

    return prepare


def test_agt_6_a_symlink_that_replaces_a_checked_file_is_not_followed(workspace, tmp_path, swapped_once_asked):
    (tmp_path / "outside").write_bytes(SECRET)
    workspace.write("a/file", INSIDE)
    swapped_once_asked("a/file", tmp_path / "outside")
    assert "links are not followed" in refusal(workspace.read, "a/file")


@pytest.mark.parametrize(
    "action",
    [
        lambda workspace: workspace.read("folder/a/file"),
        lambda workspace: workspace.write("folder/a/file", b"new"),
        lambda workspace: workspace.entries("folder/a"),
        lambda workspace: list(workspace.walk("folder/a")),
    ],
    ids=["read", "write", "entries", "walk"],
)
def test_agt_6_a_symlink_that_replaces_a_checked_folder_is_not_followed(
    workspace, tmp_path, swapped_once_asked, action
):
    (tmp_path / "outside" / "a").mkdir(parents=True)
    (tmp_path / "outside" / "a" / "file").write_bytes(SECRET)
    workspace.write("folder/a/file", INSIDE)
    swapped_once_asked("folder", tmp_path / "outside")
    assert "links are not followed" in refusal(action, workspace)
    assert (tmp_path / "outside" / "a" / "file").read_bytes() == SECRET


def test_agt_6_a_symlink_that_replaces_a_file_before_its_write_is_not_followed(
    workspace, root, tmp_path, swapped_once_asked
):
    (tmp_path / "outside").write_bytes(SECRET)
    workspace.write("file", INSIDE)
    swapped_once_asked("file", tmp_path / "outside")
    workspace.write("file", b"new")
    assert (tmp_path / "outside").read_bytes() == SECRET
    assert workspace.read("file") == b"new"


def test_agt_6_a_symlink_that_replaces_a_file_during_a_read_is_not_followed(root, tmp_path):
    (tmp_path / "outside").write_bytes(SECRET)
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    workspace = Workspace.at(root, "")
    workspace.write("file", INSIDE)
    seen = set()
    with repeating(lambda: exchange(root / "file", tmp_path / "link")):
        for _ in range(3_000):
            with suppress(WorkspaceError):
                seen.add(workspace.read("file"))
    assert seen == {INSIDE}


def test_agt_6_a_symlink_that_replaces_a_folder_during_a_read_is_not_followed(root, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(SECRET)
    (tmp_path / "link").symlink_to(outside)
    workspace = Workspace.at(root, "")
    workspace.write("folder/file", INSIDE)
    seen = set()
    with repeating(lambda: exchange(root / "folder", tmp_path / "link")):
        for _ in range(1_000):
            with suppress(WorkspaceError):
                seen.add(workspace.read("folder/file"))
            with suppress(WorkspaceError):
                seen.update(entry.size for entry in workspace.walk() if not entry.is_folder)
            with suppress(WorkspaceError):
                workspace.write("folder/deeper/file", INSIDE)
    assert seen == {INSIDE, len(INSIDE)}
    assert [(item.name, item.read_bytes()) for item in outside.iterdir()] == [("file", SECRET)]
