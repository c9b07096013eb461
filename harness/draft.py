"""A new problem's folder: the files of a starter, itself a whole problem, with other names, dtypes, sizes in them."""

from __future__ import annotations

import difflib
import io
import keyword
import re
import shlex
import shutil
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import ProblemError
from harness.problem import find_named

STARTERS = Path(__file__).resolve().parents[1] / "problems" / "starters"
PLACEHOLDER = "my_problem"
"""What a starter's files call the problem."""
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
TORCH = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
MAX_SIZE, MAX_CASES = 2**31 - 1, 100
_COARSEST = ("bf16", "fp16", "fp32")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_TAKEN = {"seed", "regime", "min", "max", "ceil", "yes", "no", "on", "off", "true", "false", "null"}
"""What the harness, a roofline and YAML understand by themselves."""
_SHARED_WORD = {"rows"}
"""A parameter of `expected` and a likely name of a dimension, which the starters never use in one function."""


@dataclass(frozen=True)
class Tensor:
    """One input, or the output."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    """In the names of the case."""

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} [{', '.join(self.shape)}]"


@dataclass(frozen=True)
class Starter:
    """A problem to begin with, as its files have it."""

    kind: str
    tensors: tuple[Tensor, ...]
    """The output last."""
    sizes: dict[str, tuple[int, ...]]
    """Of the benchmarks, a list of one length for each name."""
    limits: dict[str, str]
    """`tolerance` by the coarsest dtype: what `podium validate` finds wide and narrow enough."""
    multiplies: bool = False
    """Its inputs meet in a product, which takes them in one dtype."""

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        return STARTERS / self.kind


def _starter(
    kind: str, tensors: str, sizes: dict[str, tuple[int, ...]], limits: dict[str, str], multiplies: bool = False
) -> Starter:
    parts = (text.partition(" ") for text in tensors.split("; "))
    found = tuple(Tensor(name, "bf16", tuple(shape.split(" "))) for name, _, shape in parts)
    return Starter(kind, found, sizes, limits, multiplies)


KINDS = {
    starter.kind: starter
    for starter in (
        _starter(
            "elementwise",
            "x tokens hidden; weight hidden; y tokens hidden",
            {"tokens": (1024, 4096, 8192), "hidden": (4096, 4096, 8192)},
            {
                "bf16": "{row_relative: 0.012, rtol: 0.0156, atol_rms: 0.0001}",
                "fp16": "{row_relative: 0.0015, rtol: 0.002, atol_rms: 0.0001}",
                "fp32": "{row_relative: 0.00001, rtol: 0.00001, atol_rms: 0.000001}",
            },
        ),
        _starter(
            "matmul",
            "x m k; weight k n; y m n",
            {"m": (16, 512, 4096), "n": (4096, 4096, 4096), "k": (4096, 4096, 4096)},
            {
                "bf16": "{row_relative: 0.012, rtol: 0.0156, atol_rms: 0.0001}",
                "fp16": "{row_relative: 0.0015, rtol: 0.002, atol_rms: 0.0001}",
                "fp32": "{row_relative: 0.00002, rtol: 0.00001, atol_rms: 0.00005}",
            },
            multiplies=True,
        ),
        _starter(
            "attention",
            "query heads queries width; key heads keys width; value heads keys width; result heads queries width",
            {
                "heads": (32, 32, 32),
                "queries": (16, 1024, 4096),
                "keys": (4096, 1024, 4096),
                "width": (128, 128, 128),
            },
            {
                "bf16": "{row_relative: 0.02, rtol: 0.0156, atol_rms: 0.02}",
                "fp16": "{row_relative: 0.004, rtol: 0.002, atol_rms: 0.004}",
                "fp32": "{row_relative: 0.0001, rtol: 0.0001, atol_rms: 0.0001}",
            },
            multiplies=True,
        ),
    )
}


@dataclass(frozen=True)
class Draft:
    """A problem that is not written yet; each answer makes another one."""

    name: str
    starter: Starter
    tensors: tuple[Tensor, ...]
    sizes: dict[str, tuple[int, ...]]
    chosen: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Sizes that were asked for; those of the other names follow in number."""

    # --- answers ---------------------------------------------------------------------------------------

    def with_dtype(self, dtype: str) -> Draft:
        """All tensors in this dtype."""
        return replace(self, tensors=tuple(replace(each, dtype=dtype) for each in self.tensors))

    def with_tensor(self, index: int, text: str) -> Draft:
        """One tensor by another name, in another dtype, its dimensions by other names, as `x bf16 [m, k]` says.

        A dimension's name changes wherever it occurs; the first tensor's dtype is that of all which had its old one.
        """
        before = self.tensors[index]
        after = _tensor(text, before)
        pairs = list(zip(before.shape, after.shape, strict=True))
        renamed = dict(pairs)
        if any(renamed[old] != new for old, new in pairs):
            raise ProblemError(f"{text!r}: {', '.join(before.shape)} may have other names, and the same ones are alike")
        _check_apart([renamed.get(name, name) for name in self.sizes], text)
        tensors = [replace(each, shape=tuple(renamed.get(dim, dim) for dim in each.shape)) for each in self.tensors]
        if index == 0:
            tensors = [replace(each, dtype=after.dtype) if each.dtype == before.dtype else each for each in tensors]
        tensors[index] = after
        sizes, chosen = (
            {renamed.get(name, name): values for name, values in old.items()} for old in (self.sizes, self.chosen)
        )
        draft = replace(self, tensors=tuple(tensors), sizes=sizes, chosen=chosen)
        draft._check_names(text)
        inputs = tensors[:-1]
        if self.starter.multiplies and any(each.dtype != inputs[0].dtype for each in inputs[: index + 1]):
            raise ProblemError(f"{text!r}: what is multiplied with {inputs[0].name} is {inputs[0].dtype}, as that is")
        return draft

    def with_sizes(self, name: str, text: str) -> Draft:
        """What a name of the case is in the benchmarks: `1024, 4096` for two of them, one number for all."""
        if name not in self.sizes:
            near = difflib.get_close_matches(name, self.sizes, n=1)
            raise ProblemError(
                f"{name!r} is no size of this problem; " + (f"did you mean {near[0]!r}?" if near else self._names())
            )
        values = tuple(_size(word, name) for word in re.split(r"[\s,]+", text.strip(" ,")))
        counts = {len(each) for each in self.chosen.values() if len(each) > 1}
        if len(values) > 1 and counts - {len(values)}:
            raise ProblemError(f"{name}: {len(values)} sizes for {max(counts)} cases; give one, or one for each case")
        if len(values) > MAX_CASES:
            raise ProblemError(f"{name}: {len(values)} sizes; {MAX_CASES} cases are the most that can be begun with")
        return replace(self, chosen={**self.chosen, name: values})

    # --- what follows from them ------------------------------------------------------------------------

    def sizes_of(self, name: str) -> tuple[int, ...]:
        """What a name is in the benchmarks: as chosen, or as the starter has it, in the number of a chosen list."""
        count = max([len(each) for each in self.chosen.values() if len(each) > 1] or [len(self.sizes[name])])
        values = self.chosen.get(name) or self.sizes[name]
        return tuple(values[min(index, len(values) - 1)] for index in range(count))

    @property
    def cases(self) -> list[dict[str, int]]:
        """The benchmarks, each once."""
        rows = zip(*(self.sizes_of(name) for name in self.sizes), strict=True)
        return [dict(zip(self.sizes, row, strict=True)) for row in dict.fromkeys(rows)]

    @property
    def limits(self) -> str:
        """`tolerance` for the coarsest of the dtypes."""
        return self.starter.limits[min((each.dtype for each in self.tensors), key=_COARSEST.index)]

    def files(self) -> dict[str, str]:
        """The folder's files by name."""
        texts = _texts(self.starter)
        texts["task.py"] = _line("DTYPES = ", f"{{{', '.join(self._dtypes())}}}", texts["task.py"])
        task = _line("tolerance: ", self.limits, texts["task.yml"])
        task = _line("  bytes: ", f'"{self._bytes()}"', task)
        if self.starter.multiplies and self.tensors[0].dtype == "fp32":
            task = task.replace("operations: {bf16:", "operations: {fp32:")
        before, head, _ = task.partition("benchmarks:\n")  # a starter's last lines
        texts["task.yml"] = before + head + "".join(self._case_lines())
        names = {PLACEHOLDER: self.name, **self._renamed()}
        return {file: _with_names(text, names) for file, text in texts.items()}

    def _dtypes(self) -> Iterator[str]:
        for old, new in zip(self.starter.tensors, self.tensors, strict=True):
            yield f'"{old.name}": torch.{TORCH[new.dtype]}'

    def _bytes(self) -> str:
        pairs = zip(self.starter.tensors, self.tensors, strict=True)
        return " + ".join(f"{BYTES[new.dtype]}*{'*'.join(old.shape)}" for old, new in pairs)

    def _case_lines(self) -> Iterator[str]:
        for number, case in enumerate(self.cases, start=101):
            words = (f"{old}: {value}" for old, value in zip(self.starter.sizes, case.values(), strict=True))
            yield f"  - {{{', '.join(words)}, seed: {number}}}\n"

    # --- names -----------------------------------------------------------------------------------------

    def _renamed(self) -> dict[str, str]:
        """The starter's names of tensors and dimensions, each with the one that it has here."""
        tensors = {old.name: new.name for old, new in zip(self.starter.tensors, self.tensors, strict=True)}
        return tensors | dict(zip(self.starter.sizes, self.sizes, strict=True))

    def _check_names(self, text: str) -> None:
        """That renaming leaves apart what was apart."""
        renamed = self._renamed()
        _check_apart(list(renamed.values()), text)
        for word in _identifiers(self.starter) - _SHARED_WORD - renamed.keys():
            if word in renamed.values():
                raise ProblemError(f"{text!r}: {word!r} has a meaning in the files that are written; take another name")

    def _names(self) -> str:
        return f"there are {', '.join(self.sizes)}"


