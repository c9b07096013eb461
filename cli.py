"""The `podium` command: unpack flags, call one function, print its result."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    from harness.draft import Draft
    from harness.evaluate import Request
    from harness.problem import Problem
    from harness.record import Record
    from leaderboard.clearance import Clearance
    from leaderboard.store import Store
    from leaderboard.watching import Times

F = TypeVar("F", bound=Callable[..., Any])

EXIT_MISTAKE, EXIT_FAILED, EXIT_DOUBTED, EXIT_INTERRUPTED = 1, 2, 3, 130
DEVICE = r"auto|cpu|cuda(:\d+)?"
DOUBTS = (
    "clocks-disagree",
    "below-roofline",
    "async-work",
    "input-modified",
    "state-carried",
    "sandbox-denied",
    "unsteady-device",
)
"""harness.record.Doubt, which takes a while to import."""


class Stopped(BaseException):
    """A signal asked the process to end; its number is the argument."""


class Podium(click.Group):
    """All commands share one way to fail: a line on stderr (or one JSON object), never a traceback."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command; the user's and the machine's mistakes, and being stopped, end here."""
        from harness.errors import PodiumError

        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _stop)
        try:
            return super().main(*arguments, **{**options, "standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.ctx.get_help() if error.ctx else "")
        except click.ClickException as error:
            fail(" ".join(error.format_message().split()), EXIT_MISTAKE)
        except PodiumError as error:
            fail(str(error), EXIT_MISTAKE)
        except (KeyboardInterrupt, click.Abort):
            fail("stopped; nothing of this run was recorded", EXIT_INTERRUPTED)
        except Stopped as stopped:
            fail("stopped by a signal; nothing of this run was recorded", 128 + stopped.args[0])
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)


def _stop(number: int, frame: Any) -> None:
    raise Stopped(number)


def fail(message: str, code: int) -> NoReturn:
    """End with one line, as JSON where JSON was asked for."""
    say(message, "--json" in sys.argv)
    sys.exit(code)


def say(message: str, as_json: bool) -> None:
    """A mistake in one line."""
    if as_json:
        click.echo(json.dumps({"error": message}))
    else:
        click.echo(f"podium: {message}", err=True)


def example(text: str) -> str:
    """An epilog that shows a call."""
    return f"Example:  {text}"


def json_option(function: F) -> F:
    """--json, the same everywhere."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, and nothing else there.")(
        function
    )


def db_option(function: F) -> F:
    """--db, the same everywhere."""
    return click.option("--db", metavar="URL", help="Another database, as a SQLAlchemy URL.")(function)


def problems_option(function: F) -> F:
    """--problems, the same everywhere."""
    return click.option(
        "--problems",
        "folder",
        type=click.Path(path_type=Path),
        metavar="DIR",
        expose_value=False,
        is_eager=True,
        callback=_more_problems,
        help="A tree of further problems, as gpu-mode/reference-kernels has one; so is each folder in PODIUM_PROBLEMS.",
    )(function)


def _more_problems(context: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    """Let this command find the problems below a folder."""
    if value is None:
        return
    if not value.is_dir():
        raise click.UsageError(f"--problems {value} is no folder")
    before = os.environ.get("PODIUM_PROBLEMS", "")
    os.environ["PODIUM_PROBLEMS"] = os.pathsep.join(filter(None, [str(value.resolve()), before]))
    context.call_on_close(lambda: os.environ.update(PODIUM_PROBLEMS=before))


def device_option(function: F) -> F:
    """--device, the same everywhere."""
    return click.option(
        "--device",
        default="auto",
        show_default=True,
        metavar="auto|cuda|cuda:N|cpu",
        callback=_device,
        help="Where to run.",
    )(function)


def _device(context: click.Context, parameter: click.Parameter, value: str) -> str:
    import re

    if not re.fullmatch(DEVICE, value):
        raise click.BadParameter(f"{value!r} is none of auto, cpu, cuda, cuda:N")
    from harness.doctor import choose_device

    return choose_device(value)


isolation_option = click.option(
    "--isolation", type=click.Choice(["auto", "strict", "none"]), default="auto", show_default=True,
    help="Sandbox: every layer that this machine gives; all of them or no run; none.",
)  # fmt: skip


def pace_options(function: F) -> F:
    """--precision and --max-seconds, the same everywhere."""
    function = click.option(
        "--max-seconds", type=click.FloatRange(min=1), metavar="SECONDS",
        help="About how long the timing may take. Default: until it is exact enough, with a cap for each case.",
    )(function)  # fmt: skip
    return click.option(
        "--precision", metavar="SHARE", callback=_share,
        help="How exact: half of the 95 % interval, as 0.25% or 0.0025. Default: 0.5% of a score, 0.25% of a ratio.",
    )(function)  # fmt: skip


def _share(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 1e-5 <= share <= 0.2:
        raise click.BadParameter(f"{value!r} is no share between 0.001% and 20%")
    return share


@click.group(cls=Podium, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="podium", prog_name="podium")
def main() -> None:
    """A kernel competition on your own machine: submit, verify, time and rank GPU kernels."""


# --- submit ------------------------------------------------------------------------------------------------


@main.command(
    short_help="Verify, time and rank a kernel.",
    epilog=example("podium submit submissions/fp4_gemm/triton_dot_scaled.py --mode test"),
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-p", "--problem", metavar="PROBLEM", help="Name, alias or folder. Default: the #!POPCORN line, or the folder."
)
@click.option(
    "--mode", type=click.Choice(["test", "benchmark", "leaderboard"]), default="leaderboard", show_default=True,
    help="Verify; verify and time; or verify, time with secret seeds and record.",
)  # fmt: skip
@device_option
@click.option(
    "--case", "cases", multiple=True, metavar="'K=V K=V'", help="Only these cases, or one of your own. Repeatable."
)
@click.option("--name", metavar="AUTHOR", help="Whose entry this is. Default: your git or login name.")
@click.option(
    "--seed-file", type=click.Path(path_type=Path), metavar="FILE",
    help="Make the hidden cases from this secret of yours, the same for everybody: see podium seed.",
)  # fmt: skip
@click.option("--replay", metavar="ID", help="Run the hidden cases of this record once more; not recorded.")
@click.option("--kernels", is_flag=True, help="Also list what each benchmark launches: takes some seconds more.")
@click.option(
    "--timeout", type=click.FloatRange(min=1), metavar="SECONDS", help="Longest any import, compile or call may take."
)
@isolation_option
@pace_options
@db_option
@json_option
@problems_option
def submit(
    file: Path, problem: str | None, mode: Any, device: str, cases: tuple[str, ...], name: str | None,
    seed_file: Path | None, replay: str | None, timeout: float | None, isolation: Any, precision: float | None,
    max_seconds: float | None, kernels: bool, db: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Verify a kernel, time it, and put it on the board.

    Without a GPU the problem's small cases run on the CPU, Triton through its interpreter.
    Exit codes: 0 passed, 1 a mistake in the call, 2 the submission did not pass, 3 passed with doubts.
    """
    from harness.cases import select_cases
    from harness.evaluate import PRECISION, Request, evaluate
    from harness.secret import read_seed_file, source_of
    from harness.submission import default_author, marked_baseline, problem_for, read_submission

    if kernels and mode == "test":
        raise click.UsageError("--kernels is about benchmarks, and --mode test has none; leave one of them out")
    needs_hidden_cases({"--seed-file": seed_file, "--replay": replay}, mode, cases)
    submission = read_submission(file, name or default_author())
    found = load_supported(problem_for(file, submission.source, problem, roots()))
    submission = marked_baseline(submission, found.name)
    optional = ("regime",) if found.regimes else ()
    tests, benchmarks = found.cases_on(device)
    chosen = select_cases(cases, (*tests, *benchmarks), optional) if cases else None
    secret = read_seed_file(seed_file) if seed_file else None
    replayed = open_store(db).get(replay) if replay is not None else None
    source = source_of(found, device, secret, replayed) if secret or replayed else None
    recorded = mode == "leaderboard" and chosen is None and replayed is None
    store = open_store(db, writing=True) if recorded else None
    request = Request(
        found, submission, mode, device, caches(), chosen, limits(found, timeout, isolation),
        precision or PRECISION, max_seconds, source, kernels,
    )  # fmt: skip
    with progress(not as_json) as listen:
        record = evaluate(request, listen)
    if store is not None:
        keep(store, record, as_json)
    show_record(record, as_json, store)
    sys.exit(exit_code(record))


def needs_hidden_cases(options: dict[str, Any], mode: str, cases: tuple[str, ...]) -> None:
    """Refuse what is about hidden cases where there are none."""
    for option, value in options.items():
        if value is not None and mode != "leaderboard":
            raise click.UsageError(f"{option} is about hidden cases, and --mode {mode} has none; leave one of them out")
        if value is not None and cases:
            raise click.UsageError(f"{option} is about hidden cases, and --case names open ones; leave one of them out")


def keep(store: Store, record: Record, as_json: bool) -> None:
    """Record it; if that fails, what was measured is at least shown before the error."""
    from harness.errors import StoreError

    try:
        store.add(record)
    except StoreError:
        if not as_json:
            show_record(record, as_json, None)
        raise


def limits(problem: Problem, timeout: float | None, isolation: Any = "auto") -> Any:
    """Deadlines: an import or a first call may take the problem's, at most three minutes; later calls one minute."""
    from harness.processes.isolation import Limits

    if timeout is not None:
        return Limits(load_s=timeout, compile_s=timeout, call_s=timeout, isolation=isolation)
    longest_s = min(problem.timeouts.test_s, 180.0)
    return Limits(load_s=longest_s, compile_s=longest_s, isolation=isolation)


def exit_code(record: Record) -> int:
    """0 passed, 2 did not, 3 passed with doubts."""
    if record.outcome.verdict != "passed":
        return EXIT_FAILED
    return EXIT_DOUBTED if record.doubts else 0


def show_record(
    record: Record, as_json: bool, store: Store | None, clearances: tuple[Clearance, ...] | None = None
) -> None:
    """One record: JSON, with how it stands where it is known what was cleared; or its table and what happened to it."""
    from harness.record import to_dict
    from leaderboard.clearance import standing
    from leaderboard.tables import case_table, summary_lines

    if as_json:
        click.echo(json.dumps(to_dict(record) | ({} if clearances is None else standing(record, clearances))))
        return
    out = console()
    out.print(case_table(record))
    for line in summary_lines(record, clearances or ()):
        out.print(line)
    if store is not None:
        out.print(
            f"recorded as [bold]{record.id}[/bold]  ·  podium show {record.id}  ·  podium board {record.problem.name}"
        )


# --- seed --------------------------------------------------------------------------------------------------


@main.command(short_help="A secret for a contest's hidden cases.", epilog=example("podium seed contest.seed"))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--commit", is_flag=True, help="Only print the SHA-256 of a file that is there.")
@json_option
def seed(file: Path, commit: bool, as_json: bool) -> None:
    """Make a secret FILE, and print its SHA-256 to publish before a contest.

    `podium submit --seed-file FILE` makes the same hidden cases from it for every entry, and keeps only that hash. When
    all is over, publish FILE: everybody can hash it, and run the cases once more with --replay.
    """
    from harness.secret import make_seed_file, read_seed_file

    secret = read_seed_file(file) if commit else make_seed_file(file)
    if as_json:
        click.echo(json.dumps({"file": str(file), "commitment": secret.commitment}))
    elif commit:
        click.echo(secret.commitment)
    else:
        click.echo(f"{file} is made: keep it to yourself until all is over. Its SHA-256, to publish now:")
        click.echo(secret.commitment)


# --- compare -----------------------------------------------------------------------------------------------


@main.command(
    short_help="Which kernel is faster, and is that real?",
    epilog=example("podium compare mine.py theirs.py -p fp4_gemm --html comparison.html"),
)
@click.argument("kernels", nargs=-1, required=True, metavar="FILE|ID FILE|ID...")
@click.option("-p", "--problem", metavar="PROBLEM", help="Name, alias or folder. Default: the first kernel's.")
@device_option
@click.option("--case", "cases", multiple=True, metavar="'K=V K=V'", help="Only these cases, or one of your own.")
@click.option("--timeout", type=click.FloatRange(min=1), metavar="SECONDS", help="Longest any import or call may take.")
@isolation_option
@pace_options
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Also write a page with plots here.")
@db_option
@json_option
@problems_option
def compare(
    kernels: tuple[str, ...], problem: str | None, device: str, cases: tuple[str, ...], timeout: float | None,
    isolation: Any, precision: float | None, max_seconds: float | None, html: Path | None, db: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Time kernels in turns, in one run, on identical inputs, and say which is faster.

    Each kernel is a file, or the id of a record, whose file is then run again. Verdicts: FASTER and SLOWER are sure for
    all pairs together (5 %) and at least 0.25 % apart, TIE is surely less than 0.5 % apart, UNRESOLVED is neither.
    Exit codes: 0 compared, 1 a mistake in the call, 2 a kernel did not pass, 3 the verdicts cannot be trusted.
    """
    from harness.cases import select_cases
    from harness.contest import PRECISION, Contest, compare_kernels
    from harness.record import to_dict
    from harness.submission import problem_for
    from leaderboard.comparison import comparison_lines
    from leaderboard.comparison_page import comparison_html

    if len(kernels) < 2:
        raise click.UsageError("compare needs two kernels or more")
    contenders = chosen_contenders(kernels, db)
    first = contenders[0]
    named = problem or (first.record.problem.name if first.record else None)
    found = load_supported(problem_for(Path(kernels[0]), first.submission.source, named, roots()))
    tests, benchmarks = found.cases_on(device)
    optional = ("regime",) if found.regimes else ()
    chosen = select_cases(cases, (*tests, *benchmarks), optional) if cases else None
    contest = Contest(
        found, contenders, device, caches(), chosen, limits(found, timeout, isolation), precision or PRECISION,
        max_seconds,
    )  # fmt: skip
    if html is not None:
        claim(html)
    with progress(not as_json) as listen:
        comparison = compare_kernels(contest, listen)
    if as_json:
        click.echo(json.dumps(to_dict(comparison)))
    else:
        out = console()
        for each in comparison_lines(comparison):
            out.print(each)
    if html is not None:
        html.write_text(comparison_html(comparison), encoding="utf-8")
        if not as_json:
            click.echo(f"written: {html}")
    sys.exit(comparison_code(comparison))


def chosen_contenders(kernels: tuple[str, ...], db: str | None) -> Any:
    """Files by their paths; whatever is no file, and looks like one's id, from the store."""
    import re

    from harness.contest import Contender, labels
    from harness.submission import default_author, read_submission

    author = default_author()
    found = []
    for kernel in kernels:
        is_id = not Path(kernel).exists() and re.fullmatch(r"[0-9a-f]{2,8}", kernel)
        record = open_store(db).get(kernel) if is_id else None
        submission = record.submission if record else read_submission(Path(kernel), author)
        found.append((submission, record, f"{record.id}:{record.submission.filename}" if record else kernel))
    names = labels([name for _, _, name in found])
    return tuple(Contender(label, each, record) for label, (each, record, _) in zip(names, found, strict=True))


def claim(path: Path) -> None:
    """Make sure that a file can be written before minutes are spent on what belongs in it."""
    try:
        with open(path, "a", encoding="utf-8"):
            pass
    except OSError as error:
        raise click.UsageError(f"cannot write {path}: {error.strerror}") from error


def comparison_code(comparison: Any) -> int:
    """130 stopped, 2 a kernel did not pass, 3 nothing of it can be trusted, 0 compared."""
    if not comparison.complete:
        return EXIT_INTERRUPTED
    if any(entry.outcome.verdict != "passed" for entry in comparison.entries):
        return EXIT_FAILED
    return EXIT_DOUBTED if any(pair.overall.verdict == "INVALID" for pair in comparison.pairs) else 0


# --- watch -------------------------------------------------------------------------------------------------


@main.command(short_help="Verify and time a kernel on every save.", epilog=example("podium watch my_kernel.py"))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-p", "--problem", metavar="PROBLEM", help="As for submit.")
@device_option
@click.option("--case", "cases", multiple=True, metavar="'K=V K=V'", help="As for submit. Repeatable.")
@db_option
@json_option
@problems_option
def watch(file: Path, problem: str | None, device: str, cases: tuple[str, ...], db: str | None, as_json: bool) -> None:
    """Verify FILE and, where it passes, time it, now and whenever it is saved; Ctrl-C ends it.

    Each run is shown beside the last one and beside the best: of this session, or ranked on the same board.
    Nothing is recorded. With --json, one record a line, with the ratios of its times to the other two.
    """
    from harness.errors import PodiumError
    from harness.watch import changes
    from leaderboard.watching import Times, farewell

    watched_request(file, problem, device, cases)  # a mistake in the call ends it; one in a later save doesn't
    store, runs, number = open_store(db), list[Times](), 0
    try:
        for number, _ in enumerate(changes(file), start=1):
            if not as_json:
                console().rule(f"[bold]run {number}[/bold]  {datetime.now():%H:%M:%S}", align="left", style="dim")
            try:
                runs.append(run_saved(watched_request(file, problem, device, cases), number, runs, store, as_json))
            except PodiumError as error:
                say(str(error), as_json)
    except KeyboardInterrupt:
        pass  # how one ends it
    click.echo(farewell(number, runs), err=as_json)


def watched_request(file: Path, problem: str | None, device: str, cases: tuple[str, ...]) -> Request:
    """What to run of the file and the problem as they are now: the tests, then the times."""
    from harness.cases import select_cases
    from harness.errors import SubmissionError
    from harness.evaluate import Request
    from harness.submission import default_author, problem_for, read_submission

    submission = read_submission(file, default_author())
    if not submission.source.strip():
        raise SubmissionError(f"{file} is empty")
    found = load_supported(problem_for(file, submission.source, problem, roots()))
    listed = [case for group in found.cases_on(device) for case in group]
    chosen = select_cases(cases, listed, ("regime",) if found.regimes else ()) if cases else None
    return Request(found, submission, "benchmark", device, caches(), chosen, limits(found, None))


def run_saved(request: Request, number: int, runs: list[Times], store: Store, as_json: bool) -> Times:
    """Evaluate one save and show it beside the runs before it and beside the store's."""
    from harness.evaluate import evaluate
    from harness.record import to_dict
    from leaderboard.watching import best_of, difference, last_of, ranked_times, ratios, times

    ranked = [ranked_times(score) for score in store.scores(request.problem.name, request.problem.content_hash)]
    with progress(not as_json) as listen:
        record = evaluate(request, listen)
    now = times(record, f"run {number}")
    last, best = last_of(runs, now), best_of([*runs, *ranked], now)
    if as_json:
        click.echo(json.dumps(to_dict(record) | {"vs_last": ratios(record, last), "vs_best": ratios(record, best)}))
    else:
        console().print(difference(record, last, best))
    return now


# --- new ---------------------------------------------------------------------------------------------------


@main.command(
    short_help="A problem of your own, from one that works.",
    epilog=example("podium new my_norm --kind elementwise --dtype fp16 --size hidden=4096,8192"),
)
@click.argument("name")
@click.option(
    "--kind", type=click.Choice(["elementwise", "matmul", "attention"]),
    help="What to begin with: a norm of rows, a matrix product, attention. Without it, on a terminal, you are asked.",
)  # fmt: skip
@click.option("--dtype", type=click.Choice(["bf16", "fp16", "fp32"]), help="Of all tensors. Default: bf16.")
@click.option(
    "--tensor", "tensors", multiple=True, metavar="'NAME DTYPE [DIMS]'",
    help="Inputs by names of yours, in their order, the output last. Repeatable.",
)  # fmt: skip
@click.option(
    "--size", "sizes", multiple=True, metavar="NAME=N,N", help="What is timed: a size for each case. Repeatable."
)
@click.option("--folder", type=click.Path(path_type=Path), metavar="DIR", help="The folder to make. Default: ./NAME.")
@json_option
def new(
    name: str, kind: str | None, dtype: str | None, tensors: tuple[str, ...], sizes: tuple[str, ...],
    folder: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Write a problem folder that works at once: reference, cases, tolerance, mutants, template, a Triton kernel.

    On a terminal, without --kind, it asks for the kind of kernel, the tensors and the sizes; Enter takes what is shown.
    Nothing is ever overwritten.
    """
    from harness.draft import check_name, next_commands, write

    target = folder or Path(name)
    check_name(name, roots())
    if kind is not None:
        draft = flagged_draft(name, kind, dtype, tensors, sizes)
    elif as_json or dtype or tensors or sizes or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "--kind is missing: elementwise, matmul or attention (on a terminal alone, you are asked)"
        )
    else:
        try:
            draft = asked_draft(name)
        except (KeyboardInterrupt, click.Abort):
            fail("stopped; nothing was written", EXIT_INTERRUPTED)
    files = write(draft, target)
    commands = next_commands(target)
    if as_json:
        shown = {"name": name, "folder": str(target), "files": [file.name for file in files], "next": commands}
        click.echo(json.dumps(shown))
        return
    click.echo(f"{target} is ready, and works as it is:")
    for command, why in zip(
        commands, ("the task, its tensors", "can its tolerance tell?", "is it right?"), strict=True
    ):
        click.echo(f"  {command:<{max(map(len, commands))}}    {why}")


def flagged_draft(name: str, kind: str, dtype: str | None, tensors: tuple[str, ...], sizes: tuple[str, ...]) -> Draft:
    """A draft as options say it."""
    from harness.draft import begin

    draft = begin(name, kind)
    if dtype is not None:
        draft = draft.with_dtype(dtype)
    if len(tensors) > len(draft.tensors):
        raise click.UsageError(f"{len(tensors)} times --tensor, but {kind} has {len(draft.tensors)} with its output")
    for index, text in enumerate(tensors):
        draft = draft.with_tensor(index, text)
    for text in sizes:
        key, _, values = text.partition("=")
        draft = draft.with_sizes(key.strip(), values)
    return draft


def asked_draft(name: str) -> Draft:
    """A draft as somebody at a terminal wants it."""
    from harness.draft import KINDS, begin

    kind = click.prompt("kind of kernel", default="elementwise", type=click.Choice(list(KINDS)))
    draft = begin(name, kind)
    click.echo("tensors by names of yours, with bf16, fp16 or fp32; Enter takes what is shown")
    for index in range(len(draft.tensors)):
        label = f"input {index + 1}" if index < len(draft.tensors) - 1 else "output"
        draft = asked(f"  {label:<7}", str(draft.tensors[index]), partial(draft.with_tensor, index))
    click.echo("sizes that are timed: one for each case, or one for all")
    width = max(map(len, draft.sizes))
    for key in draft.sizes:
        draft = asked(f"  {key:<{width}}", ", ".join(map(str, draft.sizes_of(key))), partial(draft.with_sizes, key))
    return draft


def asked(label: str, default: str, answer: Callable[[str], Draft]) -> Draft:
    """What an answer makes of a draft; asked again, with the reason, where it makes nothing."""
    from harness.errors import PodiumError

    def tried(text: str) -> Draft:
        try:
            return answer(text)
        except PodiumError as error:
            raise click.UsageError(str(error)) from None

    found: Draft = click.prompt(f"{label} ({default})", default=default, show_default=False, value_proc=tried)
    return found


# --- problems, start ---------------------------------------------------------------------------------------


@main.command(short_help="All problems, or the task of one.", epilog=example("podium problems mla_decode"))
@click.argument("name", required=False)
@json_option
@problems_option
def problems(name: str | None, as_json: bool) -> None:
    """List the problems, or show one: its description, tensors, cases, tolerance, regimes and roofline.

    The tensors are those of a small case, which the problem's reference makes on the CPU.
    """
    from harness.errors import ProblemError
    from harness.problem import list_problems
    from harness.sets import listed_in
    from leaderboard.pages import problem_list, problem_page, problem_summary

    if name is None:
        found, broken, listed = [], [], listed_in(roots())
        for folder in list_problems(roots()):
            try:
                found.append(load(folder))
            except ProblemError as error:
                broken.append((folder, str(error)))
        if as_json:
            told = [problem_summary(each, listed=listed.get(each.folder)) for each in found]
            unread = [{"name": folder.name, "folder": str(folder), "error": reason} for folder, reason in broken]
            click.echo(json.dumps([*told, *unread]))
        else:
            console().print(problem_list(found, listed))
            for _, reason in broken:
                click.echo(f"podium: not listed: {reason}", err=True)
        return
    from harness.form import form_of

    problem = load(name)
    with progress(not as_json) as listen:
        form = form_of(problem, listen)
    if as_json:
        click.echo(json.dumps(problem_summary(problem, form)))
    else:
        console().print(problem_page(problem, form))


@main.command(short_help="Can a problem's tolerance tell right from wrong?", epilog=example("podium validate fp4_gemm"))
@click.argument("problem")
@device_option
@json_option
@problems_option
def validate(problem: str, device: str, as_json: bool) -> None:
    """Judge the variants in a problem's mutants.py, wrong and right ones, and say how far each is from the limit.

    They run on the problem's tests (on a CPU its small cases), and once in each further regime. A margin is what the
    limits could be multiplied by (wrong ones) or divided by (right ones) before the verdict turns.
    Exit codes: 0 all are judged as they should be, 1 a mistake in the call, 2 some are not.
    """
    from harness.processes.isolation import visible_devices

    found = load(problem)
    os.environ.update(visible_devices(device))  # before torch looks for GPUs
    from harness.validate import validate as judge_variants
    from leaderboard.margins import margin_summary, margin_table

    with progress(not as_json) as listen:
        margins = judge_variants(found, device, listen)
    if as_json:
        click.echo(json.dumps(margin_summary(found, device, margins)))
    else:
        console().print(margin_table(margins))
    sys.exit(0 if all(margin.as_it_should for margin in margins) else EXIT_FAILED)


@main.command(short_help="Begin a kernel from a template.", epilog=example("podium start fp4_gemm my_kernel.py"))
@click.argument("problem")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@problems_option
def start(problem: str, file: Path | None) -> None:
    """Copy a problem's template to FILE (default: PROBLEM.py here) and say what to run next."""
    from harness.submission import start_from_template

    found = load(problem)
    target = start_from_template(found, file or Path(f"{found.name}.py"))
    click.echo(f"{target} is ready: a starting point for {found.title or found.name}.")
    click.echo(f"  podium problems {found.name}          the task, tensors and cases")
    click.echo(f"  podium submit {target} --mode test    is it right?")
    click.echo(f"  podium submit {target}                right, timed and on the board")


# --- board, show, clear ------------------------------------------------------------------------------------


@main.command(short_help="The leaderboard, or one problem's.", epilog=example("podium board fp4_gemm"))
@click.argument("problem", required=False)
@click.option("--all", "every", is_flag=True, help="Boards of earlier versions of the problem, too.")
@db_option
@json_option
@problems_option
def board(problem: str | None, every: bool, db: str | None, as_json: bool) -> None:
    """Show the leaderboard: one board per problem version, device model and timing class."""
    from harness.record import to_dict
    from leaderboard.ranking import rank
    from leaderboard.tables import board_table

    found = load(problem) if problem else None
    boards = rank(open_store(db).scores(problem=found.name if found else None))
    if not every:
        current = current_hashes() | ({found.name: {found.content_hash}} if found else {})
        boards = [each for each in boards if each.problem_hash in current.get(each.problem, {each.problem_hash})]
    if as_json:
        click.echo(json.dumps([to_dict(each) for each in boards]))
        return
    if not boards:
        click.echo(f"no ranked entries{f' for {found.name}' if found else ''} yet: podium submit FILE puts one here")
    for each in boards:
        console().print(board_table(each))


@main.command(short_help="One record: its table, or its source.", epilog=example("podium show 3f9a --code"))
@click.argument("record_id", metavar="ID")
@click.option("--code", is_flag=True, help="The submission's source.")
@db_option
@json_option
def show(record_id: str, code: bool, db: str | None, as_json: bool) -> None:
    """Show one record: its table, or its source. ID may be shortened as long as it is unique."""
    store = open_store(db)
    record = store.get(record_id)
    if code and not as_json:
        click.echo(record.submission.source, nl=False)
    else:
        show_record(record, as_json, None, store.clearances(record.id))


@main.command(
    short_help="Rank a record in spite of a doubt, and say why.",
    epilog=example("podium clear 3f9a --doubt clocks-disagree --reason 'events are off on this card'"),
)
@click.argument("record_id", metavar="ID")
@click.option(
    "--doubt", "doubts", multiple=True, required=True, type=click.Choice(DOUBTS), metavar="DOUBT",
    help=f"One of the record's: {', '.join(DOUBTS)}. Repeatable.",
)  # fmt: skip
@click.option("--reason", metavar="TEXT", help="Why it is none; the board shows it.")
@click.option("--undo", is_flag=True, help="Take clearances back.")
@db_option
@json_option
def clear(record_id: str, doubts: Any, reason: str | None, undo: bool, db: str | None, as_json: bool) -> None:
    """Clear doubts of a record that you have looked into: once all of them are cleared, it is ranked.

    That is for whoever owns the board. The record stays as it was measured; the board shows what was cleared, by whom
    and why.
    """
    from harness.submission import default_author
    from leaderboard.clearance import standing
    from leaderboard.tables import doubt_lines, plain

    if undo and reason is not None:
        raise click.UsageError("--undo takes no --reason: nothing would be left to show it beside")
    if not undo and reason is None:
        raise click.UsageError("--reason is missing: say why the doubt is none, whoever reads the board sees it")
    store = open_store(db)
    record = store.get(record_id)
    if reason is None:
        clearances = store.undo_clear(record.id, doubts)
    else:
        clearances = store.clear(record.id, doubts, reason, default_author())
    if as_json:
        click.echo(json.dumps({"id": record.id, **standing(record, clearances)}))
        return
    submission = record.submission
    out = console()
    out.print(
        plain(f"{record.id}: {submission.filename} by {submission.author} on {record.problem.name}"), markup=False
    )
    for line in doubt_lines(record, clearances):
        out.print(line)


# --- doctor ------------------------------------------------------------------------------------------------


@main.command(short_help="What this machine can give.", epilog=example("podium doctor"))
@device_option
@json_option
def doctor(device: str, as_json: bool) -> None:
    """Say what this machine can give (device, clock, isolation) and what to do about what is missing."""
    from harness.doctor import examine
    from leaderboard.pages import check_table

    with progress(not as_json):
        checks = examine(device, load("fp4_gemm"), caches(), home())
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(check) for check in checks]))
    else:
        console().print(check_table(checks))
    sys.exit(EXIT_MISTAKE if any(check.state == "missing" for check in checks) else 0)


