"""What can be said of a reply without its right answer."""

import pytest

from glmforge.verify.text import is_mixed, is_well_formed, length_penalty, repeats

CALL = "\n<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"


@pytest.mark.parametrize(
    ("reply", "thinking", "expected"),
    [
        ("\n<think>I add.</think>\n7", True, True),
        ("\n<think>I add.</think>\n7", None, True),
        ("\n<think>I add.</think>\n7", False, False),
        ("\n<think></think>\n7", True, False),
        ("\n<think></think>\n7", False, True),
        ("7", False, True),
        ("7", True, False),
        ("\n<think>I add.</think>" + CALL, True, True),
        ("\n<think>I add.</think>\n", True, False),  # says nothing
        ("<think>I add.", None, False),
        ("<think>a</think>7<think>b</think>", None, False),
        ("I add.</think>7", None, False),
        (CALL + "7", None, False),
        ("", None, False),
    ],
)
def test_form(reply, thinking, expected):
    assert is_well_formed(reply, thinking) is expected


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("The answer is seven.", "What is 3 + 4?", False),
        ("The answer is 七个苹果和五个梨.", "What is 3 + 4?", True),
        ("<think>三加四等于七</think>答案是 $\\boxed{7}$", "三加四是多少？", False),
        ("三加四 because three plus four is seven", "三加四是多少？", True),
        ("x = 7 だから、答えは七です", "三加四是多少？ x", False),  # one script with Chinese
        ("Привет", "Say hello in Russian: привет means hello", False),
        ("1234 + 5 = 🙂", "数", False),
        ("\ud800" * 3, "a", False),
        ("", "", False),
    ],
)
def test_mixed(text, given, expected):
    assert is_mixed(text, given) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the same words again " * 40, True),
        ("".join(f"{n * n} is the square of {n}; " for n in range(40)), False),
        ("no no no", False),
        ("\ud800" * 400, True),
        ("", False),
    ],
)
def test_repetition(text, expected):
    assert repeats(text) is expected


@pytest.mark.parametrize(("num_tokens", "expected"), [(0, 0), (80, 0), (85, -0.25), (90, -0.5), (100, -1), (130, -1)])
def test_length_by_the_formula_of_dapo(num_tokens, expected):
    """L_max 100, L_cache 20."""
    assert length_penalty(num_tokens, 100, 20) == pytest.approx(expected)
