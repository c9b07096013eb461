"""What `podium validate` shows: each variant of a problem, and how far it is from the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from leaderboard.grid import Column, Grid, Line
from leaderboard.tables import SECRET_SEED, plain

COLUMNS = (
    Column("", is_left=True),
    Column("variant", is_left=True, least=16),
    Column("verdict", is_left=True),
    Column("margin"),
    Column("by", is_left=True),
    Column("as", is_left=True),
    Column("gpumode", spare=1),
    Column("decided on", is_left=True, least=16),
)


def margin_summary(problem: Any, device: str, margins: Sequence[Any]) -> dict[str, Any]:
    """Margins (harness.margins.Margin) as JSON-ready data; null for a number that is infinite."""
    return {
        "problem": problem.name,
        "content_hash": problem.content_hash,
        "device": device,
        "ok": all(margin.as_it_should for margin in margins),
        "variants": [_variant(margin) for margin in margins],
    }


def _variant(margin: Any) -> dict[str, Any]:
    trials = [
        {
            "case": trial.case,
            "ok": trial.ok,
            "distance": _finite(trial.distance),
            "measure": trial.measure,
            "precision": trial.precision,
            "published": trial.published,
        }
        for trial in margin.trials
    ]
    return {
        "name": margin.name,
        "does": margin.sentence,
        "honest": margin.honest,
        "precision": margin.precision,
        "as_it_should": margin.as_it_should,
        "margin": _finite(margin.factor),
        "near": margin.near,
        "trials": trials,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def margin_table(margins: Sequence[Any]) -> RenderableType:
    """Wrong variants, then right ones, each at the precision where its verdict is least sure."""
    cases = list(dict.fromkeys(trial.case for margin in margins for trial in margin.trials))
    parts: list[RenderableType] = []
    for honest, heading in ((False, "wrong: must fail on a case at least"), (True, "right: must pass on every case")):
        chosen = [margin for margin in margins if margin.honest == honest]
        lines = tuple(_line(least_sure(list(group)), cases) for _, group in groupby(chosen, lambda each: each.name))
        parts += [Text(heading, "bold"), Grid(COLUMNS, lines), Text()]
    return Group(*parts, *summary(margins))


def least_sure(margins: Sequence[Any]) -> Any:
    """Of one variant at several precisions the one that is wrongly judged, or else nearest to the limit."""
    return min(margins, key=lambda margin: (margin.as_it_should, margin.factor))


def _line(margin: Any, cases: Sequence[str]) -> Line:
    mark, colour = ("✗", "red") if not margin.as_it_should else ("~", "yellow") if margin.near else ("✓", "green")
    failed, total = sum(not trial.ok for trial in margin.trials), len(margin.trials)
    accepted = [trial.published for trial in margin.trials if trial.published is not None]
    cells = (
        margin.name,
        f"fails {failed} of {total}" if failed else f"passes {total}",
        factor(margin.factor),
        margin.deciding.measure,
        margin.deciding.precision or "",
        f"passes {sum(accepted)}" if accepted else "",
        label(margin.deciding.case, cases),
    )
    return Line((Text(mark, colour), *(Text(plain(cell)) for cell in cells)), (Text(plain(margin.sentence), "dim"),))


def factor(value: float) -> str:
    """A margin as a multiple of the limit."""
    return "∞" if math.isinf(value) else f"{value:.{2 if value < 10 else 0}f}x"


def label(case: str, cases: Sequence[str]) -> str:
    """What tells a case from the others: its words, without those that all have and seeds that say nothing."""
    common = set.intersection(*(set(each.split()) for each in cases)) if len(cases) > 1 else set()
    return " ".join(word for word in case.split() if word not in common and not _is_secret(word))


def _is_secret(word: str) -> bool:
    name, _, value = word.partition("=")
    return name == "seed" and value.isdigit() and int(value) >= SECRET_SEED


def summary(margins: Sequence[Any]) -> list[Text]:
    """How many there are, and which ones are misjudged or near the limit."""
    wrong = sum(not margin.honest for margin in margins)
    misjudged = [margin for margin in margins if not margin.as_it_should]
    near = [margin for margin in margins if margin.as_it_should and margin.near]
    lines = [
        Text(f"{'passes' if not each.honest else 'fails'}, and should not: {full_name(each)}", "bold red")
        for each in misjudged
    ]
    lines += [Text(f"nearer than 1.5x: {full_name(each)}, {factor(each.factor)}", "yellow") for each in near]
    if not misjudged:
        lines.append(Text(f"all {wrong} wrong variants fail, all {len(margins) - wrong} right ones pass", "bold green"))
    return lines


def full_name(margin: Any) -> str:
    """A variant's name, with its precision."""
    return plain(f"{margin.name} [{margin.precision}]" if margin.precision else margin.name)
