"""The flash_attention_fwd problem: packed inputs, the right answer, what each regime is for, the shipped kernels."""

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml

sys.path.insert(0, str(Path(__file__).parent.parent / "problems" / "mx"))
import portable

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "problems" / "flash_attention_fwd"
SUBMISSIONS = ROOT / "submissions" / "flash_attention_fwd"
TASK = yaml.safe_load((FOLDER / "task.yml").read_text())
NAMES = ["torch_reference", "triton_varlen"]
CASE = {"batch": 4, "seqlen": 48, "heads_q": 6, "heads_kv": 2, "d": 64, "seed": 2}
ODD = {"heads_q": 3, "heads_kv": 1, "d": 64, "seed": 5}
CASES = {
    **{f"smoke {index}": case for index, case in enumerate(TASK["smoke"])},
    "one token": {**ODD, "batch": 1, "seqlen": 1},
    "a key more than a block, a head of its own each": {**ODD, "heads_kv": 3, "d": 128, "batch": 1, "seqlen": 65},
    "rivals": {**CASE, "regime": "rivals", "d": 128},
    "sink": {**CASE, "regime": "sink", "seqlen": 132},
    "offset": {**CASE, "regime": "offset"},
}


def load(path: Path) -> ModuleType:
    """Imports a file with the problem's own `task` module beside it, and no other problem's."""
    sys.modules.pop("task", None)
    sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"flash_attention_fwd_{path.stem}", path)
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


def excess(output: torch.Tensor, wanted: torch.Tensor) -> float:
    """How far an output is from the limits of task.yml: at most 1 is accepted."""
    limits, wanted = TASK["tolerance"], wanted.double()
    errors = (output.double() - wanted).abs()
    row = (errors.norm(dim=-1) / wanted.norm(dim=-1)).max().item() / limits["row_relative"]
    rms = wanted.square().mean(dim=-1, keepdim=True).sqrt()
    return max(row, (errors / (limits["atol_rms"] * rms + limits["rtol"] * wanted.abs())).max().item())


def one_token(data, token: int, head: int) -> torch.Tensor:
    """float64 [d]: one row of the answer, key by key, from the formula in README.md."""
    q, k, v, cu_seqlens, _, scale = data
    begin = max(bound for bound in cu_seqlens.tolist() if bound <= token)
    shared = head // (q.shape[1] // k.shape[1])
    scores = [
        scale * sum(a * b for a, b in zip(q[token, head].tolist(), k[key, shared].tolist(), strict=True))
        for key in range(begin, token + 1)
    ]
    weights = [math.exp(score - max(scores)) for score in scores]
    total = sum(weight * v[key, shared].double() for weight, key in zip(weights, range(begin, token + 1), strict=True))
    return total / sum(weights)


def weights_of(data, sequence: int) -> torch.Tensor:
    """float64 [heads_q, length, length]: the softmax of one sequence."""
    q, k, _, cu_seqlens, _, scale = data
    begin, end = cu_seqlens.tolist()[sequence : sequence + 2]
    keys = k[begin:end].double().transpose(0, 1).repeat_interleave(q.shape[1] // k.shape[1], 0)
    scores = scale * q[begin:end].double().transpose(0, 1) @ keys.mT
    return scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -math.inf).softmax(-1)


def test_the_parts_have_their_documented_shapes():
    q, k, v, cu_seqlens, longest, scale = reference.generate_input(**CASE)
    assert [(part.shape, part.dtype) for part in (q, k, v)] == [
        ((120, 6, 64), torch.bfloat16),
        ((120, 2, 64), torch.bfloat16),
        ((120, 2, 64), torch.bfloat16),
    ]
    assert (cu_seqlens.dtype, cu_seqlens[0].item(), cu_seqlens[-1].item()) == (torch.int32, 0, 120)
    assert sorted(cu_seqlens.diff().tolist()) == [12, 24, 36, 48]
    assert (longest, scale) == (48, 0.125)
    assert all(part.is_contiguous() for part in (q, k, v, cu_seqlens))


def test_queries_keys_and_values_come_from_their_own_streams():
    q, k, v, *_ = reference.generate_input(**CASE)
    for name, part in (("q", q), ("k", k), ("v", v)):
        assert torch.equal(part, portable.portable_normal(tuple(part.shape), 2, name, device="cpu"))


