"""The mxfp4_moe problem: inputs that agree with each other, routing, the right answer, what the tolerance accepts."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml

sys.path.insert(0, str(Path(__file__).parent.parent / "problems" / "mx"))
import portable
from mx_layout import shuffle_scale, shuffle_weight
from mxfp4 import dequantize_mxfp4, quantize_mxfp4

PROBLEMS = Path(__file__).parent.parent / "problems"
FOLDER = PROBLEMS / "mxfp4_moe"
TASK = yaml.safe_load((FOLDER / "task.yml").read_text())
TOLERANCE = TASK["tolerance"]
CASE = {
    "dhidden": 256,
    "dexpert": 128,
    "nroutedexperts": 4,
    "nexpertspertoken": 2,
    "nsharedexperts": 1,
    "bs": 7,
    "seed": 2,
}
# Enough experts and tokens for the limits to mean what they mean at full size.
WIDE = {**CASE, "dhidden": 512, "nroutedexperts": 32, "nexpertspertoken": 8, "bs": 16, "seed": 5}
NAMES = ("dhidden", "dexpert", "nroutedexperts", "nexpertspertoken", "nsharedexperts", "bs", "seed")
PUBLISHED_US = (152.7, 239.0, 336.5, 106.2, 141.1, 225.0, 380.4)


def load(file: str) -> ModuleType:
    """Imports a file of the problem's folder, with that folder's own `task` module and no other problem's."""
    sys.modules.pop("task", None)
    sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"mxfp4_moe_{file}", FOLDER / f"{file}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(FOLDER))
    sys.modules.pop("task", None)
    return module


reference = load("reference")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    for module in (portable, reference):
        monkeypatch.setattr(module, "default_device", lambda: torch.device("cpu"))


