"""Copying outputs by a kernel of our own: what it may take as plain memory, and that it copies every bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from harness.timing.seal import _words, copy

ROOT = Path(__file__).resolve().parents[1]
INTERPRETED = """
import torch
from harness.timing.seal import copy

forms = ((4, 2880), torch.bfloat16), ((1024,), torch.int32), ((3, 1, 5, 4), torch.int8), ((7, 2), torch.float64)
for shape, dtype in forms:
    output = torch.randint(-100, 100, shape).to(dtype)
    around = torch.full((output.numel() + 64,), 99, dtype=dtype)
    place = around[:output.numel()].view(shape)
    copy(place, output)
    assert torch.equal(place, output)
    assert (around[output.numel():] == 99).all()
wide = torch.arange(24.0).view(4, 6).t()
place = torch.empty_strided(wide.shape, wide.stride())
copy(place, wide)
assert torch.equal(place, wide)
print("copied")
"""


def test_the_kernel_copies_every_bit_and_nothing_beyond(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", INTERPRETED]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "copied", done.stderr


class Lazy(torch.Tensor):
    """A class of a submission's own: what its memory holds is not for us to say."""


def test_what_is_plain_memory_is_taken_as_words() -> None:
    for plain in (torch.ones(4, 2, dtype=torch.bfloat16), torch.ones(3, 4).t(), torch.nn.Parameter(torch.ones(8))):
        words = _words(plain)
        assert words is not None
        assert words.dtype == torch.int32
        assert words.data_ptr() == plain.data_ptr()
        assert words.numel() * 4 == plain.numel() * plain.element_size()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(8).as_subclass(Lazy),
        torch.ones(8, dtype=torch.complex64).conj(),
        torch.ones(8, dtype=torch.complex64).conj().imag,
        torch.ones(8, 8)[:, :4],
        torch.ones(1).expand(8),
        torch.ones(3, dtype=torch.int8),
        torch.ones(0),
        torch.ones(8)[1:5],
    ],
    ids=["own class", "conjugate", "negative", "gaps", "one element", "odd size", "empty", "odd place"],
)
def test_anything_else_is_left_to_torch_and_copied_all_the_same(tensor: torch.Tensor) -> None:
    assert _words(tensor) is None
    place = torch.full_like(tensor, 7) if tensor.numel() else torch.empty(0)
    copy(place, tensor)
    assert torch.equal(place.resolve_conj().resolve_neg(), tensor.resolve_conj().resolve_neg())


def test_a_transform_s_stand_in_for_a_tensor_is_left_to_torch() -> None:
    seen = []

    def look(row: torch.Tensor) -> torch.Tensor:
        seen.append(_words(row))
        return row

    torch.func.vmap(look)(torch.ones(4, 4))
    assert seen == [None]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(4, 2880), (1, 1), (3, 1000, 1002), (16384, 4096)])
def test_on_a_gpu_it_copies_every_bit_and_nothing_beyond(shape: tuple[int, ...]) -> None:
    output = torch.randint(-(1 << 30), 1 << 30, shape, dtype=torch.int32, device="cuda")
    around = torch.full((output.numel() + 64,), 99, dtype=torch.int32, device="cuda")
    copy(around[: output.numel()].view(shape), output)
    assert torch.equal(around[: output.numel()].view(shape), output)
    assert bool((around[output.numel() :] == 99).all())
