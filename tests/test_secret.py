"""Hidden cases: the same from the same file for everybody, told to nobody, and run once more where that is fair."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
import stat
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import CPU, record

from harness import wire
from harness.cases import Case, regime_cases, secret_seeds
from harness.errors import ProblemError, SeedError
from harness.evaluate import Request, cases_of, evaluate
from harness.problem import Problem, load_problem
from harness.processes.court import Court
from harness.processes.isolation import Limits
from harness.progress import Progress
from harness.record import Layer, Record, Secret, from_dict, to_dict
from harness.secret import MAX_BYTES, SeedFile, Source, make_seed_file, own_source, read_seed_file, source_of
from harness.submission import read_submission

DOUBLING = Path(__file__).parent / "problems" / "doubling"
RIGHT = "def custom_kernel(data):\n    return 2 * data[0] + data[1]\n"
FAST = Limits(load_s=30, compile_s=30, call_s=30)
CONTENT = b"a secret of the organiser's that is longer than one block of SHA-256\n"
FILE = SeedFile(CONTENT)


# --- from a file to cases ----------------------------------------------------------------------------------


def hidden(problem: Problem, source: Source, device: str = "cpu") -> list[Case]:
    """The cases of a leaderboard run that are not listed in task.yml."""
    groups = cases_of(problem, device, None, source.master, secret=True, is_hidden=source.seed_file is not None)
    listed = [case for group in problem.cases_on(device) for case in group]
    return [case for group in groups for case in group if case not in listed]


def test_the_same_file_gives_everybody_the_same_cases_and_another_one_others() -> None:
    problem = load_problem(DOUBLING)
    first = hidden(problem, source_of(problem, "cpu", FILE))
    assert first == hidden(problem, source_of(problem, "cpu", SeedFile(CONTENT, 0o644)))
    assert [case.shape for case in first] == [case.shape for case in problem.smoke]
    others = [
        hidden(problem, source_of(problem, "cpu", SeedFile(CONTENT + b"\n"))),
        hidden(problem, source_of(replace(problem, content_hash="0" * 64), "cpu", FILE)),
        hidden(problem, own_source()),
        hidden(problem, own_source()),
    ]
    seeds = {case.spec["seed"] for cases in (first, *others) for case in cases}
    assert len(seeds) == 5 * len(problem.smoke)


def test_further_regimes_are_hidden_cases_too() -> None:
    problem = replace(load_problem(DOUBLING), regimes=("normal", "heavy"))
    (heavy,) = [case for case in hidden(problem, source_of(problem, "cpu", FILE)) if "regime" in case.spec]
    assert (heavy.name, heavy.is_hidden) == ("rows=4 columns=32 regime=heavy", True)


def test_what_the_cases_are_made_from_is_pinned_so_that_the_next_version_makes_the_same() -> None:
    assert FILE.master("9d1c").hex() == hmac.new(b"podium hidden cases", b"9d1c\0" + CONTENT, "sha256").hexdigest()
    (case,) = secret_seeds(FILE.master("9d1c"), [Case({"m": 16, "seed": 1})])
    assert case.spec["seed"] == 2073083042365183796


@pytest.mark.parametrize("length", [16, 64, 65, 66, 1000])
def test_the_published_hash_gives_no_master_away(length: int) -> None:
    """As the key of an HMAC, a file of more than 64 bytes would be as good as its SHA-256, which is public."""
    file = SeedFile(bytes(range(1, 9)) * (length // 8) + b"x" * (length % 8))
    public = bytes.fromhex(file.commitment)
    guesses = {hmac.digest(key, text, "sha256") for key in (public, b"podium hidden cases") for text in (
        b"9d1c", b"9d1c\0", b"9d1c\0" + public, b"podium hidden cases", public,
    )}  # fmt: skip
    assert file.master("9d1c") not in guesses


def test_a_hidden_case_is_told_from_others_and_shows_no_seed() -> None:
    listed = [Case({"m": 16, "seed": 1}), Case({"m": 16, "seed": 2}), Case({"m": 8})]
    first, second, plain = secret_seeds(b"a", listed, is_hidden=True)
    assert (first.name, second.name, plain.name) == ("m=16", "m=16", "m=8")
    assert len({first.key, second.key, plain.key}) == 3
    assert first.shown == {"m": 16}
    assert not plain.is_hidden
    assert [case.spec for case in (first, second)] == [case.spec for case in secret_seeds(b"a", listed[:2])]
    assert first.without_seed(f"seed {first.spec['seed']} is odd") == "seed (hidden) is odd"
    assert secret_seeds(b"a", listed)[0].name == f"m=16 seed={first.spec['seed']}"
    assert all(case.is_hidden for case in regime_cases(b"a", listed[:1], ("normal", "heavy"), is_hidden=True))


def test_neither_a_source_nor_a_file_shows_its_secret() -> None:
    shown = repr(source_of(load_problem(DOUBLING), "cpu", FILE)) + repr(FILE)
    assert "secret of the organiser" not in shown
    assert "master" not in shown


# --- the file ----------------------------------------------------------------------------------------------


def test_a_seed_file_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "contest.seed"
    before = os.umask(0)
    try:
        made = make_seed_file(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    assert len(bytes.fromhex(content.decode())) == 32
    assert made.commitment == hashlib.sha256(content).hexdigest()
    assert read_seed_file(path) == made
    with pytest.raises(SeedError, match=r"exists already and is left as it is; `podium seed .*contest.seed --commit`"):
        make_seed_file(path)
    assert path.read_bytes() == content
    assert make_seed_file(tmp_path / "other.seed") != made


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing", None, "missing does not exist; `podium seed .*missing` makes one"),
        (".", None, "is a folder; name a file in it"),
        ("/proc/self/mem", None, "/proc/self/mem cannot be read: Input/output error"),
        ("empty", b"", "empty is empty; a seed file has 16 or more"),
        ("short", b"x" * 15, "short has 15 bytes, which could be guessed"),
        ("long", b"x" * (MAX_BYTES + 1), "long has more than 65536 bytes; is it a seed file"),
        ("/dev/zero", None, "/dev/zero has more than 65536 bytes"),
    ],
)
def test_what_is_no_seed_file_is_refused_in_a_line(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SeedError, match=message) as caught:
        read_seed_file(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_the_shortest_and_the_longest_seed_file_are_read_whatever_bytes_they_have(tmp_path: Path) -> None:
    for content in (b"\xff\0" * 8, b"\n" * MAX_BYTES):
        (tmp_path / "f").write_bytes(content)
        assert read_seed_file(tmp_path / "f").content == content


def test_a_file_that_the_submission_could_have_read_is_noted() -> None:
    other, same = [Layer("own user", True, "user 65534")], [Layer("own user", False, "no such user")]
    assert SeedFile(CONTENT, 0o600).exposure(other) == ()
    (note,) = SeedFile(CONTENT, 0o604).exposure(other)
    assert note == "others may read the seed file (mode 0604), and so could the submission: chmod 600 it"
    assert len(SeedFile(CONTENT, 0o640).exposure(other)) == 1
    for name in ("namespaces", "Landlock"):
        layers = [*same, Layer(name, True)]
        (note,) = SeedFile(CONTENT, 0o600).exposure(layers)
        assert "the submission ran as a user who may read the seed file" in note
        assert SeedFile(CONTENT, None).exposure(layers) == ()


def test_without_walls_a_submission_could_have_read_the_secret_in_podium_s_own_memory() -> None:
    for layers in ([], [Layer("own user", False), Layer("namespaces", False), Layer("scratch folder", True)]):
        for mode in (None, 0o600):
            (note,) = SeedFile(CONTENT, mode).exposure(layers)
            assert note.startswith("the submission could look into Podium's own memory")
    assert SeedFile(CONTENT, None).exposure([Layer("own user", True)]) == ()


def test_a_pipe_is_read_and_cannot_be_read_again() -> None:
    reader, writer = os.pipe()
    os.write(writer, CONTENT)
    os.close(writer)
    try:
        assert read_seed_file(Path(f"/dev/fd/{reader}")) == SeedFile(CONTENT, None)
    finally:
        os.close(reader)


# --- whole runs --------------------------------------------------------------------------------------------


class Run:
    """Evaluate a submission and keep what the referee told the oracle, and what was shown meanwhile."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.orders: list[Any] = []
        self.shown: list[Progress] = []
        for name in ("ask", "tell"):
            monkeypatch.setattr(Court, name, self.noted(getattr(Court, name)))

    def noted(self, real: Any) -> Any:
        def send(court: Court, order: Any, *arguments: Any, **named: Any) -> Any:
            self.orders.append(order)
            return real(court, order, *arguments, **named)

        return send

    def __call__(self, problem: Problem, source: Source | None, text: str = RIGHT) -> Record:
        self.orders, self.shown = [], []
        file = self.folder / "kernel.py"
        file.write_text(textwrap.dedent(text))
        submission = read_submission(file, "somebody")
        caches = self.folder / "caches"
        request = Request(problem, submission, "leaderboard", "cpu", caches, limits=FAST, source=source)
        return evaluate(request, self.shown.append)

    @property
    def staged(self) -> set[str]:
        """The cases that the oracle made, whole, the listed tests left out."""
        found = {json.dumps(order.spec) for order in self.orders if isinstance(order, wire.Stage)}
        return {each for each in found if json.loads(each)["seed"] > 1000}

    @property
    def contents(self) -> set[int]:
        """What the contents of tests' second calls and of batches were made from."""
        return {order.seed for order in self.orders if isinstance(order, wire.Renew)}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, monkeypatch)


