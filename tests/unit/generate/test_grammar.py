"""Answers follow their schema or grammar, in a batch with others."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator

import pytest
import torch

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.generate import grammar
from glmforge.generate.answer import Sample
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.grammar import Grammars, SampleGrammar, wait_for
from glmforge.generate.grammar_process import Limits
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.model import GlmMoe
from helpers.tiny_data import TinyData

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ada", "eve"]}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(tiny_data: TinyData) -> Tokenizer:
    return Tokenizer.load(tiny_data.tokenizer)


@pytest.fixture
def engine(model: GlmMoe, tokenizer: Tokenizer) -> Engine:
    return Engine(WholeModel(model), tokenizer=tokenizer)


def test_answers_follow_their_grammar(engine: Engine) -> None:
    common = {"max_new_tokens": 240, "temperature": 1.0, "seed": 3}
    params = [
        SamplingParams(**common, json_schema=SCHEMA, num_samples=4),
        SamplingParams(**common, grammar='start: "yes" | "no"', num_samples=4),
        SamplingParams(**common),
        SamplingParams(**common | {"temperature": 0.0}, grammar=r"start: /[a-f]{3,5}/"),
        SamplingParams(**common, json_schema=json.dumps(SCHEMA)),
    ]
    objects, words, (free,), (letters,), (other,) = engine.generate([[1, 2]] * 5, params)
    for sample in [*objects, other]:
        found = json.loads(sample.text)
        assert sorted(found) == ["age", "name"]
        assert found["name"] in ("ada", "eve")
        assert 0 <= found["age"] <= 120
    assert other.text == objects[0].text  # text of a schema and the schema are the same
    assert len({sample.text for sample in objects}) > 1
    assert {sample.text for sample in words} <= {"yes", "no"}
    assert all(sample.finished == "stop" for sample in [*objects, *words, letters])
    assert re.fullmatch("[a-f]{3,5}", letters.text)
    assert free == engine.generate([[1, 2]], params[2])[0][0]


@pytest.mark.parametrize("max_open", [64, 0], ids=["kept", "begun again"])
def test_what_may_follow_drafted_tokens(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, max_open: int) -> None:
    """It is what may follow them when they are read; of a draft that is not of the grammar nothing follows."""
    monkeypatch.setattr(grammar, "MAX_OPEN", max_open)
    request = Grammars(tokenizer).compile(SamplingParams(grammar='start: "abc" | "ad"', stop_ids=tokenizer.stop_ids))
    a, b, c, d = (tokenizer.encode(letter)[0] for letter in "abcd")
    drafting, reading = request.sample(), request.sample()

    def ask(sample: SampleGrammar, number: int, answer: list[int], drafts: list[int]) -> None:
        sample.ask(number, answer, drafts)
        while request.is_asked:
            wait_for([request], 60)

    ask(drafting, 0, [a], [b, c])
    ask(reading, 1, [a], [c, b])
    assert {b, d} <= set(reading.allowed(600).nonzero().flatten().tolist())
    assert not reading.goes_on(1)
    assert torch.equal(drafting.allowed(600), reading.allowed(600))
    assert drafting.goes_on(1)
    ask(reading, 1, [a, b], [])
    assert torch.equal(drafting.allowed(600, 1), reading.allowed(600))
    assert reading.allowed(600).nonzero().flatten().tolist() == [c]
    assert drafting.ends(2)
    assert not drafting.ends()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"json_schema": "{"}, "json_schema: "),
        ({"json_schema": {"type": "nothing"}}, "json_schema: "),
        ({"json_schema": {"$ref": "#"}}, "json_schema: no text matches it"),
        ({"json_schema": {"const": {1, 2}}}, "json_schema: Object of type set is not JSON serializable"),
        ({"grammar": "start: missing"}, "grammar: "),
        ({"grammar": "start: " + "(" * 9000 + '"a"' + ")" * 9000}, "nested"),
        ({"grammar": "start: /b+/ /b+/"}, "compiling takes more than 0.3 s of processor time; make it simpler"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_read_or_takes_too_much_is_refused(
    engine: Engine, short: None, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        engine.add([1], SamplingParams(**settings))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert engine.is_idle


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grammars have little time."""
    monkeypatch.setattr(grammar, "LIMITS", Limits(0.3, 0.3))


