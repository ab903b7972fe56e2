"""Answers follow their schema or grammar, in a batch with others."""

import json
import re
import sys

import pytest
import torch

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.generate.engine import Engine
from glmforge.generate.grammar import Grammars
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


def test_masks_behind_drafted_tokens(tokenizer: Tokenizer) -> None:
    """As behind tokens that were read; where a drafted one is not of the grammar, nothing is masked."""
    params = SamplingParams(grammar='start: "abc" | "ad"', stop_ids=tokenizer.stop_ids)
    matcher = Grammars(tokenizer).matcher(params)
    a, b, c, d = (tokenizer.encode(letter)[0] for letter in "abcd")
    drafted = [matcher.allowed(600, ids) for ids in ([], [a], [a, b], [a, c])]
    assert drafted[3].all()
    read = matcher.copy()
    for ids, mask in zip(([], [a], [b]), drafted, strict=False):
        for token in ids:
            read.read(token)
        assert torch.equal(read.allowed(600), mask)
    assert {b, d} <= set(drafted[1].nonzero().flatten().tolist())
    assert drafted[2].nonzero().flatten().tolist() == [c]
    read.read(c)
    assert read.is_complete
    assert not matcher.is_complete


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"json_schema": "{"}, "json_schema: "),
        ({"json_schema": {"type": "nothing"}}, "json_schema: "),
        ({"grammar": "start: missing"}, "grammar: "),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_refused(engine: Engine, settings: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        engine.add([1], SamplingParams(**settings))
    assert "\n" not in str(caught.value)
    assert engine.is_idle


def test_without_the_library_or_a_tokenizer(engine: Engine, model: GlmMoe, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(grammar='start: "a"')
    with pytest.raises(RequestError, match="give it a tokenizer"):
        Engine(WholeModel(model)).add([1], params)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(GlmforgeError, match="a grammar needs the package 'llguidance'"):
        engine.add([1], params)
