"""Stored keys: the file, its mode and its locks; the keyring."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import ModelError
from laneway.llm import Credential, FileCredentialStore, KeyringCredentialStore, MemoryCredentialStore, Models
from laneway.llm import _credentials as module
from laneway.llm._credentials import CredentialStore, default_credential_store


def put(key: str) -> Any:
    """A change that stores a key."""

    async def change(_: Credential | None) -> Credential | None:
        return Credential(key=key)

    return change


@pytest.fixture(params=["memory", "file", "keyring"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CredentialStore:
    """Every kind of store."""
    if request.param == "memory":
        return MemoryCredentialStore()
    if request.param == "file":
        return FileCredentialStore(tmp_path / "deep" / "auth.json")
    monkeypatch.setitem(sys.modules, "keyring", FakeKeyring("keyring"))
    return KeyringCredentialStore()


class FakeKeyring(types.ModuleType):
    """A keyring in memory."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, name: str) -> str | None:
        return self.kept.get((service, name))

    def set_password(self, service: str, name: str, text: str) -> None:
        self.kept[(service, name)] = text

    def delete_password(self, service: str, name: str) -> None:
        del self.kept[(service, name)]


async def test_what_is_stored_is_read_listed_and_deleted(store: CredentialStore) -> None:
    """The contract of every store; the list tells kinds, never keys."""
    assert store.read("p") is None
    assert store.list() == {}
    assert await store.modify("p", put("k1")) == Credential(key="k1")
    await store.modify("q", put("k2"))
    assert store.read("p") == Credential(key="k1")
    assert store.list() == {"p": "api_key", "q": "api_key"}
    assert await store.delete("p")
    assert not await store.delete("p")
    assert store.list() == {"q": "api_key"}


async def test_a_change_that_gives_none_leaves_what_is_there(store: CredentialStore) -> None:
    """And it sees what is stored."""
    await store.modify("p", put("k1"))
    seen: list[Credential | None] = []

    async def look(credential: Credential | None) -> None:
        seen.append(credential)

    assert await store.modify("p", look) == Credential(key="k1")
    assert seen == [Credential(key="k1")]


async def test_changes_of_one_provider_happen_one_after_the_other(store: CredentialStore) -> None:
    """Twenty counters at once count to twenty."""

    async def count(credential: Credential | None) -> Credential:
        number = int(credential.key or "0") if credential else 0
        await asyncio.sleep(0)
        return Credential(key=str(number + 1))

    await asyncio.gather(*(store.modify("p", count) for _ in range(20)))
    assert store.read("p") == Credential(key="20")


# ---------------------------------------------------------------------------------------------------- the file


async def test_the_file_is_only_for_its_owner_from_the_first_byte(tmp_path: Path) -> None:
    """Mode 0600, whatever the umask; its folder is made with 0700."""
    store = FileCredentialStore(tmp_path / "new" / "auth.json")
    await store.modify("p", put("k"))
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    store.path.chmod(0o644)
    await store.modify("p", put("k2"))
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert not list(store.path.parent.glob("*.tmp"))


async def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk costs the change, not the keys."""
    store = FileCredentialStore(tmp_path / "auth.json")
    await store.modify("p", put("k1"))

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        await store.modify("p", put("k2"))
    assert store.read("p") == Credential(key="k1")
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


async def test_two_stores_of_one_file_see_each_other(tmp_path: Path) -> None:
    """Another process's change is read at the next request."""
    a, b = FileCredentialStore(tmp_path / "auth.json"), FileCredentialStore(tmp_path / "auth.json")
    await a.modify("p", put("k1"))
    assert b.read("p") == Credential(key="k1")
    await b.modify("p", put("k2"))
    await a.modify("q", put("k3"))
    assert a.read("p") == Credential(key="k2")
    assert b.list() == {"p": "api_key", "q": "api_key"}


def test_several_processes_may_write_at_once(tmp_path: Path) -> None:
    """No key is lost when processes store different providers' keys together."""
    code = (
        "import asyncio, sys\n"
        "from laneway.llm import Credential, FileCredentialStore\n"
        "async def put(_): return Credential(key=sys.argv[2])\n"
        "asyncio.run(FileCredentialStore(sys.argv[1]).modify(sys.argv[2], put))\n"
    )
    path = tmp_path / "auth.json"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(path), f"p{number}"]) for number in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert FileCredentialStore(path).list() == {f"p{number}": "api_key" for number in range(4)}


@pytest.mark.parametrize(
    "content", ["{", '{"version":1,"providers":{"p":{"key":"sk-planted"', '{"version":1,"providers":[]}', '{"version":9,"providers":{}}']
)
async def test_a_damaged_file_is_reported_and_never_overwritten(tmp_path: Path, content: str) -> None:
    """The error names the file, quotes nothing of it, and storing a key does not destroy what may be repaired."""
    path = tmp_path / "auth.json"
    path.write_text(content)
    store = FileCredentialStore(path)
    for attempt in (lambda: store.read("p"), lambda: store.list()):
        with pytest.raises(ModelError, match=r"auth\.json") as caught:
            attempt()
        assert "sk-planted" not in str(caught.value)
    with pytest.raises(ModelError):
        await store.modify("p", put("k"))
    assert path.read_text() == content


async def test_a_lock_that_is_never_released_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change waits for another one, but not for ever."""
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.05)
    store = FileCredentialStore(tmp_path / "auth.json")
    go = asyncio.Event()

    async def slow(_: Credential | None) -> Credential | None:
        await go.wait()
        return None

    task = asyncio.create_task(store.modify("p", slow))
    await asyncio.sleep(0.01)
    with pytest.raises(ModelError, match="lock"):
        await store.modify("p", put("k"))
    go.set()
    await task
    await store.modify("p", put("k"))


# ---------------------------------------------------------------------------------------------------- which store


def test_the_default_store_is_a_file_in_the_configuration_folder(clean_env: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """LANEWAY_CONFIG_DIR moves it."""
    store = default_credential_store()
    assert isinstance(store, FileCredentialStore)
    assert store.path == tmp_path / "config" / "auth.json"
    assert isinstance(Models().credentials, FileCredentialStore)


def test_the_keyring_is_used_when_it_is_asked_for(clean_env: pytest.MonkeyPatch) -> None:
    """Without the package the error says how to get it, or how to do without."""
    clean_env.setenv("LANEWAY_CREDENTIALS", "keyring")
    clean_env.setitem(sys.modules, "keyring", None)
    with pytest.raises(ModelError, match="pip install keyring"):
        default_credential_store()
    clean_env.setitem(sys.modules, "keyring", FakeKeyring("keyring"))
    assert isinstance(default_credential_store(), KeyringCredentialStore)


async def test_a_keyring_that_fails_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A locked or missing keyring is one clear error."""
    ring = FakeKeyring("keyring")

    def locked(*_: Any) -> Any:
        raise RuntimeError("locked")

    monkeypatch.setattr(ring, "get_password", locked)
    monkeypatch.setitem(sys.modules, "keyring", ring)
    with pytest.raises(ModelError, match="LANEWAY_CREDENTIALS"):
        KeyringCredentialStore().read("p")
