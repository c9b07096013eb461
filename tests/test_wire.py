"""The wire: what is a message, and that nothing else ever is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import wire


def refused(line: bytes, because: str) -> None:
    with pytest.raises(wire.WireError, match=because):
        wire.decode(line, wire.CONTESTANT_REPORTS)


def test_a_message_comes_back_as_it_was_sent() -> None:
    sent = wire.Claims(generation=7, claims_ns=(1.5, 2.0))
    assert wire.decode(wire.encode(sent).rstrip(b"\n"), wire.CONTESTANT_REPORTS) == sent


def test_a_message_is_one_line_whatever_its_text_holds() -> None:
    sent = wire.Failed("crashed", "call", 'line\n{"kind": "Loaded"}\r\n\u2028')
    assert wire.encode(sent).count(b"\n") == 1
    assert wire.decode(wire.encode(sent).rstrip(b"\n"), wire.CONTESTANT_REPORTS) == sent


def test_a_kind_of_the_other_direction_is_refused() -> None:
    refused(wire.encode(wire.Quit()).rstrip(), "unknown kind 'Quit'")
    refused(wire.encode(wire.Judged(1, True, "", None, None, None, None, None, "")).rstrip(), "unknown kind 'Judged'")


@pytest.mark.parametrize(
    ("line", "because"),
    [
        (b"", "not a JSON line"),
        (b"passed", "not a JSON line"),
        (b"[1]", "not an object"),
        (b'{"kind": "Loaded"}', "'interprets' is missing"),
        (b'{"kind": "Loaded", "interprets": 1}', "does not fit bool"),
        (b'{"kind": "Loaded", "interprets": false, "score": 1}', "unknown field 'score'"),
        (b'{"kind": "Loaded", "interprets": false, "interprets": true}', "a key occurs twice"),
        (b'{"kind": "Called", "claim_ns": NaN}', "NaN is not a number"),
        (b'{"kind": "Called", "claim_ns": Infinity}', "Infinity is not a number"),
        (b'{"kind": "Called", "claim_ns": 1e999}', "does not fit float"),
        (b'{"kind": "Called", "claim_ns": true}', "does not fit float"),
        (b'{"kind": "Armed", "generation": 1.0, "expired": false}', "does not fit int"),
        (b'{"kind": "Failed", "verdict": "passed", "stage": "call", "message": ""}', "does not fit"),
        (b'{"kind": ["Loaded"], "interprets": false}', "unknown kind"),
        (b"\xff\xfe", "not a JSON line"),
        (b"[" * 100_000, "not a JSON line"),
        (b'{"kind": "Called", "claim_ns": ' + b"9" * 10_000 + b"}", "not a JSON line"),
        (b" " * (wire.MAX_LINE_BYTES + 1), "a line of"),
    ],
)
def test_anything_that_is_not_exactly_a_message_is_refused(line: bytes, because: str) -> None:
    refused(line, because)


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_a_wire_error(line: bytes) -> None:
    try:
        wire.decode(line, wire.CONTESTANT_REPORTS)
    except wire.WireError:
        pass


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.sampled_from(wire.CONTESTANT_REPORTS),
)
def test_no_json_raises_anything_but_a_wire_error(value: object, kind: type) -> None:
    fields = dict.fromkeys(kind.__dataclass_fields__, value)
    line = json.dumps({"kind": kind.__name__, **fields}).encode()
    try:
        wire.decode(line, wire.CONTESTANT_REPORTS)
    except wire.WireError:
        pass


def test_a_message_too_long_to_be_read_is_not_sent() -> None:
    with pytest.raises(wire.WireError, match="bytes long"):
        wire.encode(wire.Failed("crashed", "call", "x" * wire.MAX_LINE_BYTES))
