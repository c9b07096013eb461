"""A comparison as one file to send or keep: a page that needs no script, no network and no other file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from harness.compare import TIE_SHARE, Comparison, PairResult, Ratio
from leaderboard.comparison import (
    STANDING_COLUMNS,
    Times,
    case_times,
    case_words,
    common_words,
    difference,
    extent,
    remarks,
    scale_of,
    sentences,
    spoken,
    standing_rows,
)
from leaderboard.tables import plain

STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1c2024; --dim: #60646c; --rule: #d9d9e0; --band: #e6edfe;
  --faster: #18794e; --slower: #c62a2f; --tie: #0d62c9; --unresolved: #8a5a00; --invalid: #c62a2f; }
@media (prefers-color-scheme: dark) { :root { --page: #111316; --text: #edeef0; --dim: #a0a4ab; --rule: #3a3d42;
  --band: #1d2b4d; --faster: #4cc38a; --slower: #ff7b7f; --tie: #70a5ff; --unresolved: #f1b34a; --invalid: #ff7b7f; } }
body { background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin-top: 2rem; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; } .scroll { overflow-x: auto; } pre { white-space: pre-wrap; margin: 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--rule); }
td.number, th.number { text-align: right; }
svg { display: block; width: 100%; min-width: 34rem; height: auto; font: 13px system-ui, sans-serif; }
svg text { fill: var(--text); } .dim, svg text.dim { color: var(--dim); fill: var(--dim); }
.band { fill: var(--band); } .zero { stroke: var(--text); } .grid { stroke: var(--rule); }
.FASTER { color: var(--faster); } .SLOWER { color: var(--slower); } .TIE { color: var(--tie); }
.UNRESOLVED { color: var(--unresolved); } .INVALID { color: var(--invalid); }
.mark { stroke: currentColor; fill: currentColor; stroke-width: 2; } footer { margin-top: 2rem; font-size: .9rem; }
.warning { color: var(--slower); font-weight: 600; } .dim { font-weight: 400; }
"""

LEFT, MIDDLE, RIGHT = 240, 400, 200
"""Widths of a plot's parts: labels, intervals, verdicts."""
ROW = 24
SHORT = 28
"""Characters of a label in a plot; its tooltip has the rest."""

PlotRow = tuple[str, Ratio, str]
"""Label, what to draw, and what the tooltip adds."""


def comparison_html(comparison: Comparison) -> str:
    """The whole comparison as one HTML document, all pairs in it."""
    kernels = ", ".join(plain(each.label) for each in comparison.entries)
    title = escape(plain(f"{comparison.problem.name}: {kernels}"))
    times, words = case_times(comparison), case_words(comparison)
    pairs = spoken(comparison)
    overall = [(f"{plain(pair.first)} / {plain(pair.second)}", pair.overall, "") for pair in pairs]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style></head>",
            f"<body><h1>{title}</h1>",
            *_warnings(comparison),
            *_verdicts(comparison),
            "<h2>Standings</h2>",
            *_standings(comparison),
            *(_section("All cases together", overall) if overall else []),
            *(line for pair in pairs if pair.cases for line in _pair_section(pair, times, words)),
            *_footer(comparison),
            "</body></html>",
            "",
        ]
    )


# --- words and tables --------------------------------------------------------------------------------------


def _warnings(comparison: Comparison) -> list[str]:
    said = [line for line, style in remarks(comparison) if style != "dim"]
    return [f'<p class="warning">{escape(line)}</p>' for line in said]


def _verdicts(comparison: Comparison) -> list[str]:
    items = (
        f'<li>{escape(before)}<strong class="{word}">{word}</strong>{escape(after)}</li>'
        for before, word, after in sentences(comparison)
    )
    return ["<ul>", *items, "</ul>"]


def _standings(comparison: Comparison) -> list[str]:
    kinds = ["" if column.is_left else ' class="number"' for column in STANDING_COLUMNS]
    titles = "".join(f"<th{kind}>{column.title}</th>" for kind, column in zip(kinds, STANDING_COLUMNS, strict=True))
    lines = ['<div class="scroll"><table>', f"<thead><tr>{titles}</tr></thead>", "<tbody>"]
    for cells, message in standing_rows(comparison):
        row = (f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, cells, strict=True))
        lines.append(f"<tr>{''.join(row)}</tr>")
        if message:
            lines.append(f'<tr><td></td><td colspan="{len(cells) - 1}"><pre>{escape(message)}</pre></td></tr>')
    return [*lines, "</tbody></table></div>"]


