"""Any request leaves its neighbours the tokens that they have without it, one in every step.

Requests are random: grammars and schemas that are valid, recursive, ambiguous, huge or nonsense, and settings at and
beyond their limits.
"""

import json
import math
import random
from typing import Any

import pytest

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate import grammar
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.grammar_process import Limits
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.model import GlmMoe
from helpers.tiny_data import TinyData

_WORDS = ["yes", "no", "alpha", "b", "aa", "7", "{", "}", '\\"', " ", "\\n", "ß", "\\\\", "end"]
_CONTROL = ["<|user|>", "<|assistant|>", "<|endoftext|>", "<|nosuch|>"]


def random_request(generator: random.Random) -> dict[str, Any]:
    """Settings for `SamplingParams`, most of which can be served."""
    kind = generator.choices(["lark", "schema", "settings", "nonsense"], [5, 3, 3, 1])[0]
    settings: dict[str, Any] = {
        "max_new_tokens": generator.choice([1, 3, 12, 24]),
        "temperature": generator.choice([0.0, 0.7, 1.0]),
        "seed": generator.randrange(2**31),
        "num_samples": generator.choice([1, 1, 1, 2]),
    }
    if kind == "lark":
        return settings | {"grammar": lark(generator)} | _beside(generator)
    if kind == "schema":
        return settings | {"json_schema": schema(generator, depth=generator.choice([1, 2, 4]))} | _beside(generator)
    if kind == "settings":
        return settings | _extreme(generator)
    return settings | {generator.choice(["grammar", "json_schema"]): _nonsense(generator)}


def lark(generator: random.Random) -> str:
    """A grammar of some rules, which may refer to each other and to themselves; now and then one that is ambiguous
    without end or huge."""
    draw = generator.random()
    if draw < 0.02:
        letter = generator.choice("abcx")
        return f"start: /{letter}+/ /{letter}+/" + generator.choice(["", f" /{letter}*/"])
    if draw < 0.04:
        return f"start: /[0-9]/ /{generator.choice('abc')}+/ /[{generator.choice('abc')}x]+/ /[a-c]+/"
    if draw < 0.05:
        return "start: " + " | ".join(f'"w{number}"' for number in range(generator.choice([300, 3000])))
    if draw < 0.06:
        depth = generator.choice([50, 5000])
        return "start: " + "(" * depth + '"a"' + ")" * depth
    names = ["start", *(f"r{number}" for number in range(generator.randint(0, 4)))]
    return "\n".join(f"{name}: {_alternatives(generator, names, 3)}" for name in names)


def _alternatives(generator: random.Random, names: list[str], depth: int) -> str:
    return " | ".join(
        " ".join(_item(generator, names, depth) for _ in range(generator.randint(1, 3)))
        for _ in range(generator.randint(1, 3))
    )


def _item(generator: random.Random, names: list[str], depth: int) -> str:
    draw = generator.random()
    if draw < 0.35:
        return f'"{generator.choice(_WORDS)}"'
    if draw < 0.6:
        return generator.choice(
            ["/[a-f]{1,3}/", "/[0-9]+/", "/(ab|ba)*/", "/.*/", "/[^x]/", r"/\w+/", "/(a|b)*a(a|b){8}/"]
        )
    if draw < 0.75:
        return generator.choice(names)
    if draw < 0.76:
        return generator.choice(_CONTROL)
    if draw < 0.77:
        return generator.choice(["missing", '""', "/(/", "%json {}", "UPPER"])
    if depth == 0:
        return '"z"'
    inner = _alternatives(generator, names, depth - 1)
    return f"({inner})" + generator.choice(["", "?", "*", "+", "{2,5}", "~2..3", "{0,400}"])


def schema(generator: random.Random, depth: int) -> Any:
    """A JSON schema; as an object, or as text."""
    if generator.random() < 0.03:
        return {"enum": [f"v{number}" for number in range(generator.choice([500, 5000]))]}
    if generator.random() < 0.03:
        nested = generator.choice([30, 900])
        return '{"not":' * nested + "{}" + "}" * nested
    made = _schema(generator, depth) | {"$defs": {"d": _schema(generator, 1)}}
    return json.dumps(made) if generator.random() < 0.3 else made


def _schema(generator: random.Random, depth: int) -> dict[str, Any]:
    draw = generator.randrange(12 if depth else 7)
    simple: list[dict[str, Any]] = [
        {"type": "integer", "minimum": generator.randint(-9, 9), "maximum": generator.choice([9, 10**6, 10**30, -20])},
        {"type": "string", "maxLength": generator.choice([0, 3, 5000]), "minLength": generator.choice([0, 2])},
        {"type": "string", "pattern": generator.choice(["^a+b$", "^[0-9]{3}$", "^(a|b)*a(a|b){9}$", "x{3,900}", "("])},
        {"enum": [generator.choice([1, None, "x", [1, 2], {"a": 1}, 1e308]) for _ in range(3)]},
        {"type": generator.choice(["boolean", "null", "number", "number", "nothing"])},
        {
            "$ref": generator.choice(
                ["#", "#/$defs/d", "#/$defs/d", "#/$defs/d", "#/$defs/none", "http://nowhere.invalid/x"]
            )
        },
        {"type": "string", "format": generator.choice(["date", "uuid", "email", "nothing"])},
    ]
    if draw < len(simple):
        return simple[draw]
    if draw == 7:
        return {"type": "array", "items": _schema(generator, depth - 1), "minItems": generator.choice([0, 1, 50])}
    if draw in (8, 9):
        names = generator.sample("abcdef", generator.randint(0, 4))
        properties = {name: _schema(generator, depth - 1) for name in names}
        return {"type": "object", "properties": properties, "required": names[:2], "additionalProperties": draw == 8}
    return {generator.choice(["anyOf", "oneOf", "allOf"]): [_schema(generator, depth - 1) for _ in range(2)]}


