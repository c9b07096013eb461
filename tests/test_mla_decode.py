"""The mla_decode problem: caches that agree, the right answers, what the tolerance accepts, and the shipped kernels."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml

sys.path.insert(0, str(Path(__file__).parent.parent / "problems" / "mx"))
import portable
from mxfp4 import dequantize_mxfp4, quantize_fp8, quantize_mxfp4

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "problems" / "mla_decode"
SUBMISSIONS = ROOT / "submissions" / "mla_decode"
TASK = yaml.safe_load((FOLDER / "task.yml").read_text())
CASE = {"batchsize": 5, "kvseqlen": 48, "seed": 2}
# Long enough for the limits to mean what they mean at full size.
LONG = {"batchsize": 6, "kvseqlen": 512, "seed": 5}
CACHE_BYTES = {"bf16": 1152, "fp8": 576, "mxfp4": 306}
PUBLISHED_US = {(4, 1024): [118, 162], (4, 8192): [113, 177], (64, 8192): [171, 353], (256, 8192): [349, 814]}


def load(path: Path) -> ModuleType:
    """Imports a file with the problem's own `task` module beside it, and no other problem's."""
    sys.modules.pop("task", None)
    sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"mla_decode_{path.stem}", path)
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


def excess(output: torch.Tensor, data, precisions=reference.PRECISIONS) -> float:
    """How far an output is from the limits at the nearest of some precisions: at most 1 is accepted."""
    return min(excess_at(output, reference.expected(data, name).double(), name) for name in precisions)


def excess_at(output: torch.Tensor, wanted: torch.Tensor, precision: str) -> float:
    limits = {**TASK["tolerance"], **TASK["tolerance"]["per_precision"].get(precision, {})}
    output = output.double().nan_to_num(math.inf, math.inf, -math.inf)
    errors = (output - wanted).abs()
    row = (errors.norm(dim=-1) / wanted.norm(dim=-1)).max().item() / limits["row_relative"]
    rms = wanted.square().mean(dim=-1, keepdim=True).sqrt()
    element = (errors / (limits["atol_rms"] * rms + limits["rtol"] * wanted.abs())).max().item()
    return max(row, element)


def to_bf16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def to_fp8(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float8_e4m3fn).float()


def same(x: torch.Tensor) -> torch.Tensor:
    return x


def attend(q, k, *, scale=1 / 24, tile=128, round_p=same, with_max=True) -> torch.Tensor:
    """A second implementation, block by block with a running maximum, with switches for what kernels do."""
    largest = torch.full((len(q),), -math.inf if with_max else 0.0)
    total, result = torch.zeros(len(q)), torch.zeros(len(q), 512)
    for keys in k.split(tile):
        scores = q @ keys.T * scale
        new_largest = torch.maximum(largest, scores.amax(1)) if with_max else largest
        weights, decay = (scores - new_largest[:, None]).exp(), (largest - new_largest).exp()
        total = total * decay + weights.sum(1)
        result = result * decay[:, None] + round_p(weights) @ keys[:, :512]
        largest = new_largest
    return result / total[:, None]


def attend_in_shares(q, k, *, by_sum=True, round_part=same) -> torch.Tensor:
    """Four shares of the keys, combined by log-sum-exp, or wrongly by their mean."""
    shares = k.chunk(4)
    parts = torch.stack([round_part(attend(q, share, round_p=to_bf16)) for share in shares])
    sums = torch.stack([(q @ share.T / 24).logsumexp(1) for share in shares])
    weights = sums.softmax(0) if by_sum else torch.full_like(sums, 1 / len(shares))
    return (weights[..., None] * parts).sum(0)


def decoded(data, precision: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(query, keys) float32 of each sequence at a precision, written without the reference's code."""
    q, caches = data[0].float(), data[1]
    if precision == "fp8":
        codes, scale = quantize_fp8(data[0])
        q = codes.float() * scale
    name = {"fp8-kv": "fp8"}.get(precision, precision)
    if name == "bf16":
        keys = caches["bf16"].float()
    elif name == "fp8":
        keys = caches["fp8"][0].float() * caches["fp8"][1]
    else:
        keys = dequantize_mxfp4(caches["mxfp4"][0].squeeze(1), caches["mxfp4"][1])
    bounds = data[3].tolist()
    return [(q[i], keys.reshape(-1, 576)[bounds[i] : bounds[i + 1]]) for i in range(len(q))]


