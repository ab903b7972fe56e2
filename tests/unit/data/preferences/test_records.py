"""Records of every kind become one form; what is wrong is said in one line."""

import json
from typing import Any

import pytest

from glmforge.data.preferences.records import Preference, preference_of
from glmforge.errors import DataError

USER, GOOD, BAD = ({"role": r, "content": c} for r, c in (("user", "Hi"), ("assistant", "Hello"), ("assistant", "No")))
MORE = {"role": "user", "content": "And?"}


def texts(preference: Preference) -> tuple[list[str], list[str], list[str]]:
    """Of prompt, chosen and rejected."""
    chosen, rejected = ([m["content"] for m in c.messages] for c in (preference.chosen, preference.rejected))
    n = preference.num_prompt
    assert chosen[:n] == rejected[:n]
    return chosen[:n], chosen[n:], rejected[n:]


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "Hi", "chosen": "Hello", "rejected": "No"},
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"messages": [USER], "chosen": GOOD, "rejected": BAD},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": "Hi", "chosen": [USER, GOOD], "rejected": [USER, BAD], "score_chosen": 9.0},
        {"prompt": "Hi", "messages": [USER, GOOD], "chosen": [USER, GOOD], "rejected": [USER, BAD], "prompt_id": "1"},
        {"chosen": "\n\nHuman: Hi\n\nAssistant: Hello", "rejected": "\n\nHuman: Hi\n\nAssistant: No"},
        {"prompt": "\n\nHuman: Hi\n\nAssistant:", "chosen": "Hello", "rejected": "No"},
    ],
)
def test_every_kind_is_the_same_pair(record: dict[str, Any]) -> None:
    assert texts(preference_of(record)) == (["Hi"], ["Hello"], ["No"])


def test_the_prompt_ends_where_the_answers_part() -> None:
    chosen, rejected = [USER, GOOD, MORE, GOOD], [USER, GOOD, MORE, BAD]
    assert texts(preference_of({"chosen": chosen, "rejected": rejected})) == (
        ["Hi", "Hello", "And?"],
        ["Hello"],
        ["No"],
    )
    longer = {"chosen": chosen, "rejected": [USER, BAD]}
    assert texts(preference_of(longer)) == (["Hi"], ["Hello", "And?", "Hello"], ["No"])


def test_system_margin_and_category_are_read() -> None:
    record = {"prompt": "Hi", "chosen": "a", "rejected": "b", "system": "Be brief.", "margin": 2, "source": "web"}
    preference = preference_of(record)
    assert texts(preference)[0] == ["Be brief.", "Hi"]
    assert (preference.margin, preference.category) == (2.0, "web")
    assert preference_of(record | {"category": "chat"}).category == "chat"


def test_equal_answers_are_a_tie() -> None:
    assert preference_of({"prompt": "Hi", "chosen": "a", "rejected": "a"}).is_tie
    assert preference_of({"chosen": [USER, GOOD], "rejected": [USER, GOOD]}).is_tie


HELD = {"prompt": "Hi", "chosen": "Hello", "rejected": "No"}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"prompt": "Hi", "chosen": "Hello"},
            "not a preference pair: it has the fields prompt, chosen, but needs chosen and rejected",
        ),
        ({}, "has the fields none"),
        ({"chosen": "Hello", "rejected": "No"}, "it has no prompt"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "it has no prompt"),
        (HELD | {"messages": [USER]}, "both prompt and messages"),
        (HELD | {"rejected": [USER, BAD]}, "one of chosen and rejected is a whole conversation"),
        ({"chosen": [USER, GOOD], "rejected": [MORE, BAD]}, "message 0, where the two part, is of role 'user'"),
        (
            {"chosen": [USER, GOOD, MORE, GOOD], "rejected": [USER, GOOD, USER, BAD]},
            "message 2, where the two part, is of role 'user'",
        ),
        ({"prompt": "Who?", "chosen": [USER, GOOD], "rejected": [USER, BAD]}, "the prompt 'Who?' is not in what"),
        (HELD | {"chosen": ""}, "chosen: message 1: the assistant message is empty"),
        (HELD | {"chosen": []}, "chosen must be text or a list of messages, not []"),
        (HELD | {"chosen": 5}, "chosen must be text or a list of messages, not 5"),
        (HELD | {"chosen": [5]}, "one of chosen and rejected is a whole conversation"),
        ({"prompt": "Hi", "chosen": [5], "rejected": [[]]}, "5 is not a message"),
        (HELD | {"prompt": {"role": "user"}}, "message 0"),
        (HELD | {"margin": "much"}, "margin must be a number"),
        (HELD | {"margin": True}, "margin must be a number"),
        (HELD | {"margin": float("nan")}, "margin must be a number"),
        (HELD | {"margin": -1}, "swap chosen and rejected"),
        (HELD | {"category": ["a"]}, "category must be text"),
        (HELD | {"category": "x" * 1000}, "category must be text"),
        (HELD | {"chosn": "Hello"}, "field 'chosn' is unknown; did you mean 'chosen'"),
        (HELD | {"images": ["a.png"]}, "supports text only"),
        (HELD | {"chosen": [GOOD | {"loss_weight": 0.5}]}, "loss_weight, which does not apply"),
        ({"chosen": "\n\nHuman: Hi", "rejected": "\n\nHuman: Hi"}, "the last message must be the assistant's"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(record: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as refused:
        preference_of(record)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    json.dumps(record)
