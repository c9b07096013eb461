"""The nvfp4_gemm problem: what its bytes mean, the right answer, what each regime is for, and the shipped kernels."""

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml

sys.path.insert(0, str(Path(__file__).parent.parent / "problems" / "mx"))
import portable
from mxfp4 import pack_fp4, unpack_fp4
from nvfp4 import FORMATS, dequantize_nvfp4, e4m3_to_float

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "problems" / "nvfp4_gemm"
SUBMISSIONS = ROOT / "submissions" / "nvfp4_gemm"
TASK = yaml.safe_load((FOLDER / "task.yml").read_text())
NAMES = ["torch_reference", "triton_unpack"]
CASE = {"m": 7, "n": 96, "k": 256, "seed": 2}
CASES = {
    **{f"smoke {index}": case for index, case in enumerate(TASK["smoke"])},
    "one row, the smallest n and k": {"m": 1, "n": 16, "k": 64, "seed": 4, "format": "razer"},
    "a row more than a tile, k past a tile": {"m": 65, "n": 48, "k": 320, "seed": 5, "format": "razer"},
    "the ends of the scales": {**CASE, "format": "razer", "regime": "extremes"},
    "zeros": {**CASE, "format": "razer", "regime": "zeros"},
    "one special value a row": {**CASE, "format": "razer", "regime": "sparse"},
    "cancelling": {**CASE, "format": "nvfp4", "regime": "cancelling"},
}
BOTH = [(format, regime) for format in FORMATS for regime in TASK["regimes"]]


def load(path: Path) -> ModuleType:
    """Imports a file with the problem's own `task` module beside it, and no other problem's."""
    sys.modules.pop("task", None)
    sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"nvfp4_gemm_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(FOLDER))
    sys.modules.pop("task", None)
    return module


reference = load(FOLDER / "reference.py")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    for module in (portable, reference):
        monkeypatch.setattr(module, "default_device", lambda: torch.device("cpu"))


def value(code: int, scale: int, format: str) -> Fraction:
    """One element times its block's scale, from the formulas in README.md."""
    magnitudes = [Fraction(numerator, 2) for numerator in (0, 1, 2, 3, 4, 6, 8, 12)]
    element = magnitudes[code & 7] * (-1 if code & 8 else 1)
    if code == 8 and format == "razer":
        element = Fraction(-5 if scale & 0x80 else 5)
    byte = scale & 0x7F
    factor = Fraction(byte, 512) if byte < 8 else Fraction(2) ** (byte // 8 - 7) * (1 + Fraction(byte % 8, 8))
    return element * factor


def excess(output: torch.Tensor, wanted: torch.Tensor) -> float:
    """How far an output is from the limits of task.yml: at most 1 is accepted."""
    limits, wanted = TASK["tolerance"], wanted.double()
    errors = (output.double() - wanted).abs()
    row = (errors.norm(dim=1) / wanted.norm(dim=1)).max().item() / limits["row_relative"]
    rms = wanted.square().mean(dim=1, keepdim=True).sqrt()
    return max(row, (errors / (limits["atol_rms"] * rms + limits["rtol"] * wanted.abs())).max().item())


def operands(data) -> tuple[torch.Tensor, torch.Tensor]:
    return dequantize_nvfp4(data[0], data[1], data[6]), dequantize_nvfp4(data[3], data[4], data[6])


# --- the formats ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("byte", "wanted"),
    [
        (0, 0),
        (1, 2**-9),
        (7, 7 * 2**-9),
        (8, 2**-6),
        (9, 1.125 * 2**-6),
        (0x38, 1),
        (0x3C, 1.5),
        (0x77, 240),
        (0x7E, 448),
    ],
)
def test_a_scale_byte_means_what_e4m3_says(byte, wanted):
    found = e4m3_to_float(torch.tensor([byte, byte | 0x80], dtype=torch.uint8))
    assert found.tolist() == [wanted, wanted]  # the sign bit is none of the scale's