def secrets_of(problem: Problem, source: Source) -> Iterator[str]:
    """Whatever would give hidden cases away, as text."""
    yield from (source.master.hex(), CONTENT.decode().strip(), CONTENT.hex())
    yield from (str(case.spec["seed"]) for case in hidden(problem, source))


def test_two_runs_with_one_seed_file_have_the_same_cases_and_other_contents_and_tell_no_seed(run: Run) -> None:
    problem = load_problem(DOUBLING)
    source = source_of(problem, "cpu", FILE)
    found = []
    for _ in range(2):
        kept = run(problem, source)
        assert (kept.outcome.verdict, kept.is_ranked) == ("passed", True)
        assert kept.secret == Secret(commitment=FILE.commitment)
        assert [case.name for case in kept.timed] == ["rows=4 columns=32", "rows=3 columns=7", "rows=70 columns=8"]
        assert [(case.spec, case.is_hidden) for case in kept.timed][1] == ({"rows": 3, "columns": 7}, True)
        told = json.dumps(to_dict(kept)) + repr(run.shown)
        assert [secret for secret in secrets_of(problem, source) if secret in told] == []
        assert from_dict(Record, json.loads(json.dumps(to_dict(kept)))) == kept
        found.append((run.staged, run.contents))
    (cases, contents), (again, others) = found
    assert cases == again == {json.dumps(case.spec) for case in hidden(problem, source)}
    assert contents & others == set()


