"""Calls that are right by the rules of the Berkeley Function-Calling Leaderboard."""

import json

import pytest

from glmforge.verify.reply import ToolCall
from glmforge.verify.tool_calls import possible_calls

FUNCTIONS = [
    {
        "name": "book",
        "parameters": {
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "budget": {"type": "float"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "sizes": {"type": "array", "items": {"type": "float"}},
                "guest": {"type": "dict"},
                "sea": {"type": "boolean"},
                "rows": {"type": "array", "items": {"type": "dict"}},
            },
            "required": ["city"],
        },
    },
    {"name": "weather.get", "parameters": {"properties": {"city": {"type": "string"}}, "required": ["city"]}},
]


def call(name="book", **arguments):
    return ToolCall(name, {key: v if isinstance(v, str) else json.dumps(v) for key, v in arguments.items()})


CHOICES = {
    "city": ["New York, NY", "NYC"],
    "days": [3, ""],
    "budget": [100.0, ""],
    "tags": [["quiet", "old"], ""],
    "sizes": [[1.5, 2.0], ""],
    "guest": [{"name": ["Ann"], "age": [30, ""]}, ""],
    "sea": [True, ""],
    "rows": [[{"n": [1]}, {"n": [2, 3]}], ""],
}


@pytest.mark.parametrize(
    ("arguments", "is_right"),
    [
        ({"city": "NYC"}, True),
        ({"city": "new york ny"}, True),
        ({"city": "New Yorks"}, False),
        ({}, False),
        ({"city": "NYC", "more": 1}, False),
        ({"city": "NYC", "days": 3}, True),
        ({"city": "NYC", "days": "3"}, True),
        ({"city": "NYC", "days": 3.0}, False),
        ({"city": "NYC", "days": "three"}, False),
        ({"city": "NYC", "budget": 100}, True),
        ({"city": "NYC", "budget": True}, False),
        ({"city": "NYC", "tags": ["Quiet", "old"]}, True),
        ({"city": "NYC", "tags": ["old", "quiet"]}, False),
        ({"city": "NYC", "tags": "quiet, old"}, False),
        ({"city": "NYC", "sizes": [1.5, 2.0]}, True),
        ({"city": "NYC", "sizes": [1.5, 2]}, False),
        ({"city": "NYC", "guest": {"name": "ann"}}, True),
        ({"city": "NYC", "guest": {"name": "ann", "age": 31}}, False),
        ({"city": "NYC", "guest": {"age": 30}}, False),
        ({"city": "NYC", "guest": {"name": "ann", "more": 1}}, False),
        ({"city": "NYC", "sea": True}, True),
        ({"city": "NYC", "sea": 1}, False),
        ({"city": "NYC", "rows": [{"n": 1}, {"n": 3}]}, True),
        ({"city": "NYC", "rows": [{"n": 1}]}, False),
    ],
)
def test_arguments(arguments, is_right):
    assert possible_calls([call(**arguments)], FUNCTIONS, [{"book": CHOICES}]) is is_right


def test_calls_in_any_order_each_once():
    book, weather = call(city="NYC"), call("weather.get", city="Oslo")
    possible = [{"book": CHOICES}, {"weather.get": {"city": ["Oslo"]}}]
    assert possible_calls([weather, book], FUNCTIONS, possible)
    for wrong in ([book], [book, book], [book, weather, weather], [], [book, call("weather_get", city="Oslo")]):
        assert not possible_calls(wrong, FUNCTIONS, possible)
    assert possible_calls([], FUNCTIONS, [])
    assert not possible_calls([book], FUNCTIONS, [])


def test_a_function_that_is_not_given_is_never_called_rightly():
    assert not possible_calls([call("gone")], FUNCTIONS, [{"gone": {}}])