def run(kernel, data, precision: str) -> torch.Tensor:
    return torch.stack([kernel(q, k) for q, k in decoded(data, precision)]).bfloat16()


def flat(data) -> list[torch.Tensor]:
    caches = data[1]
    return [data[0], caches["bf16"], *caches["fp8"], *caches["mxfp4"], data[2], data[3]]


def test_the_parts_have_their_documented_shapes():
    q, caches, qo_indptr, kv_indptr, config = data = reference.generate_input(**CASE)
    assert (q.shape, q.dtype) == ((5, 16, 576), torch.bfloat16)
    assert (caches["bf16"].shape, caches["bf16"].dtype) == ((240, 1, 576), torch.bfloat16)
    assert (caches["fp8"][0].shape, caches["fp8"][0].dtype) == ((240, 1, 576), torch.float8_e4m3fn)
    assert (caches["fp8"][1].shape, caches["fp8"][1].dtype) == ((1,), torch.float32)
    assert [(part.shape, part.dtype) for part in caches["mxfp4"]] == [
        ((240, 1, 288), torch.uint8),
        ((240, 18), torch.uint8),
    ]
    assert (qo_indptr.tolist(), qo_indptr.dtype) == ([0, 1, 2, 3, 4, 5], torch.int32)
    assert (kv_indptr.tolist(), kv_indptr.dtype) == ([0, 48, 96, 144, 192, 240], torch.int32)
    assert all(tensor.is_contiguous() for tensor in flat(data))
    assert config == {
        "batch_size": 5,
        "num_heads": 16,
        "num_kv_heads": 1,
        "qk_head_dim": 576,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "v_head_dim": 512,
        "q_seq_len": 1,
        "kv_seq_len": 48,
        "sm_scale": 1 / 24,
    }


def test_queries_and_cache_come_from_their_own_streams_and_the_formats_are_quantised_from_the_cache():
    q, caches, *_ = reference.generate_input(**CASE)
    cache = portable.portable_normal((240, 1, 576), 2, "kv", device="cpu")
    assert torch.equal(q, portable.portable_normal((5, 16, 576), 2, "q", device="cpu"))
    assert torch.equal(caches["bf16"], cache)
    assert torch.equal(caches["fp8"][0].float(), quantize_fp8(cache)[0].float())
    assert caches["fp8"][1].item() == quantize_fp8(cache)[1].item()
    assert torch.equal(caches["mxfp4"][0], quantize_mxfp4(cache)[0])
    assert torch.equal(caches["mxfp4"][1], quantize_mxfp4(cache)[1][:, 0])


@pytest.mark.parametrize("regime", TASK["regimes"])
@pytest.mark.parametrize("precision", TASK["precisions"])
def test_the_answer_is_attention_written_out_in_float64(precision, regime):
    data = reference.generate_input(**CASE, regime=regime)
    wanted = []
    for q, k in decoded(data, precision):
        weights = torch.exp(q.double() @ k.double().T / 24)
        wanted.append(weights @ k[:, :512].double() / weights.sum(1, keepdim=True))
    found = reference.expected(data, precision)
    assert (found.dtype, found.shape) == (torch.float32, (5, 16, 512))
    # float32 has steps of 7.6e-6 at the rivals' scores near 96, and a weight moves by as much as its score.
    atol = 1e-4 if regime == "rivals" else 1e-5
    assert torch.allclose(found.double(), torch.stack(wanted), rtol=1e-4, atol=atol)


