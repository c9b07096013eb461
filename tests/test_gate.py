"""The gate's page, with a thread in the GPU's place."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Iterator

import pytest

from harness.processes.isolation import memory_file
from harness.timing.gate import DONE, EXPIRED, PAGE_BYTES, RELEASE, Page, Reading


@pytest.fixture
def page() -> Iterator[tuple[Page, memoryview]]:
    descriptor = memory_file("test")
    os.ftruncate(descriptor, PAGE_BYTES)
    other_side = mmap.mmap(descriptor, PAGE_BYTES)
    words = memoryview(other_side).cast("i")
    page = Page(descriptor)
    yield page, words
    page.close()
    words.release()
    other_side.close()
    os.close(descriptor)


def device(words: memoryview, generation: int, work_s: float) -> threading.Thread:
    """Waits for the gate, works, writes done: what a GPU queue does."""

    def run() -> None:
        while words[RELEASE] < generation:
            time.sleep(0.0005)
        time.sleep(work_s)
        words[DONE] = generation

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_reading_covers_the_work_between_release_and_done(page: tuple[Page, memoryview]) -> None:
    referee, words = page
    thread = device(words, 5, 0.02)
    reading = referee.read(5, due_ns=0, limit_ns=5_000_000_000)
    thread.join()
    assert reading is not None
    assert reading.ns >= 20_000_000
    assert words[RELEASE] == 5


def test_a_reading_says_how_long_the_referee_did_not_look_at_its_ends(
    page: tuple[Page, memoryview], monkeypatch: pytest.MonkeyPatch
) -> None:
    referee, words = page
    ticks = iter([1000, 1300, 1400, 1500, 9500])

    def clock() -> int:
        now = next(ticks)
        if now == 1500:
            words[DONE] = 5  # right behind this look; the next one comes late
        return now

    monkeypatch.setattr(time, "perf_counter_ns", clock)
    assert referee.read(5, due_ns=0, limit_ns=10**9) == Reading(8500, 300 + 8000)


def test_a_long_batch_is_slept_through_and_still_read(page: tuple[Page, memoryview]) -> None:
    referee, words = page
    thread = device(words, 6, 0.03)
    reading = referee.read(6, due_ns=30e6, limit_ns=5_000_000_000)
    thread.join()
    assert reading is not None
    assert reading.ns >= 30_000_000


def test_a_device_that_never_finishes_has_no_reading(page: tuple[Page, memoryview]) -> None:
    referee, _ = page
    assert referee.read(7, due_ns=0, limit_ns=10_000_000) is None


def test_a_gate_that_gave_up_is_seen_for_its_own_batch_only(page: tuple[Page, memoryview]) -> None:
    referee, words = page
    words[EXPIRED] = 8
    assert referee.gave_up(8)
    assert not referee.gave_up(9)
    referee.open(9)
    assert words[RELEASE] == 9
