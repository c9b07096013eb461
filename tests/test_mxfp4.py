"""The MXFP4 and FP8 numerics: golden vectors made with the vendor's own code, and values worked out by hand."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "problems" / "mx"))
from mxfp4 import dequantize_mxfp4, e8m0_to_float, pack_fp4, quantize_fp8, quantize_mxfp4, unpack_fp4

GOLDEN = np.load(Path(__file__).parent / "data" / "mxfp4.npz")
SETS = ("randn", "weight", "heavytail", "pad", "ties", "allfinite_asc", "allfinite_perm", "edge")
# (name of the packed codes, name of the scales) in the golden file -> the options that must reproduce them
VARIANTS = {
    ("dyn", "dyn"): ("even", "nearest-even"),
    ("pre975", "dyn"): ("even", "half-away"),
    ("t2603", "t2603"): ("round15", "nearest-even"),
    ("rceil", "rceil"): ("rceil", "nearest-even"),
}
TIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def golden_input(name: str) -> torch.Tensor:
    return torch.from_numpy(GOLDEN[f"{name}__x_bf16"].view(np.int16)).view(torch.bfloat16)


def block(*values: float) -> torch.Tensor:
    return torch.tensor([*values, *[0.0] * (32 - len(values))])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", SETS)
def test_every_golden_set_is_reproduced_bit_for_bit(name, variant, dtype):
    packed, scales = quantize_mxfp4(golden_input(name).to(dtype), *VARIANTS[variant])
    assert (packed.numpy() == GOLDEN[f"{name}__{variant[0]}_fp4"]).all()
    assert (scales.numpy() == GOLDEN[f"{name}__{variant[1]}_e8m0"]).all()


@pytest.mark.parametrize(
    ("amax", "even", "round15", "rceil", "floor", "ceil"),
    [
        (4.0, 127, 127, 127, 127, 127),
        (5.0, 127, 127, 127, 127, 128),
        (6.0, 127, 128, 127, 127, 128),
        (6.25, 127, 128, 128, 127, 128),
        (7.0, 128, 128, 128, 127, 128),
        (1.75, 126, 126, 126, 125, 126),
        (1.7421875, 125, 126, 126, 125, 126),
        (2.0**-126, 0, 0, 1, 0, 0),
    ],
)
def test_each_scale_rule_gives_the_byte_worked_out_by_hand(amax, even, round15, rceil, floor, ceil):
    rules = {"even": even, "round15": round15, "rceil": rceil, "floor": floor, "ceil": ceil}
    assert {rule: quantize_mxfp4(block(amax * -0.25, -amax), rule)[1].item() for rule in rules} == rules


def test_an_even_scale_saturates_above_six():
    packed, scales = quantize_mxfp4(block(6.9375, -6.5, 6.0, 5.5))
    assert scales.tolist() == [127]
    assert unpack_fp4(packed)[:4].tolist() == [7, 15, 7, 7]


def test_ties_go_to_the_even_code_by_default():
    codes = unpack_fp4(quantize_mxfp4(block(6.0, *TIES))[0])
    assert codes[1:8].tolist() == [0, 2, 2, 4, 4, 6, 6]


def test_ties_can_go_away_from_zero():
    codes = unpack_fp4(quantize_mxfp4(block(6.0, *(-tie for tie in TIES)), rounding="half-away")[0])
    assert codes[1:8].tolist() == [9, 10, 11, 12, 13, 14, 15]


@pytest.mark.parametrize("rounding", ["nearest-even", "half-away"])
def test_the_neighbours_of_a_tie_in_float32_are_no_ties(rounding):
    ties = torch.tensor(TIES)
    below, above = ties.nextafter(torch.zeros(7)), ties.nextafter(torch.full((7,), 8.0))
    codes = unpack_fp4(quantize_mxfp4(block(6.0, *below.tolist(), *above.tolist()), rounding=rounding)[0])
    assert codes[1:15].tolist() == [0, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 7]


def test_float32_elements_round_to_the_nearest_magnitude():
    x = torch.randn(4096, 32, generator=torch.Generator().manual_seed(0))
    packed, scales = quantize_mxfp4(x)
    scaled = (x.double() / e8m0_to_float(scales).double()).abs()
    distances = (scaled.unsqueeze(-1) - torch.tensor(MAGNITUDES, dtype=torch.float64)).abs()
    codes = unpack_fp4(packed).long()
    assert torch.equal(codes & 7, distances.argmin(-1))
    assert torch.equal(codes >> 3, (x < 0).long())


def test_the_sign_of_zero_and_of_what_rounds_to_zero_is_kept():
    codes = unpack_fp4(quantize_mxfp4(block(6.0, -0.0, -0.1, 0.1, 0.0))[0])
    assert codes[1:5].tolist() == [8, 8, 0, 0]


def test_a_block_of_zeros_has_scale_byte_zero_and_decodes_to_zeros():
    packed, scales = quantize_mxfp4(block())
    assert scales.tolist() == [0]
    assert dequantize_mxfp4(packed, scales).tolist() == [0.0] * 32


def test_quantising_leaves_a_float32_input_as_it_was():
    x = torch.linspace(-9, 9, 64)
    before = x.clone()
    quantize_mxfp4(x)
    assert torch.equal(x, before)


def test_many_blocks_give_what_they_give_one_row_at_a_time():
    x = torch.randn(70, 3, 2048, generator=torch.Generator().manual_seed(1)).bfloat16()
    packed, scales = quantize_mxfp4(x)
    assert packed.shape == (70, 3, 1024)
    assert scales.shape == (70, 3, 64)
    rows = [quantize_mxfp4(row) for row in x.view(210, 2048)]
    assert torch.equal(packed.view(210, -1), torch.stack([codes for codes, _ in rows]))
    assert torch.equal(scales.view(210, -1), torch.stack([bytes_ for _, bytes_ in rows]))


def test_a_view_that_is_not_contiguous_is_quantised_in_its_own_order():
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(2))
    assert torch.equal(quantize_mxfp4(x.T)[0], quantize_mxfp4(x.T.contiguous())[0])


def test_the_quantisation_error_of_normal_numbers_is_eleven_percent():
    x = torch.randn(256, 512, generator=torch.Generator().manual_seed(3)).bfloat16().float()
    error = (dequantize_mxfp4(*quantize_mxfp4(x)) - x).norm() / x.norm()
    assert error.item() == pytest.approx(0.112, abs=0.002)


def test_an_unknown_rule_and_a_ragged_row_are_refused():
    with pytest.raises(ValueError, match="unknown scale rule 'up'"):
        quantize_mxfp4(block(), "up")
    with pytest.raises(ValueError, match="unknown rounding 'down'"):
        quantize_mxfp4(block(), rounding="down")
    with pytest.raises(ValueError, match="multiple of 32"):
        quantize_mxfp4(torch.zeros(2, 48))


def test_the_even_element_is_the_low_nibble():
    assert pack_fp4(torch.tensor([1, 2, 15, 0])).tolist() == [0x21, 0x0F]


def test_unpacking_inverts_packing_for_every_byte():
    every_byte = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(pack_fp4(unpack_fp4(every_byte)), every_byte)


def test_codes_decode_to_the_sixteen_values_times_the_scale():
    packed = pack_fp4(torch.arange(32) % 16)
    decoded = dequantize_mxfp4(packed, torch.tensor([129], dtype=torch.uint8))
    expected = [4 * m for m in MAGNITUDES] + [-4 * m for m in MAGNITUDES]
    assert decoded.tolist() == expected * 2
    assert torch.signbit(decoded[8])


def test_decoding_to_bfloat16_is_exact():
    packed, scales = quantize_mxfp4(golden_input("weight"))
    assert torch.equal(
        dequantize_mxfp4(packed, scales, torch.bfloat16).float(), dequantize_mxfp4(packed, scales, torch.float32)
    )


def test_decoding_takes_torchs_own_scale_dtype():
    packed, scales = quantize_mxfp4(golden_input("randn"))
    native = dequantize_mxfp4(packed, scales.view(torch.float8_e8m0fnu))
    assert torch.equal(native, dequantize_mxfp4(packed, scales))


def test_scale_bytes_are_powers_of_two_and_255_is_not_a_number():
    floats = e8m0_to_float(torch.tensor([0, 1, 127, 254, 255], dtype=torch.uint8))
    assert floats[:4].tolist() == [2.0**-127, 2.0**-126, 1.0, 2.0**127]
    assert floats[4].isnan()


def test_fp8_scales_by_the_bfloat16_quotient_and_rounds_in_two_steps():
    x = torch.tensor([448.0, 1.0625, -17.0, 17.125, 0.0]).bfloat16()
    quantized, scale = quantize_fp8(x)
    assert (scale.item(), scale.dtype, scale.dim()) == (1.0, torch.float32, 0)
    # 1.0625 and 17 are ties of e4m3 (steps 1/8 and 2) and go to even; 17.125 is none.
    assert quantized.float().tolist() == [448.0, 1.0, -16.0, 18.0, 0.0]


def test_the_fp8_scale_is_a_bfloat16_value():
    _, scale = quantize_fp8(torch.tensor([3.0, -4.0]).bfloat16())
    assert scale.item() == torch.tensor(4.0 / 448.0).bfloat16().item()


def test_fp8_of_zeros_is_zeros():
    quantized, scale = quantize_fp8(torch.zeros(40).bfloat16())
    assert quantized.float().tolist() == [0.0] * 40
    assert scale.item() > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("variant", VARIANTS.values())
@pytest.mark.parametrize("name", SETS)
def test_a_gpu_gives_the_same_bytes_for_ordinary_scales(name, variant):
    x = golden_input(name)
    packed, scales = quantize_mxfp4(x, *variant)
    packed_gpu, scales_gpu = (tensor.cpu() for tensor in quantize_mxfp4(x.cuda(), *variant))
    ordinary = (scales >= 1) & (scales <= 253)
    assert torch.equal(scales, scales_gpu)
    assert torch.equal(packed.view(-1, 16)[ordinary.flatten()], packed_gpu.view(-1, 16)[ordinary.flatten()])