def test_the_order_of_lengths_follows_the_seed_and_shapes_do_not():
    made = [reference.generate_input(**{**CASE, "seed": seed}) for seed in range(8)]
    assert len({tuple(data[3].tolist()) for data in made}) > 2
    assert {data[0].shape for data in made} == {(120, 6, 64)}
    assert {data[4:] for data in made} == {(48, 0.125)}


@pytest.mark.parametrize("regime", TASK["regimes"])
@pytest.mark.parametrize("d", [64, 128])
def test_the_answer_is_the_formula_written_out_key_by_key(regime, d):
    data = reference.generate_input(**{**CASE, "d": d}, regime=regime)
    found = reference.expected(data)
    assert (found.dtype, found.shape) == (torch.float32, data[0].shape)
    bounds = data[3].tolist()
    for token, head in [(0, 0), (bounds[1] - 1, 5), (bounds[1], 3), (bounds[2] - 1, 2), (len(data[0]) - 1, 4)]:
        # float32 has steps of 7.6e-6 at the rivals' scores near 96, and a weight moves by as much as its score.
        assert torch.allclose(found[token, head].double(), one_token(data, token, head), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [[3], [119, 0, 0], [47, 48, 49, 12]])
def test_asked_for_some_tokens_the_reference_gives_those_of_the_whole(rows):
    data = reference.generate_input(**CASE)
    some = reference.expected(data, None, torch.tensor(rows))
    assert torch.allclose(some, reference.expected(data)[rows], rtol=1e-5, atol=1e-6)


def test_the_reference_works_in_pieces_where_memory_is_short(monkeypatch):
    data = reference.generate_input(**CASE)
    whole = reference.expected(data)
    monkeypatch.setattr(reference, "_SCORES_AT_A_TIME", {"cpu": 5 * 6 * 48})
    assert torch.allclose(reference.expected(data), whole, rtol=1e-5, atol=1e-6)


def test_ref_kernel_rounds_to_bfloat16():
    data = reference.generate_input(**CASE)
    output = reference.ref_kernel(data)
    assert torch.equal(output, reference.expected(data).bfloat16())
    assert output.is_contiguous()


# --- what the regimes are for --------------------------------------------------------------------------------


LONG = {"batch": 2, "seqlen": 256, "heads_q": 4, "heads_kv": 2, "seed": 5}


