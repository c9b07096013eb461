"""The shipped fp4_gemm kernels give the one right answer: in Triton's interpreter, on a GPU, and in ragged shapes."""

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
FOLDER = ROOT / "problems" / "fp4_gemm"
SUBMISSIONS = ROOT / "submissions" / "fp4_gemm"
TASK = yaml.safe_load((FOLDER / "task.yml").read_text())
NAMES = ["torch_reference", "triton_dot_scaled"]
CASES = {
    **{f"smoke {index}": case for index, case in enumerate(TASK["smoke"])},
    "one row, the smallest n and k": {"m": 1, "n": 16, "k": 64, "seed": 4},
    "four row tiles, the last one ragged": {"m": 200, "n": 48, "k": 320, "seed": 5},
    "one row more than a tile, n past a scale tile": {"m": 65, "n": 272, "k": 448, "seed": 6, "regime": "dominant"},
    "shifted": {"m": 17, "n": 80, "k": 512, "seed": 7, "regime": "shifted"},
}

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
pointers = {"a_ptr": "*bf16", "b_ptr": "*u8", "b_scale_ptr": "*u8", "c_ptr": "*bf16"}
signature = pointers | dict.fromkeys(["m", "n", "scale_width"], "i32")
aligned = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in [*pointers, "n"]}
for block_m, block_n in ((16, 32), (64, 64)):
    constants = {"K": 7168, "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": submission.BLOCK_K}
    full = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    for target in (GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx950", 64)):
        compiled = triton.compile(ASTSource(kernel, full, constants, aligned), target=target, options={"num_warps": 4})
        text = compiled.asm["ptx" if target.backend == "cuda" else "amdgcn"]
        found[f"{target.arch} {block_m}"] = (compiled.metadata.shared, text)
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
def test_the_output_is_the_reference_to_the_last_bit(results, case):
    output, wanted = results[case]
    assert (output.shape, output.dtype) == ((CASES[case]["m"], CASES[case]["n"]), torch.bfloat16)
    assert output.is_contiguous()
    assert torch.equal(output, wanted.bfloat16())
    assert wanted.count_nonzero() > 0.8 * wanted.numel()


def test_the_kernel_compiles_for_an_h200_and_an_mi355x_without_either(tmp_path):
    found = json.loads(run(COMPILE, tmp_path, "triton_dot_scaled"))
    for target, (shared_bytes, text) in found.items():
        if target.startswith("90"):
            assert shared_bytes <= 227 * 1024
            assert "bf16.bf16" in text  # dot_scaled, emulated
        else:
            assert shared_bytes <= 160 * 1024
            assert "v_mfma_scale_f32" in text  # dot_scaled itself
            assert ".vgpr_spill_count: 0" in text


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu_it_is_right_for_every_published_case_and_waits_for_nothing(tmp_path, name):
    cases = TASK["tests"] + TASK["benchmarks"]
    run(RUN, tmp_path, name, json.dumps(cases), "results.pt", "twice")
    for case, (output, wanted) in zip(cases, torch.load(tmp_path / "results.pt"), strict=True):
        assert torch.equal(output, wanted.bfloat16()), case