def test_without_a_precision_it_is_bfloat16_and_ref_kernel_is_fp8():
    data = reference.generate_input(**CASE)
    assert torch.equal(reference.expected(data), reference.expected(data, "bf16"))
    output = reference.ref_kernel(data)
    assert torch.equal(output, reference.expected(data, "fp8").bfloat16())
    assert output.is_contiguous()
    with pytest.raises(ValueError, match="unknown precision 'fp4': expected one of bf16, fp8, fp8-kv, mxfp4"):
        reference.expected(data, "fp4")
    assert tuple(TASK["precisions"]) == reference.PRECISIONS


@pytest.mark.parametrize("rows", [[3], [4, 0, 0], [1, 2, 4]])
@pytest.mark.parametrize("precision", TASK["precisions"])
def test_asked_for_some_sequences_the_reference_gives_those_of_the_whole(rows, precision):
    for regime in ("normal", "ragged"):
        data = reference.generate_input(**CASE, regime=regime)
        some = reference.expected(data, precision, torch.tensor(rows))
        assert torch.allclose(some, reference.expected(data, precision)[rows], rtol=1e-5, atol=1e-6)


def test_equal_lengths_are_computed_together_within_a_bound_and_rows_read_only_their_tokens(monkeypatch):
    data = reference.generate_input(**CASE)
    whole = reference.expected(data, "mxfp4")
    read = []
    original = reference._decoded
    monkeypatch.setattr(reference, "_decoded", lambda *args: read.append(args[2:]) or original(*args))
    reference.expected(data, "mxfp4")
    assert read == [(0, 240)]
    read.clear()
    reference.expected(data, "mxfp4", torch.tensor([1, 3, 4]))
    assert read == [(48, 96), (144, 240)]
    read.clear()
    monkeypatch.setattr(reference, "_DECODED_AT_A_TIME", 2 * 48 * 576)
    assert torch.allclose(reference.expected(data, "mxfp4"), whole, rtol=1e-5, atol=1e-6)
    assert read == [(0, 96), (96, 192), (192, 240)]


@pytest.mark.parametrize("regime", TASK["regimes"])
def test_renewing_keeps_the_caches_and_gives_the_queries_and_lengths_of_the_new_seed(regime):
    data = reference.generate_input(**CASE, regime=regime)
    case = {**CASE, "seed": 9, "regime": regime}
    renewed, fresh = reference.renew_input(data, **case), reference.generate_input(**case)
    assert renewed[1] is data[1]
    assert all(torch.equal(renewed[part], fresh[part]) for part in (0, 2, 3))
    assert not torch.equal(renewed[0], data[0])
    assert renewed[4] == fresh[4]
    assert [tensor.shape for tensor in flat(fresh)] == [tensor.shape for tensor in flat(data)]


@pytest.mark.parametrize("offset", [1, 50, 240, 1000003])
def test_refreshing_moves_the_tokens_of_all_caches(offset):
    data = reference.generate_input(**CASE)
    refreshed = reference.refresh(data, offset)
    cache = data[1]["bf16"].roll(offset, 0)
    assert torch.equal(refreshed[1]["bf16"], cache)
    assert torch.equal(refreshed[1]["fp8"][0].float(), quantize_fp8(cache)[0].float())
    assert refreshed[1]["fp8"][1].item() == quantize_fp8(cache)[1].item()
    assert torch.equal(refreshed[1]["mxfp4"][0], quantize_mxfp4(cache)[0])
    assert torch.equal(refreshed[1]["mxfp4"][1], quantize_mxfp4(cache)[1][:, 0])
    assert all(refreshed[part] is data[part] for part in (0, 2, 3, 4))
    pairs = zip(flat(refreshed)[1:6], flat(data)[1:6], strict=True)
    assert all(new.data_ptr() != old.data_ptr() for new, old in pairs)


def test_ragged_lengths_are_one_multiset_in_an_order_of_the_seed():
    lengths = [
        reference.generate_input(batchsize=8, kvseqlen=100, seed=seed, regime="ragged")[3].diff().tolist()
        for seed in (1, 2)
    ]
    assert sorted(lengths[0]) == sorted(lengths[1]) == [1, 7, 10, 33, 33, 48, 71, 100]
    assert lengths[0] != lengths[1]
    assert sorted(reference._lengths(2, 64, 1, "ragged")) == [1, 64]
    assert sorted(reference._lengths(4, 5, 1, "ragged")) == [1, 5, 5, 5]
    assert 1000 < sum(reference._lengths(256, 8192, 1, "ragged")) / 256 < 6000


