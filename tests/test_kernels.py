"""The harness's own compiled kernels: whom they belong to, what they are for, how long they are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.processes import kernels
from harness.processes.kernels import Kernels, kernels_for


def test_another_device_another_state_of_the_harness_or_other_libraries_have_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kernels_for("cuda", tmp_path)
    assert kernels_for("cuda", tmp_path) == first
    found = {first.folder, kernels_for("cuda:1", tmp_path).folder}
    monkeypatch.setattr("harness.processes.kernels.importlib.metadata.version", lambda name: "0.0")
    found.add(kernels_for("cuda", tmp_path).folder)
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "gate.py").write_text("another gate\n")
    monkeypatch.setattr("harness.processes.kernels.HARNESS", tmp_path / "harness")
    found.add(kernels_for("cuda", tmp_path).folder)
    assert len(found) == 4
    assert all(folder.parent == tmp_path for folder in found)


def test_a_folder_counts_as_filled_when_that_has_ended_and_is_for_all_to_read(tmp_path: Path) -> None:
    owner, before = [], os.umask(0o077)
    try:
        found = Kernels(tmp_path / "harness" / "one")
        found.make()
        found.begin_filling(None)
        (found.folder / "triton").mkdir()
        (found.folder / "triton" / "kernel.cubin").write_bytes(b"code")
        assert not found.is_filled
        found.end_filling()
    finally:
        os.umask(before)
    assert found.is_filled
    for path in (found.folder.parent, found.folder, *found.folder.rglob("*")):
        mode = path.stat().st_mode
        assert mode & 0o444 == 0o444 or path.name == "filled"
        assert not mode & 0o022
        owner.append(path.stat().st_uid)
    assert set(owner) == {os.getuid()}


@pytest.mark.skipif(os.getuid() != 0, reason="root alone can give a folder away")
def test_the_oracle_s_user_may_write_them_until_they_are_there(tmp_path: Path) -> None:
    found = Kernels(tmp_path / "one")
    found.make()
    found.begin_filling((65534, 65534))
    assert found.folder.stat().st_uid == 65534
    (found.folder / "kernel.cubin").write_bytes(b"code")
    os.chown(found.folder / "kernel.cubin", 65534, 65534)
    found.end_filling()
    assert {path.stat().st_uid for path in (found.folder, *found.folder.iterdir())} == {0}


def test_those_used_longest_ago_are_forgotten(tmp_path: Path) -> None:
    for number in range(kernels.KEPT + 2):
        Kernels(tmp_path / str(number)).make()
        os.utime(tmp_path / str(number), (1000 + number, 1000 + number))
    Kernels(tmp_path / "0").make()
    assert {path.name for path in tmp_path.iterdir()} == {"0", "3", "4", "5"}