def run(engine: Engine) -> Iterator[dict[tuple[int, int], Sample]]:
    """After each step, all answers so far."""
    found: dict[tuple[int, int], Sample] = {}
    while not engine.is_idle:
        for update in engine.step():
            found.setdefault((update.request, update.sample), Sample()).add(update)
        engine.check()
        yield found


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (
            {"grammar": "start: /[0-9]/ /[0-9]/ /b+/ /b+/"},
            "grammar: a token takes more than 0.3 s of processor time; make it",
        ),
        ({"grammar": 'start: "a" start'}, "grammar: parser error: Too many items (limit 50000"),
        ({"grammar": 'start: "abc" <|user|> "d"'}, "of the answer it allows only excluded tokens"),
        ({"grammar": 'start: "Q9%z"', "vocab_size": 20}, "grammar: behind 0 tokens of the answer it allows"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_grammar_that_fails_later_ends_its_request_alone(
    engine: Engine, tokenizer: Tokenizer, short: None, settings: dict[str, str], error: str
) -> None:
    """Neighbours have a token in every step, and the very ones that they have without it."""
    neighbours = [
        SamplingParams(max_new_tokens=30, temperature=1.0, seed=5),
        SamplingParams(max_new_tokens=30, temperature=1.0, seed=5, num_samples=2, stop=["no such text"]),
    ]
    expected = [sample for samples in engine.generate(["ab"] * 2, neighbours) for sample in samples]
    numbers = [engine.add("ab", neighbours[0]), engine.add("ab", SamplingParams(num_samples=3, **settings))]
    numbers.append(engine.add("ab", neighbours[1]))
    for number_of_steps, found in enumerate(run(engine), start=1):
        if number_of_steps <= 30:
            assert len(found[numbers[0], 0].tokens) == number_of_steps
    mine = [found.pop((numbers[1], sample)) for sample in range(3)]
    assert list(found.values()) == expected
    for sample in mine:
        assert sample.finished == "error"
        assert error in (sample.error or "")


def test_a_slow_grammar_gives_its_place_to_others(
    model: GlmMoe, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(WholeModel(model), EngineConfig(max_sequences=1), tokenizer=tokenizer)
    slow = SamplingParams(temperature=1.0, seed=1, grammar='start: ("ab" | "cd"){6}')
    expected = engine.generate([[1], [2]], [slow, SamplingParams(max_new_tokens=8)])
    engine.add([1], slow)
    engine.step()
    engine.add([2], SamplingParams(max_new_tokens=8))
    with monkeypatch.context() as patched:
        patched.setattr("glmforge.generate.following.wait_for", lambda *_: None)  # it never answers
        for _, found in zip(range(60), run(engine), strict=False):
            if (3, 0) in found and found[3, 0].finished:
                break
    assert found[3, 0] == expected[1][0]
    *_, found = run(engine)
    assert expected[0][0].text.endswith(found[2, 0].text)
    assert found[2, 0].finished == "stop"


def test_a_process_that_somebody_ends(engine: Engine) -> None:
    """Its requests fail; the next one has another."""
    common = {"max_new_tokens": 100, "temperature": 1.0, "seed": 1}
    engine.add([1], SamplingParams(**common, json_schema={"type": "array", "items": {"type": "integer"}}))
    engine.step()
    assert engine.following.grammars is not None
    server = engine.following.grammars._server
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    ((sample,),) = engine.generate([[1]], SamplingParams(grammar='start: "ab"'))
    assert sample.text == "ab"


def test_more_requests_than_processes(model: GlmMoe, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MAX_OPEN", 2)
    engine = Engine(WholeModel(model), EngineConfig(max_sequences=3, drafter="ngram"), tokenizer=tokenizer)
    params = [
        SamplingParams(max_new_tokens=40, temperature=1.0, seed=seed, grammar='start: ("ab" | "cd"){2,9} "z"')
        for seed in range(9)
    ]
    for (sample,) in engine.generate([[1]] * 9, params):
        assert re.fullmatch("(ab|cd){2,9}z", sample.text)
        assert sample.finished == "stop"
    assert not engine.following


def test_without_the_library_or_a_tokenizer(engine: Engine, model: GlmMoe, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(grammar='start: "a"')
    with pytest.raises(RequestError, match="pass a tokenizer"):
        Engine(WholeModel(model)).add([1], params)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(GlmforgeError, match="a grammar needs the package 'llguidance'"):
        engine.add([1], params)
