"""Does Podium keep what it has acknowledged? Kills referees (SIGKILL) at random moments and looks at what is there.

    python benchmarks/kills.py [--count 100] [--seed 1] [--output benchmarks/results/NAME.md]

Four of five record in a loop, half of them while another one does so too, every eighth into a database that it has to
make first; each fifth is a whole `podium submit` on the CPU. After every kill: what was acknowledged must be there and
equal to what was written, everything that is there must be whole, the board must be what the records say, and the next
referee must get on. Of a killed submit no process, segment or file may be left. Exit status 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import platform
import random
import select
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from leftovers import Place, machine, settle_in

from harness.devices import cpu
from harness.errors import StoreError
from harness.record import Record, from_dict
from leaderboard.ranking import rank
from leaderboard.store import open_store

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import records as samples  # noqa: E402  the tests' builders of records

PROBLEM = ROOT / "benchmarks" / "problems" / "spin"
HONEST = (ROOT / "benchmarks" / "submissions" / "spin" / "triton_spin.py").read_text()
KERNELS = {
    "honest": HONEST,
    "with a daemon": f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
{HONEST}""",
}
DATABASES_OF = 8
"""So many kills hit one database, then a new one is made."""
LONGEST_S, LONGEST_MAKING_S = 1.0, 0.3
"""Until a kill: while records are added, and where the database is to be made first."""


@dataclass(frozen=True)
class Kill:
    """One referee's, and what was there afterwards."""

    kind: str
    after_s: float
    """Since it was told to begin."""
    acknowledged: int
    """Records that were kept and told of since the kill before it."""
    untold: int
    """Records that are there although the killed one could not tell of them any more."""
    next_s: float
    """Until the next referee had opened the database and added a record."""
    gone_s: float
    """Until all that the killed one had started was gone."""
    wrong: tuple[str, ...]
    """Whatever is not as it must be."""


# --- the referee that records in a loop -------------------------------------------------------------------------


def made(name: str) -> Record:
    """A record like those of real runs, always the same for a name: small and large, passed and failed."""
    draw = random.Random(name)
    author, number = draw.choice(["ada", "bob", "chloé"]), draw.randrange(8)
    source = f"# kernel {number}\n" if draw.random() < 0.5 else f"# {name}\n" + "x = 1\n" * draw.randrange(20_000)
    results = samples.cases(*(draw.uniform(2e3, 2e6) for _ in range(draw.randrange(1, 9))), spread=draw.random() / 100)
    if draw.random() < 0.2:
        message = "row 3 is off by 0.25\n" * draw.randrange(1, 40)
        results = [samples.case(samples.spec(8), verdict="wrong", message=message, judged=samples.judgement())]
    return samples.record(
        name,
        results,
        created=(datetime(2026, 12, 3, tzinfo=UTC) + timedelta(seconds=draw.randrange(10**6))).isoformat(),
        problem=draw.choice(["fp4_gemm", "mla_decode"]),
        by=samples.submission(f"kernel_{number}.py", author, source),
        device=draw.choice([samples.H200, samples.MI355X, samples.CPU]),
        output="printed\n" * draw.choice([0, 10, 2000]),
    )


def record_forever(url: str, series: str) -> None:
    """Add records until the standard input ends, and acknowledge each as soon as it is kept."""
    print("ready", flush=True)
    sys.stdin.readline()
    store = open_store(url)
    is_ranking = random.Random(series).random() < 0.3
    for number in itertools.count():
        name = f"{series}{number:04x}"
        store.add(made(name))
        print(name, flush=True)
        if is_ranking and number % 25 == 24:
            store.scores()  # writes, too: what has been worked out is kept
        if select.select([sys.stdin], [], [], 0)[0]:
            return


