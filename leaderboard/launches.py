"""What a submission launched, in words: remarks of its own process's profiler."""

from __future__ import annotations

import re
from itertools import groupby

from harness.record import CaseResult, Kernel, Record

_LIBRARIES = re.compile(
    r"aten::|(void )?(at::|cub::|cutlass|cublas|cudnn)|void (gemv2|gemmk1|gemmSN|splitK)|nvjet|sm\d+_|ampere_|volta_|"
    r"turing_|rocblas|Cijk_|Memcpy|Memset|\[memory\]"
)
"""How names of kernels and operators begin that come with torch and the vendors' libraries."""
_SHOWN = 6


def launch_sentences(record: Record) -> list[str]:
    """A sentence for cases in a row that launch the same, and one where nothing of the submission's own is among it."""
    listed = [case for case in record.timed if case.kernels]
    sentences = []
    for kernels, group in groupby(listed, lambda case: case.kernels):
        cases = list(group)
        is_every = len(cases) == len(listed)
        where = "every case launches" if is_every else f"{' and '.join(map(_shape, cases))}:"
        sentences.append(f"{where} {_words(kernels)}")
    everything = [kernel for case in listed for kernel in case.kernels]
    if everything and all(map(_is_library, everything)):
        sentences.append("all of it comes with torch or the vendor's libraries")
    return sentences


def _shape(case: CaseResult) -> str:
    return " ".join(f"{key}={value}" for key, value in case.spec.items() if key != "seed")


def _words(kernels: tuple[Kernel, ...]) -> str:
    words = [each.name + (f" ×{each.launches}" if each.launches > 1 else "") for each in kernels[:_SHOWN]]
    left = len(kernels) - _SHOWN
    return ", ".join(words) + (f" and {left} more" if left > 0 else "")


def _is_library(kernel: Kernel) -> bool:
    return _LIBRARIES.match(kernel.name) is not None