def kernel(
    data,
    *,
    quantise_x=("even", "nearest-even"),
    requantise=True,
    round_h=True,
    bfloat16_sum=False,
    experts_backwards=False,
    swap_gate_and_up=False,
    weigh=lambda weights: weights,
) -> torch.Tensor:
    """A second implementation, token list by token list, with switches for what variants and wrong kernels do."""
    hidden, gate_up, down, gate_up_scale, down_scale, *_, weights, ids, _ = data
    experts, weights = len(gate_up), weigh(weights)
    gate_up_scale, down_scale = (
        gate_up_scale.view(experts, -1, hidden.shape[1] // 32),
        down_scale.view(*down.shape[:2], -1),
    )
    x = dequantize_mxfp4(*quantize_mxfp4(hidden, *quantise_x)) if quantise_x else hidden.float()
    total = torch.zeros(x.shape)
    for expert in reversed(range(experts)) if experts_backwards else range(experts):
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        gate, up = (x[tokens] @ dequantize_mxfp4(gate_up[expert], gate_up_scale[expert]).T).chunk(2, 1)
        gate, up = (up, gate) if swap_gate_and_up else (gate, up)
        h = gate / (1 + torch.exp(-gate)) * up
        h = h.bfloat16().float() if round_h else h
        h = dequantize_mxfp4(*quantize_mxfp4(h)) if requantise else h
        result = h @ dequantize_mxfp4(down[expert], down_scale[expert]).T * weights[tokens, slots].unsqueeze(1)
        if bfloat16_sum:
            total[tokens] = (total[tokens] + result.bfloat16().float()).bfloat16().float()
        else:
            total[tokens] += result
    return total.bfloat16()


def excess(output: torch.Tensor, wanted: torch.Tensor) -> float:
    """How far an output is from the limits of task.yml: at most 1 is accepted."""
    errors, wanted = (output.double() - wanted.double()).abs(), wanted.double()
    rows = errors.norm(dim=1) / wanted.norm(dim=1)
    kept = rows.argsort(descending=True)[max(1, int(TOLERANCE["outlier_rows"] * len(rows))) :]
    rms = wanted.square().mean(dim=1, keepdim=True).sqrt()
    outside = errors > TOLERANCE["atol_rms"] * rms + TOLERANCE["rtol"] * wanted.abs()
    return max(
        rows.max().item() / TOLERANCE["outlier_row_relative"],
        rows[kept].max().item() / TOLERANCE["row_relative"],
        outside[kept].double().mean().item() / TOLERANCE["mismatched"],
    )


@pytest.mark.parametrize("case", TASK["smoke"], ids=lambda case: f"bs{case['bs']}")
def test_the_parts_have_their_documented_shapes_and_agree(case):
    data = reference.generate_input(**case)
    width, inner, experts = case["dhidden"], case["dexpert"], case["nroutedexperts"] + case["nsharedexperts"]
    hidden, gate_up, down, gate_up_scale, down_scale, *tiled, weights, ids, config = data
    assert (hidden.shape, hidden.dtype) == ((case["bs"], width), torch.bfloat16)
    assert gate_up.shape == (experts, 2 * inner, width // 2)
    assert down.shape == (experts, width, inner // 2)
    assert gate_up_scale.shape == (experts * 2 * inner, width // 32)
    assert down_scale.shape == (experts * width, inner // 32)
    plain = (shuffle_weight(gate_up), shuffle_weight(down), shuffle_scale(gate_up_scale), shuffle_scale(down_scale))
    assert all(torch.equal(given, made) for given, made in zip(tiled, plain, strict=True))
    assert (weights.dtype, ids.dtype, weights.shape, ids.shape) == (torch.float32, torch.int32, *[(case["bs"], 3)] * 2)
    assert all(tensor.is_contiguous() for tensor in data[:11])
    assert config == {
        "d_hidden": width,
        "d_expert": inner,
        "d_hidden_pad": width,
        "d_expert_pad": inner,
        "n_routed_experts": case["nroutedexperts"],
        "n_shared_experts": 1,
        "n_experts_per_token": 2,
        "total_top_k": 3,
        "bs": case["bs"],
    }


def test_weights_made_expert_by_expert_are_the_stream_divided_and_quantised():
    _, gate_up, down, gate_up_scale, down_scale, *_ = reference.generate_input(**CASE)
    whole = portable.portable_normal((5, 256, 256), 2, "gate_up", device="cpu") / 16
    assert torch.equal(gate_up, quantize_mxfp4(whole)[0])
    assert torch.equal(gate_up_scale, quantize_mxfp4(whole)[1].view(-1, 8))
    whole = portable.portable_normal((5, 256, 128), 2, "down", device="cpu") / math.sqrt(128)
    assert torch.equal(down, quantize_mxfp4(whole)[0])
    assert torch.equal(down_scale, quantize_mxfp4(whole)[1].view(-1, 4))


def test_the_answer_is_the_layer_written_out_in_float64_token_by_token():
    hidden, gate_up, down, gate_up_scale, down_scale, *_, weights, ids, _ = data = reference.generate_input(**CASE)
    x = dequantize_mxfp4(*quantize_mxfp4(hidden)).double()
    gate_up = dequantize_mxfp4(gate_up, gate_up_scale.view(5, 256, 8)).double()
    down = dequantize_mxfp4(down, down_scale.view(5, 256, 4)).double()
    wanted = torch.zeros(7, 256, dtype=torch.float64)
    for token in range(7):
        for slot in range(3):
            expert = int(ids[token, slot])
            gate, up = gate_up[expert, :128] @ x[token], gate_up[expert, 128:] @ x[token]
            h = dequantize_mxfp4(*quantize_mxfp4((gate * torch.sigmoid(gate) * up).bfloat16())).double()
            wanted[token] += weights[token, slot].double() * (down[expert] @ h)
    assert torch.allclose(reference.expected(data).double(), wanted, rtol=1e-5, atol=1e-6)
    output = reference.ref_kernel(data)
    assert (output.shape, output.dtype, output.is_contiguous()) == ((7, 256), torch.bfloat16, True)
    assert excess(output, wanted) < 1 / 1.5


@pytest.mark.parametrize("rows", [[3], [6, 0, 0], [1, 2, 5]])
def test_asked_for_some_tokens_the_reference_gives_those_of_the_whole(rows):
    data = reference.generate_input(**CASE)
    index = torch.tensor(rows)
    some, whole = reference.expected(data, None, index), reference.expected(data)
    assert torch.allclose(some, whole[index], rtol=1e-6, atol=1e-7)


def test_asked_for_one_token_the_reference_decodes_only_its_experts(monkeypatch):
    data = reference.generate_input(**WIDE)
    decoded = []
    original = reference.dequantize_mxfp4
    monkeypatch.setattr(
        reference, "dequantize_mxfp4", lambda packed, scales: decoded.append(packed.shape) or original(packed, scales)
    )
    reference.expected(data, None, torch.tensor([4]))
    assert sum(shape[0] for shape in decoded if shape[1:] == (256, 256)) == 9


@pytest.mark.parametrize("elements", [1, 1 << 16, 1 << 30])
@pytest.mark.parametrize("regime", [None, "dominant"])
def test_how_many_experts_are_made_or_read_back_at_once_changes_nothing(monkeypatch, regime, elements):
    case = WIDE | ({"regime": regime} if regime else {})
    data = reference.generate_input(**case)
    wanted = reference.expected(data)
    monkeypatch.setattr(reference, "_PIECE_ELEMENTS", elements)
    again = reference.generate_input(**case)
    assert all(torch.equal(some, other) for some, other in zip(again[:11], data[:11], strict=True))
    assert torch.equal(reference.expected(again), wanted)


@pytest.mark.parametrize("regime", TASK["regimes"])
def test_renewing_keeps_the_weights_and_gives_the_tokens_of_the_new_seed(regime):
    data = reference.generate_input(**CASE, regime=regime)
    new_case = {**CASE, "seed": 9, "regime": regime}
    renewed, fresh = reference.renew_input(data, **new_case), reference.generate_input(**new_case)
    assert all(new is old for new, old in zip(renewed[1:9], data[1:9], strict=True))
    assert all(torch.equal(renewed[part], fresh[part]) for part in (0, 9, 10))
    assert not torch.equal(renewed[0], data[0])
    assert renewed[11] == fresh[11]


@pytest.mark.parametrize("offset", [1, 3, 8])
def test_refreshing_moves_the_experts_in_all_eight_tensors(offset):
    case = TASK["smoke"][2]
    data = reference.generate_input(**case)
    refreshed = reference.refresh(data, offset)
    gate_up, down, gate_up_scale, down_scale, *tiled = refreshed[1:9]
    assert torch.equal(gate_up, data[1].roll(offset, 0))
    assert torch.equal(down, data[2].roll(offset, 0))
    assert torch.equal(gate_up_scale.view(6, -1), data[3].view(6, -1).roll(offset, 0))
    assert torch.equal(down_scale.view(6, -1), data[4].view(6, -1).roll(offset, 0))
    plain = (shuffle_weight(gate_up), shuffle_weight(down), shuffle_scale(gate_up_scale), shuffle_scale(down_scale))
    assert all(torch.equal(given, made) for given, made in zip(tiled, plain, strict=True))
    assert all(new is old for new, old in zip(refreshed[9:], data[9:], strict=True))
    assert refreshed[0] is data[0]
    assert not torch.equal(reference.expected(refreshed), reference.expected(data))


def test_routing_takes_the_best_scores_and_leaves_them_as_they_are():
    hidden, *_, weights, ids, _ = reference.generate_input(**WIDE)
    router = portable.portable_normal((32, 512), 5, "router", device="cpu") / math.sqrt(512)
    logits = (hidden.double() @ router.double().T).bfloat16()
    scores = logits.float().softmax(1).bfloat16()
    assert torch.equal(weights[:, :8], scores.float().topk(8).values)
    assert torch.equal(scores.gather(1, ids[:, :8].long()).float(), weights[:, :8])
    assert ids[:, 8].tolist() == [32] * 16
    assert weights[:, 8].tolist() == [1.0] * 16
    assert 0.4 < weights[:, :8].sum(1).mean() < 0.75


def test_equal_scores_go_to_the_lower_expert():
    weights, ids = reference._route(torch.zeros(2, 64).bfloat16(), 6, 3, 2, 1, "normal")
    assert ids.tolist() == [[0, 1, 2, 6, 7]] * 2
    assert weights[0].tolist() == [torch.tensor(1 / 6).bfloat16().item()] * 3 + [1.0, 1.0]


def test_the_routing_regimes_are_what_their_names_say():
    routed = {r: reference.generate_input(**{**WIDE, "bs": 64}, regime=r)[9:11] for r in reference.ROUTING_REGIMES}
    weights, ids = routed["skewed"]
    assert len(ids[:, :8].unique()) == 8
    weights, ids = routed["sparse"]
    assert len(ids[:, :8].unique()) == 16
    weights, ids = routed["renormalised"]
    assert torch.allclose(weights[:, :8].sum(1), torch.ones(64))
    assert len(ids[:, :8].unique()) == 32


@pytest.mark.parametrize("regime", TASK["regimes"])
def test_scale_bytes_stay_away_from_the_ends(regime):
    data = reference.generate_input(**CASE, regime=regime)
    scales = torch.cat([data[3].flatten(), data[4].flatten(), quantize_mxfp4(data[0])[1].flatten()])
    assert 100 < scales.min() <= scales.max() < 150


HONEST = {
    "float32 sum": {},
    "experts in another order": {"experts_backwards": True},
    "bfloat16 sum": {"bfloat16_sum": True},
    "bfloat16 sum in another order": {"bfloat16_sum": True, "experts_backwards": True},
}
WRONG = {
    "ties away from zero": {"quantise_x": ("even", "half-away")},
    "round15 scales": {"quantise_x": ("round15",)},
    "rounded-up scales": {"quantise_x": ("rceil",)},
    "x not quantised": {"quantise_x": None},
    "h not requantised": {"requantise": False},
    "h not rounded to bfloat16": {"round_h": False},
    "gate and up swapped": {"swap_gate_and_up": True},
    "least routed expert dropped": {"weigh": lambda w: w * (w > w.amin(1, keepdim=True))},
    "routed weights replaced by their mean": {
        "weigh": lambda w: torch.cat([w[:, :-1].mean(1, keepdim=True).expand(-1, 8), w[:, -1:]], 1)
    },
    "shared expert dropped": {"weigh": lambda w: w * (w < 1)},
    "weights ignored": {"weigh": torch.ones_like},
}


@pytest.mark.parametrize("regime", TASK["regimes"])
def test_honest_variants_are_inside_the_limits_by_a_factor_of_one_and_a_half(regime):
    data = reference.generate_input(**WIDE, regime=regime)
    wanted = reference.expected(data)
    distances = {name: excess(kernel(data, **options), wanted) for name, options in HONEST.items()}
    assert {name: d for name, d in distances.items() if d > 1 / 1.5} == {}


@pytest.mark.parametrize("regime", TASK["regimes"])
def test_wrong_kernels_are_outside_the_limits_by_a_factor_of_one_and_a_half(regime):
    data = reference.generate_input(**WIDE, regime=regime)
    wanted = reference.expected(data)
    distances = {name: excess(kernel(data, **options), wanted) for name, options in WRONG.items()}
    assert {name: d for name, d in distances.items() if d < 1.5} == {}
    assert excess(torch.zeros_like(wanted), wanted) > 1.5


def test_one_expert_of_256_dropped_passes_the_published_check_and_not_ours():
    data = reference.generate_input(**{**WIDE, "nroutedexperts": 256})
    output = kernel(data, weigh=WRONG["least routed expert dropped"]["weigh"])
    assert reference.check_implementation(data, output)[0]
    assert excess(output, reference.expected(data)) > 1.5
    assert excess(kernel(data, bfloat16_sum=True, experts_backwards=True), reference.expected(data)) < 1 / 1.5


def test_the_published_check_accepts_the_reference_and_says_what_is_wrong_with_zeros():
    data = reference.generate_input(**CASE)
    output = reference.ref_kernel(data)
    assert reference.check_implementation(data, output)[0]
    ok, message = reference.check_implementation(data, torch.zeros_like(output))
    assert not ok
    assert "of 1792 elements differ; the first is [0, " in message
    assert not reference.check_implementation(data, torch.full_like(output, torch.nan))[0]
    assert reference.check_implementation(data, output[:3])[1].endswith("expected torch.bfloat16 (7, 256)")


def test_sizes_that_cannot_be_and_unknown_regimes_are_refused():
    with pytest.raises(ValueError, match="multiples of 64"):
        reference.generate_input(**{**CASE, "dexpert": 96})
    with pytest.raises(ValueError, match="5 experts per token, but only 4"):
        reference.generate_input(**{**CASE, "nexpertspertoken": 5})
    with pytest.raises(ValueError, match="unknown regime"):
        reference.generate_input(**CASE, regime="odd")


@pytest.mark.parametrize("case", TASK["smoke"], ids=lambda case: f"bs{case['bs']}")
def test_the_template_is_right(case):
    data = reference.generate_input(**case)
    assert excess(load("template").custom_kernel(data), reference.expected(data)) < 1 / 1.5


def test_a_smoke_case_has_experts_without_tokens():
    assert len(reference.generate_input(**TASK["smoke"][2])[10].unique()) == 3


def test_every_file_a_flat_folder_needs_is_listed_and_exists():
    names = {entry["name"] for entry in TASK["files"]}
    assert names == {"submission.py", "task.py", "reference.py", "mxfp4.py", "mx_layout.py", "portable.py"}
    sources = [entry["source"] for entry in TASK["files"] if entry["source"] != "@SUBMISSION@"]
    assert [source for source in sources if not (FOLDER / source).is_file()] == []


def test_the_cases_are_those_of_the_competition():
    assert [tuple(case[name] for name in NAMES) for case in TASK["tests"]] == [
        (4096, 1024, 256, 8, 1, 8, 9371),
        (7168, 2048, 32, 8, 1, 32, 2291),
        (4096, 1536, 64, 6, 1, 128, 81934),
    ]
    assert [tuple(case[name] for name in NAMES) for case in TASK["benchmarks"]] == [
        (7168, 256, 256, 8, 1, 16, 9371),
        (7168, 256, 256, 8, 1, 128, 2291),
        (7168, 256, 256, 8, 1, 512, 81934),
        (7168, 512, 32, 8, 1, 16, 2291),
        (7168, 512, 32, 8, 1, 128, 81934),
        (7168, 512, 32, 8, 1, 512, 81934),
        (7168, 2048, 32, 8, 1, 512, 81934),
    ]


def test_the_readmes_table_follows_from_the_roofline():
    lines = [line.replace("*", "").strip("| \n").split(" | ") for line in (FOLDER / "README.md").open()]
    table = [[float(cell) for cell in cells] for cells in lines if len(cells) == 11 and cells[0].isdigit()]
    assert len(table) == len(TASK["benchmarks"])
    for row, case, published in zip(table, TASK["benchmarks"], PUBLISHED_US, strict=True):
        volume = eval(TASK["roofline"]["bytes"], {}, dict(case))
        work = eval(TASK["roofline"]["operations"]["fp4"], {}, dict(case))
        floors = [volume / 8e6, work / 10.1e9, volume / 4.8e6, work / 1979e6, work / 989e6]
        assert row[:4] == [case["dexpert"], case["nroutedexperts"], case["bs"], published]
        assert row[4:] == pytest.approx([volume / 1e6, work / 1e9, *floors], abs=0.0051, rel=5e-4)


@pytest.mark.gpu
def test_a_gpu_makes_the_inputs_of_the_cpu_and_finds_the_same_answer(monkeypatch):
    for regime in TASK["regimes"]:
        data = reference.generate_input(**WIDE, regime=regime)
        with monkeypatch.context() as patch:
            for module in (portable, reference):
                patch.setattr(module, "default_device", lambda: torch.device("cuda"))
            data_gpu = reference.generate_input(**WIDE, regime=regime)
        assert all(torch.equal(on_gpu.cpu(), x) for on_gpu, x in zip(data_gpu[:11], data[:11], strict=True))
        assert excess(reference.ref_kernel(data_gpu).cpu(), reference.expected(data)) < 1 / 1.5
