"""Built-in functions, and the environment that offers them."""

import json
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.rl import RlConfig
from glmforge.config.rl_agent import AgentConfig
from glmforge.errors import ConfigError, DataError
from glmforge.rl.agents.environment import Environment, environment_of
from glmforge.rl.agents.tools import calculator, python, schema_of, search_over
from glmforge.verify import sandbox
from glmforge.verify.reply import MalformedReply, parse_reply

needs_sandbox = pytest.mark.skipif(not sandbox._has_sandbox(), reason="bubblewrap is not here, or may not run")
VALUES = {
    "2*(3+4)": "14",
    " -7//2 ": "-4",
    "7/2": "3.5",
    "1e3%7": "6",
    "10/3": "3.333333333",
    "12345678901234567890*10+1": "123456789012345678901",
}
HOSTILE = (
    "", "9**9**9", "1/0", "abs(3)", "__import__('os')", "'a'*9", "True+1", "1 if 1 else 2", "[1]", "(" * 2000, "x",
    "9" * 999 + "*",
)  # fmt: skip


@pytest.mark.parametrize(("expression", "value"), VALUES.items())
def test_calculator(expression: str, value: str) -> None:
    assert calculator(expression) == value


@pytest.mark.parametrize("expression", HOSTILE)
def test_what_is_no_arithmetic_is_an_error_that_the_model_is_told(expression: str) -> None:
    assert calculator(expression).startswith("error: not an expression")


def test_the_largest_value_is_still_one() -> None:
    assert len(calculator("*".join(["9" * 99] * 10))) == 990


@needs_sandbox
def test_python_prints_and_its_errors_are_told() -> None:
    assert python("print(6*7)") == "42"
    assert python("print(1)\nraise ValueError('no')") == "1\nerror: ValueError: no"
    assert "error" in python("open('/etc/passwd').read()")


def test_search_finds_rare_words_first() -> None:
    search = search_over(["the cat sat", "the dog ran and the dog slept", "the bird", "the cat and the dog", "the"])
    assert search("Dog!").split("\n\n")[0] == "the dog ran and the dog slept"
    assert search("cat dog").startswith("the cat and the dog")
    assert len(search("the").split("\n\n")) == 3
    assert search("horse") == search_over([])("x") == "error: no document has such words"


def tools(tmp_path: Path, *names: str) -> Environment:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"text": "Ada was born in 1815."}) + "\n")
    return environment_of(AgentConfig(tools=list(names), corpus=corpus if "search" in names else None))()  # type: ignore[arg-type]


def call(name: str, **arguments: str) -> str:
    given = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"\n<tool_call>{name}\n{given}</tool_call>"


@needs_sandbox
def test_calls_are_answered_in_order_and_a_reply_without_one_ends_it(tmp_path: Path) -> None:
    environment = tools(tmp_path, "calculator", "python", "search")
    assert [one["function"]["name"] for one in environment.tools] == ["calculator", "python", "search"]
    assert environment.reset({"messages": [{"role": "user", "content": "When?"}]}) == [
        {"role": "user", "content": "When?"}
    ]
    reply = parse_reply(
        "\n<think>Hm.</think>" + call("search", query="Ada") + call("calculator", expression="2000-1815")
    )
    outcome = environment.step(reply)
    assert outcome.messages == [
        {"role": "tool", "content": "Ada was born in 1815."},
        {"role": "tool", "content": "185"},
    ]
    end = environment.step(parse_reply("It is 185."))
    assert (list(end.messages), end.reward) == ([], None)


@pytest.mark.parametrize(
    "text", [call("python", code="1"), call("calculator"), call("calculator", expression="1", x="2")]
)
def test_a_call_that_cannot_be_made_is_malformed(tmp_path: Path, text: str) -> None:
    with pytest.raises(MalformedReply, match="is not a function with such arguments"):
        tools(tmp_path, "calculator").step(parse_reply(text))


def test_a_schema_is_what_the_function_says() -> None:
    function = schema_of(calculator)["function"]
    assert function["parameters"]["required"] == ["expression"]
    assert "brackets" in function["description"]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "set exactly one of environment, program and tools"),
    "two": ({"program": ["x"], "tools": ["python"]}, "set exactly one"),
    "no corpus": ({"tools": ["search"]}, "goes with the tool search"),
    "no class": ({"environment": "module"}, "pattern"),
}


@pytest.mark.parametrize("name", WRONG)
def test_configurations_that_cannot_be_are_refused(name: str) -> None:
    given, words = WRONG[name]
    with pytest.raises(ValueError, match=words):
        AgentConfig.model_validate(given)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot import 'no_such:Thing' \(No module named 'no_such'\)"):
        environment_of(AgentConfig(environment="no_such:Thing"))
    (tmp_path / "c.jsonl").write_text('{"text": "a"}\n{"title": "b"}\n')
    with pytest.raises(DataError, match=r"c.jsonl:2: has nothing to search; add the field text"):
        environment_of(AgentConfig(tools=["search"], corpus=tmp_path / "c.jsonl"))
    with pytest.raises(ValueError, match=r"remove rollout\.partial"):
        RlConfig.model_validate({"agent": {"tools": ["calculator"]}, "rollout": {"partial": True}})
