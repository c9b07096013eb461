"""Records are kept: through two writers at once, a kill, a full disk; and every refusal is a line that helps.

PODIUM_TEST_POSTGRESQL, a SQLAlchemy URL of an empty database, makes the general tests run on PostgreSQL as well.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from records import CPU, MI355X, batch, case, cases, record, spec, submission
from sqlalchemy import event

from harness.errors import StoreError
from harness.record import Doubt, Outcome, Record, Timing
from leaderboard import database, migrations, ranking, store
from leaderboard.ranking import BoardKey, rank
from leaderboard.store import Store, open_store

ROOT = Path(__file__).resolve().parents[1]
POSTGRESQL = os.environ.get("PODIUM_TEST_POSTGRESQL")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/podium.db"
        return
    if POSTGRESQL is None:
        pytest.skip("PODIUM_TEST_POSTGRESQL names no database")
    schema = f"test_{uuid.uuid4().hex}"
    engine = database.connect(database.locate(POSTGRESQL, None))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
    yield f"{POSTGRESQL}?options=-csearch_path%3D{schema}"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")
    engine.dispose()


@pytest.fixture
def kept(url: str) -> Iterator[Store]:
    """An open, empty store."""
    opened = open_store(url)
    yield opened
    opened.close()


def refusal(url: str | None, **arguments: object) -> str:
    """What open_store says when it refuses."""
    with pytest.raises(StoreError) as caught:
        open_store(url, **arguments)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- what goes in comes out --------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was(kept: Store) -> None:
    failed = record(
        "ffff0000", [case(spec(8), verdict="crashed", message="Traceback …\n  IndexError: 3")], output="é\t☂"
    )
    empty = record("eeee0000", [], by=submission(source=""), outcome=Outcome("load-failed", "defines nothing", "load"))
    for each in (record(), failed, empty):
        kept.add(each)
        assert kept.get(each.id) == each


def test_an_id_may_be_shortened_while_it_is_unique(kept: Store) -> None:
    for name in ("3f9a01bc", "3f9b0000", "a0000000"):
        kept.add(record(name))
    assert kept.get("3f9a").id == "3f9a01bc"
    assert kept.get("a").id == "a0000000"
    with pytest.raises(StoreError, match="'3f9' begins the ids of 2 records: 3f9b0000, 3f9a01bc; give more of it"):
        kept.get("3f9")


def test_an_id_that_begins_another_one_is_itself(kept: Store) -> None:
    kept.add(record("3f"))
    kept.add(record("3f00"))
    assert kept.get("3f").id == "3f"


def test_a_missing_id_is_answered_with_near_ones(kept: Store) -> None:
    with pytest.raises(StoreError, match="there is no record '3f9a01bd'; there are none at all yet"):
        kept.get("3f9a01bd")
    kept.add(record("3f9a01bc"))
    with pytest.raises(StoreError, match="there is no record '3f9a01bd'; did you mean 3f9a01bc"):
        kept.get("3f9a01bd")
    with pytest.raises(StoreError, match="there is no record 'zzz'; the newest are 3f9a01bc"):
        kept.get("zzz")


@pytest.mark.parametrize("odd", ["%", "_", "3F9A", "3f9a01b_", "/"])
def test_signs_of_the_query_language_and_capitals_match_nothing(kept: Store, odd: str) -> None:
    kept.add(record("3f9a01bc"))
    with pytest.raises(StoreError, match="there is no record"):
        kept.get(odd)


def test_an_empty_id_matches_nothing(kept: Store) -> None:
    kept.add(record())
    with pytest.raises(StoreError, match="an id is empty"):
        kept.get("")


def test_an_id_is_taken_once(kept: Store) -> None:
    kept.add(record())
    with pytest.raises(StoreError, match="a record with the id 3f9a01bc is there already"):
        kept.add(replace(record(), mode="test"))
    assert kept.get("3f9a01bc").mode == "leaderboard"


def test_a_source_is_kept_once_whoever_submits_it(kept: Store) -> None:
    text = "def custom_kernel(data): ...\n"
    for name, author in (("1", "ada"), ("2", "bob"), ("3", "ada")):
        kept.add(record(name, by=submission("k.py", author, text)))
    kept.add(record("4", by=submission("k.py", "ada", text + "\n")))
    with kept.reads() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(store.SOURCES)) == 2
        bodies = connection.scalars(sa.select(store.RECORDS.c.body)).all()
    assert not any("custom_kernel" in body for body in bodies)
    assert kept.get("2").submission.source == text


def test_a_hash_that_is_not_the_source_s_is_refused(kept: Store) -> None:
    wrong = replace(submission(), sha256="0" * 64)
    with pytest.raises(StoreError, match="names another sha256 than its source has"):
        kept.add(record(by=wrong))
    assert kept.entries() == []


def test_names_that_are_not_text_are_kept(kept: Store) -> None:
    odd = record(by=submission(os.fsdecode(b"caf\xe9.py"), "adá", "# text"))
    kept.add(odd)
    assert kept.get(odd.id) == odd


# --- many --------------------------------------------------------------------------------------------------


def test_entries_are_the_newest_first(kept: Store) -> None:
    moments = {"a": "2026-12-01T10:00:00+00:00", "b": "2026-12-01T12:00:00+00:00", "c": "2026-12-01T12:30:00+02:00"}
    for name, created in moments.items():
        kept.add(record(name, created=created))
    kept.add(record("d", created=moments["b"]))
    assert [each.id for each in kept.entries()] == ["d", "b", "c", "a"]


def test_entries_may_be_asked_for_by_problem_version_and_rank(kept: Store) -> None:
    kept.add(record("a"))
    kept.add(record("b", problem_hash="other"))
    kept.add(record("c", problem="mla_decode"))
    kept.add(record("d", mode="benchmark"))
    kept.add(record("e", [case(spec(8), verdict="wrong", message="row 3")]))
    kept.add(record("f", [case(spec(8), Timing((batch(100.0),)), doubts=("state-carried",))]))

    def ids(**asked: object) -> str:
        return "".join(sorted(each.id for each in kept.entries(**asked)))  # type: ignore[arg-type]

    assert ids() == "abcdef"
    assert ids(problem="fp4_gemm") == "abdef"
    assert ids(problem="fp4_gemm", problem_hash="other") == "b"
    assert ids(ranked_only=True) == "abc"
    assert ids(problem="nothing") == ""


def test_boards_are_listed_where_there_is_something_to_rank(kept: Store) -> None:
    kept.add(record("a"))
    kept.add(record("b", by=submission(author="bob")))
    kept.add(record("c", device=MI355X))
    kept.add(record("d", device=CPU, timing_class="interpreter", problem="mla_decode"))
    kept.add(record("e", mode="test", problem="mxfp4_moe"))
    assert kept.boards() == [
        BoardKey("fp4_gemm", "9d1c0b7a55e2", "AMD Instinct MI355X", "gated"),
        BoardKey("fp4_gemm", "9d1c0b7a55e2", "NVIDIA H200", "gated"),
        BoardKey("mla_decode", "9d1c0b7a55e2", "AMD EPYC 9654", "interpreter"),
    ]


# --- scores ------------------------------------------------------------------------------------------------


def test_scores_are_what_ranking_makes_of_the_entries(kept: Store) -> None:
    for index, name in enumerate("abc"):
        kept.add(record(name, cases(1000.0 + index, 2000.0), by=submission(author=name)))
    kept.add(record("d", problem="mla_decode"))
    kept.add(record("e", mode="test"))
    assert rank(kept.scores()) == rank(kept.entries())
    assert [each.record_id for each in kept.scores(problem="fp4_gemm")] == ["c", "b", "a"]
    assert kept.scores(problem_hash="other") == []


def test_a_score_is_worked_out_once_until_its_code_changes(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[str] = []
    real = ranking.score
    monkeypatch.setattr(ranking, "score", lambda found: worked.append(found.id) or real(found))
    kept.add(record("a"))
    first = kept.scores()
    assert (kept.scores(), worked) == (first, ["a"])
    kept.add(record("b", [case(spec(8), Timing((batch(100.0),)), doubts=("async-work",))]))
    assert (kept.scores(), worked) == (first, ["a", "b"])
    assert (kept.scores(), worked) == (first, ["a", "b"])
    monkeypatch.setattr(store, "_scoring_code", lambda: "changed")
    assert kept.scores() == first
    assert sorted(worked[2:]) == ["a", "b"]
    assert (kept.scores(), len(worked)) == (first, 4)


# --- clearances --------------------------------------------------------------------------------------------


def doubted(name: str, *doubts: Doubt, **changes: object) -> Record:
    """A record that would be ranked but for these doubts."""
    *others, last = cases(8212.0, 28585.0, 177157.0)
    return record(name, [*others, replace(last, doubts=doubts)], by=submission(f"{name}.py"), **changes)  # type: ignore[arg-type]


def ranked(kept: Store) -> list[str]:
    """Whose scores there are: the same records that `entries` says are ranked, and that stand on boards."""
    ids = sorted(each.record_id for each in kept.scores())
    assert ids == sorted(each.id for each in kept.entries(ranked_only=True))
    assert ids == sorted(row.score.record_id for board in rank(kept.scores()) for row in board.rows)
    return ids


def test_a_record_is_ranked_once_all_its_doubts_are_cleared_and_stays_as_it_was(kept: Store) -> None:
    before = doubted("a", "clocks-disagree", "async-work")
    kept.add(before)
    kept.add(doubted("b", "async-work"))
    kept.add(record("c"))
    (first,) = kept.clear("a", ["clocks-disagree"], "events are off here", "ada")
    assert (first.doubt, first.reason, first.author) == ("clocks-disagree", "events are off here", "ada")
    assert abs(datetime.now(UTC) - datetime.fromisoformat(first.created)) < timedelta(minutes=1)
    assert ranked(kept) == ["c"]
    both = kept.clear("a", ["async-work"], "a daemon of the driver's", "bob")
    assert [(each.doubt, each.author) for each in both] == [("clocks-disagree", "ada"), ("async-work", "bob")]
    assert ranked(kept) == ["a", "c"]
    assert kept.get("a") == before
    assert (kept.clearances("a"), kept.clearances("b"), kept.clearances("c")) == (both, (), ())
    (score,) = [each for each in kept.scores() if each.record_id == "a"]
    assert (score.doubts, score.clearances) == (("clocks-disagree", "async-work"), both)


def test_a_device_that_was_unsteady_can_be_cleared_as_any_doubt(kept: Store) -> None:
    kept.add(replace(record("a"), unsteady="another process used the GPU during 30 % of the batches"))
    assert ranked(kept) == []
    kept.clear("a", ["unsteady-device"], "it only slept", "ada")
    assert ranked(kept) == ["a"]


def test_a_clearance_taken_back_is_gone(kept: Store) -> None:
    kept.add(doubted("a", "clocks-disagree", "async-work"))
    _, second = kept.clear("a", ["clocks-disagree", "async-work"], "both are the driver's", "ada")
    assert ranked(kept) == ["a"]
    assert kept.undo_clear("a", ["async-work"]) == (second,)
    assert ranked(kept) == []
    kept.clear("a", ["async-work"], "looked again", "bob")
    assert ranked(kept) == ["a"]
    assert kept.undo_clear("a", ["async-work", "clocks-disagree"]) == ()
    assert ranked(kept) == []


def test_clearing_works_no_score_out_again(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[str] = []
    real = ranking.score
    monkeypatch.setattr(ranking, "score", lambda found: worked.append(found.id) or real(found))
    kept.add(doubted("a", "async-work"))
    kept.add(record("b"))
    assert (ranked(kept), sorted(worked)) == (["b"], ["a", "b"])
    kept.clear("a", ["async-work"], "the driver's", "ada")
    assert (ranked(kept), sorted(worked)) == (["a", "b"], ["a", "b"])
    kept.undo_clear("a", ["async-work"])
    assert (ranked(kept), sorted(worked)) == (["b"], ["a", "b"])


def test_what_cannot_be_cleared_says_why_and_clears_nothing(kept: Store) -> None:
    kept.add(doubted("a", "clocks-disagree", "async-work"))
    kept.add(doubted("b", "async-work", mode="benchmark"))
    kept.add(record("c", [case(spec(8), doubts=("async-work",)), case(spec(16), verdict="wrong", message="row 3")]))
    kept.add(record("d", [case(spec(8), doubts=("async-work",))]))
    kept.add(record("e"))
    kept.add(replace(doubted("f", "async-work"), replay_of="a"))
    kept.clear("a", ["clocks-disagree"], "events are off", "ada")
    for doubts, name, message in (
        (["async-work"], "x", "there is no record 'x'; the newest are f, e, d"),
        (["async-work"], "b", "record b is of a benchmark run: no clearance would put it on a board"),
        (["async-work"], "c", "record c did not pass (wrong): no clearance would put it on a board"),
        (["async-work"], "d", "record d has no times: no clearance would put it on a board"),
        (["async-work"], "f", "record f is a replay of a: no clearance would put it on a board"),
        (["async-work"], "e", "record e has no doubt async-work; it has none at all"),
        (["async-work", "below-roofline"], "a", "a has no doubt below-roofline; its doubts are clocks-disagree, async"),
        (["async-work", "clocks-disagree"], "a", "clocks-disagree of record a is cleared already, by ada on 20"),
    ):
        with pytest.raises(StoreError, match=re.escape(message)):
            kept.clear(name, doubts, "why not", "bob")  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="a reason is empty; say why the doubt is none"):
        kept.clear("a", ["async-work"], " \t ", "bob")
    for undone, message in (
        (["async-work"], "async-work of record a is not cleared, so there is nothing to undo"),
        (["clocks-disagree", "async-work"], "async-work of record a is not cleared"),
        (["below-roofline"], "record a has no doubt below-roofline"),
    ):
        with pytest.raises(StoreError, match=message):
            kept.undo_clear("a", undone)  # type: ignore[arg-type]
    assert [each.doubt for each in kept.clearances("a")] == ["clocks-disagree"]
    assert ranked(kept) == ["e"]


def test_a_reason_that_is_no_text_is_kept_as_one_line(kept: Store) -> None:
    kept.add(doubted("a", "async-work"))
    (found,) = kept.clear("a", ["async-work"], "two\nlines\tand " + os.fsdecode(b"caf\xe9"), "adá")
    assert (found.reason, found.author) == ("two lines and caf?", "adá")
    assert kept.clearances("a") == (found,)


# --- where it is -------------------------------------------------------------------------------------------


def test_the_database_is_in_home_else_in_podium_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODIUM_HOME", str(tmp_path / "a" / "b"))
    open_store().add(record("one"))
    open_store(home=tmp_path / "c d?#%41").add(record("two"))
    assert (tmp_path / "a" / "b" / "podium.db").is_file()
    assert (tmp_path / "c d?#%41" / "podium.db").is_file()
    monkeypatch.delenv("PODIUM_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    open_store()
    assert (tmp_path / "share" / "podium" / "podium.db").is_file()
    assert open_store(f"sqlite:///{tmp_path}/a/b/podium.db", home=tmp_path).get("one").id == "one"


def test_sqlite_waits_writes_ahead_and_syncs(tmp_path: Path) -> None:
    with open_store(home=tmp_path).reads() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "busy_timeout", "foreign_keys", "synchronous")
        }
    assert found == {"journal_mode": "wal", "busy_timeout": 30_000, "foreign_keys": 1, "synchronous": 2}


# --- the schema --------------------------------------------------------------------------------------------


def test_the_revisions_make_the_tables_that_the_store_uses(kept: Store) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    with kept.reads() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": migrations.VERSION_TABLE})
        assert compare_metadata(context, store.METADATA) == []


def test_head_names_the_newest_revision() -> None:
    assert migrations.revisions().get_current_head() == migrations.HEAD


NOW = migrations.HEAD


def with_revisions(folder: Path, monkeypatch: pytest.MonkeyPatch, head: str, further: str = "") -> None:
    """As if `head` were the newest revision: one of ours, or the one whose text is `further`."""
    from alembic.script import ScriptDirectory

    versions = folder / "versions"
    versions.mkdir()
    for file in (ROOT / "leaderboard" / "versions").glob("r*.py"):
        if file.name[1:5] <= head:
            shutil.copy(file, versions)
    if further:
        (versions / f"r{head}_more.py").write_text(further)
    monkeypatch.setattr(migrations, "HEAD", head)
    monkeypatch.setattr(
        migrations, "revisions", lambda: ScriptDirectory(str(folder), version_locations=[str(versions)])
    )


def with_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """As if there were one revision more, "9000", that does `body`."""
    text = (
        f"import sqlalchemy as sa\nfrom alembic import op\nrevision, down_revision = '9000', '{NOW}'\n"
        f"def upgrade():\n    op.add_column('records', sa.Column('extra', sa.String))\n    {body}\n"
    )
    with_revisions(tmp_path, monkeypatch, "9000", text)


def version_and_columns(kept: Store) -> tuple[str | None, bool]:
    with kept.reads() as connection:
        columns = sa.inspect(connection).get_columns("records")
        return migrations.current(connection), any(column["name"] == "extra" for column in columns)


def test_an_older_database_is_brought_up_to_date_and_keeps_its_records(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = open_store(url)
    kept.add(record("old"))
    assert version_and_columns(kept) == (NOW, False)
    with_revision(tmp_path, monkeypatch, "pass")
    newer = open_store(url)
    assert version_and_columns(newer) == ("9000", True)
    assert newer.get("old") == record("old")


def test_a_revision_that_fails_leaves_nothing_of_itself(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = open_store(url)
    with_revision(tmp_path, monkeypatch, "op.drop_table('nowhere')")
    assert "nowhere" in refusal(url)
    assert version_and_columns(kept) == (NOW, False)


def test_records_from_before_there_were_clearances_are_kept_and_can_be_cleared(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        with_revisions(tmp_path, before, "0001")
        old = open_store(url)
        old.add(record("plain"))
        old.add(doubted("doubted", "async-work"))
        with old.writes() as connection:  # as its Podium scored them: what has a doubt has no score
            connection.execute(sa.insert(store.SCORES).values(number=2, code="old", body="null"))
            assert (migrations.current(connection), sa.inspect(connection).has_table("clearances")) == ("0001", False)
    kept = open_store(url)
    assert version_and_columns(kept) == (NOW, False)
    assert kept.entries() == old.entries() == [doubted("doubted", "async-work"), record("plain")]
    assert [each.record_id for each in kept.scores()] == ["plain"]
    kept.clear("doubted", ["async-work"], "it is the profiler's", "ada")
    assert sorted(each.record_id for each in kept.scores()) == ["doubted", "plain"]


def test_a_newer_database_is_refused(kept: Store, url: str) -> None:
    with kept.writes() as connection:
        connection.exec_driver_sql(f"UPDATE {migrations.VERSION_TABLE} SET version_num = '9999'")
    assert f"was made by a newer Podium (its schema is 9999, this one knows {NOW}): update Podium" in refusal(url)


def test_a_record_of_another_layout_is_named(kept: Store) -> None:
    kept.add(record("a1"))
    with kept.writes() as connection:
        body = json.loads(connection.scalar(sa.select(store.RECORDS.c.body)))
        connection.execute(sa.update(store.RECORDS).values(body=json.dumps({**body, "colour": "red"})))
    with pytest.raises(StoreError, match=r"record a1 was written by another Podium.*unknown field 'colour'"):
        kept.get("a1")


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("boards.db", "--db is not a database URL; it looks like sqlite:///boards.db"),
        ("", "--db is not a database URL"),
        ("postgresql://user@host:port/name", "--db is not a database URL"),
        ("pigeon://loft", "no database is called 'pigeon'"),
        ("firebird://host/name", "no database is called 'firebird'"),
        ("mssql+pymssql://host/name", "the driver for mssql+pymssql is missing (pymssql): install it"),
        ("sqlite:////nowhere/at/all.db", "/nowhere/at/all.db: it cannot be opened; check that its folder exists"),
    ],
)
def test_a_url_that_leads_nowhere_is_explained(text: str, message: str) -> None:
    assert message in refusal(text)


def test_a_missing_postgresql_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    message = refusal("postgresql://ada:secret@localhost/boards")
    assert "pip install 'podium[postgresql]'" in message


def test_no_server_is_explained_without_the_password() -> None:
    pytest.importorskip("psycopg")
    message = refusal("postgresql://ada:secret@127.0.0.1:9/boards")
    assert "postgresql+psycopg://ada:***@127.0.0.1:9/boards" in message
    assert "secret" not in message


def test_a_file_that_is_no_database_is_explained(tmp_path: Path) -> None:
    (tmp_path / "podium.db").write_text("dear diary, " * 100)
    assert "podium.db: this file is not a database; move it away" in refusal(None, home=tmp_path)


def test_a_folder_in_its_place_is_explained(tmp_path: Path) -> None:
    (tmp_path / "podium.db").mkdir()
    assert "podium.db: this is a folder" in refusal(None, home=tmp_path)


def test_a_home_that_is_a_file_is_explained(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    assert "set PODIUM_HOME to a folder that you may write to" in refusal(None, home=tmp_path / "home")
    assert "cannot be made (Not a directory)" in refusal(None, home=tmp_path / "home" / "deeper")


@contextmanager
def nobody() -> Iterator[Path]:
    """A folder that this process may read but not write, also when it is root."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    is_root = os.geteuid() == 0
    try:
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def give_up_rights(folder: Path) -> None:
    folder.chmod(0o555)
    if os.geteuid() == 0:
        try:
            os.seteuid(65534)
        except OSError:
            pytest.skip("this user namespace has no nobody")


