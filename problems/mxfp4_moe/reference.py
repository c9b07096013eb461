"""The judge's side of mxfp4_moe: makes weights, activations and routing, and computes the right answer in float32."""

import math

import torch
from mx_layout import shuffle_scale, shuffle_weight
from mxfp4 import BLOCK, dequantize_mxfp4, quantize_mxfp4
from portable import REGIMES, default_device, normal_table, plant_dominant, portable_integers, sample_table
from task import input_t, output_t

PUBLISHED_RTOL = PUBLISHED_ATOL = 5e-2
ROUTING_REGIMES = ("skewed", "sparse", "renormalised")
_WEIGHT_SHIFT = 1 / 16
_PIECE_ELEMENTS = 1 << 24
"""Weights are made, quantised and read back in pieces of at most this many, or of one expert."""


def generate_input(
    dhidden: int,
    dexpert: int,
    nroutedexperts: int,
    nexpertspertoken: int,
    nsharedexperts: int,
    bs: int,
    seed: int,
    regime: str = "normal",
) -> input_t:
    """The twelve-part tuple described in README.md, on the default device, contiguous.

    Weights are made and quantised a few experts at a time, so that the peak of memory stays near the size of the
    result. Needs dhidden and dexpert to be multiples of 64 (the tiled layout); raises ValueError otherwise, and for
    an unknown regime.
    """
    if dhidden % 64 or dexpert % 64:
        raise ValueError(f"dhidden = {dhidden}, dexpert = {dexpert}: expected multiples of 64")
    if nexpertspertoken > nroutedexperts:
        raise ValueError(f"{nexpertspertoken} experts per token, but only {nroutedexperts} routed experts")
    experts = nroutedexperts + nsharedexperts
    gate_up, gate_up_scale = _expert_weights((experts, 2 * dexpert, dhidden), seed, "gate_up", regime)
    down, down_scale = _expert_weights((experts, dhidden, dexpert), seed, "down", regime)
    tiled = (shuffle_weight(gate_up), shuffle_weight(down), shuffle_scale(gate_up_scale), shuffle_scale(down_scale))
    hidden = _hidden((bs, dhidden), seed, regime)
    routing = _route(hidden, nroutedexperts, nexpertspertoken, nsharedexperts, seed, regime)
    config = {
        "d_hidden": dhidden,
        "d_expert": dexpert,
        "d_hidden_pad": dhidden,
        "d_expert_pad": dexpert,
        "n_routed_experts": nroutedexperts,
        "n_shared_experts": nsharedexperts,
        "n_experts_per_token": nexpertspertoken,
        "total_top_k": nexpertspertoken + nsharedexperts,
        "bs": bs,
    }
    return hidden, gate_up, down, gate_up_scale, down_scale, *tiled, *routing, config


def renew_input(
    data: input_t,
    dhidden: int,
    dexpert: int,
    nroutedexperts: int,
    nexpertspertoken: int,
    nsharedexperts: int,
    bs: int,
    seed: int,
    regime: str = "normal",
) -> input_t:
    """The same weights and scales (the very tensors), with this seed's activations and routing of generate_input."""
    hidden = _hidden((bs, dhidden), seed, regime)
    routing = _route(hidden, nroutedexperts, nexpertspertoken, nsharedexperts, seed, regime)
    return hidden, *data[1:9], *routing, data[11]


def refresh(data: input_t, offset: int) -> input_t:
    """Expert e gets the weights that expert (e - offset) % experts had, in all eight tensors; the rest is unchanged.

    An expert's rows are contiguous in every layout: in the tiled scales too, whose tiles hold 32 rows, a divisor of
    each expert's rows. So the move is one pass over memory; the zero rows that end the tiled scales stay where they
    are.
    """
    experts, gate_up_rows, _ = data[1].shape
    down_rows = data[2].shape[1]
    moved = (_roll_experts(data[i], experts, gate_up_rows if i % 2 else down_rows, offset) for i in range(1, 9))
    return data[0], *moved, *data[9:]