def test_the_regimes_are_what_their_names_say():
    make = {regime: reference.generate_input(**LONG, regime=regime) for regime in TASK["regimes"]}
    scores = {regime: make[regime][0][0].float() @ make[regime][1]["bf16"][:512, 0].float().T / 24 for regime in make}
    assert scores["normal"].std().item() == pytest.approx(1, abs=0.05)
    assert scores["shifted"].amax(1).min() > 88.8  # exp of it is infinite in float32
    heavy = make["heavy"][1]["bf16"].float()
    assert (heavy.abs().max() / heavy.std()).item() > 15
    for sequence, token in ((0, 511), (1, 0)):
        q, k = decoded(make["dominant"], "bf16")[sequence]
        weights = (q @ k.T / 24).softmax(1)
        assert weights.argmax(1).tolist() == [token] * 16
        assert weights[:, token].min() > 0.8
    for q, k in decoded(make["rivals"], "bf16"):
        scores, weights = q @ k.T / 24, (q @ k.T / 24).softmax(1)
        assert 85 < scores.amax(1).min() <= scores.max() < 110
        shared = weights[:, [0, -1]]
        assert shared.max() < 1  # none has all of it
        assert (weights > 1e-6).sum(1).max() <= 3
        assert 0.2 < shared.mean() < 0.5
    with pytest.raises(ValueError, match="unknown regime 'odd': expected one of normal"):
        reference.generate_input(**CASE, regime="odd")


@pytest.mark.parametrize("regime", TASK["regimes"])
def test_scale_bytes_stay_away_from_the_ends(regime):
    scales = reference.generate_input(**CASE, regime=regime)[1]["mxfp4"][1]
    assert 100 < scales.min() <= scales.max() < 150


def test_sizes_that_cannot_be_are_refused():
    for wrong in ({"qseqlen": 4}, {"batchsize": 0}, {"kvseqlen": 0}):
        with pytest.raises(ValueError, match="expected qseqlen 1 and the others at least 1"):
            reference.generate_input(**{**CASE, **wrong})


def test_the_published_check_accepts_an_output_that_never_read_the_cache_and_ours_does_not():
    data = reference.generate_input(batchsize=2, kvseqlen=1024, seed=4217)
    closed_form = (data[0][..., :512].float() / 24).bfloat16()
    ok, message = reference.check_implementation(data, closed_form)
    assert ok
    assert "of 16384 elements differ; largest error 0." in message
    assert excess(closed_form, data) > 10


def test_the_published_check_accepts_the_reference_and_says_what_is_wrong_with_others():
    data = reference.generate_input(**CASE)
    output = reference.ref_kernel(data)
    assert reference.check_implementation(data, output) == (True, "0 of 40960 elements differ; largest error 0")
    ok, message = reference.check_implementation(data, output + 1)
    assert not ok
    assert message.startswith("40960 of 40960 elements differ; the first is [0, 0, 0]: ")
    assert not reference.check_implementation(data, torch.full_like(output, torch.nan))[0]
    assert reference.check_implementation(data, output[:3])[1].endswith("expected torch.bfloat16 (5, 16, 512)")
    assert not reference.check_implementation(data, output.float())[0]


HONEST = {
    "exact weights": attend,
    "weights in bfloat16": lambda q, k: attend(q, k, tile=32, round_p=to_bf16),
    "normalised weights in bfloat16": lambda q, k: to_bf16((q @ k.T / 24).softmax(1)) @ k[:, :512],
    "shares": attend_in_shares,
    "shares rounded to bfloat16": lambda q, k: attend_in_shares(q, k, round_part=to_bf16),
}
HONEST_WITH_BF16_QUERIES = {"scaled queries in bfloat16": lambda q, k: attend(to_bf16(q / 24), k, scale=1)}
HONEST_IN_FP8 = {
    "weights in fp8": lambda q, k: attend(q, k, round_p=to_fp8),
    "weights in fp8, small blocks": lambda q, k: attend(q, k, tile=32, round_p=to_fp8),
}


