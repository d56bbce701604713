"""The path given to `connect` permanently names one file, which must be able to hold a database."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import InvalidInput
from holdfast.client.connect import queue_on, store_at
from holdfast.client.queue_state import state_of
from holdfast.errors import ReadOnlyStore, StoreUnreachable, UnsupportedStore
from holdfast.storage.sqlite import connection


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Start in *tmp_path*/here and return the folder *tmp_path*/elsewhere to change to."""
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "elsewhere"


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def in_child(work: Callable[[], object]) -> int:
    """Run *work* in a forked child and return its exit code."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class TestARelativePath:
    @pytest.mark.parametrize("opened_before", [False, True])
    def test_it_names_the_same_file_after_chdir(self, elsewhere: Path, opened_before: bool) -> None:
        queue = holdfast.connect("jobs.db")
        if opened_before:
            queue.enqueue("mail")
        os.chdir(elsewhere)
        queue.enqueue("mail", job_id="written")
        assert queue.get("written").state == "ready"
        queue.close()
        queue.enqueue("mail", job_id="reopened")
        assert in_child(lambda: queue.enqueue("mail", job_id="forked")) == 0
        clone, address = state_of(queue).store.clone(), state_of(queue).store.address()
        assert address is not None
        for other in (clone, store_at(address)):
            assert {job.id for job in queue_on(other).jobs()} >= {"written", "reopened", "forked"}
            other.close()
        assert state_of(queue).store.notifier is store_at(address).notifier
        queue.close()
        assert names(elsewhere) == []

    def test_it_names_the_same_file_for_an_async_queue(self, elsewhere: Path) -> None:
        async def scenario() -> None:
            async with holdfast.connect_async(Path("jobs.db")) as queue:
                os.chdir(elsewhere)
                await queue.enqueue("mail")
                assert await queue.counts() == {"ready": 1}

        asyncio.run(scenario())
        assert names(elsewhere) == []

    def test_doctor_reports_on_the_same_file_after_chdir(
        self, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with holdfast.connect("jobs.db") as queue:
            queue.enqueue("mail")
            monkeypatch.setattr(connection, "LOG_BYTES_LONG", 1)  # so that any log is long
            os.chdir(elsewhere)
            assert [finding.name for finding in queue.admin.report().findings if "log has grown" in finding.detail]

    def test_in_a_directory_that_no_longer_exists_it_is_refused(self, elsewhere: Path) -> None:
        os.chdir(elsewhere)
        elsewhere.rmdir()
        with pytest.raises(InvalidInput, match="absolute path"):
            holdfast.connect("jobs.db")


class TestSymbolicLinks:
    def test_two_names_of_one_file_share_its_lock_file_and_wake_each_other(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "folder").symlink_to("real")
        (tmp_path / "link.db").symlink_to(tmp_path / "folder" / "jobs.db")
        direct, linked = (holdfast.connect(tmp_path / name) for name in ("real/jobs.db", "link.db"))
        linked.enqueue("mail")
        assert direct.counts() == {"ready": 1}
        assert state_of(direct).store.notifier is state_of(linked).store.notifier
        assert names(tmp_path) == ["folder", "link.db", "real"]
        assert {"jobs.db", "jobs.db-holdfast"} <= set(names(tmp_path / "real"))
        direct.close()
        linked.close()

    def test_a_link_that_is_changed_later_does_not_move_the_queue(self, tmp_path: Path) -> None:
        link = tmp_path / "link.db"
        link.symlink_to(tmp_path / "first.db")
        queue = holdfast.connect(link)
        queue.enqueue("mail")
        queue.close()
        link.unlink()
        link.symlink_to(tmp_path / "second.db")
        assert queue.counts() == {"ready": 1}
        queue.close()
        assert not (tmp_path / "second.db").exists()

    def test_a_link_that_takes_the_place_of_the_file_is_refused(self, tmp_path: Path) -> None:
        queue = holdfast.connect(tmp_path / "jobs.db")
        (tmp_path / "jobs.db").symlink_to(tmp_path / "other.db")
        for use in (queue.counts, queue.migrate):
            with pytest.raises(StoreUnreachable, match=r"other\.db.* call connect again"):
                use()
        assert names(tmp_path) == ["jobs.db"]


class TestPlacesThatAreRefused:
    @staticmethod
    def refuse(place: Path, error: type[Exception], match: str) -> None:
        """Expect that `connect` neither raises nor touches the file, and each use raises *error*."""
        before = names(place.parent) if place.parent.is_dir() else []
        queue = holdfast.connect(place)
        for use in (queue.counts, lambda: queue.enqueue("mail"), lambda: queue.wait("x", timeout=1)):
            with pytest.raises(error, match=match):
                use()
        queue.close()
        assert (names(place.parent) if place.parent.is_dir() else []) == before

    def test_a_directory(self, tmp_path: Path) -> None:
        (tmp_path / "jobs").mkdir()
        self.refuse(tmp_path / "jobs", UnsupportedStore, "is a directory; give the path of a SQLite file")

    def test_a_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "jobs.db")
        self.refuse(tmp_path / "jobs.db", UnsupportedStore, "not a regular file")

    def test_a_file_in_a_directory_that_does_not_exist(self, tmp_path: Path) -> None:
        self.refuse(tmp_path / "missing" / "jobs.db", StoreUnreachable, r"missing' does not exist; create it")

    def test_a_file_below_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        self.refuse(tmp_path / "file" / "jobs.db", StoreUnreachable, "Not a directory")

    def test_a_link_to_itself(self, tmp_path: Path) -> None:
        (tmp_path / "jobs.db").symlink_to("jobs.db")
        self.refuse(tmp_path / "jobs.db", StoreUnreachable, "symbolic links")

    def test_a_file_with_two_hard_links(self, tmp_path: Path) -> None:
        first, second = tmp_path / "first.db", tmp_path / "second.db"
        with holdfast.connect(first) as queue:
            queue.migrate()
        second.hardlink_to(first)
        for place in (first, second):
            self.refuse(place, UnsupportedStore, "has 2 hard links")
        second.unlink()
        with holdfast.connect(first) as queue:
            assert queue.counts() == {}


class TestWhatConnectTakes:
    @pytest.mark.parametrize("form", [str, Path, "sqlite:///{}".format])
    def test_a_string_a_path_and_a_url_name_the_same_file(self, elsewhere: Path, form: Callable[[str], Any]) -> None:
        for place in ("jobs.db", str(elsewhere / "jobs.db")):
            with holdfast.connect(form(place)) as queue:
                queue.migrate()
            assert stat.S_ISREG(Path(place).stat().st_mode)

    @pytest.mark.parametrize(
        ("url", "advice"),
        [
            ("file:jobs.db", "'jobs.db'"),
            ("file:jobs.db?mode=ro", "'jobs.db'"),
            ("file:///srv/a%20b.db?nolock=1", "'/srv/a b.db'"),
            ("file://localhost/srv/jobs.db", "'/srv/jobs.db'"),
            (Path("file:jobs.db"), "'jobs.db'"),
            ("sqlite:jobs.db", "'sqlite://'"),
            (Path("sqlite:///jobs.db"), "the whole URL"),
            (Path("postgresql://localhost/jobs"), "postgresql://user"),
        ],
    )
    def test_a_file_url_is_refused_with_what_to_write_instead(self, elsewhere: Path, url: Any, advice: str) -> None:
        for connect in (holdfast.connect, holdfast.connect_async):
            with pytest.raises(InvalidInput, match=advice) as caught:
                connect(url)
            assert caught.value.field == "url"
        assert names(Path.cwd()) == []

    def test_nothing_is_opened_or_made_by_connecting(self, tmp_path: Path) -> None:
        holdfast.connect(tmp_path / "jobs.db").close()
        holdfast.connect_async(tmp_path / "jobs.db")
        assert names(tmp_path) == []


class TestTheEnvironment:
    def test_connect_without_a_url_takes_that_of_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOLDFAST_URL", str(tmp_path / "named.db"))
        with holdfast.connect() as queue:
            queue.enqueue("report", {})
        assert (tmp_path / "named.db").exists()

    def test_a_url_that_is_given_comes_before_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOLDFAST_URL", str(tmp_path / "named.db"))
        with holdfast.connect(tmp_path / "given.db") as queue:
            queue.enqueue("report", {})
        assert not (tmp_path / "named.db").exists()

    @pytest.mark.parametrize("connect", [holdfast.connect, holdfast.connect_async])
    def test_without_either_the_error_says_what_to_do(
        self, connect: Callable[[], object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("HOLDFAST_URL", raising=False)
        with pytest.raises(holdfast.Misconfigured, match="set HOLDFAST_URL"):
            connect()


@pytest.mark.parametrize(
    ("denied", "says"),
    [
        (
            lambda path, mode: path.name == "jobs.db" and mode == os.W_OK,
            "can be read but not written; check its owner",
        ),
        (lambda path, _mode: path.name == "jobs.db", "cannot be read or written; check its owner"),
        (lambda path, _mode: path.is_dir(), "cannot be written: .* permissions of the folder"),
    ],
)
def test_a_file_that_may_not_be_written_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, denied: Callable[[Path, int], bool], says: str
) -> None:
    path = tmp_path / "jobs.db"
    with holdfast.connect(str(path)) as queue:
        queue.migrate()
    monkeypatch.setattr(os, "access", lambda path, mode: not denied(Path(path), mode))
    with pytest.raises(ReadOnlyStore, match=rf"jobs\.db' {says}"), holdfast.connect(str(path)) as queue:
        queue.enqueue("mail")


def test_a_file_that_cannot_be_created_names_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ReadOnlyStore, match="cannot be created; check the permissions of the folder"):
        holdfast.connect(str(tmp_path / "jobs.db")).enqueue("mail")
