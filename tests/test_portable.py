"""Portable random inputs: pinned bits, a second implementation in plain integers, and the statistics one relies on."""

import hashlib
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "problems" / "mx"))
import portable
from portable import (
    default_device,
    normal_table,
    plant_dominant,
    portable_integers,
    portable_normal,
    sample_table,
)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def finalise(h: int) -> int:
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


def hash_of(index: int, seed: int, stream: str) -> int:
    high, low = divmod(index, 2**31)
    digest = hashlib.blake2b(f"{seed}/{high}/{stream}".encode(), digest_size=8).digest()
    before, after = (int.from_bytes(digest[i : i + 4], "little") for i in (0, 4))
    return finalise((finalise(low ^ before) + after) & 0xFFFFFFFF)


def correlation(x: torch.Tensor, y: torch.Tensor) -> float:
    """In standard errors: below 4 or 5 for independent samples."""
    return abs((x.double() * y.double()).mean().item()) * len(x) ** 0.5


def test_the_first_numbers_of_a_stream_are_these_for_ever():
    assert portable_normal((6,), 124, "A", device="cpu").tolist() == [
        0.96484375,
        0.375,
        1.7109375,
        0.484375,
        3.125,
        0.296875,
    ]
    assert portable_normal((3,), 2**63 - 1, "q", device="cpu").tolist() == [1.15625, -0.126953125, 0.3125]
    assert portable_integers((8,), 1000, 7, "ids", "cpu").tolist() == [626, 776, 159, 164, 463, 686, 86, 16]


def test_the_table_of_normal_values_is_this_one_for_ever():
    table = normal_table()
    assert hashlib.blake2b(table.view(torch.int16).numpy().tobytes(), digest_size=8).hexdigest() == "be2704eda3ffeefd"
    assert (table[0].item(), table[32768].item(), table[-1].item()) == (-4.3125, 1.9073486328125e-05, 4.3125)


@pytest.mark.parametrize("first", [0, 12345, 2**31 - 40, 5 * 2**31 - 1])
def test_the_hash_is_the_one_plain_integers_give(first):
    counting = torch.arange(65536, dtype=torch.int32)
    drawn = sample_table(counting, (100,), 99, "W", "cpu", first=first)
    assert drawn.tolist() == [hash_of(first + i, 99, "W") >> 16 for i in range(100)]


def test_integers_are_the_scaled_hash():
    drawn = portable_integers((50,), 2**31, 3, "x", "cpu")
    assert drawn.tolist() == [hash_of(i, 3, "x") >> 1 for i in range(50)]


def test_a_tensor_made_in_pieces_has_the_bits_of_one_made_whole(monkeypatch):
    whole = portable_normal((7, 1000), 5, "W", device="cpu")
    monkeypatch.setitem(portable._CHUNK_ELEMENTS, "cpu", 64)
    pieces = [sample_table(normal_table(), (1000,), 5, "W", "cpu", first=1000 * i) for i in range(7)]
    assert torch.equal(torch.stack(pieces), whole)


def test_seeds_and_streams_are_independent():
    x, other_seed, other_stream = (
        portable_normal((1 << 18,), seed, stream, device="cpu") for seed, stream in [(1, "A"), (2, "A"), (1, "B")]
    )
    assert correlation(x, other_seed) < 5
    assert correlation(x, other_stream) < 5
    assert max(correlation(x[:-lag], x[lag:]) for lag in (1, 2, 32, 512, 7168)) < 5


def test_normal_numbers_have_mean_zero_and_deviation_one():
    x = portable_normal((1 << 20,), 11, "A", device="cpu").double()
    assert x.mean().item() == pytest.approx(0, abs=0.005)
    assert x.std().item() == pytest.approx(1, abs=0.005)
    assert (x.abs() < 1).double().mean().item() == pytest.approx(0.6827, abs=0.003)


def test_a_dtype_only_holds_the_same_values():
    assert torch.equal(
        portable_normal((64,), 1, "A", torch.float32, "cpu"), portable_normal((64,), 1, "A", device="cpu").float()
    )


def test_the_regimes_shift_and_stretch_the_table():
    plain = normal_table().double()
    assert normal_table("shifted", shift=0.5).double().mean().item() == pytest.approx(0.5, abs=1e-3)
    heavy = normal_table("heavy").double()
    assert torch.equal(heavy, (plain**3).bfloat16().double())
    assert (heavy.max() / heavy.std()).item() == pytest.approx(20, abs=2)
    assert torch.equal(normal_table("dominant").double(), plain)


@pytest.mark.parametrize("width", [128, 256, 512, 1024, 2048, 7168])
def test_a_divided_table_is_what_dividing_in_bfloat16_gives(width):
    assert torch.equal(normal_table(divisor=width**0.5), normal_table() / width**0.5)


def test_one_element_of_every_row_becomes_dominant():
    x = torch.ones(5, 64)
    returned = plant_dominant(x, 3, "A")
    assert returned is x
    assert (x == 64).sum(1).tolist() == [1] * 5
    assert (x == 1).sum(1).tolist() == [63] * 5


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="unknown regime 'odd'"):
        normal_table("odd")
    with pytest.raises(ValueError, match="seed is -1"):
        portable_normal((1,), -1, "A", device="cpu")
    with pytest.raises(ValueError, match="high is 0"):
        portable_integers((1,), 0, 1, "A", "cpu")
    with pytest.raises(ValueError, match="power of two"):
        plant_dominant(torch.ones(1, 32), 1, "A", factor=3.0)


def test_the_default_device_is_the_gpu_where_there_is_one():
    assert default_device().type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_makes_the_bits_of_the_cpu():
    shape = (3, 5_000_001)
    assert torch.equal(portable_normal(shape, 8, "A").cpu(), portable_normal(shape, 8, "A", device="cpu"))
    assert torch.equal(portable_integers(shape, 77, 8, "A").cpu(), portable_integers(shape, 77, 8, "A", "cpu"))


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_crosses_the_edges_of_chunks_as_the_cpu_does():
    counting = torch.arange(65536, dtype=torch.int32)
    drawn = sample_table(counting, ((1 << 24) + 100,), 1, "W", "cuda", first=2**31 - 50)
    for i in (0, 49, 50, (1 << 24) - 1, 1 << 24, (1 << 24) + 99):
        assert drawn[i].item() == hash_of(2**31 - 50 + i, 1, "W") >> 16
