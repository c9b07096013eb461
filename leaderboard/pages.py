"""What `podium problems`, `doctor` and `audit` show: problems and machines as tables to read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from leaderboard.grid import Column, Grid, Line
from leaderboard.tables import plain

STATES = {"good": ("✓", "green"), "lesser": ("~", "yellow"), "missing": ("✗", "red")}
FOUND = {"as declared": ("✓", "green"), "not stopped": ("✗", "red"), "not run": ("·", "dim")}


def problem_summary(problem: Any, form: Any = None, listed: Any = None) -> dict[str, Any]:
    """A problem (harness.problem.Problem) as JSON-ready data, with what is known of its tensors (harness.form).

    `listed`: what a set's file says of it (harness.sets.Listed).
    """
    told: dict[str, Any] = {"unsupported": problem.unsupported or None}
    if listed is not None:
        told |= {"board": listed.name, "set": listed.set_name, "deadline": listed.deadline, "gpus": list(listed.gpus)}
    if form is not None:
        known = not isinstance(form, str)
        told |= {
            "form_case": form.case if known else None,
            "inputs": [dataclasses.asdict(part) for part in form.inputs] if known else None,
            "output": [dataclasses.asdict(part) for part in form.outputs] if known else None,
            "form_error": None if known else form,
        }
    roofline = problem.roofline
    return told | {
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
        "shared_inputs": list(problem.shared_inputs),
        "tolerance": None if problem.tolerance is None else dataclasses.asdict(problem.tolerance),
        "roofline": None if roofline is None else dataclasses.asdict(roofline),
    }


def problem_list(problems: Sequence[Any], listed: Mapping[Path, Any]) -> RenderableType:
    """All problems, a line each; those that a set's file lists (harness.sets.Listed, by folder) under their set."""
    names = [each.name for each in problems]
    sets: dict[str, list[Any]] = {}
    for each in problems:
        sets.setdefault(listed[each.folder].set_name if each.folder in listed else "", []).append(each)
    parts: list[RenderableType] = []
    for name in sorted(sets):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=name or None, title_style="bold", title_justify="left")
        table.add_column("problem", no_wrap=True)
        table.add_column("board, until, GPUs there" if name else "title", overflow="fold")
        table.add_column("" if name else "alias", overflow="fold", no_wrap=not name)
        for title in ("tests", "benchmarks", "on a CPU"):
            table.add_column(title, justify="right")
        for each in sets[name]:
            known = listed.get(each.folder)
            about = [each.title] if known is None else [known.name, known.deadline, " ".join(known.gpus)]
            note = f"cannot be run here: {each.unsupported}" if each.unsupported else ", ".join(each.aliases)
            shown = (
                each.name if known is None or names.count(each.name) == 1 else f"{each.folder.parent.name}/{each.name}"
            )
            counts = (str(len(cases)) for cases in (each.tests, each.benchmarks, each.smoke))
            table.add_row(Text(shown, "bold"), plain(", ".join(filter(None, about))), plain(note), *counts)
        parts.append(table)
    return Group(*parts)


def problem_page(problem: Any, form: Any) -> RenderableType:
    """One problem: its description, its tensors (harness.form.Form, or why there is none), its cases and limits."""
    parts: list[RenderableType] = [
        Text(f"{problem.name}: {problem.title}" if problem.title else problem.name, "bold"),
        Markdown(problem.description or "", hyperlinks=False),
        Text(),
        *_tensors(form),
    ]
    for heading, cases in (("tests", problem.tests), ("benchmarks", problem.benchmarks), ("on a CPU", problem.smoke)):
        if cases:
            parts.append(Padding(_cases(heading, cases), (1, 0, 0, 0)))
    parts += [*_limits(problem), *_regimes(problem), *_roofline(problem)]
    parts.append(Text(f"\npodium start {problem.name} my_kernel.py   a file to begin with", "dim"))
    return Group(*parts)


def _tensors(form: Any) -> Iterator[RenderableType]:
    if isinstance(form, str):
        yield Text.assemble(("tensors", "bold"), f"  not shown: {plain(form)}")
        return
    yield Text.assemble(("tensors", "bold"), f"  of the case {form.case}")
    columns = (
        Column("", is_left=True, least=12),
        Column("path", is_left=True, spare=2),
        Column("shape", is_left=True),
        Column("dtype", is_left=True),
        Column("bytes", spare=1),
        Column("contents", is_left=True),
    )
    lines = [_part(part, "shared by a batch" if part.is_shared else "new in every call") for part in form.inputs]
    lines += [_part(part, "what you return") for part in form.outputs]
    yield Grid(columns, tuple(lines))


def _part(part: Any, contents: str) -> Line:
    if part.shape is None:
        cells: tuple[str, ...] = (part.name, part.path, "", part.dtype, "", str(part.value))
    else:
        shape = f"{list(part.shape)}{'' if part.is_contiguous else ', strided'}"
        cells = (part.name or "→ output", part.path, shape, part.dtype, f"{part.size_bytes:,}", contents)
    return Line(tuple(Text(plain(cell)) for cell in cells))


def _limits(problem: Any) -> Iterator[Text]:
    if problem.tolerance is None:
        yield Text.assemble(("tolerance", "bold"), "  the problem's own check")
        return
    yield Text("tolerance", "bold")
    for name in problem.precisions or (None,):
        limits = problem.tolerance.for_precision(name)
        label = f"  {name or 'every output'}: worst row {limits.row_relative:g}"
        yield Text(f"{label}, elements {limits.atol:g} + {limits.atol_rms:g}·rms + {limits.rtol:g}·|ref|")


def _regimes(problem: Any) -> Iterator[Text]:
    if problem.regimes:
        yield Text.assemble(("regimes", "bold"), f"  {', '.join(problem.regimes)}: hidden cases draw from all of them")


def _roofline(problem: Any) -> Iterator[Text]:
    if problem.roofline is not None:
        yield Text.assemble(("roofline", "bold"), f"  bytes: {problem.roofline.bytes}")
        for kind, expression in problem.roofline.operations.items():
            yield Text(f"          {kind} operations: {expression}")


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
