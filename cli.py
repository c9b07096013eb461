"""The `podium` command: unpack flags, call one function, print its result."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    from harness.problem import Problem
    from harness.record import Record
    from leaderboard.store import Store

F = TypeVar("F", bound=Callable[..., Any])

EXIT_MISTAKE, EXIT_FAILED, EXIT_DOUBTED, EXIT_INTERRUPTED = 1, 2, 3, 130
DEVICE = r"auto|cpu|cuda(:\d+)?"


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
    if "--json" in sys.argv:
        click.echo(json.dumps({"error": message}))
    else:
        click.echo(f"podium: {message}", err=True)
    sys.exit(code)


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
    "--timeout", type=click.FloatRange(min=1), metavar="SECONDS", help="Longest any import, compile or call may take."
)
@db_option
@json_option
def submit(
    file: Path, problem: str | None, mode: Any, device: str, cases: tuple[str, ...], name: str | None,
    timeout: float | None, db: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Verify a kernel, time it, and put it on the board.

    Without a GPU the problem's small cases run on the CPU, Triton through its interpreter.
    Exit codes: 0 passed, 1 a mistake in the call, 2 the submission did not pass, 3 passed with doubts.
    """
    from harness.cases import select_cases
    from harness.evaluate import Request, evaluate
    from harness.submission import default_author, marked_baseline, problem_for, read_submission

    submission = read_submission(file, name or default_author())
    found = load(problem_for(file, submission.source, problem, roots()))
    submission = marked_baseline(submission, found.name)
    optional = ("regime",) if found.regimes else ()
    tests, benchmarks = found.cases_on(device)
    chosen = select_cases(cases, (*tests, *benchmarks), optional) if cases else None
    ranked = mode == "leaderboard" and chosen is None
    store = open_store(db, writing=True) if ranked else None
    request = Request(found, submission, mode, device, caches(), chosen, limits(found, timeout))
    with progress(not as_json) as listen:
        record = evaluate(request, listen)
    if store is not None:
        keep(store, record, as_json)
    show_record(record, as_json, store)
    sys.exit(exit_code(record))


def keep(store: Store, record: Record, as_json: bool) -> None:
    """Record it; if that fails, what was measured is at least shown before the error."""
    from harness.errors import StoreError

    try:
        store.add(record)
    except StoreError:
        if not as_json:
            show_record(record, as_json, None)
        raise


def limits(problem: Problem, timeout: float | None) -> Any:
    """Deadlines: an import or a first call may take the problem's, at most three minutes; later calls one minute."""
    from harness.processes.isolation import Limits

    if timeout is not None:
        return Limits(load_s=timeout, compile_s=timeout, call_s=timeout)
    longest_s = min(problem.timeouts.test_s, 180.0)
    return Limits(load_s=longest_s, compile_s=longest_s)


def exit_code(record: Record) -> int:
    """0 passed, 2 did not, 3 passed with doubts."""
    if record.outcome.verdict != "passed":
        return EXIT_FAILED
    return EXIT_DOUBTED if record.doubts else 0


def show_record(record: Record, as_json: bool, store: Store | None) -> None:
    """One record: JSON, or its table and what happened to it."""
    from harness.record import to_dict
    from leaderboard.tables import case_table, summary_lines

    if as_json:
        click.echo(json.dumps(to_dict(record)))
        return
    out = console()
    out.print(case_table(record))
    for line in summary_lines(record):
        out.print(line)
    if store is not None:
        out.print(
            f"recorded as [bold]{record.id}[/bold]  ·  podium show {record.id}  ·  podium board {record.problem.name}"
        )


# --- problems, start ---------------------------------------------------------------------------------------


@main.command(short_help="All problems, or the task of one.", epilog=example("podium problems mla_decode"))
@click.argument("name", required=False)
@json_option
def problems(name: str | None, as_json: bool) -> None:
    """List the problems, or show one: its description, cases and tolerance."""
    from harness.problem import list_problems
    from leaderboard.pages import problem_list, problem_page, problem_summary

    found = [load(name)] if name else [load(folder) for folder in list_problems(roots())]
    if as_json:
        summaries = [problem_summary(each) for each in found]
        click.echo(json.dumps(summaries[0] if name else summaries))
    else:
        console().print(problem_page(found[0]) if name else problem_list(found))


@main.command(short_help="Begin a kernel from a template.", epilog=example("podium start fp4_gemm my_kernel.py"))
@click.argument("problem")
@click.argument("file", type=click.Path(path_type=Path), required=False)
def start(problem: str, file: Path | None) -> None:
    """Copy a problem's template to FILE (default: PROBLEM.py here) and say what to run next."""
    from harness.submission import start_from_template

    found = load(problem)
    target = start_from_template(found, file or Path(f"{found.name}.py"))
    click.echo(f"{target} is ready: a starting point for {found.title or found.name}.")
    click.echo(f"  podium problems {found.name}          the task, tensors and cases")
    click.echo(f"  podium submit {target} --mode test    is it right?")
    click.echo(f"  podium submit {target}                right, timed and on the board")


# --- board, show -------------------------------------------------------------------------------------------


@main.command(short_help="The leaderboard, or one problem's.", epilog=example("podium board fp4_gemm"))
@click.argument("problem", required=False)
@click.option("--all", "every", is_flag=True, help="Boards of earlier versions of the problem, too.")
@db_option
@json_option
def board(problem: str | None, every: bool, db: str | None, as_json: bool) -> None:
    """Show the leaderboard: one board per problem version, device model and timing class."""
    from harness.record import to_dict
    from leaderboard.ranking import rank
    from leaderboard.tables import board_table

    found = load(problem) if problem else None
    boards = rank(open_store(db).scores(problem=found.name if found else None))
    if not every:
        current = current_hashes() | ({found.name: found.content_hash} if found else {})
        boards = [each for each in boards if current.get(each.problem, each.problem_hash) == each.problem_hash]
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
    record = open_store(db).get(record_id)
    if code and not as_json:
        click.echo(record.submission.source, nl=False)
    else:
        show_record(record, as_json, None)


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


# --- where things are --------------------------------------------------------------------------------------


def roots() -> Any:
    """Folders that hold problems."""
    from harness.problem import default_roots

    return default_roots()


def load(name: str | Path) -> Problem:
    """A problem by name, alias or folder."""
    from harness.problem import find_problem, load_problem

    return load_problem(name if isinstance(name, Path) else find_problem(name, roots()))


def current_hashes() -> dict[str, str]:
    """The content hash of each known problem as it is now."""
    from harness.errors import ProblemError
    from harness.problem import list_problems

    hashes = {}
    for folder in list_problems(roots()):
        try:
            hashes[folder.name] = load(folder).content_hash
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
    return (Path(chosen) / "caches" if chosen else Path(platformdirs.user_cache_dir("podium"))) / "compile"


def open_store(url: str | None, *, writing: bool = False) -> Store:
    """The leaderboard's database."""
    from leaderboard import store

    return store.open_store(url, home=home(), writing=writing)


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
