"""The contestant's GPU queue, as far as it shows without a GPU: every kernel of it compiles for both vendors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COMPILE = """
import json, sys
import torch

vendor = sys.argv[1]
torch.version.hip = "7.0" if vendor == "hip" else None
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from harness.timing import allowance, enqueue, flush

TYPES = {
    "words": "*i32", "begun": "*i64", "offsets": "*i64", "lines": "*i32", "source": "*i32", "sink": "*i32",
    "ticks": "i32", "looks": "i32", "generation": "i32", "polls": "i32", "index": "i32", "count": "i32",
}
CONSTANTS = {"release": 0, "done": 16, "expired": 32, "size": 64, "width": 4, "block": 8192}
target = GPUTarget("hip", "gfx950", 64) if vendor == "hip" else GPUTarget("cuda", 90, 32)
found = {}
for module in (allowance, enqueue, flush):
    for name, kernel in vars(module).items():
        if isinstance(kernel, triton.runtime.jit.JITFunction):
            signature = {each: TYPES.get(each, "constexpr") for each in kernel.arg_names}
            constants = {each: CONSTANTS[each] for each in kernel.arg_names if each in CONSTANTS}
            compiled = triton.compile(ASTSource(kernel, signature, constants), target=target)
            found[name] = compiled.asm["amdgcn" if vendor == "hip" else "ptx"]
print(json.dumps(found))
"""


@pytest.mark.parametrize(("vendor", "clock"), [("cuda", "%globaltimer"), ("hip", "s_memrealtime")])
def test_every_kernel_of_the_queue_compiles_for_either_vendor(vendor: str, clock: str, tmp_path: Path) -> None:
    kept = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment = {**kept, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", COMPILE, vendor]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kernels = json.loads(done.stdout)
    ours = {"_gate_kernel", "_done_kernel", "_empty_kernel", "_reveal_kernel", "_read_kernel"}
    assert set(kernels) == ours | {"_begin_kernel", "_wait_kernel"}
    assert {name for name, text in kernels.items() if clock in text} == {"_begin_kernel", "_wait_kernel"}