def test_no_permission_is_explained() -> None:
    with nobody() as folder:
        give_up_rights(folder)
        assert "it cannot be opened; check that its folder exists and may be written" in refusal(None, home=folder)
        assert "cannot be made (Permission denied)" in refusal(None, home=folder / "deeper")


def test_what_may_only_be_read_is_read_and_not_written() -> None:
    with nobody() as folder:
        open_store(home=folder).add(record("a"))
        for file in folder.iterdir():
            file.chmod(0o444)
        give_up_rights(folder)
        readable = open_store(home=folder)
        assert readable.get("a") == record("a")
        assert [each.record_id for each in readable.scores()] == ["a"]
        with pytest.raises(StoreError, match="it may not be written; check the permissions"):
            readable.add(record("b"))
        assert "it may not be written" in refusal(None, home=folder, writing=True)


def test_a_full_disk_is_explained_and_what_was_kept_stays(tmp_path: Path) -> None:
    kept = open_store(home=tmp_path)
    kept.add(record("a"))
    kept.close()
    event.listen(kept.engine, "connect", lambda connection, _: connection.execute("PRAGMA max_page_count = 30"))
    with pytest.raises(StoreError, match="the disk is full; free some space there and run this again"):
        kept.add(record("b", by=submission(source="#" * 1_000_000)))
    assert [each.id for each in kept.entries()] == ["a"]
    again = open_store(home=tmp_path)
    again.add(record("b"))
    assert [each.id for each in again.entries()] == ["b", "a"]


