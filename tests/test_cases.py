"""Cases: their names, what --case selects, and seeds that nobody knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cases import Case, parse_case, regime_cases, secret_seeds, select_cases
from harness.errors import ProblemError
from harness.problem import load_problem

PROBLEMS = Path(__file__).resolve().parents[1] / "problems"
LISTED = (
    Case({"m": 16, "n": 64, "seed": 1}),
    Case({"m": 16, "n": 96, "seed": 2}),
    Case({"m": 33, "n": 32, "seed": 3, "regime": "heavy"}),
)


def test_a_case_is_named_by_its_words_and_a_name_selects_it() -> None:
    case = Case({"m": 16, "causal": True, "scale": 0.5, "kind": "two words", "seed": 3})
    assert case.name == "m=16 causal=true scale=0.5 kind='two words' seed=3"
    assert parse_case(case.name, list(case.spec)) == case.spec


def test_a_seed_is_replaced_only_where_there_is_one() -> None:
    assert LISTED[0].with_seed(9).spec == {"m": 16, "n": 64, "seed": 9}
    assert Case({"m": 1}).with_seed(9).spec == {"m": 1}
    assert LISTED[0].shape == {"m": 16, "n": 64}


def test_some_words_select_all_listed_cases_that_match() -> None:
    assert select_cases(["m=16"], LISTED) == LISTED[:2]
    assert select_cases(["m=16", "n=96"], LISTED) == LISTED[:2]
    assert select_cases(["regime=heavy"], LISTED) == LISTED[2:]


def test_all_words_make_a_case_of_one_s_own_in_the_listed_order() -> None:
    (case,) = select_cases(["n=128 m=7"], LISTED)
    assert list(case.spec.items()) == [("m", 7), ("n", 128), ("seed", 0)]
    (case,) = select_cases(["n=128 m=7 regime=shifted seed=5"], LISTED)
    assert case.spec == {"m": 7, "n": 128, "seed": 5, "regime": "shifted"}
    (case,) = select_cases(["m=1 n=2 regime=shifted"], LISTED[:2], ("regime",))
    assert case.spec == {"m": 1, "n": 2, "seed": 0, "regime": "shifted"}


def test_keys_that_only_some_listed_cases_have_may_be_left_out() -> None:
    smoke = load_problem(PROBLEMS / "fp4_gemm").smoke
    (case,) = select_cases(["m=33 n=32 k=64 seed=3"], smoke)
    assert list(case.spec.items()) == [("m", 33), ("n", 32), ("k", 64), ("seed", 3)]
    (listed,) = select_cases(["m=33 n=32"], smoke)
    assert listed.spec == {"m": 33, "n": 32, "k": 192, "seed": 3, "regime": "heavy"}
    assert select_cases([*(case.name for case in smoke), "m=7"], smoke) == smoke


def test_a_case_is_selected_by_its_name_even_if_its_text_reads_as_a_number() -> None:
    case = Case({"bits": "16", "flag": "False", "scale": 1e-7, "causal": False, "seed": 1})
    assert select_cases([case.name], [case]) == (case,)


def test_words_are_typed_as_yaml_types_them_and_nothing_is_infinite() -> None:
    text = "a=3 b=-2 c=0.5 d=1e3 e=TRUE f=no g=nan h=inf"
    assert parse_case(text, "abcdefgh") == {
        "a": 3, "b": -2, "c": 0.5, "d": 1000.0, "e": True, "f": "no", "g": "nan", "h": "inf",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("m=17", "matches no listed case, and a case of your own also needs n"),
        ("mm=3", "unknown key 'mm'; did you mean 'm'?"),
        ("colour=3", "unknown key 'colour'; this problem's keys are m, n, seed, regime"),
        ("m", "'m' is not key=value"),
        ("m=", "'m=' is not key=value"),
        ("m=1 m=2", "'m' is given twice"),
        ("", "--case is empty"),
        ("m='1", "No closing quotation"),
    ],
)
def test_what_selects_nothing_says_why(text: str, because: str) -> None:
    with pytest.raises(ProblemError, match=because.replace("?", r"\?")):
        select_cases([text], LISTED)


def test_each_regime_that_no_case_is_in_is_tried_once() -> None:
    regimes = ("normal", "heavy", "ragged", "shifted")
    tried = regime_cases(b"a", LISTED, regimes)
    assert [case.shape for case in tried] == [{"m": 16, "n": 64, "regime": each} for each in ("ragged", "shifted")]
    assert tried != regime_cases(b"b", LISTED, regimes)
    assert regime_cases(b"a", LISTED, ()) == ()


def test_secret_seeds_depend_on_the_secret_and_the_case_only() -> None:
    first = secret_seeds(b"a", LISTED)
    assert first == secret_seeds(b"a", LISTED)
    assert [case.shape for case in first] == [case.shape for case in LISTED]
    seeds = [case.spec["seed"] for case in (*first, *secret_seeds(b"b", LISTED))]
    assert len(set(seeds)) == 6
    assert all(isinstance(seed, int) and 0 <= seed < 2**62 for seed in seeds)
