"""The fp4_gemm problem: inputs that agree with each other, the one right answer, and what the tolerance accepts."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml

sys.path.insert(0, str(Path(__file__).parent.parent / "problems" / "mx"))
import portable
from mx_layout import shuffle_scale, shuffle_weight, unshuffle_scale, unshuffle_weight
from mxfp4 import dequantize_mxfp4, e8m0_to_float, pack_fp4, quantize_mxfp4, unpack_fp4

PROBLEMS = Path(__file__).parent.parent / "problems"
FOLDER = PROBLEMS / "fp4_gemm"
TASK = yaml.safe_load((FOLDER / "task.yml").read_text())
TOLERANCE = TASK["tolerance"]
CASE = {"m": 7, "n": 96, "k": 256, "seed": 2}
PUBLISHED_US = (8.198, 20.873, 9.462, 9.173, 12.738, 12.219)


def load(file: str) -> ModuleType:
    """Imports a file of the problem's folder, with that folder's own `task` module and no other problem's."""
    sys.modules.pop("task", None)
    sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"fp4_gemm_{file}", FOLDER / f"{file}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(FOLDER))
    sys.modules.pop("task", None)
    return module


reference = load("reference")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(portable, "default_device", lambda: torch.device("cpu"))


def decoded(x: torch.Tensor, *options: str) -> torch.Tensor:
    return dequantize_mxfp4(*quantize_mxfp4(x, *options))


def excess(output: torch.Tensor, wanted: torch.Tensor) -> float:
    """How far an output is from the limits of task.yml: at most 1 is accepted. (No element may be outside.)"""
    errors, wanted = (output.double() - wanted.double()).abs(), wanted.double()
    row = (errors.norm(dim=1) / wanted.norm(dim=1)).max().item() / TOLERANCE["row_relative"]
    rms = wanted.square().mean(dim=1, keepdim=True).sqrt()
    element = (errors / (TOLERANCE["atol_rms"] * rms + TOLERANCE["rtol"] * wanted.abs())).max().item()
    return max(row, element)