def test_a_damaged_file_is_explained(tmp_path: Path) -> None:
    kept = open_store(home=tmp_path)
    kept.add(record("a", by=submission(source="#" * 100_000)))
    kept.close()
    file = tmp_path / "podium.db"
    content = bytearray(file.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    file.write_bytes(content)
    with pytest.raises(StoreError, match="it is damaged; bring back a copy"):
        open_store(home=tmp_path).get("a")


def test_a_lock_that_is_not_let_go_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    kept = open_store(home=tmp_path)
    kept.add(record("a"))
    other = sqlite3.connect(tmp_path / "podium.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another program has kept it locked for 30 s; try again"):
        kept.add(record("b"))
    assert [each.record_id for each in kept.scores()] == ["a"]
    other.execute("COMMIT")
    kept.add(record("b"))
    assert [each.id for each in kept.entries()] == ["b", "a"]
    other.close()


# --- several processes -------------------------------------------------------------------------------------

WRITER = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
from records import record, submission
import alembic.operations, alembic.runtime.migration, alembic.script
from leaderboard.store import open_store
name, count = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
store = open_store({url!r})
for number in range(count):
    store.add(record(f"{{name}}-{{number}}", by=submission("same.py", "ada", f"# the same text {{number}}")))
    print(f"{{name}}-{{number}}", flush=True)
"""


@contextmanager
def writers(url: str, *names: str, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that stand ready to open the store and add `count` records, as soon as they get a line."""
    code = WRITER.format(root=str(ROOT), tests=str(ROOT / "tests"), url=url)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, name, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_processes_that_make_the_database_at_once_all_keep_their_records(url: str) -> None:
    names = ("a", "b", "c", "d")
    with writers(url, *names, count=5) as started:
        for process in started:
            go(process)
        for process in started:
            _, errors = process.communicate(timeout=60)
            assert (process.returncode, errors) == (0, "")
    kept = open_store(url)
    assert sorted(each.id for each in kept.entries()) == [f"{name}-{n}" for name in names for n in range(5)]
    kept.close()


def test_a_kill_at_any_moment_loses_nothing_acknowledged_and_keeps_nothing_half(url: str) -> None:
    """A few moments; benchmarks/kills.py tries a hundred, of whole runs too."""
    acknowledged: list[str] = []
    for index, delay_s in enumerate((0.0, 0.013, 0.05, 0.002, 0.027)):
        with writers(url, f"w{index}", count=100_000) as (process,):
            go(process)
            assert process.stdout is not None
            acknowledged += [process.stdout.readline().strip() for _ in range(3)]
            time.sleep(delay_s)
            process.send_signal(signal.SIGKILL)
            last = process.stdout.read()
            acknowledged += [line for line in last.split("\n")[:-1] if line]
        kept = open_store(url)
        entries = kept.entries()
        ids = {each.id for each in entries}
        assert set(acknowledged) <= ids
        assert len(ids) <= len(acknowledged) + index + 1  # each kill may have come between keeping and saying so
        for each in entries:
            text = f"# the same text {each.id.partition('-')[2]}"
            assert each == record(each.id, by=submission("same.py", "ada", text))
        with kept.reads() as connection:
            named = set(connection.scalars(sa.select(store.RECORDS.c.sha256)))
            assert named == set(connection.scalars(sa.select(store.SOURCES.c.sha256)))
            if url.startswith("sqlite"):
                assert connection.exec_driver_sql("PRAGMA integrity_check").scalars().all() == ["ok"]
        kept.close()


CLEARER = """
import os, signal, sys
sys.path[:0] = [{root!r}, {tests!r}]
from harness.errors import StoreError
from leaderboard import store
kept = store.open_store({url!r})
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[1] == "killed":
    looked, real = [], store._cleared
    def look(*arguments):
        looked.append(1)
        return real(*arguments) if len(looked) == 1 else os.kill(os.getpid(), signal.SIGKILL)
    store._cleared = look  # the second look is after both are written
try:
    print(*(each.author for each in kept.clear("a", ["async-work", "clocks-disagree"], "why", sys.argv[1])))
except StoreError as error:
    print(error)
"""


def clearers(url: str, *names: str) -> list[tuple[int, str]]:
    """Processes that clear both doubts of record a at once: how each ended, and what it said."""
    code = CLEARER.format(root=str(ROOT), tests=str(ROOT / "tests"), url=url)
    pipes: dict[str, int] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    started = [subprocess.Popen([sys.executable, "-c", code, name], text=True, **pipes) for name in names]  # type: ignore[call-overload]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        go(process)
    ends = [process.communicate(timeout=60) for process in started]
    assert [errors for _, errors in ends] == [""] * len(names)
    return [(process.returncode, said.strip()) for process, (said, _) in zip(started, ends, strict=True)]


def test_of_processes_that_clear_at_once_one_does_and_the_others_are_told(kept: Store, url: str) -> None:
    kept.add(doubted("a", "async-work", "clocks-disagree"))
    ends = clearers(url, "ada", "bob", "eve")
    assert [code for code, _ in ends] == [0, 0, 0]
    winner = kept.clearances("a")[0].author
    assert f"{winner} {winner}" in [said for _, said in ends]
    assert sum(f"async-work of record a is cleared already, by {winner} on" in said for _, said in ends) == 2
    assert [each.author for each in kept.clearances("a")] == [winner, winner]


def test_a_kill_in_the_middle_of_clearing_leaves_nothing_cleared(kept: Store, url: str) -> None:
    kept.add(doubted("a", "async-work", "clocks-disagree"))
    assert clearers(url, "killed") == [(-signal.SIGKILL, "")]
    assert (kept.clearances("a"), ranked(kept)) == ((), [])
    kept.clear("a", ["async-work", "clocks-disagree"], "now", "ada")
    assert ranked(kept) == ["a"]


def test_the_reading_commands_load_no_more_than_they_need(tmp_path: Path) -> None:
    open_store(home=tmp_path).add(record("a"))
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import leaderboard.ranking, leaderboard.tables
assert "sqlalchemy" not in sys.modules, "ranking and tables need no database"
from pathlib import Path
from leaderboard.store import open_store
assert len(open_store(home=Path({str(tmp_path)!r})).scores()) == 1
print(*(name for name in ("alembic", "sqlalchemy.orm", "torch", "pydantic", "click") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def test_a_closed_store_leaves_one_file(tmp_path: Path) -> None:
    kept = open_store(home=tmp_path)
    kept.add(record())
    kept.close()
    with suppress(FileNotFoundError):
        assert (tmp_path / "podium.db-wal").stat().st_size == 0
    assert (tmp_path / "podium.db").is_file()
