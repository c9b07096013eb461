"""Trees of problems as GPU MODE keeps them: folders of problems in folders, and files that put some into a set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Listed:
    """A problem in a set's file."""

    folder: Path
    name: str
    """Its board's name there."""
    set_name: str
    """The file's own name, without its ending."""
    deadline: str
    gpus: tuple[str, ...]


def read_sets(root: Path) -> tuple[Listed, ...]:
    """What a tree's set files list, in their order; a file that is none, or lists what is not there, adds nothing."""
    found = []
    for file in sorted([*root.glob("*.yaml"), *root.glob("*.yml")]):
        content = _read(file)
        problems = content.get("problems") if isinstance(content, dict) else None
        for each in problems if isinstance(problems, list) else ():
            if isinstance(each, dict) and isinstance(each.get("directory"), str) and isinstance(each.get("name"), str):
                folder = root / each["directory"]
                gpus = each.get("gpus")
                if (folder / "task.yml").is_file():
                    found.append(
                        Listed(
                            folder.resolve(),
                            each["name"],
                            file.stem,
                            str(each.get("deadline") or content.get("deadline") or ""),
                            tuple(map(str, gpus)) if isinstance(gpus, list) else (),
                        )
                    )
    return tuple(found)


def _read(file: Path) -> Any:
    import yaml

    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
        return yaml.safe_load(content.decode()) if len(content) <= MAX_BYTES else None
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None


def listed_in(roots: Sequence[Path]) -> dict[Path, Listed]:
    """All of these trees, by their folders; of a folder in several sets, the last."""
    return {each.folder: each for root in roots for each in read_sets(root)}
