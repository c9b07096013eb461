"""What a problem's own generator and check let pass: found out before anything of a submission's is believed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from harness.judge import poison, same_bits
from harness.processes import sharing
from harness.processes.reference import Reference, copied

LOOKED_AT = 3
"""Cases, the first ones: a check that accepts a wrong output on all of these is told."""


def weaknesses(reference: Reference, specs: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """What a user should know of a problem that is judged by its own check, each in a sentence."""
    looked = specs[:LOOKED_AT]
    found = [_sameness(reference, looked[0])] if looked else []
    fills: dict[str, Callable[[torch.Tensor], object]] = {
        "zeros": torch.Tensor.zero_,
        "NaN": lambda tensor: tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor,
        "what lies in a buffer that was never written": poison,
    }
    for name, fill in fills.items():
        if looked and all(_accepts(reference, spec, fill) for spec in looked):
            found.append(f"this problem's own check accepts an output of {name}: a pass says little")
    return tuple(text for text in found if text)


def _sameness(reference: Reference, spec: dict[str, Any]) -> str:
    """Whether the answer to another seed is the same (a buffer among the inputs may differ by what lay there)."""
    other = {**spec, "seed": int(spec["seed"]) + 1} if "seed" in spec else spec
    one, another = (sharing.tensors(reference.output(reference.generate(each))) for each in (spec, other))
    forms = [[(tensor.shape, tensor.dtype) for tensor in each] for each in (one, another)]
    if forms[0] == forms[1] and all(same_bits(*pair) for pair in zip(one, another, strict=True)):
        return "this problem's answers are the same for every seed: a submission may have them ready"
    return ""


def _accepts(reference: Reference, spec: dict[str, Any], fill: Callable[[torch.Tensor], object]) -> bool:
    """Whether the check takes the right output's form, filled anew, for right."""
    data = reference.generate(spec)
    right = reference.output(data)
    wrong = copied(right)
    for tensor in sharing.tensors(wrong):
        fill(tensor)
    pairs = zip(sharing.tensors(right), sharing.tensors(wrong), strict=True)
    if all(torch.equal(*pair) for pair in pairs):
        return False  # that is the right answer here
    try:
        found = reference.published(data, wrong)
    except Exception:  # noqa: BLE001  a check that cannot cope with it does not accept it
        return False
    return found is not None and found[0]