@pytest.mark.parametrize("d", [64, 128])
def test_rivals_share_the_weight_at_scores_where_bfloat16_has_steps_of_a_half(d):
    data = reference.generate_input(**LONG, d=d, regime="rivals")
    q, k, _, cu_seqlens, _, scale = data
    begin, end = cu_seqlens.tolist()[:2]
    scores = scale * q[begin:end, 0].double() @ k[begin:end, 0].double().T
    assert 75 < scores.max(1).values.min() <= scores.max() < 125
    last = weights_of(data, 0)[:, -1]
    assert (last > 1e-6).sum(1).max() <= 3
    assert 0.05 < last[:, 0].mean() < 0.9
    assert weights_of(data, 0)[:, (end - begin) // 2].max(1).values.mean() < 0.95


@pytest.mark.parametrize("d", [64, 128])
def test_a_sink_is_the_first_key_of_each_sequence_and_a_late_key_stands_in_the_last_quarter(d):
    sink = reference.generate_input(**LONG, d=d, regime="sink")
    assert weights_of(sink, 1)[:, 8:, 0].mean() > 0.95
    late = weights_of(reference.generate_input(**LONG, d=d, regime="late"), 0)
    place = int(late[0, -1].argmax())
    assert place >= 0.7 * late.shape[-1]
    assert late[:, place:, place].min() > 0.5
    assert late[:, place - 1].max() < 0.5


def test_offset_values_have_mean_eight():
    v = reference.generate_input(**LONG, d=64, regime="offset")[2].float()
    assert v.mean().item() == pytest.approx(8, abs=0.05)
    assert v.std().item() == pytest.approx(1, abs=0.05)


def test_uneven_lengths_have_one_seven_and_thirty_three_beside_the_longest_and_another_scale():
    data = reference.generate_input(batch=8, seqlen=400, heads_q=2, heads_kv=1, d=64, seed=1, regime="uneven")
    lengths = sorted(data[3].diff().tolist())
    assert {1, 7, 33, 400} <= set(lengths)
    assert (len(lengths), data[4], data[5]) == (8, 400, 1 / 64)


def test_what_cannot_be_is_refused():
    for wrong in ({"d": 96}, {"batch": 0}, {"heads_q": 5}, {"seqlen": 50}):
        with pytest.raises(ValueError, match="expected d 64 or 128, heads_q a multiple of heads_kv, seqlen a multiple"):
            reference.generate_input(**{**CASE, **wrong})
    with pytest.raises(ValueError, match="unknown regime 'odd': expected one of normal, rivals"):
        reference.generate_input(**CASE, regime="odd")


def test_the_plain_check_accepts_the_reference_and_says_what_is_wrong_with_others():
    data = reference.generate_input(**CASE)
    output = reference.ref_kernel(data)
    assert reference.check_implementation(data, output) == (True, "largest error 0")
    ok, message = reference.check_implementation(data, output + 1)
    assert not ok
    assert message.startswith("46080 of 46080 elements differ; the first is [0, 0, 0]: ")
    assert not reference.check_implementation(data, torch.full_like(output, torch.nan))[0]
    assert reference.check_implementation(data, output[:3])[1].endswith("expected torch.bfloat16 (120, 6, 64)")


# --- the limits, by a second implementation ------------------------------------------------------------------


def test_bfloat16_weights_are_well_inside_and_fp8_weights_well_outside():
    data = reference.generate_input(**LONG, d=64)
    wanted = reference.expected(data)
    for dtype, inside in ((torch.bfloat16, True), (torch.float8_e4m3fn, False)):
        parts = []
        for index, (begin, end) in enumerate(pairwise(data[3].tolist())):
            weights = weights_of(data, index)
            scaled = weights / weights.max(-1, keepdim=True).values
            values = data[2][begin:end].double().transpose(0, 1).repeat_interleave(2, 0)
            rounded = scaled.float().to(dtype).double()
            parts.append((rounded @ values / scaled.sum(-1, keepdim=True)).transpose(0, 1))
        distance = excess(torch.cat(parts).bfloat16(), wanted)
        assert (distance < 1 / 1.5) if inside else (distance > 1.5)


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

kernel, found = submission.attend, {}
pointers = {**dict.fromkeys(["q_ptr", "k_ptr", "v_ptr", "out_ptr"], "*bf16"), "cu_seqlens": "*i32"}
aligned = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in pointers}
for dim, warps in ((64, 4), (128, 8)):
    constants = {"HEADS": 32, "KV_HEADS": 8, "DIM": dim, "BLOCK_M": submission.BLOCK_M, "BLOCK_N": submission.BLOCK_N}
    constants["DOT_TYPE"] = submission.DOT_TYPE
    signature = {**pointers, "score_scale": "fp32", **dict.fromkeys(constants, "constexpr")}
    for target in (GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx950", 64)):
        source = ASTSource(kernel, signature, constants, aligned)
        compiled = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": 3})
        text = compiled.asm["ptx" if target.backend == "cuda" else "amdgcn"]
        found[f"{target.arch} {dim}"] = (compiled.metadata.shared, text)
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
def test_the_output_is_inside_the_limits_by_a_factor_of_one_and_a_half(results, case):
    output, wanted = results[case]
    assert (output.shape, output.dtype, output.is_contiguous()) == (wanted.shape, torch.bfloat16, True)
    assert excess(output, wanted) < 1 / 1.5


@pytest.mark.parametrize("case", TASK["smoke"], ids=lambda case: case.get("regime", str(case["seqlen"])))
def test_the_template_is_right(case):
    data = reference.generate_input(**case)
    assert excess(load(FOLDER / "template.py").custom_kernel(data), reference.expected(data)) < 1 / 1.5


def test_the_kernel_compiles_for_an_h200_and_an_mi355x_without_either(tmp_path):
    found = json.loads(run(COMPILE, tmp_path, "triton_varlen"))
    for target, (shared_bytes, text) in found.items():
        if target.startswith("90"):
            assert shared_bytes <= 227 * 1024
            assert "wgmma" in text
        else:
            assert shared_bytes <= 160 * 1024
            assert "v_mfma" in text
            assert ".vgpr_spill_count: 0" in text


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu_it_is_right_for_every_test_and_regime_and_waits_for_nothing(tmp_path, name):
    regimes = [{**TASK["tests"][0], "regime": regime} for regime in TASK["regimes"]]
    cases = TASK["tests"] + regimes
    run(RUN, tmp_path, name, json.dumps(cases), "results.pt", "twice")
    for case, (output, wanted) in zip(cases, torch.load(tmp_path / "results.pt"), strict=True):
        assert excess(output, wanted) < 1 / 1.5, case


@pytest.mark.gpu
@pytest.mark.parametrize("regime", TASK["regimes"])
def test_a_gpu_makes_the_inputs_of_the_cpu_and_the_same_answer(regime, monkeypatch):
    data = reference.generate_input(**CASE, regime=regime)
    for module in (portable, reference):
        monkeypatch.setattr(module, "default_device", lambda: torch.device("cuda"))
    on_gpu = reference.generate_input(**CASE, regime=regime)
    assert all(torch.equal(there.cpu(), here) for there, here in zip(on_gpu[:4], data[:4], strict=True))
    assert on_gpu[4:] == data[4:]
    assert torch.allclose(reference.expected(on_gpu).cpu(), reference.expected(data), rtol=1e-3, atol=1e-4)


# --- the documents -------------------------------------------------------------------------------------------


def test_every_file_a_flat_folder_needs_is_listed_and_exists():
    names = {entry["name"] for entry in TASK["files"]}
    assert names == {"submission.py", "task.py", "reference.py", "portable.py"}
    sources = [entry["source"] for entry in TASK["files"] if entry["source"] != "@SUBMISSION@"]
    assert [source for source in sources if not (FOLDER / source).is_file()] == []


@pytest.mark.parametrize("case", [case for case in TASK["smoke"] if "regime" not in case], ids=str)
def test_the_roofline_counts_tensors_and_pairs(case):
    q, _, _, cu_seqlens, *_ = data = reference.generate_input(**case)
    volume = sum(tensor.numel() * tensor.element_size() for tensor in (*data[:4], reference.ref_kernel(data)))
    assert eval(TASK["roofline"]["bytes"], {}, dict(case)) == volume
    pairs = sum(length * (length + 1) // 2 for length in cu_seqlens.diff().tolist())
    work = eval(TASK["roofline"]["operations"]["bf16"], {}, dict(case))
    assert work == pytest.approx(4 * q.shape[2] * q.shape[1] * pairs)


def test_the_benchmarks_fit_an_80_gb_gpu_and_take_milliseconds_at_most():
    for case in TASK["benchmarks"]:
        assert case["seqlen"] % case["batch"] == 0
        assert eval(TASK["roofline"]["bytes"], {}, dict(case)) < 2e9
        assert eval(TASK["roofline"]["operations"]["bf16"], {}, dict(case)) / 989e12 < 2e-3


def test_the_readmes_table_follows_from_the_roofline():
    lines = [line.replace("*", "").strip("| \n").split(" | ") for line in (FOLDER / "README.md").open()]
    table = [[float(cell) for cell in cells] for cells in lines if len(cells) == 12 and cells[0].isdigit()]
    assert len(table) == len(TASK["benchmarks"])
    for row, case in zip(table, TASK["benchmarks"], strict=True):
        volume = eval(TASK["roofline"]["bytes"], {}, dict(case))
        work = eval(TASK["roofline"]["operations"]["bf16"], {}, dict(case))
        assert row[:5] == [case[name] for name in ("batch", "seqlen", "heads_q", "heads_kv", "d")]
        assert row[5] == case["seqlen"] * (case["batch"] + 1) / 2
        floors = [volume / 4.8e6, work / 989e6, volume / 8e6, work / 2250e6]
        assert row[6:] == pytest.approx([volume / 1e6, work / 1e9, *floors], abs=0.051)