# --- audit -------------------------------------------------------------------------------------------------


@main.command(short_help="What does this machine stop?", epilog=example("podium audit socket_opened oracle_killed"))
@click.argument("names", nargs=-1, metavar="[EXPLOIT]...")
@device_option
@json_option
def audit(names: tuple[str, ...], device: str, as_json: bool) -> None:
    """Run small submissions that try to fool Podium, and say which of them this machine stops.

    They come with a checkout, in tests/exploits; they damage decoys only. All of them take some minutes.
    Exit codes: 0 each ended as it should, 1 a mistake in the call, 2 one did not.
    """
    from harness.audit import audit as try_exploits
    from leaderboard.pages import audit_summary, audit_table

    with progress(not as_json) as listen:
        findings = try_exploits(device, names, listen)
    if as_json:
        click.echo(json.dumps([audit_summary(each) for each in findings]))
    else:
        console().print(audit_table(findings))
    sys.exit(EXIT_FAILED if any(each.state == "not stopped" for each in findings) else 0)


# --- where things are --------------------------------------------------------------------------------------


def roots() -> Any:
    """Folders that hold problems."""
    from harness.problem import default_roots

    return default_roots()


def load(name: str | Path) -> Problem:
    """A problem by name, alias or folder."""
    from harness.problem import find_problem, load_problem

    return load_problem(name if isinstance(name, Path) else find_problem(name, roots()))