@pytest.mark.parametrize("case", TASK["smoke"], ids=str)
def test_the_four_forms_of_b_agree(case):
    a, b, b_q, b_shuffle, b_scale_sh = reference.generate_input(**case)
    packed, scales = quantize_mxfp4(b)
    assert a.shape == (case["m"], case["k"])
    assert torch.equal(b_q, packed)
    assert torch.equal(unshuffle_weight(b_shuffle), packed)
    assert torch.equal(b_scale_sh, shuffle_scale(scales))
    assert b_scale_sh.shape == (256, -(-case["k"] // 256) * 8)
    assert all(tensor.is_contiguous() for tensor in (a, b, b_q, b_shuffle, b_scale_sh))


def test_a_and_b_come_from_their_own_streams():
    a, b, *_ = reference.generate_input(**CASE)
    assert torch.equal(a, portable.portable_normal((7, 256), 2, "A", device="cpu"))
    assert torch.equal(b, portable.portable_normal((96, 256), 2, "B", device="cpu"))


def test_the_answer_is_the_sum_written_out_element_by_element():
    a, _, b_q, _, b_scale_sh = data = reference.generate_input(**CASE)
    a_q, a_scale = quantize_mxfp4(a)
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
    b_scale = unshuffle_scale(b_scale_sh, 96, 8)
    output = reference.ref_kernel(data)
    assert output.shape == (7, 96)
    assert output.dtype == torch.bfloat16
    for i, j in [(0, 0), (6, 95), (3, 40)]:
        total = 0.0
        for depth in range(256):
            nibble = 4 * (depth % 2)
            left = values[int(a_q[i, depth // 2]) >> nibble & 15] * 2.0 ** (int(a_scale[i, depth // 32]) - 127)
            right = values[int(b_q[j, depth // 2]) >> nibble & 15] * 2.0 ** (int(b_scale[j, depth // 32]) - 127)
            total += left * right
        assert reference.expected(data)[i, j].item() == total
        assert output[i, j].item() == torch.tensor(total).bfloat16().item()


@pytest.mark.parametrize("regime", TASK["regimes"])
def test_float32_is_exact_in_every_regime(regime):
    data = reference.generate_input(m=9, n=256, k=1536, seed=4, regime=regime)
    exact = decoded(data[0]).double() @ decoded(data[1]).double().T
    assert torch.equal(reference.expected(data).double(), exact)
    in_pieces = sum(
        (decoded(data[0][:, i : i + 64]) @ decoded(data[1][:, i : i + 64]).T for i in range(0, 1536, 64)),
        torch.zeros(9, 256),
    )
    assert torch.equal(in_pieces.double(), exact)
    assert excess(exact.bfloat16(), exact) < 1 / 1.5


@pytest.mark.parametrize("regime", TASK["regimes"])
def test_scale_bytes_stay_away_from_the_ends(regime):
    a, b, *_ = reference.generate_input(m=64, n=64, k=512, seed=5, regime=regime)
    scales = torch.cat([quantize_mxfp4(a)[1], quantize_mxfp4(b)[1]])
    assert 100 < scales.min() <= scales.max() < 150


def test_the_regimes_are_what_their_names_say():
    make = {regime: reference.generate_input(m=32, n=32, k=512, seed=6, regime=regime) for regime in TASK["regimes"]}
    assert make["shifted"][0].float().mean().item() == pytest.approx(1, abs=0.05)
    heavy = make["heavy"][0].float()
    assert (heavy.abs().max() / heavy.std()).item() > 10
    assert ((make["dominant"][0] / make["normal"][0]) == 64).sum(1).tolist() == [1] * 32


@pytest.mark.parametrize("rows", [[3], [6, 0, 0], [1, 2, 5]])
def test_asked_for_some_rows_the_reference_gives_those_of_the_whole(rows):
    data = reference.generate_input(**CASE)
    index = torch.tensor(rows)
    assert torch.equal(reference.expected(data, None, index), reference.expected(data)[index])


def test_renewing_keeps_b_and_gives_the_a_of_the_new_seed():
    data = reference.generate_input(**CASE)
    renewed = reference.renew_input(data, **{**CASE, "seed": 9})
    assert all(new is old for new, old in zip(renewed[1:], data[1:], strict=True))
    assert torch.equal(renewed[0], reference.generate_input(**{**CASE, "seed": 9})[0])
    assert not torch.equal(renewed[0], data[0])


@pytest.mark.parametrize("n", [96, 80])
@pytest.mark.parametrize("offset", [1, 2, 7])
def test_refreshing_moves_the_rows_of_b_in_all_its_forms(n, offset):
    data = reference.generate_input(m=3, n=n, k=192, seed=1)
    a, b, b_q, b_shuffle, b_scale_sh = reference.refresh(data, offset)
    packed, scales = quantize_mxfp4(b)
    assert a is data[0]
    assert torch.equal(b, data[1].roll(32 * offset, 0))
    assert torch.equal(b_q, packed)
    assert torch.equal(b_shuffle, shuffle_weight(packed))
    assert torch.equal(b_scale_sh, shuffle_scale(scales))
    assert torch.equal(
        reference.expected((a, b, b_q, b_shuffle, b_scale_sh)), reference.expected(data).roll(32 * offset, 1)
    )


def test_the_published_check_accepts_the_reference_and_says_what_is_wrong_with_zeros():
    data = reference.generate_input(**CASE)
    output = reference.ref_kernel(data)
    assert reference.check_implementation(data, output)[0]
    ok, message = reference.check_implementation(data, torch.zeros_like(output))
    assert not ok
    assert "of 672 elements differ; the first is [0, 0]: 0.0 for" in message
    assert not reference.check_implementation(data, torch.full_like(output, torch.nan))[0]
    assert reference.check_implementation(data, output[:3])[1].endswith("expected torch.bfloat16 (7, 96)")
    assert not reference.check_implementation(data, output.float())[0]


MUTANTS = {
    "zeros": lambda a, b: torch.zeros(len(a), len(b)),
    "A not quantised": lambda a, b: a.float() @ decoded(b).T,
    "ties away from zero": lambda a, b: decoded(a, "even", "half-away") @ decoded(b).T,
    "round15 scales": lambda a, b: decoded(a, "round15") @ decoded(b).T,
    "rounded-up scales": lambda a, b: decoded(a, "rceil") @ decoded(b).T,
    "floor scales": lambda a, b: decoded(a, "floor") @ decoded(b).T,
    "swapped nibbles": lambda a, b: decoded(a) @ swapped(b).T,
    "last block of k lost": lambda a, b: decoded(a)[:, :-32] @ decoded(b)[:, :-32].T,
    "last column wrong": lambda a, b: (decoded(a) @ decoded(b).T).index_fill(1, torch.tensor([len(b) - 1]), 0.0),
    "bfloat16 accumulation": lambda a, b: in_steps(a, b, torch.bfloat16),
    "float16 accumulation": lambda a, b: in_steps(a, b, torch.float16),
}


def swapped(x: torch.Tensor) -> torch.Tensor:
    packed, scales = quantize_mxfp4(x)
    return dequantize_mxfp4(pack_fp4(unpack_fp4(packed).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)), scales)


def in_steps(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    total = torch.zeros(len(a), len(b), dtype=dtype)
    for left, right in zip(decoded(a).split(128, 1), decoded(b).split(128, 1), strict=True):
        total = (total.float() + left @ right.T).to(dtype)
    return total.float()


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_kernel_is_outside_the_limits_by_a_factor_of_one_and_a_half(mutant):
    data = reference.generate_input(m=16, n=256, k=1536, seed=7)
    output = MUTANTS[mutant](data[0], data[1]).bfloat16()
    assert excess(output, reference.expected(data)) > 1.5


def test_the_scale_bytes_of_b_matter_exactly():
    data = reference.generate_input(**CASE)
    doubled = (*data[:4], (data[4] + 1) * (data[4] > 0))
    assert torch.equal(reference.expected(doubled), 2 * reference.expected(data))
    assert e8m0_to_float(torch.tensor([128], dtype=torch.uint8)).item() == 2.0


def test_shapes_that_cannot_be_tiled_and_unknown_regimes_are_refused():
    with pytest.raises(ValueError, match="multiple of 16"):
        reference.generate_input(m=1, n=40, k=64, seed=1)
    with pytest.raises(ValueError, match="k of 64"):
        reference.generate_input(m=1, n=32, k=96, seed=1)
    with pytest.raises(ValueError, match="unknown regime"):
        reference.generate_input(**CASE, regime="odd")


@pytest.mark.parametrize("case", TASK["smoke"], ids=str)
def test_the_template_is_right(case):
    data = reference.generate_input(**case)
    assert torch.equal(load("template").custom_kernel(data), reference.ref_kernel(data))


def test_every_file_a_flat_folder_needs_is_listed_and_exists():
    names = {entry["name"] for entry in TASK["files"]}
    assert names == {"submission.py", "task.py", "reference.py", "mxfp4.py", "mx_layout.py", "portable.py"}
    sources = [entry["source"] for entry in TASK["files"] if entry["source"] != "@SUBMISSION@"]
    assert [source for source in sources if not (FOLDER / source).is_file()] == []


def test_the_cases_are_those_of_the_competition():
    assert [(c["m"], c["n"], c["k"], c["seed"]) for c in TASK["tests"]] == [
        (8, 2112, 7168, 124),
        (16, 3072, 1536, 6635),
        (64, 3072, 1536, 45),
        (256, 2880, 512, 78),
    ]
    assert [(c["m"], c["n"], c["k"], c["seed"]) for c in TASK["benchmarks"]] == [
        (4, 2880, 512, 4565),
        (16, 2112, 7168, 15),
        (32, 4096, 512, 457),
        (32, 2880, 512, 54),
        (64, 7168, 2048, 687),
        (256, 3072, 1536, 7856),
    ]


def test_the_readmes_table_follows_from_the_roofline():
    lines = [line.replace("*", "").strip("| \n").split(" | ") for line in (FOLDER / "README.md").open()]
    table = [[float(cell) for cell in cells] for cells in lines if len(cells) == 11 and cells[0].isdigit()]
    assert len(table) == len(TASK["benchmarks"])
    for row, case, published in zip(table, TASK["benchmarks"], PUBLISHED_US, strict=True):
        volume = eval(TASK["roofline"]["bytes"], {}, dict(case))
        work = eval(TASK["roofline"]["operations"]["fp4"], {}, dict(case))
        floors = [volume / 8e6, work / 10.1e9, volume / 4.8e6, work / 1979e6, work / 989e6]
        assert row[:4] == [case["m"], case["n"], case["k"], published]
        assert row[4:] == pytest.approx([volume / 1e6, work / 1e9, *floors], abs=0.0051)
