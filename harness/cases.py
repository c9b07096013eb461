"""Cases: which sizes, and which seeds, a run asks for."""

from __future__ import annotations

import difflib
import hashlib
import hmac
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.errors import ProblemError
from harness.record import Scalar


@dataclass(frozen=True)
class Case:
    """One set of arguments of the problem's generator, in the order of task.yml."""

    spec: dict[str, Scalar]
    is_hidden: bool = False
    """Its seed is for the oracle alone: what is shown or kept of the case is without it."""

    @property
    def name(self) -> str:
        """The case as `key=value` words, as `--case` takes it; of a hidden one, those that may be shown."""
        return _words(self.shown)

    @property
    def key(self) -> str:
        """All its words, which tell it from every other case: never shown or kept."""
        return _words(self.spec)

    @property
    def shown(self) -> dict[str, Scalar]:
        """What may be told of it."""
        return self.shape if self.is_hidden else self.spec

    def without_seed(self, text: str) -> str:
        """A text that may have its seed in it, as it may be shown."""
        return text.replace(str(self.spec["seed"]), "(hidden)") if self.is_hidden else text

    @property
    def shape(self) -> dict[str, Scalar]:
        """Everything but the seed: what makes two runs' cases the same."""
        return {key: value for key, value in self.spec.items() if key != "seed"}

    def with_seed(self, seed: int) -> Case:
        """The same case on other contents; unchanged where the problem has no seed."""
        return replace(self, spec={**self.spec, "seed": seed}) if "seed" in self.spec else self


def _words(spec: dict[str, Scalar]) -> str:
    return " ".join(f"{key}={_show(value)}" for key, value in spec.items())


def _show(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return shlex.quote(value) if isinstance(value, str) else str(value)


def parse_case(text: str, names: Sequence[str]) -> dict[str, Scalar]:
    """`m=16 n=2112` as values typed as YAML types them; ProblemError when a word does not fit `names`."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ProblemError(f"--case {text!r}: {error}") from None
    spec: dict[str, Scalar] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise ProblemError(f"--case {text!r}: {word!r} is not key=value")
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; this problem's keys are {', '.join(names)}"
            raise ProblemError(f"--case {text!r}: unknown key {key!r}{hint}")
        if key in spec:
            raise ProblemError(f"--case {text!r}: {key!r} is given twice")
        spec[key] = _typed(value)
    if not spec:
        raise ProblemError("--case is empty; give it as 'key=value key=value'")
    return spec


def _typed(value: str) -> Scalar:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            continue
        return number if math.isfinite(number) else value  # inf and nan are words: a size is neither
    return value


def _matches(given: dict[str, Scalar], case: Case) -> bool:
    """Whether all given words are the case's, as `name` shows it: text that reads as a number is one here."""
    return given.items() <= {key: _typed(str(value)) for key, value in case.spec.items()}.items()


def select_cases(texts: Sequence[str], listed: Sequence[Case], optional: Sequence[str] = ()) -> tuple[Case, ...]:
    """What `--case` asks for: listed cases that match the given words, or a new one that gives every key.

    The seed may be left out of a new case (it is then 0); so may the keys in `optional` and those that not every
    listed case has. ProblemError when a text matches nothing and does not give every other key.
    """
    names = list(dict.fromkeys([*(key for case in listed for key in case.spec), *optional]))
    chosen: list[Case] = []
    for text in texts:
        given = parse_case(text, names)
        matching = [case for case in listed if _matches(given, case)]
        sometimes = {*optional, "seed", *(name for name in names if any(name not in case.spec for case in listed))}
        missing = [name for name in names if name not in given and name not in sometimes]
        if matching:
            chosen += matching
        elif not missing:
            seeded = given if "seed" in given or "seed" not in names else {**given, "seed": 0}
            chosen.append(Case({name: seeded[name] for name in names if name in seeded}))
        else:
            raise ProblemError(
                f"--case {text!r} matches no listed case, and a case of your own also needs {', '.join(missing)}"
            )
    return tuple({case.name: case for case in chosen}.values())


def regime_cases(
    master: bytes, cases: Sequence[Case], regimes: Sequence[str], *, is_hidden: bool = False
) -> tuple[Case, ...]:
    """The first case once in each regime that none of the cases has, the first regime being what the others are in."""
    known = {case.spec.get("regime", regimes[0] if regimes else None) for case in cases}
    left = [regime for regime in regimes if regime not in known]
    tried = [Case({**cases[0].spec, "regime": regime}) for regime in left if cases]
    return secret_seeds(master, tried, is_hidden=is_hidden)


def secret_seeds(master: bytes, cases: Sequence[Case], *, is_hidden: bool = False) -> tuple[Case, ...]:
    """The same cases with seeds that nobody knows before the run: 62 bits of HMAC-SHA-256(master, case)."""
    return tuple(
        replace(case.with_seed(_secret_seed(master, case)), is_hidden=is_hidden and "seed" in case.spec)
        for case in cases
    )


def _secret_seed(master: bytes, case: Case) -> int:
    return int.from_bytes(hmac.new(master, case.key.encode(), hashlib.sha256).digest()[:8], "big") >> 2