@contextlib.contextmanager
def referee(url: str, series: str) -> Iterator[subprocess.Popen[str]]:
    """A process that stands ready to do so."""
    command = [sys.executable, __file__, "--record", url, series]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def begin(process: subprocess.Popen[str]) -> None:
    """Let it."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def told(process: subprocess.Popen[str]) -> list[str]:
    """What it has acknowledged, when it has ended."""
    assert process.stdout is not None
    return process.stdout.read().splitlines()


def kill_recording(place: Place, number: int, draw: random.Random, known: dict[str, set[str]]) -> Kill:
    """Kill one that records. `known`: the ids of all that was there or acknowledged before, by database."""
    file = place.folder / f"records-{number // DATABASES_OF}.db"
    url, is_new = f"sqlite:///{file}", not file.exists()
    acknowledged: list[str] = []
    after_s = draw.uniform(0, LONGEST_MAKING_S if is_new else LONGEST_S)
    wrong: list[str] = []
    with contextlib.ExitStack() as stack:
        victim = stack.enter_context(referee(url, f"{number:03x}0"))
        beside = stack.enter_context(referee(url, f"{number:03x}1")) if number % 2 else None
        for each in filter(None, (victim, beside)):
            begin(each)
        time.sleep(after_s)
        victim.kill()
        acknowledged += told(victim)
        if beside is not None:
            assert beside.stdin is not None
            time.sleep(0.1)
            beside.stdin.close()
            acknowledged += told(beside)
            if beside.wait():
                wrong.append(f"the referee beside it ended with exit status {beside.returncode}")
    start = time.monotonic()
    written = made(f"{number:03x}f0000")
    try:
        store = open_store(url, writing=True)
        store.add(written)
        store.close()
    except StoreError as error:
        wrong.append(f"the next referee: {error}")
    next_s = time.monotonic() - start
    acknowledged.append(written.id)
    untold, found = look(file, acknowledged, known.setdefault(url, set()), lambda record: record == made(record.id))
    return Kill("recording", after_s, len(acknowledged), untold, next_s, 0.0, (*wrong, *found))


# --- the referee of a whole run ----------------------------------------------------------------------------------


def submit(place: Place, url: str, kernel: str) -> subprocess.Popen[str]:
    """`podium submit` of one of the kernels."""
    file = place.folder / "kernel.py"
    file.write_text(KERNELS[kernel])
    arguments = ["submit", str(file), "-p", str(PROBLEM), "--device", "cpu", "--name", "kills", "--db", url, "--json"]
    return subprocess.Popen(
        [sys.executable, str(ROOT / "cli.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PODIUM_HOME": str(place.folder), "PYTHONPATH": str(ROOT)},
    )


def submitted(process: subprocess.Popen[str]) -> tuple[Record | None, str]:
    """Its record if it told of one before its end, and what it said instead."""
    printed, errors = process.communicate()
    if process.returncode == 0:
        return from_dict(Record, json.loads(printed)), errors
    try:
        return from_dict(Record, json.loads(printed)), errors
    except ValueError:
        return None, printed + errors


def kill_submit(place: Place, number: int, whole_s: float, draw: random.Random, known: set[str]) -> Kill:
    """Kill one whole run. `known`: the ids of all that was there or acknowledged before."""
    file, kernel = place.folder / "runs.db", list(KERNELS)[number % len(KERNELS)]
    url, before = f"sqlite:///{file}", place.found()
    acknowledged: list[str] = []
    is_killed = False
    while not is_killed:  # one that was quicker than its kill does not count
        after_s = draw.uniform(0, whole_s)
        process = submit(place, url, kernel)
        time.sleep(after_s)
        process.kill()
        record, _ = submitted(process)
        acknowledged += [] if record is None else [record.id]
        is_killed = process.returncode == -signal.SIGKILL
    start = time.monotonic()
    left = place.left_since(before)
    gone_s = time.monotonic() - start
    # Between making its folder and telling the warden, a referee may be killed that has nobody to remove it yet.
    folders = {each for each in left if each.startswith(str(place.temporary))}
    wrong = [f"left by {kernel}: {each}" for each in left if each not in folders]
    start = time.monotonic()
    record, said = submitted(submit(place, url, kernel))
    next_s = time.monotonic() - start
    if record is None:
        wrong.append(f"the next run: {said.strip()}")
    else:
        acknowledged.append(record.id)
    wrong += [f"left by {kernel} and the run after it: {each}" for each in place.left_since(before)]
    untold, found = look(file, acknowledged, known, is_whole_run)
    return Kill("submit", after_s, len(acknowledged), untold, next_s, gone_s, (*wrong, *found))


def is_whole_run(record: Record) -> bool:
    """Whether it is one of those that are submitted here, in all its parts."""
    is_source = record.submission.source in KERNELS.values()
    return is_source and record.outcome.verdict == "passed" and len(record.timed) == 3


# --- what is there -----------------------------------------------------------------------------------------------

ORPHANS = {
    "records without a source": "SELECT id FROM records WHERE sha256 NOT IN (SELECT sha256 FROM sources)",
    "sources without a record": "SELECT sha256 FROM sources WHERE sha256 NOT IN (SELECT sha256 FROM records)",
    "scores without a record": "SELECT number FROM scores WHERE number NOT IN (SELECT number FROM records)",
}


def look(
    file: Path, acknowledged: Sequence[str], known: set[str], is_whole: Callable[[Record], bool]
) -> tuple[int, list[str]]:
    """How many records are in a database that nobody told of, and whatever is not as it must be.

    `known` gets the ids of all.
    """
    wrong = []
    with contextlib.closing(sqlite3.connect(file)) as raw:
        said = [str(row[0]) for row in raw.execute("PRAGMA integrity_check")]
        wrong += [] if said == ["ok"] else [f"integrity: {said[0]}"]
        wrong += [f"foreign key: {row}" for row in raw.execute("PRAGMA foreign_key_check")]
        wrong += [f"{what}: {row[0]}" for what, query in ORPHANS.items() for row in raw.execute(query)]
        sources = raw.execute("SELECT sha256, text FROM sources")
        wrong += [
            f"half a source: {name}" for name, text in sources if hashlib.sha256(text.encode()).hexdigest() != name
        ]
        ids = {str(row[0]) for row in raw.execute("SELECT id FROM records")}
    known.update(acknowledged)
    wrong += [f"acknowledged and lost: {each}" for each in sorted(known - ids)]
    untold = len(ids - known)
    known |= ids
    try:
        store = open_store(f"sqlite:///{file}")
        entries = store.entries()
        wrong += [f"not as it was written: {record.id}" for record in entries if not is_whole(record)]
        wrong += [] if {record.id for record in entries} == ids else ["entries are not the records"]
        wrong += [] if rank(store.scores()) == rank(entries) else ["the board is not what the records say"]
        store.close()
    except StoreError as error:
        wrong.append(str(error))
    return untold, wrong


# --- all of it ---------------------------------------------------------------------------------------------------


def main() -> None:
    """Kill them, look after each, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None, help="of the moments")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--record", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        record_forever(*options.record)
        return
    place = settle_in()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 30)
    kills = kill_all(place, options.count, random.Random(seed))
    text = report(place, kills, seed)
    print(text)
    if options.output is not None:
        options.output.write_text(text, encoding="utf-8")
    sys.exit(any(kill.wrong for kill in kills))


