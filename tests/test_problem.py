"""Problem folders: what is read from them, and how a mistake in one is shown: file, line, field."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ProblemError
from harness.problem import Problem, RowLimits, default_roots, find_problem, list_problems, load_problem

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "problems"
MINIMAL = """\
files:
  - {name: submission.py, source: "@SUBMISSION@"}
  - {name: reference.py, source: reference.py}
tests:
  - {n: 4, seed: 1}
"""
Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A problem folder with this task.yml."""

    def make(task: str | bytes, name: str = "tiny") -> Path:
        made = tmp_path / name
        made.mkdir(exist_ok=True)
        (made / "task.yml").write_bytes(task if isinstance(task, bytes) else task.encode())
        (made / "reference.py").write_text("def generate_input(n, seed): ...\n")
        return made

    return make


# --- mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "where", "because"),
    [
        ("", 1, "a task.yml is a mapping of keys to values; this one is empty"),
        ("- a\n- b\n", 1, "a task.yml is a mapping of keys to values; this one is a list"),
        ("files: [\n", 2, "expected the node content"),
        ("a: 1\nb: {\n  c: 1\n  d: 2}\n", 4, "expected ',' or '}'"),
        (MINIMAL + "tests: []\n", 6, "the key 'tests' occurs twice"),
        (MINIMAL + "seed: &a 3\nmulti_gpu: *a\n", 7, "YAML aliases are not used here"),
        (MINIMAL + "toleranse: {}\n", 6, "field 'toleranse': unknown key; did you mean 'tolerance'?"),
        (MINIMAL + "tolerance:\n  row_relative: 0.1\n  rtoll: 1\n", 8, "field 'tolerance.rtoll': unknown key; did you mean 'rtol'?"),
        (MINIMAL + "tolerance:\n  rtol: 0.1\n", 6, "field 'tolerance.row_relative': is required"),
        (MINIMAL + "tolerance:\n  row_relative: '0.1'\n", 7, "field 'tolerance.row_relative': expected a number, got '0.1'"),
        (MINIMAL + "tolerance: {row_relative: 0}\n", 6, "field 'tolerance.row_relative': Input should be greater than 0"),
        (MINIMAL + "precisions: [a]\ntolerance:\n  row_relative: 1\n  per_precision:\n    a: {rtolx: 1}\n", 10, "field 'tolerance.per_precision.a.rtolx': unknown key; did you mean 'rtol'?"),
        (MINIMAL + "tolerance:\n  row_relative: 1\n  per_precision:\n    b: {rtol: 1}\n", 9, "field 'tolerance.per_precision.b': is not declared in `precisions`"),
        (MINIMAL + "precisions: [a, a]\n", 6, "field 'precisions': an entry occurs twice"),
        (MINIMAL + "roofline:\n  bytes: 8*m\n", 7, "field 'roofline.bytes': 'm' is no key of the case; it has n, seed"),
        (MINIMAL + "roofline:\n  bytes: n\n  operations:\n    bf16: open('x')\n", 9, "field 'roofline.operations.bf16': \"open('x')\" is not arithmetic"),
        (MINIMAL + "roofline:\n  bytes: n\n  operations: {bf61: n}\n", 8, "field 'roofline.operations.bf61': Input should be"),
        (MINIMAL + "roofline: {bytes: -n}\n", 6, "field 'roofline.bytes': '-n' is -4"),
        (MINIMAL + "test_timeout: soon\n", 6, "field 'test_timeout': expected a number, got 'soon'"),
        (MINIMAL + "ranking_by: median\n", 6, "field 'ranking_by': Input should be 'last', 'mean' or 'geom'"),
        (MINIMAL + "benchmarks:\n  - {n: 1}\n  - {n: [1]}\n", 8, "field 'benchmarks.1': 'n' must be a number, a bool or text"),
        (MINIMAL + "benchmarks:\n  - {n: .nan}\n", 7, "field 'benchmarks.0': 'n' must be finite"),
        (MINIMAL + "benchmarks:\n  - 4\n", 7, "field 'benchmarks.0': a case is a mapping of names to values"),
        (MINIMAL + "benchmarks: {n: 4}\n", 6, "field 'benchmarks': Input should be a valid list"),
        (MINIMAL + "smoke:\n  - {n: 4,\n     regime: hevy}\nregimes: [normal, heavy]\n", 8, "field 'smoke.0.regime': 'hevy' is none of `regimes`: normal, heavy"),
        ("tests: [{n: 1}]\n", 1, "field 'files': is required"),
        ("tests: [{n: 1}]\nfile: []\n", 2, "field 'file': unknown key; did you mean 'files'?"),
        ("files: reference.py\ntests: [{n: 1}]\n", 1, "field 'files': Input should be a valid list"),
        (MINIMAL.replace("name: reference.py", "name: a/reference.py"), 3, "field 'files.1': the name 'a/reference.py' must be flat, without folders"),
        (MINIMAL.replace("name: reference.py", "nam: reference.py"), 3, "field 'files.1': {'nam': 'reference.py', 'source': 'reference.py'} is not {name, source}"),
        (MINIMAL.replace("source: reference.py", 'source: "a\\0b"'), 3, "field 'files.1': 'reference.pya\\x00b' has a character that no path has"),
        (MINIMAL.replace("tests:", "  - {name: reference.py, source: task.yml}\ntests:"), 4, "field 'files.2': the name 'reference.py' occurs twice"),
        (MINIMAL.replace("source: reference.py", "source: gone/ref.py"), 3, "field 'files.1': file 'reference.py' is listed, but FOLDER/gone/ref.py is no file"),
        (MINIMAL.replace("source: reference.py", "source: ."), 3, "field 'files.1': file 'reference.py' is listed, but FOLDER is no file"),
        (MINIMAL.replace("name: reference.py", "name: answers.py"), 1, "field 'files': lists no reference.py, so nothing could be judged"),
        ('files:\n  - {name: reference.py, source: "@SUBMISSION@"}\ntests: [{n: 1}]\n', 1, "field 'files': lists no reference.py"),
        (MINIMAL + "a: 1\n---\nb: 2\n", 7, "expected a single document in the stream, but found another document"),
        (MINIMAL + "title: 2024-13-45\n", 6, "'2024-13-45' has a meaning of its own in YAML; put it into quotes"),
        (MINIMAL + "<<: {title: a}\n", 6, "'<<' has a meaning of its own in YAML; put it into quotes"),
        (MINIMAL + "title: !!bool x\n", 6, "YAML tags are not used here"),
        (MINIMAL + f"seed: {'9' * 5000}\n", 6, "this is no number that can be read"),
        (MINIMAL + "config: {1: 2}\n", 6, "a key must be a word; put it into quotes"),
        (MINIMAL + "config: {a: {b: 1, b: 2}}\n", 6, "the key 'b' occurs twice"),
        (MINIMAL + 'title: "a\0b"\n', 6, "the character 0x0 is not allowed"),
        (MINIMAL + f"config: {'[' * 2000}\n", 1, "it is nested too deeply"),
        (MINIMAL + "int: 3\n", 6, "field 'int': unknown key"),
        (MINIMAL + "aliases: [ok, '']\n", 6, "field 'aliases.1': '' is no name that a #!POPCORN line could give"),
        (MINIMAL + "aliases:\n  - a\n  - b c\n", 8, "field 'aliases.1': 'b c' is no name that a #!POPCORN line could give"),
        (MINIMAL + "aliases: [a/b]\n", 6, "field 'aliases.0': 'a/b' is no name that a #!POPCORN line could give"),
        (MINIMAL + "aliases: [7]\n", 6, "field 'aliases.0': Input should be a valid string"),
        (MINIMAL + "aliases: amd-x\n", 6, "field 'aliases': Input should be a valid list"),
        (MINIMAL + "seed: '3'\n", 6, "field 'seed': Input should be a valid integer"),
        (MINIMAL + "seed: true\n", 6, "field 'seed': Input should be a valid integer"),
        (MINIMAL + "multi_gpu: 'no'\n", 6, "field 'multi_gpu': Input should be a valid boolean"),
        (MINIMAL + "config: eval.py\n", 6, "field 'config': expected a mapping of keys to values"),
        (MINIMAL + "config:\n  main: [a]\n", 7, "field 'config.main': Input should be a valid string"),
        (MINIMAL.replace("name: reference.py", "name: [a]"), 3, "field 'files.1': {'name': ['a'], 'source': 'reference.py'}: name and source are text"),
        (MINIMAL.replace("source: reference.py", "source: gone.py") + "config: {main: reference.py}\n", 3, "field 'files.1': file 'reference.py' is listed, but FOLDER/gone.py is no file"),
        (MINIMAL + "title: [a]\n", 6, "field 'title': Input should be a valid string"),
        (MINIMAL + "tolerance: 3\n", 6, "field 'tolerance': expected a mapping of keys to values"),
        (MINIMAL + "tolerance: {row_relative: .inf}\n", 6, "field 'tolerance.row_relative': expected a finite number, got inf"),
        (MINIMAL + "roofline:\n  byte: n\n", 7, "field 'roofline.byte': unknown key; did you mean 'bytes'?"),
        (MINIMAL + "roofline:\n  operations: {}\n", 6, "field 'roofline.bytes': is required"),
        (MINIMAL + "roofline: {bytes: 1e300*n*1e300}\n", 6, "field 'roofline.bytes': '1e300*n*1e300' is not arithmetic: it is not finite"),
        (MINIMAL + "tolerance: {row_relative: 1e-3}\n", 6, "field 'tolerance.row_relative': YAML reads 1e-3 as text: a number has a point and a sign in it, as 1.0e-3"),
        (MINIMAL + "shared_inputs: [1]\n", 6, "field 'shared_inputs.0': Input should be a valid string; put 1 into quotes"),
        (MINIMAL + "shared_inputs: ['0', '0']\n", 6, "field 'shared_inputs': an entry occurs twice"),
        (MINIMAL + "shared_input: ['0']\n", 6, "field 'shared_input': unknown key; did you mean 'shared_inputs'?"),
        (MINIMAL + "regimes: [no, yes]\n", 6, "field 'regimes.0': Input should be a valid string; put false into quotes"),
        (MINIMAL + "smoke:\n  - {n: 4,\n     n: 5}\n", 8, "the key 'n' occurs twice"),
        (MINIMAL + "roofline:\n  bytes: n\n  operations: {bf16: 4}\n", 8, "field 'roofline.operations.bf16': Input should be a valid string; put 4 into quotes"),
        (MINIMAL + "roofline: {bytes: 'n if n else 1'}\n", 6, "field 'roofline.bytes': 'n if n else 1' is not arithmetic: IfExp is not allowed; use + - *"),
        (MINIMAL + "roofline: {bytes: 'log(n)'}\n", 6, "field 'roofline.bytes': 'log(n)' is not arithmetic: Call is not allowed; use + - *"),
        (MINIMAL + "roofline: {bytes: 'n.real'}\n", 6, "field 'roofline.bytes': 'n.real' is not arithmetic: Attribute is not allowed; use + - *"),
        (MINIMAL + "roofline: {bytes: 'n**'}\n", 6, "field 'roofline.bytes': 'n**' is not arithmetic: invalid syntax"),
        (MINIMAL + "roofline: {bytes: n//0}\n", 6, "field 'roofline.bytes': 'n//0' is not arithmetic: "),
        (b"title: a\ntitle: caf\xe9\n", 2, "this is not UTF-8 text"),
        (b"#" * (1 << 20) + "\u00e9".encode(), 1, "a task.yml has at most 1048576 bytes"),
        ("files:\n  - {name: reference.py, source: reference.py}\n", 1, "field 'tests': there are neither tests nor benchmarks"),
    ],
)  # fmt: skip
def test_a_mistake_is_shown_with_its_line_and_field(
    folder: Folder, task: str | bytes, where: int, because: str
) -> None:
    made = folder(task)
    with pytest.raises(ProblemError) as caught:
        load_problem(made)
    assert str(caught.value).startswith(f"{made / 'task.yml'}:{where}: {because.replace('FOLDER', str(made))}")
    assert "\n" not in str(caught.value)


