"""One line that says where a run is, while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def progress_line(visible: bool) -> Iterator[Callable[[Any], None]]:
    """A listener for harness.evaluate.Progress that draws on stderr; one that does nothing when not `visible`."""
    if not visible:
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn("line"), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
        task = bar.add_task("start", total=None)

        def listen(progress: Any) -> None:
            if progress is None:
                return
            batches = f", {progress.batches} batches" if progress.batches else ""
            place = f" {progress.done + 1}/{progress.total}  {progress.case}" if progress.total else ""
            bar.update(
                task,
                description=f"{progress.stage}{place}{batches}",
                completed=progress.done,
                total=progress.total or None,
            )

        yield listen
