"""The tiled layouts of weights and scales: golden vectors, the published address formulas, and the way back."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "problems" / "mx"))
from mx_layout import shuffle_scale, shuffle_weight, unshuffle_scale, unshuffle_weight

GOLDEN = np.load(Path(__file__).parent / "data" / "mxfp4.npz")


def golden(key: str) -> torch.Tensor:
    return torch.from_numpy(GOLDEN[key])


def random_bytes(*shape: int) -> torch.Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["randn", "weight", "pad", "edge"])
def test_scales_are_tiled_as_in_the_golden_file_and_come_back(name):
    scales = golden(f"{name}__dyn_e8m0")
    shuffled = shuffle_scale(scales)
    assert torch.equal(shuffled, golden(f"{name}__dyn_e8m0_shuf"))
    assert torch.equal(unshuffle_scale(shuffled, *scales.shape), scales)


@pytest.mark.parametrize("name", ["randn", "weight", "edge"])
def test_weights_are_tiled_as_in_the_golden_file_and_come_back(name):
    packed = golden(f"{name}__dyn_fp4")
    shuffled = shuffle_weight(packed)
    assert torch.equal(shuffled, golden(f"{name}__dyn_fp4_shuf"))
    assert torch.equal(unshuffle_weight(shuffled), packed)


def test_a_scale_lies_at_the_documented_address():
    scales = random_bytes(70, 11)
    flat = shuffle_scale(scales).flatten()
    assert flat.numel() == 256 * 16
    for r, k in [(0, 0), (0, 4), (16, 0), (1, 0), (0, 1), (0, 8), (32, 0), (69, 10), (47, 7)]:
        tile = (r // 32) * 32 * 16 + (k // 8) * 256
        assert flat[tile + (k % 4) * 64 + (r % 16) * 4 + ((k % 8) // 4) * 2 + (r % 32) // 16] == scales[r, k]


def test_a_weight_byte_lies_at_the_documented_address():
    packed = random_bytes(48, 96)
    flat = shuffle_weight(packed).flatten()
    for n, kb in [(0, 0), (0, 16), (1, 0), (15, 31), (16, 0), (0, 32), (47, 95), (20, 50)]:
        assert flat[((((n // 16) * 3 + kb // 32) * 2 + (kb % 32) // 16) * 16 + n % 16) * 16 + kb % 16] == packed[n, kb]


def test_padding_of_tiled_scales_is_zero():
    shuffled = shuffle_scale(torch.full((33, 18), 127, dtype=torch.uint8))
    assert shuffled.shape == (256, 24)
    assert (shuffled == 127).sum() == 33 * 18
    assert (shuffled == 0).sum() == 256 * 24 - 33 * 18


def test_experts_are_tiled_one_by_one():
    packed = random_bytes(3, 32, 64)
    assert torch.equal(shuffle_weight(packed), torch.stack([shuffle_weight(expert) for expert in packed]))
    assert torch.equal(unshuffle_weight(shuffle_weight(packed)), packed)


def test_moving_rows_by_sixteen_moves_whole_tiles():
    packed = random_bytes(64, 32)
    assert torch.equal(shuffle_weight(packed.roll(16, 0)), shuffle_weight(packed).roll(16, 0))


def test_shapes_that_cannot_be_tiled_are_refused():
    with pytest.raises(ValueError, match="multiple of 16"):
        shuffle_weight(random_bytes(8, 32))
    with pytest.raises(ValueError, match="bytes of 32"):
        unshuffle_weight(random_bytes(16, 48))
    with pytest.raises(ValueError, match="expected 2"):
        shuffle_scale(random_bytes(2, 32, 8))
    with pytest.raises(ValueError, match="cannot hold 257 x 8"):
        unshuffle_scale(random_bytes(256, 8), 257, 8)