def test_a_run_of_its_own_keeps_its_master_and_can_be_had_again(run: Run) -> None:
    problem = load_problem(DOUBLING)
    kept = run(problem, None)
    cases, contents = run.staged, run.contents
    assert kept.secret is not None and kept.secret.master is not None
    assert {json.dumps(case.spec) for case in kept.timed} == cases
    again = run(problem, source_of(problem, "cpu", None, kept))
    assert (run.staged, run.contents & contents) == (cases, set())
    assert (again.secret, again.replay_of, again.mode) == (kept.secret, kept.id, "leaderboard")
    assert (again.outcome.verdict, again.is_ranked) == ("passed", False)
    assert f"the hidden cases of record {kept.id} once more: shown, not recorded, never ranked" in again.notes


def copied(folder: Path, *changes: tuple[str, str, str]) -> Problem:
    """The doubling problem with some text of its files replaced."""
    shutil.copytree(DOUBLING, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in changes:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))
    return load_problem(folder)


def test_hidden_cases_that_differ_in_nothing_but_their_seeds_are_timed_each(run: Run, tmp_path: Path) -> None:
    smoke = (
        "  - {rows: 4, columns: 32, seed: 1}\n  - {rows: 3, columns: 7, seed: 2}\n  - {rows: 70, columns: 8, seed: 3}\n"
    )
    twins = "  - {rows: 4, columns: 32, seed: 1}\n  - {rows: 4, columns: 32, seed: 2}\n"
    problem = copied(tmp_path / "twins", ("task.yml", f"smoke:\n{smoke}", f"smoke:\n{twins}"))
    kept = run(problem, source_of(problem, "cpu", FILE))
    assert [case.name for case in kept.timed] == ["rows=4 columns=32"] * 2
    first, second = (case.timing.batches for case in kept.timed if case.timing)
    assert {batch.process for batch in first} == {batch.process for batch in second} == {0, 1, 2}
    assert len(first) == len(second) and first != second
    assert len(run.staged) == 2
    seeds = [order.seed for order in run.orders if isinstance(order, wire.Renew)]
    assert len(set(seeds)) == len(seeds)  # neither twin is dealt what the other one was


def test_a_reference_s_own_error_tells_no_hidden_seed(run: Run, tmp_path: Path) -> None:
    raising = "    if seed > 1000: raise ValueError(f'{seed} is too large')\n    return _fresh(rows, columns, seed), _f"
    problem = copied(tmp_path / "odd", ("reference.py", "    return _fresh(rows, columns, seed), _f", raising))
    with pytest.raises(ProblemError, match=r"ValueError: \(hidden\) is too large") as caught:
        run(problem, source_of(problem, "cpu", FILE))
    assert not any(secret in str(caught.value) for secret in secrets_of(problem, source_of(problem, "cpu", FILE)))
    with pytest.raises(ProblemError, match=r"ValueError: \d+ is too large"):
        run(problem, None)