def test_an_unknown_limit_of_one_precision_is_no_key_of_the_whole_tolerance(folder: Folder) -> None:
    task = "precisions: [a]\ntolerance: {row_relative: 1, per_precision: {a: {per_precison: 1}}}\n"
    with pytest.raises(ProblemError, match=r":7: field 'tolerance.per_precision.a.per_precison': unknown key$"):
        load_problem(folder(MINIMAL + task))


def test_a_listed_file_that_cannot_be_read_is_named(folder: Folder) -> None:
    made = folder(MINIMAL)
    (made / "reference.py").unlink()
    (made / "reference.py").symlink_to("/proc/self/mem")  # a file to the eye; reading it fails, even for root
    with pytest.raises(ProblemError, match="mem cannot be read: "):
        load_problem(made)
    (made / "reference.py").unlink()
    (made / "reference.py").symlink_to("reference.py")
    with pytest.raises(ProblemError, match=r":3: field 'files.1': .* is no file$"):
        load_problem(made)


def test_a_folder_without_a_task_is_no_problem(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="cannot be read: No such file"):
        load_problem(tmp_path)
    with pytest.raises(ProblemError, match="has no task"):
        find_problem(f"{tmp_path}/", [SHIPPED])
    with pytest.raises(ProblemError, match="there is no folder"):
        find_problem("./no/where", [SHIPPED])
    with pytest.raises(ProblemError, match=r"\. is no problem"):
        find_problem(".", [SHIPPED])