def _beside(generator: random.Random) -> dict[str, Any]:
    """What stands beside a grammar: mostly nothing."""
    return generator.choices(
        [
            {},
            {"vocab_size": generator.choice([1, 50, 300])},
            {"stop_ids": list(range(0, 260, 3))},
            {"top_k": 2, "top_p": 0.5},
        ],
        [12, 1, 1, 2],
    )[0]


def _extreme(generator: random.Random) -> dict[str, Any]:
    numbers = [
        0,
        1,
        -1,
        1e-5,
        0.5,
        1e9,
        1e39,
        -1e39,
        10**400,
        math.nan,
        math.inf,
        2**31,
        2**63,
        10**5000,
        True,
        "1",
        None,
    ]
    names = [
        "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed",
        "vocab_size", "logprobs", "max_new_tokens", "min_new_tokens", "num_samples",
    ]  # fmt: skip
    chosen = {name: generator.choice(numbers) for name in generator.sample(names, generator.randint(0, 2))}
    tokens = generator.sample(range(300), 40)
    lists = [
        {
            "logit_bias": {token: generator.choice([1e9, -1e9, 3.0, 1e39, 10**400]) for token in tokens[:3]},
            "top_p": 0.9,
        },
        {"logit_bias": dict.fromkeys(range(256), generator.choice([-1e9, 1e9])), "temperature": 1e-5},
        {"banned_tokens": tokens, "stop": ["a", "e", " "], "repetition_penalty": 1000},
        {"banned_tokens": [2**70]},
        {"first_tokens": tokens, "temperature": 1e9, "frequency_penalty": 1e9, "presence_penalty": -1e9},
        {"stop": ["x" * 1024] * 64, "logprobs": 100, "prompt_logprobs": True},
        {"num_samples": generator.choice([40, 4097])},
        {},
    ]
    return chosen | generator.choice(lists)


def _nonsense(generator: random.Random) -> Any:
    return generator.choice(
        [
            "",
            "start",
            "start: start",
            "\ud800",
            "".join(chr(generator.randrange(1, 0x3000)) for _ in range(generator.choice([3, 200]))),
            "start: /a/ start\n" * 40,
            '{"type": ["object", 3]}',
            {"x-guidance": {"whitespace_pattern": "("}},
            'start: "a" %llguidance {"no_forcing": 7}',
            'start: @17 | %regex { "substring_chars": "abcabc" }',
            7,
            {1: {2: [math.nan]}},
        ]
    )


NUM_REQUESTS, NUM_NEIGHBOURS, LENGTH = 150, 30, 90


def neighbour(number: int) -> SamplingParams:
    settings = [{}, {"top_k": 20}, {"top_p": 0.8}, {"repetition_penalty": 1.3}, {"min_p": 0.01, "logprobs": 2}]
    return SamplingParams(
        max_new_tokens=LENGTH - number, temperature=number % 3 / 2, seed=number, stop_ids=[511], **settings[number % 5]
    )


def test_neighbours_of_random_requests(model: GlmMoe, tiny_data: TinyData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "LIMITS", Limits(0.2, 0.2))
    generator = random.Random(1)
    runner = WholeModel(model)
    engine = Engine(
        runner,
        EngineConfig(cache_bytes=1200 * runner.page_bytes(4), page_size=4, drafter=None),
        tokenizer=Tokenizer.load(tiny_data.tokenizer),
    )
    prompts = [[number, 3, 5] for number in range(NUM_NEIGHBOURS)]
    params = [neighbour(number) for number in range(NUM_NEIGHBOURS)]
    expected = [samples[0].tokens for samples in engine.generate(prompts, params)]
    neighbours = {engine.add(*one): number for number, one in enumerate(zip(prompts, params, strict=True))}
    found: list[list[int]] = [[] for _ in expected]
    waiting, asked, ended, refused = NUM_REQUESTS, {}, {}, 0
    for step in range(1, 2000):
        for _ in range(min(waiting, 2)):
            waiting -= 1
            try:
                own = SamplingParams(**random_request(generator))
                asked[engine.add(generator.choice(["ab", [7, 8]]), own)] = own.num_samples
            except RequestError:
                refused += 1
        for update in engine.step():
            if update.request in neighbours:
                found[neighbours[update.request]].append(update.token)
            elif update.finished is not None:
                ended[update.request, update.sample] = update.finished
                assert (update.error is not None) == (update.finished == "error")
        engine.check()
        for tokens, whole in zip(found, expected, strict=True):
            assert tokens == whole[:step]  # one in every step
        if engine.is_idle and not waiting:
            break
    assert engine.is_idle
    assert ended.keys() == {(request, sample) for request, number in asked.items() for sample in range(number)}
    assert not engine.following
    reasons = list(ended.values())
    assert refused > 30
    assert min(reasons.count(reason) for reason in ("error", "stop", "length")) >= 5