@pytest.mark.parametrize(
    ("format", "scale", "wanted"),
    [
        ("nvfp4", 0x38, [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]),
        ("razer", 0x38, [0, 0.5, 1, 1.5, 2, 3, 4, 6, 5, -0.5, -1, -1.5, -2, -3, -4, -6]),
        ("razer", 0xB8, [0, 0.5, 1, 1.5, 2, 3, 4, 6, -5, -0.5, -1, -1.5, -2, -3, -4, -6]),
        ("razer", 0x34, [0, 0.375, 0.75, 1.125, 1.5, 2.25, 3, 4.5, 3.75, -0.375, -0.75, -1.125, -1.5, -2.25, -3, -4.5]),
    ],
)
def test_the_sixteen_codes_of_a_block_decode_to_values_made_by_hand(format, scale, wanted):
    packed = pack_fp4(torch.arange(16))
    assert packed.tolist() == [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]
    assert dequantize_nvfp4(packed, torch.tensor([scale], dtype=torch.uint8), format).tolist() == wanted


@pytest.mark.parametrize("format", FORMATS)
def test_every_code_under_every_scale_is_exact_in_sixteen_bits_too(format):
    scales = torch.tensor([byte for byte in range(256) if byte & 0x7F != 0x7F], dtype=torch.uint8)
    packed = pack_fp4(torch.arange(16)).expand(len(scales), -1)
    wanted = [[float(value(code, byte, format)) for code in range(16)] for byte in scales.tolist()]
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        found = dequantize_nvfp4(packed, scales[:, None], format, dtype)
        assert found.dtype == dtype
        assert found.double().tolist() == wanted


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="unknown format 'mxfp4': expected one of nvfp4, razer"):
        dequantize_nvfp4(torch.zeros(1, 8, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8), "mxfp4")