@pytest.mark.parametrize("name", ["", "~nobody_here", "x" * 300, "a\0b"])
def test_what_is_no_path_is_no_problem_either(name: str) -> None:
    with pytest.raises(ProblemError, match="there is no problem"):
        find_problem(name, [SHIPPED])


# --- finding -----------------------------------------------------------------------------------------------


def test_a_problem_is_found_by_name_alias_or_path(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    made = folder(MINIMAL)
    assert find_problem("fp4_gemm", [SHIPPED]) == SHIPPED / "fp4_gemm"
    assert find_problem("amd-moe-mxfp4", [SHIPPED]) == SHIPPED / "mxfp4_moe"
    assert find_problem(str(made), [SHIPPED]) == made
    with pytest.raises(ProblemError, match="there is no problem 'tiny'"):
        find_problem("tiny", [SHIPPED])
    monkeypatch.setenv("PODIUM_PROBLEMS", str(made.parent))
    assert find_problem("tiny", default_roots()) == made


def test_an_unknown_name_shows_the_nearest(folder: Folder) -> None:
    with pytest.raises(ProblemError, match="did you mean mla_decode"):
        find_problem("mla_decod", [SHIPPED])
    broken = folder("files: 3\n")  # a broken neighbour is no reason to fail
    with pytest.raises(ProblemError, match="there are: tiny"):
        find_problem("zzz", [broken.parent])


# --- what is read ------------------------------------------------------------------------------------------


def test_a_foreign_folder_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text("x = 1\n")
    made = tmp_path / "vectoradd"
    made.mkdir()
    (made / "task.py").write_text("input_t = output_t = None\n")
    (made / "reference.py").write_text("x = 1\n")
    (made / "task.yml").write_text(
        'files:\n  - {"name": "submission.py", "source": "@SUBMISSION@"}\n  - {"name": "task.py", "source": "task.py"}\n'
        '  - {"name": "utils.py", "source": "../utils.py"}\n  - {"name": "reference.py", "source": "reference.py"}\n'
        '  - {"name": "eval.py", "source": "../eval.py"}\n'
        'lang: "py"\ndescription: |\n  Add.\nconfig:\n  main: "eval.py"\n'
        'tests:\n  - {"size": 127, "k2": 1, "flag": false, "seed": 4242}\nbenchmarks:\n  - {"size": 1024}\n'
        "test_timeout: 200\nranking_by: geom\n"
    )
    problem = load_problem(made)
    assert problem.is_foreign
    assert problem.tolerance is None
    assert [entry.name for entry in problem.oracle_files] == ["task.py", "utils.py", "reference.py"]
    assert [entry.name for entry in problem.contestant_files] == ["task.py", "utils.py"]
    assert problem.tests[0].spec == {"size": 127, "k2": 1, "flag": False, "seed": 4242}
    assert (problem.timeouts.test_s, problem.timeouts.ranked_s, problem.ranking_by) == (200, 180, "geom")


def test_an_evaluator_of_any_name_may_be_absent_and_is_never_the_contestant_s(folder: Folder) -> None:
    task = MINIMAL.replace("tests:", "  - {name: run.py, source: run.py}\nconfig: {main: run.py, sources: []}\ntests:")
    made = folder(task)
    assert [entry.name for entry in load_problem(made).oracle_files] == ["reference.py"]
    (made / "run.py").write_text("x = 1\n")
    problem = load_problem(made)
    assert [entry.name for entry in problem.oracle_files] == ["reference.py", "run.py"]
    assert problem.contestant_files == ()


def test_whatever_is_listed_is_laid_out_and_part_of_the_version(folder: Folder) -> None:
    made = folder(MINIMAL.replace("tests:", "  - {name: template.py, source: template.py}\ntests:"))
    (made / "template.py").write_text("one\n")
    before = load_problem(made)
    assert [entry.name for entry in before.files] == ["reference.py", "template.py"]
    (made / "template.py").write_text("two\n")
    assert load_problem(made).content_hash != before.content_hash


def test_a_precision_s_limits_are_the_default_s_but_for_what_it_names(folder: Folder) -> None:
    limits = "precisions: [a, b]\ntolerance:\n  row_relative: 0.1\n  rtol: 0.2\n  per_precision:\n    b: {row_relative: 0.3}\n"
    tolerance = load_problem(folder(MINIMAL + limits)).tolerance
    assert tolerance is not None
    assert tolerance.for_precision("a") == RowLimits(row_relative=0.1, rtol=0.2)
    assert tolerance.for_precision("b") == RowLimits(row_relative=0.3, rtol=0.2)
    assert tolerance.for_precision(None) == RowLimits(row_relative=0.1, rtol=0.2)


def test_the_version_changes_with_whatever_decides_a_verdict_and_with_nothing_else(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED, tmp_path / "problems")
    made = tmp_path / "problems" / "fp4_gemm"
    before = load_problem(made).content_hash
    assert before == load_problem(SHIPPED / "fp4_gemm").content_hash
    for name in ("README.md", "template.py"):
        (made / name).write_text("other\n")
    assert load_problem(made).content_hash == before
    changes = ["fp4_gemm/reference.py", "fp4_gemm/task.py", "mx/mxfp4.py", "mx/mx_layout.py", "mx/portable.py"]
    for changed in (*changes, "fp4_gemm/task.yml"):
        file = tmp_path / "problems" / changed
        file.write_text(file.read_text() + "\n# changed\n")
        now = load_problem(made).content_hash
        assert now != before
        before = now


# --- the shipped ones --------------------------------------------------------------------------------------


def specs(cases: Any, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(case.spec[name] for name in names) for case in cases]


def shipped(name: str) -> Problem:
    return load_problem(SHIPPED / name)


def test_the_shipped_problems_are_complete() -> None:
    names = ["flash_attention_fwd", "fp4_gemm", "mla_decode", "mxfp4_moe", "nvfp4_gemm"]
    assert [path.name for path in list_problems([SHIPPED])] == names
    for path in list_problems([SHIPPED]):
        problem = load_problem(path)
        assert problem.smoke
        assert problem.roofline is not None
        assert problem.tolerance is not None
        assert problem.ranking_by == "geom"
        assert problem.regimes[0] == "normal"
        assert {"README.md", "template.py", "task.py"} <= {file.name for file in path.iterdir()}
        assert "reference.py" not in [entry.name for entry in problem.contestant_files]


def test_fp4_gemm_asks_for_the_competition_s_cases() -> None:
    names = ("m", "n", "k", "seed")
    assert specs(shipped("fp4_gemm").tests, *names) == [
        (8, 2112, 7168, 124), (16, 3072, 1536, 6635), (64, 3072, 1536, 45), (256, 2880, 512, 78),
    ]  # fmt: skip
    assert specs(shipped("fp4_gemm").benchmarks, *names) == [
        (4, 2880, 512, 4565), (16, 2112, 7168, 15), (32, 4096, 512, 457), (32, 2880, 512, 54),
        (64, 7168, 2048, 687), (256, 3072, 1536, 7856),
    ]  # fmt: skip


def test_mxfp4_moe_asks_for_the_competition_s_cases() -> None:
    names = ("dhidden", "dexpert", "nroutedexperts", "nexpertspertoken", "nsharedexperts", "bs", "seed")
    assert specs(shipped("mxfp4_moe").tests, *names) == [
        (4096, 1024, 256, 8, 1, 8, 9371), (7168, 2048, 32, 8, 1, 32, 2291), (4096, 1536, 64, 6, 1, 128, 81934),
    ]  # fmt: skip
    assert specs(shipped("mxfp4_moe").benchmarks, *names) == [
        (7168, 256, 256, 8, 1, 16, 9371), (7168, 256, 256, 8, 1, 128, 2291), (7168, 256, 256, 8, 1, 512, 81934),
        (7168, 512, 32, 8, 1, 16, 2291), (7168, 512, 32, 8, 1, 128, 81934), (7168, 512, 32, 8, 1, 512, 81934),
        (7168, 2048, 32, 8, 1, 512, 81934),
    ]  # fmt: skip


def test_mla_decode_asks_for_the_competition_s_cases() -> None:
    names = ("batchsize", "kvseqlen", "seed")
    assert specs(shipped("mla_decode").tests, *names) == [
        (4, 1024, 4220), (32, 1024, 5412), (64, 8192, 1360), (256, 8192, 9826),
    ]  # fmt: skip
    assert specs(shipped("mla_decode").benchmarks, *names) == [
        (4, 1024, 4217), (4, 8192, 4220), (32, 1024, 5412), (32, 8192, 5415), (64, 1024, 1357), (64, 8192, 1360),
        (256, 1024, 9823), (256, 8192, 9826),
    ]  # fmt: skip