def _footer(comparison: Comparison) -> list[str]:
    software = comparison.software
    versions = [f"podium {software.podium}", f"Python {software.python}", f"torch {software.torch}"]
    versions += [f"Triton {software.triton}"] if software.triton else []
    versions += [f"runtime {software.runtime}"] if software.runtime else []
    said = [line for line, style in remarks(comparison) if style == "dim"]
    common = common_words(comparison)
    said += [f"every case: {common}"] if common else []
    said.append(
        "intervals: at the confidence left to each of all pairs, or case by case of all pairs and cases (Holm); "
        "standings: 95 %"
    )
    said.append(", ".join([*versions, software.system]))
    said.append(f"comparison {comparison.id}, {comparison.created}")
    return ['<footer class="dim">', *(f"<div>{escape(plain(line))}</div>" for line in said), "</footer>"]


# --- plots -------------------------------------------------------------------------------------------------


def _pair_section(pair: PairResult, times: Times, words: dict[str, str]) -> list[str]:
    first, second = plain(pair.first), plain(pair.second)
    rows = []
    for name, ratio in pair.cases:
        both = (f"{plain(who)} {times.get((who, name), '–')}" for who in (pair.first, pair.second))
        rows.append((words.get(name, plain(name)), ratio, ", ".join(both)))
    return _section(f"{first} against {second}, case by case", rows)


def _section(title: str, rows: Sequence[PlotRow]) -> list[str]:
    return [f"<h2>{escape(title)}</h2>", '<div class="scroll">', *_plot(title, rows), "</div>"]


def _plot(title: str, rows: Sequence[PlotRow]) -> list[str]:
    """Intervals below each other, in percent of the second's time, with the band of a tie around zero."""
    scale = scale_of([ratio for _, ratio, _ in rows])
    bottom = ROW * (len(rows) + 1)
    told = "; ".join(f"{label}: {_told(ratio)}" for label, ratio, _ in rows)
    band = _x(TIE_SHARE, scale) - _x(-TIE_SHARE, scale)
    lines = [
        f'<svg viewBox="0 0 {LEFT + MIDDLE + RIGHT} {bottom + 2 * ROW}" role="img" '
        f'aria-label="{escape(f"{title}. {told}")}">',
        f'<rect class="band" x="{_x(-TIE_SHARE, scale):.1f}" y="{ROW}" width="{band:.1f}" height="{bottom - ROW}">'
        f"<title>a tie: within ±{100 * TIE_SHARE:g} %</title></rect>",
    ]
    for tick in (-scale, -scale / 2, 0.0, scale / 2, scale):
        x, sign = _x(tick, scale), "+" if tick > 0 else "−" if tick < 0 else ""
        lines.append(
            f'<line class="{"grid" if tick else "zero"}" x1="{x:.1f}" x2="{x:.1f}" y1="{ROW}" y2="{bottom}"/>'
            f'<text class="dim" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{sign}{abs(100 * tick):g} %</text>'
        )
    for index, row in enumerate(rows):
        lines += _row(row, ROW * (index + 1) + ROW // 2, scale)
    middle = LEFT + MIDDLE / 2
    legend = f"← the first is faster · slower → (shaded: a tie, ±{100 * TIE_SHARE:g} %)"
    lines.append(f'<text class="dim" x="{middle}" y="{bottom + 38}" text-anchor="middle">{legend}</text>')
    return [*lines, "</svg>"]


def _row(row: PlotRow, y: int, scale: float) -> list[str]:
    label, ratio, more = row
    short = label if len(label) <= SHORT else label[: SHORT - 1] + "…"
    tooltip = "; ".join(part for part in (f"{label}: {_told(ratio)}", more) if part)
    lines = [
        f'<g class="{ratio.verdict}"><title>{escape(tooltip)}</title>',
        f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(short)}</text>',
    ]
    if ratio.low is not None and ratio.ratio is not None and ratio.high is not None:
        low, middle, high = (_x(end - 1, scale) for end in (ratio.low, ratio.ratio, ratio.high))
        lines.append(f'<line class="mark" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>')
        lines.append(f'<circle class="mark" cx="{middle:.1f}" cy="{y}" r="4"/>')
    shown = " ".join(part for part in (ratio.verdict, difference(ratio)) if part)
    return [*lines, f'<text x="{LEFT + MIDDLE + 24}" y="{y + 4}">{shown}</text>', "</g>"]


def _told(ratio: Ratio) -> str:
    """A plot's row in words."""
    if ratio.verdict == "INVALID" or ratio.ratio is None:
        return f"{ratio.verdict}{f', {plain(ratio.reason)}' if ratio.reason else ''}"
    return f"{ratio.verdict}, {difference(ratio)} ({extent(ratio)})"


def _x(share: float, scale: float) -> float:
    return LEFT + MIDDLE / 2 * (1 + share / scale)