# --- inputs and the answer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", TASK["smoke"], ids=str)
def test_the_parts_have_their_documented_shapes(case):
    data = reference.generate_input(**case)
    m, n, k = (case[name] for name in "mnk")
    assert [(tuple(part.shape), part.dtype) for part in data[:6]] == [
        ((m, k // 2), torch.uint8),
        ((m, k // 16), torch.uint8),
        ((1,), torch.float32),
        ((n, k // 2), torch.uint8),
        ((n, k // 16), torch.uint8),
        ((1,), torch.float32),
    ]
    assert data[6] == case["format"]
    assert all(part.is_contiguous() for part in data[:6])
    assert all(2**-10 <= data[part].item() < 2**-9 for part in (2, 5))


@pytest.mark.parametrize(("format", "regime"), BOTH)
def test_scale_bytes_are_finite_and_have_a_sign_bit_in_razer_only(format, regime):
    data = reference.generate_input(**CASE, format=format, regime=regime)
    for scales in (data[1], data[4]):
        assert (scales & 0x7F).max() < 0x7F
        signs = (scales >> 7).float().mean().item()
        assert (0.3 < signs < 0.7) if format == "razer" else signs == 0


@pytest.mark.parametrize(("format", "regime"), BOTH)
def test_the_answer_is_the_sum_written_out_element_by_element(format, regime):
    data = reference.generate_input(**CASE, format=format, regime=regime)
    codes, scales = [unpack_fp4(data[part]).tolist() for part in (0, 3)], [data[part].tolist() for part in (1, 4)]
    found, output = reference.expected(data), reference.ref_kernel(data)
    assert (found.dtype, found.shape) == (torch.float32, (7, 96))
    assert torch.equal(output, found.bfloat16())
    for i, j in [(0, 0), (6, 95), (3, 40)]:
        total = sum(
            value(codes[0][i][at], scales[0][i][at // 16], format)
            * value(codes[1][j][at], scales[1][j][at // 16], format)
            for at in range(256)
        )
        wanted = float(total * Fraction(data[2].item()) * Fraction(data[5].item()))
        assert found[i, j].item() == pytest.approx(wanted, rel=2**-23)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("regime", ["normal", "extremes", "zeros", "sparse", "cancelling"])
def test_float32_is_exact_but_for_the_scales_where_values_have_no_mean(format, regime):
    data = reference.generate_input(m=9, n=64, k=7168, seed=4, format=format, regime=regime)
    left, right = operands(data)
    exact = left.double() @ right.double().T
    assert torch.equal((left @ right.T).double(), exact)
    pieces = zip(left.split(64, 1), right.split(64, 1), strict=True)
    assert torch.equal(sum(x @ y.T for x, y in pieces).double(), exact)


@pytest.mark.parametrize("rows", [[3], [6, 0, 0], [1, 2, 5]])
def test_asked_for_some_rows_the_reference_gives_those_of_the_whole(rows):
    data = reference.generate_input(**CASE, format="razer")
    index = torch.tensor(rows)
    assert torch.equal(reference.expected(data, None, index), reference.expected(data)[index])


def test_the_reference_decodes_b_in_pieces_where_memory_is_short(monkeypatch):
    data = reference.generate_input(**CASE, format="razer")
    whole = reference.expected(data)
    monkeypatch.setattr(reference, "_DECODED_AT_A_TIME", 10 * 256)
    assert torch.equal(reference.expected(data), whole)


def test_renewing_keeps_b_and_gives_the_a_of_the_new_seed():
    data = reference.generate_input(**CASE, format="razer")
    case = {**CASE, "format": "razer", "seed": 9}
    renewed, fresh = reference.renew_input(data, **case), reference.generate_input(**case)
    assert all(new is old for new, old in zip(renewed[3:], data[3:], strict=True))
    assert all(torch.equal(new, made) for new, made in zip(renewed[:3], fresh[:3], strict=True))
    assert not torch.equal(renewed[0], data[0])


@pytest.mark.parametrize("offset", [1, 2, 7])
def test_refreshing_moves_the_rows_of_b(offset):
    data = reference.generate_input(**CASE, format="razer")
    moved = reference.refresh(data, offset)
    assert all(new is old for new, old in zip(moved[:3], data[:3], strict=True))
    assert torch.equal(reference.expected(moved), reference.expected(data).roll(32 * offset, 1))


# --- what the regimes are for --------------------------------------------------------------------------------


LARGE = {"m": 64, "n": 32, "k": 512, "seed": 6}


@pytest.mark.parametrize("format", FORMATS)
def test_normal_elements_look_quantised_and_shifted_ones_have_a_mean(format):
    data = reference.generate_input(**LARGE, format=format)
    values, codes = operands(data)[0], unpack_fp4(data[0])
    assert abs(values.mean().item()) < 0.1 * values.std().item()
    assert 0.02 < (codes == 8).float().mean().item() < 0.08
    assert (codes & 7 == 7).float().mean().item() > 0.05
    shifted = operands(reference.generate_input(**LARGE, format=format, regime="shifted"))[0]
    assert shifted.mean().item() > 0.5 * shifted.std().item()


def test_razer_writes_no_negative_zero_as_code_8():
    table = reference._code_table("razer", False)
    z = 3.375 * portable.normal_table().float()
    assert torch.equal(table == 8, (z >= 4.5) & (z < 5.5))
    assert torch.equal(table[z.abs() <= 0.25], torch.zeros_like(table[z.abs() <= 0.25]))


@pytest.mark.parametrize("format", FORMATS)
def test_extremes_have_both_ends_of_the_scales_and_no_row_that_hides_the_lower_one(format):
    a, b = (scales & 0x7F for scales in reference.generate_input(**LARGE, format=format, regime="extremes")[1:5:3])
    assert set(b.unique().tolist()) == set(a[::2].unique().tolist()) == {0, 1, 7, 8, 9}
    assert set(a[1::2].unique().tolist()) == {0x78, 0x7A, 0x7D, 0x7E}


@pytest.mark.parametrize("format", FORMATS)
def test_half_of_the_blocks_of_zeros_have_codes_0_and_8_only(format):
    data = reference.generate_input(**LARGE, format=format, regime="zeros")
    blocks = unpack_fp4(data[0]).unflatten(1, (-1, 16))
    bare = (blocks & 7 == 0).all(-1)
    assert 0.4 < bare.float().mean().item() < 0.6
    decoded = operands(data)[0].unflatten(1, (-1, 16))[bare]
    assert 0 < (blocks[bare] == 8).float().mean().item() < 1
    assert (decoded.count_nonzero() > 0) == (format == "razer")


def test_sparse_rows_have_one_special_value_in_a_block_of_the_largest_scale():
    codes, scales, _, *_ = data = reference.generate_input(**LARGE, format="razer", regime="sparse")
    special = unpack_fp4(codes) == 8
    assert special.sum(1).tolist() == [1] * 64
    assert set(operands(data)[0][special].abs().tolist()) == {5 * 448.0}
    assert set((scales.repeat_interleave(16, 1)[special] & 0x7F).tolist()) == {0x7E}


@pytest.mark.parametrize("format", FORMATS)
def test_cancelling_sums_leave_two_blocks_of_many(format):
    data = reference.generate_input(**LARGE, format=format, regime="cancelling")
    left, right = operands(data)
    assert torch.equal(left[:, :240], -left[:, 256:-16])
    assert torch.equal(right[:, :240], right[:, 256:-16])
    first = (left[:, :256] @ right[:, :256].T).norm()
    assert (left @ right.T).norm() < 0.7 * first
    rest = left[:, 240:256] @ right[:, 240:256].T + left[:, -16:] @ right[:, -16:].T
    assert torch.equal(left @ right.T, rest)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="multiple of 16 and k of 64"):
        reference.generate_input(m=1, n=40, k=64, seed=1, format="nvfp4")
    with pytest.raises(ValueError, match="unknown format 'mxfp4': expected one of nvfp4, razer"):
        reference.generate_input(**CASE, format="mxfp4")
    with pytest.raises(ValueError, match="unknown regime 'odd'"):
        reference.generate_input(**CASE, format="nvfp4", regime="odd")


def test_the_plain_check_accepts_the_reference_and_says_what_is_wrong_with_zeros():
    data = reference.generate_input(**CASE, format="razer")
    output = reference.ref_kernel(data)
    assert reference.check_implementation(data, output) == (True, "largest error 0")
    ok, message = reference.check_implementation(data, torch.zeros_like(output))
    assert not ok
    assert "of 672 elements differ; the first is [0, 0]: 0.0 for" in message
    assert not reference.check_implementation(data, torch.full_like(output, math.nan))[0]
    assert reference.check_implementation(data, output[:3])[1].endswith("expected torch.bfloat16 (7, 96)")


# --- the shipped kernels -------------------------------------------------------------------------------------


# Runs where the problem's files and the submission lie flat, as in a contest: saves (output, expected) of every case.
# With "twice", the second call must not wait for the device.
RUN = """
import json, sys
import torch
import reference, submission
results = []
for case in json.loads(sys.argv[1]):
    data = reference.generate_input(**case)
    output = submission.custom_kernel(data)
    if sys.argv[3:] == ["twice"]:
        torch.cuda.set_sync_debug_mode("error")
        output = submission.custom_kernel(data)
        torch.cuda.set_sync_debug_mode("default")
    results.append((output.cpu(), reference.expected(data).cpu()))
torch.save(results, sys.argv[2])
"""

COMPILE = """
import json
import submission, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

kernel, found = submission.gemm_kernel, {}
bytes_ = dict.fromkeys(["a_ptr", "a_scales_ptr", "b_ptr", "b_scales_ptr"], "*u8")
pointers = {**bytes_, "a_scale_ptr": "*fp32", "b_scale_ptr": "*fp32", "c_ptr": "*bf16"}
signature = pointers | dict.fromkeys(["m", "n"], "i32")
aligned = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in [*pointers, "n"]}
for block_m, block_n, razer in ((16, 32, True), (64, 64, True), (64, 64, False)):
    constants = {"K": 7168, "RAZER": razer, "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": submission.BLOCK_K}
    constants["DOT_TYPE"] = submission.DOT_TYPE
    full = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    for target in (GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx950", 64)):
        compiled = triton.compile(ASTSource(kernel, full, constants, aligned), target=target, options={"num_warps": 4})
        text = compiled.asm["ptx" if target.backend == "cuda" else "amdgcn"]
        found[f"{target.arch} {block_m} {razer}"] = (compiled.metadata.shared, text)
print(json.dumps(found))
"""


def run(script: str, folder: Path, name: str, *arguments: str, **environment: str) -> str:
    """Lays out the problem's files with a submission, runs the script there, and returns what it printed."""
    for entry in TASK["files"]:
        source = SUBMISSIONS / f"{name}.py" if entry["source"] == "@SUBMISSION@" else FOLDER / entry["source"]
        shutil.copyfile(source, folder / entry["name"])
    (folder / "script.py").write_text(script)
    kept = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment = {"OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(folder / "cache")} | environment
    command = [sys.executable, "-W", "ignore", "script.py", *arguments]
    done = subprocess.run(command, cwd=folder, env=kept | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=NAMES)
def results(request, tmp_path_factory) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """(output, expected) of every case, computed on the CPU: Triton through its interpreter."""
    folder = tmp_path_factory.mktemp(request.param)
    on_the_cpu = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    run(RUN, folder, request.param, json.dumps(list(CASES.values())), "results.pt", **on_the_cpu)
    return dict(zip(CASES, torch.load(folder / "results.pt"), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_the_output_is_the_reference_but_for_one_rounding(results, case):
    output, wanted = results[case]
    assert (output.shape, output.dtype, output.is_contiguous()) == (wanted.shape, torch.bfloat16, True)
    # The two tensor scales may be applied in another order, and a tie then fall to the other side.
    assert (output == wanted.bfloat16()).float().mean().item() > 0.99
    assert excess(output, wanted) < 1 / 1.5
    assert wanted.count_nonzero() > 0.8 * wanted.numel()


@pytest.mark.parametrize("case", TASK["smoke"], ids=str)
def test_the_template_is_right(case):
    data = reference.generate_input(**case)
    assert excess(load(FOLDER / "template.py").custom_kernel(data), reference.expected(data)) < 1 / 1.5


def test_the_kernel_compiles_for_an_h200_and_an_mi355x_without_either(tmp_path):
    found = json.loads(run(COMPILE, tmp_path, "triton_unpack"))
    for target, (shared_bytes, text) in found.items():
        if target.startswith("90"):
            assert shared_bytes <= 227 * 1024
            assert "bf16.bf16" in text
        else:
            assert shared_bytes <= 160 * 1024
            assert "v_mfma" in text
            assert ".vgpr_spill_count: 0" in text


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu_it_is_right_for_every_published_case_and_regime_and_waits_for_nothing(tmp_path, name):
    regimes = [{**TASK["tests"][0], "format": format, "regime": regime} for format, regime in BOTH]
    cases = TASK["tests"] + TASK["benchmarks"] + regimes
    run(RUN, tmp_path, name, json.dumps(cases), "results.pt", "twice")
    for case, (output, wanted) in zip(cases, torch.load(tmp_path / "results.pt"), strict=True):
        assert excess(output, wanted) < 1 / 1.5, case


@pytest.mark.gpu
@pytest.mark.parametrize(("format", "regime"), BOTH)
def test_a_gpu_makes_the_inputs_of_the_cpu_and_the_same_answer(format, regime, monkeypatch):
    data = reference.generate_input(**CASE, format=format, regime=regime)
    for module in (portable, reference):
        monkeypatch.setattr(module, "default_device", lambda: torch.device("cuda"))
    on_gpu = reference.generate_input(**CASE, format=format, regime=regime)
    assert all(torch.equal(there.cpu(), here) for there, here in zip(on_gpu[:6], data[:6], strict=True))
    assert torch.equal(reference.expected(on_gpu).cpu(), reference.expected(data))


# --- the documents -------------------------------------------------------------------------------------------


def test_every_file_a_flat_folder_needs_is_listed_and_exists():
    names = {entry["name"] for entry in TASK["files"]}
    assert names == {"submission.py", "task.py", "reference.py", "nvfp4.py", "mxfp4.py", "portable.py"}
    sources = [entry["source"] for entry in TASK["files"] if entry["source"] != "@SUBMISSION@"]
    assert [source for source in sources if not (FOLDER / source).is_file()] == []


@pytest.mark.parametrize("case", TASK["smoke"], ids=str)
def test_the_roofline_counts_the_tensors(case):
    data = reference.generate_input(**case)
    volume = sum(tensor.numel() * tensor.element_size() for tensor in (*data[:6], reference.ref_kernel(data)))
    sizes = {name: case[name] for name in "mnk"}
    assert eval(TASK["roofline"]["bytes"], {}, sizes) == volume


def test_the_readmes_table_follows_from_the_roofline():
    lines = [line.replace("*", "").strip("| \n").split(" | ") for line in (FOLDER / "README.md").open()]
    table = [cells for cells in lines if len(cells) == 11 and cells[0].isdigit()]
    assert len(table) == len(TASK["benchmarks"])
    for row, case in zip(table, TASK["benchmarks"], strict=True):
        sizes = {name: case[name] for name in "mnk"}
        volume = eval(TASK["roofline"]["bytes"], {}, sizes)
        work = eval(TASK["roofline"]["operations"]["fp4"], {}, sizes)
        floors = [volume / 8e6, work / 9000e6, volume / 4.8e6, work / 1979e6, work / 989e6]
        assert row[:4] == [str(case[name]) for name in ("m", "n", "k", "format")]
        assert [float(cell) for cell in row[4:]] == pytest.approx([volume / 1e6, work / 1e9, *floors], abs=0.0051)
