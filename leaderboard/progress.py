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
    from rich.table import Column

    # The description may be cut at the terminal's edge; the bar and the clock may not.
    text = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
    columns = (SpinnerColumn("line"), BarColumn(bar_width=16), TimeElapsedColumn(), text)
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True, expand=True) as bar:
        task = bar.add_task("start", total=None)

        def listen(progress: Any) -> None:
            batches = f", {progress.batches} samples" if progress.batches else ""
            place = f" {progress.done + 1}/{progress.total}{batches}  {progress.case}" if progress.total else ""
            bar.update(
                task,
                description=f"{progress.stage}{place}",
                completed=progress.done,
                total=progress.total or None,
            )

        yield listen
