"""What `podium problems`, `doctor` and `audit` show: problems and machines as tables to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

STATES = {"good": ("✓", "green"), "lesser": ("~", "yellow"), "missing": ("✗", "red")}
FOUND = {"as declared": ("✓", "green"), "not stopped": ("✗", "red"), "not run": ("·", "dim")}


def problem_summary(problem: Any) -> dict[str, Any]:
    """A problem (harness.problem.Problem) as JSON-ready data."""
    return {
        "name": problem.name,
        "title": problem.title,
        "aliases": list(problem.aliases),
        "content_hash": problem.content_hash,
        "folder": str(problem.folder),
        "precisions": list(problem.precisions),
        "regimes": list(problem.regimes),
        "ranking_by": problem.ranking_by,
        "tests": [dict(case.spec) for case in problem.tests],
        "benchmarks": [dict(case.spec) for case in problem.benchmarks],
        "smoke": [dict(case.spec) for case in problem.smoke],
    }


def problem_list(problems: Sequence[Any]) -> Table:
    """All problems, a line each."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("problem", no_wrap=True)
    table.add_column("title", overflow="fold")
    table.add_column("alias", no_wrap=True)
    for title in ("tests", "benchmarks", "on a CPU"):
        table.add_column(title, justify="right")
    for each in problems:
        counts = (str(len(cases)) for cases in (each.tests, each.benchmarks, each.smoke))
        table.add_row(Text(each.name, "bold"), each.title or "", ", ".join(each.aliases), *counts)
    return table


def problem_page(problem: Any) -> RenderableType:
    """One problem: its description, and its cases as a table."""
    parts: list[RenderableType] = [
        Text(f"{problem.name}: {problem.title}" if problem.title else problem.name, "bold"),
        Markdown(problem.description or "", hyperlinks=False),
    ]
    for heading, cases in (("tests", problem.tests), ("benchmarks", problem.benchmarks), ("on a CPU", problem.smoke)):
        if cases:
            parts.append(Padding(_cases(heading, cases), (1, 0, 0, 0)))
    if problem.tolerance is not None:
        parts.append(Text("tolerance", "bold"))
        for name in problem.precisions or (None,):
            limits = problem.tolerance.for_precision(name)
            label = f"  {name or 'every output'}: worst row {limits.row_relative:g}"
            parts.append(Text(f"{label}, elements {limits.atol:g} + {limits.atol_rms:g}·rms + {limits.rtol:g}·|ref|"))
    parts.append(Text(f"\npodium start {problem.name} my_kernel.py   a file to begin with", "dim"))
    return Group(*parts)


def _cases(heading: str, cases: Sequence[Any]) -> Table:
    names = list(dict.fromkeys(name for case in cases for name in case.spec))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=heading, title_justify="left", title_style="bold")
    for name in names:
        table.add_column(name, justify="right")
    for case in cases:
        table.add_row(*(str(case.spec.get(name, "")) for name in names))
    return table


def check_table(checks: Sequence[Any]) -> Table:
    """What `podium doctor` found, what to do beside it (harness.doctor.Check)."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(width=1)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        mark, colour = STATES[check.state]
        text = Text(check.found)
        if check.advice:
            text.append(f"\n{check.advice}", "dim")
        table.add_row(Text(mark, colour), check.name, text)
    return table


def audit_summary(finding: Any) -> dict[str, Any]:
    """What came of one exploit (harness.audit.Finding), as JSON-ready data."""
    exploit = finding.exploit
    return {
        "exploit": exploit.path.stem,
        "tries": exploit.tries,
        "expect": exploit.expect,
        "state": finding.state,
        "found": finding.found,
        "lacks": exploit.lacks,
    }


def audit_table(findings: Sequence[Any]) -> Group:
    """What each exploit tried and how it ended, and how many were not stopped."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("", "exploit", "it should end", "it ended"):
        table.add_column(title, overflow="fold")
    for finding in findings:
        mark, colour = FOUND[finding.state]
        found = Text(finding.found.partition("\n")[0])
        if finding.state == "not stopped" and finding.exploit.lacks:
            found.append(f"\nlacks: {finding.exploit.lacks}", "dim")
        name = Text.assemble((finding.exploit.name, "bold"), f"\n{finding.exploit.tries}")
        table.add_row(Text(mark, colour), name, finding.exploit.expect, found)
    counts = {state: sum(finding.state == state for finding in findings) for state in FOUND}
    return Group(table, Text(", ".join(f"{count} {state}" for state, count in counts.items() if count)))