def kill_all(place: Place, count: int, draw: random.Random) -> list[Kill]:
    """Four of five record, each fifth is a whole run: it is killed within the time that the one before it took."""
    kills: list[Kill] = []
    by_database: dict[str, set[str]] = {}
    of_runs: set[str] = set()
    whole_s = 0.0
    for number in range(count):
        if number % 5 == 4 and not whole_s:
            whole_s = timed_submit(place, of_runs)
        if number % 5 == 4:
            kill = kill_submit(place, number // 5, whole_s, draw, of_runs)
            whole_s = kill.next_s
        else:
            kill = kill_recording(place, number - number // 5, draw, by_database)
        print(
            f"{number + 1:4d} {kill.kind} after {kill.after_s:.3f} s", *(kill.wrong or ["fine"]), sep=": ", flush=True
        )
        kills.append(kill)
    return kills


def timed_submit(place: Place, known: set[str]) -> float:
    """How long a whole run takes that nobody kills, in seconds."""
    start = time.monotonic()
    record, said = submitted(submit(place, f"sqlite:///{place.folder / 'runs.db'}", "honest"))
    if record is None:
        sys.exit(f"a run that nobody kills: {said.strip()}")
    known.add(record.id)
    return time.monotonic() - start


def report(place: Place, kills: Sequence[Kill], seed: int) -> str:
    """All of it, in Markdown."""
    wrong = [f"{kill.kind} after {kill.after_s:.3f} s: {each}" for kill in kills for each in kill.wrong]
    view = "in namespaces of its own" if place.is_alone else "on the machine"
    kinds = {kind: [kill for kill in kills if kill.kind == kind] for kind in ("recording", "submit")}
    lines = [
        f"# Kills: {len(kills)} referees ended by SIGKILL at random moments\n",
        f"{datetime.now(UTC):%Y-%m-%d}, {machine(cpu.describe()['model'])}, Python {platform.python_version()}, SQLite "
        f"{sqlite3.sqlite_version}. Made by `python benchmarks/kills.py --count {len(kills)} --seed {seed}`.\n",
        f"**Not as it must be: {len(wrong)}.** Looked at after each kill: records that were acknowledged and lost, or "
        "differ from what was written; records, sources and scores without each other; `integrity_check` and "
        "`foreign_key_check`; the board against the records; the next referee; after a run, processes, segments and "
        f"files {view}.\n",
        "| killed | kills | after, s | acknowledged | kept, but not told | next referee, s (median, most) "
        "| all gone, s (most) |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_row(kind, of_kind) for kind, of_kind in kinds.items() if of_kind),
        "",
        f"Recording: {DATABASES_OF} kills a database, the first while it is made; beside every second one another "
        "referee recorded and was not killed; a third of them work out scores in between. Submits: the next "
        "referee's time is a whole run's, and every second kernel leaves a daemon.",
        *(f"\n- {each}" for each in wrong[:50]),
    ]
    return "\n".join(lines) + "\n"


def _row(kind: str, kills: Sequence[Kill]) -> str:
    moments = f"{min(kill.after_s for kill in kills):.2f} to {max(kill.after_s for kill in kills):.2f}"
    following = [kill.next_s for kill in kills]
    gone = f"{max(kill.gone_s for kill in kills):.1f}" if kind == "submit" else ""
    return (
        f"| {kind} | {len(kills)} | {moments} | {sum(kill.acknowledged for kill in kills)} "
        f"| {sum(kill.untold for kill in kills)} | {statistics.median(following):.2f}, {max(following):.2f} | {gone} |"
    )


if __name__ == "__main__":
    main()