@pytest.mark.parametrize("regime", TASK["regimes"])
@pytest.mark.parametrize("precision", TASK["precisions"])
def test_honest_variants_are_inside_the_limits_of_their_precision_by_a_factor_of_one_and_a_half(precision, regime):
    data = reference.generate_input(**{**LONG, "batchsize": 12, "kvseqlen": 256}, regime=regime)
    variants = {**HONEST, **(HONEST_IN_FP8 if precision == "fp8" else HONEST_WITH_BF16_QUERIES)}
    distances = {name: excess(run(kernel, data, precision), data, [precision]) for name, kernel in variants.items()}
    assert {name: distance for name, distance in distances.items() if distance > 1 / 1.5} == {}


@pytest.mark.parametrize("regime", TASK["regimes"])
def test_a_cache_dequantised_to_bfloat16_is_inside_the_limits_by_a_factor_of_one_and_a_half(regime):
    data = reference.generate_input(**LONG, regime=regime)
    keys = [attend(q, to_bf16(k), round_p=to_bf16) for q, k in decoded(data, "fp8-kv")]
    assert excess(torch.stack(keys).bfloat16(), data, ["fp8-kv"]) < 1 / 1.5


EVERYWHERE = ("normal", "dominant", "ragged")
MUTANTS = {
    "zeros": (EVERYWHERE, lambda q, k: torch.zeros(16, 512)),
    "closed form": (EVERYWHERE, lambda q, k: q[:, :512] / 24),
    "half of the keys": (EVERYWHERE, lambda q, k: attend(q, k[: -(-len(k) // 2)])),
    "RoPE dims dropped": (EVERYWHERE, lambda q, k: attend(q[:, :512], k[:, :512])),
    "last block dropped": (EVERYWHERE, lambda q, k: attend(q, k[: max(1, (len(k) - 1) // 64 * 64)])),
    "last key dropped": (("dominant", "ragged"), lambda q, k: attend(q, k[: max(1, len(k) - 1)])),
    "first key dropped": (("dominant", "ragged"), lambda q, k: attend(q, k[min(1, len(k) - 1) :])),
    "scores not scaled": (EVERYWHERE, lambda q, k: attend(q, k, scale=1)),
    "scores scaled by 1/sqrt(512)": (("normal", "ragged"), lambda q, k: attend(q, k, scale=512**-0.5)),
    "softmax without maximum": (("shifted",), lambda q, k: attend(q, k, with_max=False)),
    "shares averaged": (EVERYWHERE, lambda q, k: attend_in_shares(q, k, by_sum=False)),
    "last head wrong": (EVERYWHERE, lambda q, k: attend(torch.cat([q[:15], q[:1]]), k)),
    "last 64 values missing": (EVERYWHERE, lambda q, k: attend(q, k) * (torch.arange(512) < 448)),
}


@pytest.mark.parametrize("precision", TASK["precisions"])
@pytest.mark.parametrize("regime", ["normal", "dominant", "ragged", "shifted"])
def test_wrong_kernels_are_outside_the_limits_by_a_factor_of_one_and_a_half(regime, precision):
    data = reference.generate_input(**LONG, regime=regime)
    wrong = {name: kernel for name, (shown_by, kernel) in MUTANTS.items() if regime in shown_by}
    distances = {name: excess(run(kernel, data, precision), data) for name, kernel in wrong.items()}
    assert {name: distance for name, distance in distances.items() if distance < 1.5} == {}


def test_a_kernel_that_assumes_equal_lengths_is_outside_the_limits():
    data = reference.generate_input(**LONG, regime="ragged")
    bounds = torch.linspace(0, int(data[3][-1]), 7).int()
    assert excess(reference.expected((*data[:3], bounds, data[4]), "fp8").bfloat16(), data) > 1.5


@pytest.mark.parametrize("case", TASK["smoke"], ids=lambda case: case.get("regime", "normal"))
def test_the_template_is_right(case):
    data = reference.generate_input(**case)
    assert excess(load(FOLDER / "template.py").custom_kernel(data), data, ["bf16"]) < 1 / 1.5


@pytest.mark.parametrize("regime", TASK["regimes"])
def test_the_torch_baseline_is_right(regime, monkeypatch):
    submission = load(SUBMISSIONS / "torch_reference.py")
    data = reference.generate_input(**LONG, regime=regime)
    output = submission.custom_kernel(data)
    assert (output.dtype, output.is_contiguous()) == (torch.bfloat16, True)
    assert excess(output, data, ["bf16"]) < 1 / 1.5
    monkeypatch.setattr(submission, "GATHERED_ELEMENTS", 4 * 512 * 576)
    assert torch.equal(submission.custom_kernel(data), output)


INTERPRET = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("submission", sys.argv[1])
submission = importlib.util.module_from_spec(spec)
spec.loader.exec_module(submission)
torch.save([submission.custom_kernel(data) for data in torch.load(sys.argv[2])], sys.argv[3])
"""


def test_the_triton_kernel_is_right_in_the_interpreter(tmp_path):
    cases = [
        *TASK["smoke"],
        {"batchsize": 4, "kvseqlen": 70, "seed": 4, "regime": "ragged"},
        {"batchsize": 1, "kvseqlen": 1, "seed": 5},
        {"batchsize": 2, "kvseqlen": 90, "seed": 6, "regime": "shifted"},
    ]
    inputs = [reference.generate_input(**case) for case in cases]
    torch.save(inputs, tmp_path / "inputs.pt")
    paths = [SUBMISSIONS / "triton_split_kv.py", tmp_path / "inputs.pt", tmp_path / "outputs.pt"]
    path = os.pathsep.join([str(FOLDER), str(ROOT / "problems" / "mx")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", INTERPRET, *paths], env=environment, check=True, timeout=120)
    outputs = torch.load(tmp_path / "outputs.pt")
    for case, data, output in zip(cases, inputs, outputs, strict=True):
        assert (output.shape, output.dtype) == ((case["batchsize"], 16, 512), torch.bfloat16)
        assert excess(output, data, ["fp8-kv"]) < 1 / 1.5, case


COMPILE = """
import importlib.util, json, re, subprocess, sys
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
spec = importlib.util.spec_from_file_location("submission", sys.argv[1])
s = importlib.util.module_from_spec(spec)
spec.loader.exec_module(s)
shapes = {"HEADS": s.HEADS, "VALUE_DIM": s.VALUE_DIM}
kernels = {
    s.attend_share: ({"q": "*bf16", "cache": "*fp8e4nv", "cache_scale": "*fp32", "kv_indptr": "*i32",
                      "partial": "*fp32", "log_sums": "*fp32", "score_scale": "fp32", "splits": "i32"},
                     {**shapes, "ROPE_DIM": s.ROPE_DIM, "BLOCK": s.BLOCK, "DOT_TYPE": s.DOT_TYPE}),
    s.combine_shares: ({"partial": "*fp32", "log_sums": "*fp32", "out": "*bf16", "splits": "i32"},
                       {**shapes, "DIMS": s.COMBINED_DIMS, "SPLITS": s.MAX_SPLITS}),
}
found = {}
for kernel, (types, constants) in kernels.items():
    names = kernel.arg_names
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name, kind in types.items() if kind[0] == "*"}
    signature = {name: types.get(name, "constexpr") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    binary = Path(sys.argv[2]) / "kernel.cubin"
    binary.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run([tool, "-res-usage", binary], capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\\d+) STACK:(\\d+)", usage).groups()
    found[kernel.__name__] = [int(registers), int(stack), compiled.metadata.shared]
print(json.dumps(found))
"""


def test_the_triton_kernel_compiles_for_an_h200_and_two_programs_fit_a_multiprocessor(tmp_path):
    triton = importlib.util.find_spec("triton")
    if triton is None or not (Path(triton.origin).parent / "backends/nvidia/bin/ptxas").exists():
        pytest.skip("this triton cannot compile for NVIDIA GPUs")
    environment = {**os.environ, "PYTHONPATH": str(FOLDER), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", COMPILE, SUBMISSIONS / "triton_split_kv.py", tmp_path]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    for name, (registers, stack, shared) in json.loads(run.stdout).items():
        assert stack == 0, f"{name} spills {stack} bytes"
        assert 2 * registers * 128 <= 65536, name
        assert 2 * shared <= 227 * 1024, name


def test_every_file_a_flat_folder_needs_is_listed_and_exists():
    names = {entry["name"] for entry in TASK["files"]}
    assert names == {"submission.py", "task.py", "reference.py", "mxfp4.py", "portable.py"}
    sources = [entry["source"] for entry in TASK["files"] if entry["source"] != "@SUBMISSION@"]
    assert [source for source in sources if not (FOLDER / source).is_file()] == []


def test_the_cases_are_those_of_the_competition():
    names = ("batchsize", "qseqlen", "kvseqlen", "seed")
    assert [tuple(case[name] for name in names) for case in TASK["tests"]] == [
        (4, 1, 1024, 4220),
        (32, 1, 1024, 5412),
        (64, 1, 8192, 1360),
        (256, 1, 8192, 9826),
    ]
    assert [tuple(case[name] for name in names) for case in TASK["benchmarks"]] == [
        (4, 1, 1024, 4217),
        (4, 1, 8192, 4220),
        (32, 1, 1024, 5412),
        (32, 1, 8192, 5415),
        (64, 1, 1024, 1357),
        (64, 1, 8192, 1360),
        (256, 1, 1024, 9823),
        (256, 1, 8192, 9826),
    ]


def test_the_readmes_table_follows_from_sizes_and_peak_rates():
    lines = [line.replace("~", "").strip("| \n").split(" | ") for line in (FOLDER / "README.md").open()]
    table = [cells for cells in lines if len(cells) == 14 and cells[0].isdigit()]
    assert len(table) == len(TASK["benchmarks"])
    for row, case in zip(table, TASK["benchmarks"], strict=True):
        size = case["batchsize"], case["kvseqlen"]
        assert (int(row[0]), int(row[1])) == size
        assert row[2:4] == [str(us) for us in PUBLISHED_US.get(size, "––")]
        work = eval(TASK["roofline"]["operations"]["fp8"], {}, dict(case))
        volumes = [size[0] * (size[1] * CACHE_BYTES[name] + 16 * 2176) for name in CACHE_BYTES]
        assert volumes[2] == eval(TASK["roofline"]["bytes"], {}, dict(case))
        floors = [volume / rate for rate in (8e6, 4.8e6) for volume in volumes]
        assert [float(cell) for cell in row[4:8]] == pytest.approx([work / 1e9, *(v / 1e6 for v in volumes)], abs=0.051)
        assert [float(cell) for cell in row[8:]] == pytest.approx(floors, abs=0.0051)
        assert min(volumes) / 4.8e6 > work / 989e6


@pytest.mark.gpu
@pytest.mark.parametrize("regime", TASK["regimes"])
def test_a_gpu_makes_the_inputs_of_the_cpu_and_all_kernels_are_right_on_it(regime, monkeypatch):
    data = reference.generate_input(**LONG, regime=regime)
    for module in (portable, reference):
        monkeypatch.setattr(module, "default_device", lambda: torch.device("cuda"))
    on_gpu = reference.generate_input(**LONG, regime=regime)
    for there, here in zip(flat(on_gpu), flat(data), strict=True):
        assert torch.equal(there.cpu().view(torch.uint8), here.view(torch.uint8))
    for precision in TASK["precisions"]:
        assert excess(reference.expected(on_gpu, precision).cpu().bfloat16(), data, [precision]) < 1 / 1.5
    for file, precision in (("torch_reference.py", "bf16"), ("triton_split_kv.py", "fp8-kv")):
        output = load(SUBMISSIONS / file).custom_kernel(on_gpu)
        assert excess(output.cpu(), data, [precision]) < 1 / 1.5, file