def load_supported(name: str | Path) -> Problem:
    """The same, if it can be run here."""
    from harness.problem import supported

    return supported(load(name))


def current_hashes() -> dict[str, set[str]]:
    """The content hashes of the known problems as they are now, by name: those of two sets may share one."""
    from harness.errors import ProblemError
    from harness.problem import list_problems

    hashes: dict[str, set[str]] = {}
    for folder in list_problems(roots()):
        try:
            hashes.setdefault(folder.name, set()).add(load(folder).content_hash)
        except ProblemError:
            continue  # `podium problems` says what is wrong with it
    return hashes


def home() -> Path:
    """The user's data folder."""
    import platformdirs

    return Path(os.environ.get("PODIUM_HOME") or platformdirs.user_data_dir("podium"))


def caches() -> Path:
    """Compile caches, one folder a submission in it."""
    import platformdirs

    chosen = os.environ.get("PODIUM_HOME")
    if chosen:
        return Path(chosen) / "caches" / "compile"
    # root's own folders are closed to the user that kernels run as
    is_root = os.name == "posix" and os.getuid() == 0
    return Path(platformdirs.site_cache_dir("podium") if is_root else platformdirs.user_cache_dir("podium")) / "compile"


def open_store(url: str | None, *, writing: bool = False) -> Store:
    """The leaderboard's database, let go of when the command ends."""
    from leaderboard import store

    opened = store.open_store(url, home=home(), writing=writing)
    command = click.get_current_context(silent=True)
    if command is not None:
        command.call_on_close(opened.close)
    return opened


def console() -> Any:
    """Where tables go."""
    from rich.console import Console

    return Console(highlight=False)


def progress(wanted: bool) -> Any:
    """A progress line on a terminal, silence elsewhere."""
    from leaderboard.progress import progress_line

    return progress_line(wanted and sys.stderr.isatty())


if __name__ == "__main__":
    main()