def expected(data: input_t, precision: str | None = None, rows: torch.Tensor | None = None) -> torch.Tensor:
    """float32 [M, dhidden] (or [len(rows), dhidden]: tokens `rows` only), before the rounding to bfloat16.

    There is one precision, so `precision` changes nothing. Both products are exact in float32 for the problem's
    shapes on normal inputs, provided float32 is meant: `torch.backends.cuda.matmul.allow_tf32` must be False, torch's
    default.
    """
    hidden, gate_up, down, gate_up_scale, down_scale = data[:5]
    per_token = hidden, *data[9:11]
    if rows is not None:
        per_token = tuple(tensor.index_select(0, rows.to(tensor.device)) for tensor in per_token)
    hidden, weights, ids = per_token
    by_expert = ids.flatten().argsort(stable=True)
    counts = ids.flatten().bincount(minlength=len(gate_up)).tolist()
    activations = dequantize_mxfp4(*quantize_mxfp4(hidden))[by_expert // ids.shape[1]]
    gate, up = _grouped_product(activations, counts, gate_up, gate_up_scale).chunk(2, dim=1)
    intermediate = (torch.nn.functional.silu(gate) * up).bfloat16()
    results = _grouped_product(dequantize_mxfp4(*quantize_mxfp4(intermediate)), counts, down, down_scale)
    results.mul_(weights.flatten()[by_expert].unsqueeze(1))
    by_token = torch.empty_like(results).index_copy_(0, by_expert, results)
    return by_token.view(*ids.shape, -1).sum(dim=1)


def ref_kernel(data: input_t) -> output_t:
    """bfloat16 [M, dhidden]: the output a submission must give, within the tolerance of task.yml."""
    return expected(data).bfloat16()


def check_implementation(data: input_t, output: output_t) -> tuple[bool, str]:
    """The competition's own check: every element within 5e-2 + 5e-2 * |reference|. Returns (ok, message)."""
    reference = ref_kernel(data)
    if output.shape != reference.shape or output.dtype != reference.dtype:
        expectation = f"{reference.dtype} {tuple(reference.shape)}"
        return False, f"the output is {output.dtype} {tuple(output.shape)}: expected {expectation}"
    errors = (output.float() - reference.float()).abs()
    accepted = errors <= PUBLISHED_ATOL + PUBLISHED_RTOL * reference.float().abs()
    wrong = int((~accepted).sum())
    if not wrong:
        return True, f"largest error {errors.max().item():.3g}"
    row, column = (~accepted).nonzero()[0].tolist()
    got, wanted = output[row, column].item(), reference[row, column].item()
    return False, f"{wrong} of {errors.numel()} elements differ; the first is [{row}, {column}]: {got} for {wanted}"


def _grouped_product(rows: torch.Tensor, counts: list[int], packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32 [S, K], rows of expert 0 first, then of expert 1, ... -> [S, N]: each times its own expert's weights.

    An expert without rows is skipped; the weights of a few experts (packed [E, N, K/2]) are dequantised at a time.
    """
    scales = scales.view(*packed.shape[:2], -1)
    product = rows.new_empty(len(rows), packed.shape[1])
    parts = zip(rows.split(counts), product.split(counts), strict=True)
    hit = [(expert, *part) for expert, part in enumerate(parts) if counts[expert]]
    piece = max(1, _PIECE_ELEMENTS // (2 * packed[0].numel()))
    for begin in range(0, len(hit), piece):
        experts, left, out = zip(*hit[begin : begin + piece], strict=True)
        chosen = torch.tensor(experts, device=packed.device)
        weights = dequantize_mxfp4(packed[chosen], scales[chosen])
        for each in zip(left, weights, out, strict=True):
            torch.mm(each[0], each[1].T, out=each[2])
    return product


def _hidden(shape: tuple[int, int], seed: int, regime: str) -> torch.Tensor:
    hidden = sample_table(normal_table(_value_regime(regime)), shape, seed, "hidden")
    return plant_dominant(hidden, seed, "hidden") if regime == "dominant" else hidden


def _expert_weights(
    shape: tuple[int, int, int], seed: int, stream: str, regime: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """bf16 N(0, 1) / sqrt(K) of shape [E, N, K], quantised: (packed [E, N, K/2], scales [E * N, K/32])."""
    experts, rows, depth = shape
    device = default_device()
    table = normal_table(_value_regime(regime), divisor=math.sqrt(depth), shift=_WEIGHT_SHIFT).to(device)
    packed = torch.empty((experts, rows, depth // 2), dtype=torch.uint8, device=device)
    scales = torch.empty((experts, rows, depth // BLOCK), dtype=torch.uint8, device=device)
    piece = max(1, _PIECE_ELEMENTS // (rows * depth))
    for begin in range(0, experts, piece):
        some = slice(begin, min(begin + piece, experts))
        shape = (some.stop - begin, rows, depth)
        weights = sample_table(table, shape, seed, stream, device, first=begin * rows * depth)
        if regime == "dominant":
            for expert, own in enumerate(weights, begin):
                plant_dominant(own, seed, f"{stream}/{expert}")
        packed[some], scales[some] = quantize_mxfp4(weights)
    return packed, scales.view(experts * rows, depth // BLOCK)


def _route(
    hidden: torch.Tensor, routed: int, top_k: int, shared: int, seed: int, regime: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights float32, ids int32), both [M, top_k + shared]: the best routed experts, then every shared one at 1.

    A score is the softmax over the routed experts of the bfloat16 logits, rounded to bfloat16, as upstream; not
    renormalised over the chosen ones (except in that regime). Sums are made in float64, whose error is far below a
    bfloat16 step, so every device agrees; equal scores go to the lower expert.
    """
    router = sample_table(normal_table(divisor=math.sqrt(hidden.shape[1])), (routed, hidden.shape[1]), seed, "router")
    logits = (hidden.double() @ router.double().T).bfloat16()
    if regime in ("skewed", "sparse"):
        open_count = top_k if regime == "skewed" else max(top_k, routed // 2)
        order = portable_integers((routed,), 1 << 31, seed, "open experts").argsort(stable=True)
        logits.index_fill_(1, order[open_count:], -math.inf)
    scores = logits.double().softmax(dim=1).bfloat16()
    chosen_scores, chosen = scores.double().sort(dim=1, descending=True, stable=True)
    weights, ids = chosen_scores[:, :top_k], chosen[:, :top_k]
    if regime == "renormalised":
        weights = weights / weights.sum(dim=1, keepdim=True)
    shared_ids = torch.arange(routed, routed + shared, device=ids.device).expand(len(ids), shared)
    weights = torch.cat([weights, torch.ones_like(shared_ids, dtype=weights.dtype)], dim=1)
    return weights.float(), torch.cat([ids, shared_ids], dim=1).int()


def _roll_experts(tensor: torch.Tensor, experts: int, rows: int, offset: int) -> torch.Tensor:
    """A new tensor whose first experts * rows rows (its last dimension is a row) are moved down by offset * rows."""
    flat = tensor.view(-1, tensor.shape[-1])
    used, cut = experts * rows, (-offset % experts) * rows
    return torch.cat([flat[cut:used], flat[:cut], flat[used:]]).view(tensor.shape)


def _value_regime(regime: str) -> str:
    """The distribution of the numbers in a regime: those of ROUTING_REGIMES keep the plain one."""
    if regime not in (*REGIMES, *ROUTING_REGIMES):
        raise ValueError(f"unknown regime {regime!r}: expected one of {', '.join((*REGIMES, *ROUTING_REGIMES))}")
    return "normal" if regime in ROUTING_REGIMES else regime
