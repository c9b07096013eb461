"""Runs a problem's own variants, right and wrong ones, through the judge: can its tolerance tell them apart?

The problem's files are trusted: all of this happens in one process, where no submission ever is. Its `mutants.py` is
laid beside its other files, may import them, and lists functions under WRONG and HONEST. A function takes the data of a
case and returns an output, or None where there is nothing for it to do; one that also takes `precision` runs at each
declared one. Its name and its docstring's first paragraph are what people read.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from harness.cases import Case, regime_cases
from harness.errors import DeviceError, ProblemError
from harness.margins import Margin, Trial, try_out
from harness.problem import Problem
from harness.processes.reference import Reference
from harness.progress import Listener, Progress

MUTANTS = "mutants.py"
REGIMES_SEED = b"podium validate"
"""What the seeds of the regimes' cases are made from: the same in every run, so that two tables can be compared."""


@dataclass(frozen=True)
class Variant:
    """A way to solve the problem, at one of its precisions where the function takes one."""

    name: str
    sentence: str
    honest: bool
    precision: str | None
    run: Callable[[Any], torch.Tensor | None]


def validate(problem: Problem, device: str, listen: Listener = lambda progress: None) -> tuple[Margin, ...]:
    """The margin of each variant over the device's test cases and one case in each further regime.

    ProblemError where there is nothing to measure, or a variant returns something of another form than the reference.
    """
    if problem.tolerance is None:
        raise ProblemError(f"{problem.name} is judged by its own check: add `tolerance` to its task.yml to validate it")
    if not (problem.folder / MUTANTS).is_file():
        raise ProblemError(f"{problem.folder} has no {MUTANTS}: add one that lists variants under WRONG and HONEST")
    cases = validated_cases(problem, device)
    with opened(problem) as (reference, mutants), torch.no_grad():
        variants = variants_of(mutants, problem)
        trials: list[list[Trial]] = [[] for _ in variants]
        for number, case in enumerate(cases):
            listen(Progress("judge variants", case.name, number, len(cases)))
            for found, trial in zip(trials, _trials(reference, variants, case, device), strict=True):
                found += trial
    return tuple(
        Margin(variant.name, variant.sentence, variant.honest, variant.precision, tuple(found))
        for variant, found in zip(variants, trials, strict=True)
        if found
    )


def validated_cases(problem: Problem, device: str) -> tuple[Case, ...]:
    """The test cases that a device runs, and the first of them in each regime that none is in."""
    tests, _ = problem.cases_on(device.partition(":")[0])
    return (*tests, *regime_cases(REGIMES_SEED, tests, problem.regimes))


@contextlib.contextmanager
def opened(problem: Problem) -> Iterator[tuple[Reference, ModuleType]]:
    """The problem's reference and variants, imported from a folder where its files lie flat; forgotten afterwards."""
    files = {entry.name: entry.source for entry in problem.oracle_files} | {MUTANTS: problem.folder / MUTANTS}
    modules = [name.removesuffix(".py") for name in files]
    before = {name: sys.modules.pop(name) for name in modules if name in sys.modules}
    path, folder, home = list(sys.path), tempfile.mkdtemp(prefix="podium-validate-"), Path.cwd()
    try:
        for name, source in files.items():
            shutil.copyfile(source, Path(folder, name))
        sys.path.insert(0, folder)
        os.chdir(folder)
        importlib.invalidate_caches()
        assert problem.tolerance is not None
        precisions = problem.precisions or (None,)
        limits = {name: problem.tolerance.for_precision(name) for name in precisions}
        yield (
            Reference(importlib.import_module("reference"), precisions, limits, ()),
            importlib.import_module("mutants"),
        )
    finally:
        os.chdir(home)
        sys.path[:] = path
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)
        shutil.rmtree(folder, ignore_errors=True)


def variants_of(mutants: ModuleType, problem: Problem) -> tuple[Variant, ...]:
    """What a problem's `mutants.py` lists, the wrong ones first."""
    return tuple(
        variant
        for listed, honest in (("WRONG", False), ("HONEST", True))
        for function in _listed(mutants, listed, problem)
        for variant in _variants(function, honest, problem.precisions)
    )


def _listed(mutants: ModuleType, name: str, problem: Problem) -> Sequence[Callable[..., Any]]:
    place, functions = problem.folder / MUTANTS, getattr(mutants, name, None)
    if not isinstance(functions, list | tuple) or not functions:
        raise ProblemError(f"{place} has no list {name}: put there the functions that are to be tried")
    for function in functions:
        if not (inspect.isfunction(function) and function.__doc__):
            raise ProblemError(f"{place}: {function!r} in {name} should be a function with a docstring")
    return functions


def _variants(function: Callable[..., Any], honest: bool, precisions: Sequence[str]) -> Iterator[Variant]:
    name = function.__name__.replace("_", " ")
    sentence = " ".join((function.__doc__ or "").split("\n\n")[0].split())
    if "precision" not in inspect.signature(function).parameters:
        yield Variant(name, sentence, honest, None, function)
        return
    for precision in precisions or (None,):
        yield Variant(name, sentence, honest, precision, functools.partial(function, precision=precision))


def _trials(reference: Reference, variants: Sequence[Variant], case: Case, device: str) -> Iterator[list[Trial]]:
    """For each variant its trial on a case; none where it has nothing to do there."""
    data = reference.generate(case.spec)
    wanted = reference.output(data)
    if wanted.device.type != device.partition(":")[0]:
        raise DeviceError(f"the inputs were made on {wanted.device.type}, not on {device}: choose that --device")
    references = {name: reference.expected(data, name, None) for name in reference.precisions}
    assert reference.limits is not None
    for variant in variants:
        output = variant.run(data)
        if output is None:
            yield []
            continue
        _check_form(variant, output, wanted)
        published = reference.published(data, output)
        accepted = None if published is None else published[0]
        yield [try_out(case.name, output, references, reference.limits, accepted)]


def _check_form(variant: Variant, output: torch.Tensor, wanted: torch.Tensor) -> None:
    if (output.shape, output.dtype, output.device) != (wanted.shape, wanted.dtype, wanted.device):
        forms = [f"{each.dtype} {tuple(each.shape)} on {each.device}" for each in (output, wanted)]
        raise ProblemError(f"{MUTANTS}: {variant.name!r} returned {forms[0]}: expected {forms[1]}")