def begin(name: str, kind: str) -> Draft:
    """A draft that is the starter itself, by another name."""
    starter = KINDS[kind]
    return Draft(name, starter, starter.tensors, dict(starter.sizes))


def check_name(name: str, roots: Sequence[Path]) -> None:
    """ProblemError unless a problem, its folder and a module could be called so, and none is yet."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ProblemError(
            f"{name!r} cannot be a problem's name: a letter, then letters, digits and underscores, 64 in all"
            + (" (and no word of Python's)" if keyword.iskeyword(name) else "")
        )
    try:
        folder = find_named(name, roots)
    except ProblemError:
        return
    raise ProblemError(f"there is a problem {name} already ({folder}); boards go by names, so take another one")


def write(draft: Draft, folder: Path) -> tuple[Path, ...]:
    """Make the folder, which must not be there yet, and the files in it; all of them, or nothing is left."""
    if folder.name != draft.name:
        raise ProblemError(
            f"a problem is called like its folder: --folder {folder / draft.name} would be one for {draft.name}"
        )
    texts = draft.files()
    try:
        folder.mkdir()
    except FileExistsError:
        raise ProblemError(f"{folder} exists already and is left as it is; take another name, or --folder") from None
    except OSError as error:
        raise ProblemError(f"{folder} cannot be made: {error.strerror}") from None
    try:
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        _remove(folder)
        raise ProblemError(f"{folder} cannot be written: {error.strerror}") from None
    except BaseException:  # stopped in the middle
        _remove(folder)
        raise
    return tuple(folder / file for file in texts)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


# --- words -------------------------------------------------------------------------------------------------


def _tensor(text: str, before: Tensor) -> Tensor:
    """`NAME DTYPE [SHAPE]`, of which all but the name may be left out; as many dimensions as before."""
    found = re.fullmatch(r"\s*([^\s:\[]+)\s*:?\s*([^\s\[]+)?\s*(?:\[([^\]]*)\])?\s*", text)
    if found is None:
        raise ProblemError(f"{text!r} is no tensor; say it as {str(before)!r}")
    name, dtype, shape = found.groups()
    short = {TORCH[each]: each for each in TORCH}
    dtype = short.get(dtype or before.dtype, dtype or before.dtype)
    if dtype not in TORCH:
        raise ProblemError(f"{text!r}: {dtype!r} is none of {', '.join(TORCH)}")
    dims = before.shape if shape is None else tuple(re.findall(r"[^\s,×]+", shape))
    if len(dims) != len(before.shape):
        raise ProblemError(
            f"{text!r}: {before.name} has {len(before.shape)} dimensions ({', '.join(before.shape)}), which may be "
            "called otherwise; another number of them is for you to write into reference.py"
        )
    for word in (name, *dims):
        if not _NAME.fullmatch(word) or keyword.iskeyword(word) or word.lower() in _TAKEN:
            raise ProblemError(f"{text!r}: {word!r} cannot be a name; a letter, then letters, digits and underscores")
    return Tensor(name, dtype, dims)


def _check_apart(names: Sequence[str], text: str) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ProblemError(f"{text!r}: {twice[0]!r} is the name of something else here")


def _size(word: str, name: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", word) or not 1 <= int(word) <= MAX_SIZE:
        raise ProblemError(f"{name}: {word!r} is no whole number from 1 to {MAX_SIZE}")
    return int(word)


def _texts(starter: Starter) -> dict[str, str]:
    """A starter's files; what else may lie there, as compiled Python does, is none."""
    files = sorted(path for path in starter.folder.iterdir() if path.suffix in (".py", ".yml", ".md"))
    return {path.name: path.read_text(encoding="utf-8") for path in files}


def _identifiers(starter: Starter) -> set[str]:
    """All names in the starter's Python: variables, functions, modules."""
    return {
        token.string
        for file, text in _texts(starter).items()
        if file.endswith(".py")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.NAME
    }


def _line(start: str, content: str, text: str) -> str:
    """The text with what follows `start` on its line replaced."""
    changed, count = re.subn(rf"^{re.escape(start)}.*$", lambda _: start + content, text, flags=re.MULTILINE)
    assert count == 1, f"a starter has one line {start!r}"
    return changed


def _with_names(text: str, names: Mapping[str, str]) -> str:
    """Each name wherever it stands as a word of its own, or as a part between underscores: `x_ptr` has x in it."""
    either = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    return re.sub(rf"(?<![A-Za-z0-9])({either})(?![A-Za-z0-9])", lambda found: names[found[0]], text)


def next_commands(folder: Path) -> list[str]:
    """What to run next, as one types it from here."""
    place, template = shlex.quote(str(folder)), shlex.quote(str(folder / "template.py"))
    return [
        f"podium problems {place}",
        f"podium validate {place}",
        f"podium submit {template} -p {place} --mode test",
    ]