LOOKING = """
import os, re, stat, sys
from pathlib import Path

needles = [text[::-1] for text in {backwards!r}]

def look(where, content):
    for needle in needles:
        if needle.encode() in content:
            print("found", needle.split()[0], where)

def read(path):
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""

for process in [*Path("/proc").glob("[0-9]*"), Path("/proc/self")]:
    for name in ("environ", "cmdline"):
        look(process / name, read(process / name))
for descriptor in os.listdir("/proc/self/fd"):
    try:
        look("name of a descriptor", os.readlink(f"/proc/self/fd/{{descriptor}}").encode())
        if stat.S_ISREG(os.stat(int(descriptor)).st_mode):
            look("a descriptor", os.pread(int(descriptor), 1 << 24, 0))
    except OSError:
        continue
for folder in (".", os.environ["TMPDIR"], os.environ["XDG_CACHE_HOME"]):
    for file in Path(folder).rglob("*"):
        if file.is_file() and file.name != "submission.py":
            look(file, read(file))
values = repr([vars(module) for name, module in sys.modules.items() if name.startswith("harness")])
look("our modules", values.encode())
print("looked", len(needles))

def custom_kernel(data):
    return 2 * data[0] + data[1]
"""


def test_a_submission_finds_no_seed_around_itself(run: Run, tmp_path: Path) -> None:
    """Not in environments, arguments, open files, its folders or the modules that it is given."""
    problem = load_problem(DOUBLING)
    path = tmp_path / "contest.seed"
    path.write_bytes(CONTENT)
    path.chmod(0o600)
    source = source_of(problem, "cpu", read_seed_file(path))
    needles = [*secrets_of(problem, source), str(path), "USER=contestant"]
    kept = run(problem, source, LOOKING.format(backwards=[needle[::-1] for needle in needles]))
    assert kept.outcome.verdict == "passed"
    assert f"looked {len(needles)}" in kept.output
    found = {line.split()[1] for line in kept.output.splitlines() if line.startswith("found")}
    assert found == {"USER=contestant"}  # which is there, and shows that it looks


# --- once more ---------------------------------------------------------------------------------------------

OWN = Secret(master="ab" * 32)
COMMITTED = Secret(commitment=FILE.commitment)


@pytest.mark.parametrize(
    ("changes", "secret", "file", "message"),
    [
        ({"problem": "other"}, OWN, None, "record 3f9a01bc is of other, not doubling: name that one with -p"),
        ({"problem_hash": "0" * 12}, OWN, None, "is of another version of doubling, whose hidden cases are not these"),
        ({"device": None}, OWN, None, "record 3f9a01bc ran the cases for a GPU: choose one with --device"),
        ({}, None, None, "has no secret: it hid no cases, or is from before secrets were kept"),
        ({}, OWN, FILE, "are of no seed file: leave --seed-file out"),
        ({}, COMMITTED, None, "are of a seed file .SHA-256 .{16}….: give it by --seed-file"),
        ({}, COMMITTED, SeedFile(b"x" * 16), "are of another seed file .SHA-256 .{16}…."),
    ],
)
def test_hidden_cases_that_cannot_be_had_again_are_refused(
    changes: dict[str, Any], secret: Secret | None, file: SeedFile | None, message: str
) -> None:
    problem = load_problem(DOUBLING)
    asked = {"problem": "doubling", "problem_hash": problem.content_hash, "device": CPU} | changes
    kept = record(**{key: value for key, value in asked.items() if value is not None})
    with pytest.raises(SeedError, match=message) as caught:
        source_of(problem, "cpu", file, replace(kept, secret=secret))
    assert "\n" not in str(caught.value)


def test_a_record_with_a_seed_file_is_had_again_with_that_file() -> None:
    problem = load_problem(DOUBLING)
    kept = replace(record(problem="doubling", problem_hash=problem.content_hash, device=CPU), secret=COMMITTED)
    source = source_of(problem, "cpu", FILE, kept)
    assert (source.master, source.replay_of) == (FILE.master(problem.content_hash), "3f9a01bc")
    assert source.told == COMMITTED


def test_a_seed_file_that_would_hide_nothing_is_refused() -> None:
    problem = replace(load_problem(DOUBLING), smoke=(Case({"rows": 4, "columns": 32}),))
    with pytest.raises(SeedError, match="the cases of doubling have no seed, so a seed file would hide nothing"):
        source_of(problem, "cpu", FILE)
