"""Lines of the inputs that come late: which, where, and that they are put right."""

from __future__ import annotations

import torch

from harness.processes import sharing
from harness.processes.reveal import LINE_BYTES, LINES, Reveals, Spans, open_reveals, room, spans_of


def staged(*shapes: tuple[int, ...], sets: int = 3, shared: bool = False) -> tuple[torch.Tensor, Spans, Reveals | None]:
    """An arena of random bytes with `sets` sets of uint8 tensors; with `shared`, the last tensor is every set's."""
    data = tuple(torch.empty(shape, dtype=torch.uint8) for shape in shapes)
    planner = sharing.Planner()
    places = {id(data[-1]): planner.place(data[-1])} if shared else {}
    plans = [sharing.describe(data, planner, places) for _ in range(sets)]
    spans = spans_of(plans, tuple(places.values()))
    plan = room(spans, planner)
    arena = torch.randint(256, (planner.size_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    return arena, spans, open_reveals(plan, arena)


def inputs_end(arena: torch.Tensor, reveals: Reveals) -> int:
    """Where the inputs end and the reveals begin."""
    return int(reveals.offsets.data_ptr() - arena.data_ptr())


def test_hidden_lines_are_inverted_and_come_back_set_by_set() -> None:
    arena, spans, reveals = staged((40, 100), (7, 64))
    assert reveals is not None
    end = inputs_end(arena, reveals)
    right = arena[:end].clone()
    reveals.hide(spans, torch.tensor([0, 2]), torch.Generator().manual_seed(1))
    wrong = arena[:end] != right
    assert 0 < int(wrong.sum()) <= 2 * spans.count * LINE_BYTES
    assert torch.equal(arena[:end][wrong], ~right[wrong])
    reveals(0)
    assert 0 < int((arena[:end] != right).sum()) < int(wrong.sum())
    reveals(2)
    assert torch.equal(arena[:end], right)


def test_before_anything_is_hidden_a_reveal_changes_nothing() -> None:
    arena, spans, reveals = staged((40, 100), (7, 64))
    assert reveals is not None
    right = arena[: inputs_end(arena, reveals)].clone()
    reveals.keep(spans, torch.arange(3), torch.Generator().manual_seed(1))
    for index in range(3):
        reveals(index)
    assert torch.equal(arena[: inputs_end(arena, reveals)], right)


def test_every_line_may_come_late_and_other_ones_each_time() -> None:
    _, spans, reveals = staged((1, 640), (1, 320), sets=2)
    assert reveals is not None
    source, seen = torch.Generator().manual_seed(5), set()
    for _ in range(200):
        reveals.hide(spans, torch.tensor([1]), source)
        seen |= {int(each) * 4 for each in reveals.offsets[1]}
        reveals(1)
    first, second = int(spans.starts[1, 0]), int(spans.starts[1, 1])
    assert seen == {first + LINE_BYTES * line for line in range(10)} | {second + LINE_BYTES * line for line in range(5)}


def test_shared_inputs_and_tensors_shorter_than_a_line_are_left_alone() -> None:
    _, spans, _ = staged((2, 64), (63,), (9, 64), shared=True)
    assert spans.starts.shape == (3, 1)
    assert spans.ends.tolist() == [2]
    _, spans, reveals = staged((63,), (9, 64), shared=True)
    assert (spans.count, reveals) == (0, None)


def test_at_most_one_line_in_eight_comes_late_and_at_most_sixty_four() -> None:
    assert staged((1, 64))[1].count == 1
    assert staged((24, 64))[1].count == 3
    assert staged((5000, 64))[1].count == LINES


def test_what_is_sealed_in_empty_batches_lies_in_the_memory_that_is_read_into_the_cache_before() -> None:
    """Otherwise an empty batch's seal would be a cold one, and a kernel's time too short by the difference."""
    tree = (torch.ones(3, 5, dtype=torch.bfloat16).t(), {"scale": torch.ones(7)})
    zeros, memory = sharing.zeros_like(tree)
    assert memory.dtype == torch.int32
    begin, end = memory.data_ptr(), memory.data_ptr() + 4 * memory.numel()
    for tensor, like in zip(sharing.tensors(zeros), sharing.tensors(tree), strict=True):
        assert (tensor.shape, tensor.stride(), tensor.dtype) == (like.shape, like.stride(), like.dtype)
        assert not tensor.any()
        assert begin <= tensor.data_ptr() <= end - sharing.span_bytes(tensor)
