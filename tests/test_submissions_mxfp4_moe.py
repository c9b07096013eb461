"""The shipped mxfp4_moe kernels are right however the tokens are spread: in Triton's interpreter and on a GPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "problems" / "mxfp4_moe"
SUBMISSIONS = ROOT / "submissions" / "mxfp4_moe"
TASK = yaml.safe_load((FOLDER / "task.yml").read_text())
NAMES = ["torch_reference", "triton_grouped"]
SMALL = {"dhidden": 128, "dexpert": 64, "nroutedexperts": 4, "nexpertspertoken": 1, "nsharedexperts": 0, "seed": 4}
ODD = {"dhidden": 320, "dexpert": 192, "nroutedexperts": 9, "nexpertspertoken": 3, "nsharedexperts": 2, "seed": 5}
CASES = {
    **{f"smoke {index}": case for index, case in enumerate(TASK["smoke"])},
    "one token": {**SMALL, "bs": 1},
    "every token to one expert, in three blocks": {**SMALL, "bs": 150, "regime": "skewed"},
    "half of the experts without a token": {**ODD, "bs": 19, "regime": "sparse"},
    "heavy tails": {**ODD, "bs": 6, "regime": "heavy"},
}
# Half of the bfloat16 rounding unit is 2**-9; anything left out or rounded otherwise shows in the next digit.
ROW_LIMIT = 0.004

# Runs where the problem's files and the submission lie flat, as in a contest: saves (output, expected) of every case.
# With "twice", the second call must not wait for the device, and must repeat the first to the last bit.
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
        again = submission.custom_kernel(data)
        torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(output, again)
    results.append((output.cpu(), reference.expected(data).cpu()))
torch.save(results, sys.argv[2])
"""

COMPILE = """
import json
import submission, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

found = {}
tiles = {"BLOCK_M": 64, "BLOCK_N": submission.BLOCK_N, "BLOCK_K": submission.BLOCK_K}
sizes, groups = {"E": 257, "D": 7168, "INNER": 256}, ["*i64"] * 4
kernels = {
    "quantise_kernel": (["*bf16", "*u8", "*u8"], {"D": 7168, "BLOCK": submission.BLOCK_ROW}),
    "gate_up_kernel": (["*u8"] * 6 + groups, {**sizes, **tiles, "T": 9}),
    "down_kernel": (["*u8"] * 4 + ["*fp32"] * 2 + groups, {**sizes, **tiles}),
    "combine_kernel": (["*fp32", "*bf16"], {"T": 9, "D": 7168, "BLOCK": submission.BLOCK_ROW}),
}
for name, (pointers, constants) in kernels.items():
    kernel = getattr(submission, name)
    signature = dict(zip(kernel.arg_names, pointers)) | dict.fromkeys(constants, "constexpr")
    aligned = {(index,): [["tt.divisibility", 16]] for index in range(len(pointers))}
    for target in (GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx950", 64)):
        source = ASTSource(kernel, signature, constants, aligned)
        compiled = triton.compile(source, target=target, options={"num_warps": 4})
        text = compiled.asm["ptx" if target.backend == "cuda" else "amdgcn"]
        found[f"{target.arch} {name}"] = (compiled.metadata.shared, text)
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


def row_errors(output: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """||output - wanted|| / ||wanted|| of every token, ascending."""
    output, wanted = output.double(), wanted.double()
    return ((output - wanted).norm(dim=1) / wanted.norm(dim=1)).sort().values


@pytest.fixture(scope="module", params=NAMES)
def results(request, tmp_path_factory) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """(output, expected) of every case, computed on the CPU: Triton through its interpreter."""
    folder = tmp_path_factory.mktemp(request.param)
    on_the_cpu = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    run(RUN, folder, request.param, json.dumps(list(CASES.values())), "results.pt", **on_the_cpu)
    return dict(zip(CASES, torch.load(folder / "results.pt"), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_every_token_is_within_bfloat16_rounding_of_the_reference(results, case):
    output, wanted = results[case]
    assert (output.shape, output.dtype) == ((CASES[case]["bs"], CASES[case]["dhidden"]), torch.bfloat16)
    assert output.is_contiguous()
    assert row_errors(output, wanted)[-1] < ROW_LIMIT


def test_the_kernels_compile_for_an_h200_and_an_mi355x_without_either(tmp_path):
    found = json.loads(run(COMPILE, tmp_path, "triton_grouped"))
    for target, (shared_bytes, text) in found.items():
        multiplies = "gate_up" in target or "down" in target
        if target.startswith("90"):
            assert shared_bytes <= 227 * 1024
            assert ("bf16.bf16" in text) == multiplies  # dot_scaled, emulated
        else:
            assert shared_bytes <= 160 * 1024
            assert ("v_mfma_scale_f32" in text) == multiplies  # dot_scaled itself
            assert ".vgpr_spill_count: 0" in text


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "calls"), [("torch_reference", "once"), ("triton_grouped", "twice")])
def test_on_a_gpu_it_is_right_for_every_published_test(tmp_path, name, calls):
    run(RUN, tmp_path, name, json.dumps(TASK["tests"]), "results.pt", calls)
    for output, wanted in torch.load(tmp_path / "results.pt"):
        errors = row_errors(output, wanted)
        # A last-bit difference in exp can flip an FP4 code of some token.
        assert errors[-1 - max(1, len(errors) // 200)] < ROW_LIMIT
        assert errors[-1] < TASK["tolerance"]["outlier_row_relative"]
