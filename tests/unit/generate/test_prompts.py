"""Prompts as text or ids, and what a tokenizer adds to their settings."""

import numpy as np
import pytest
import torch

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.engine import Engine
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.generate.prompts import encode_prompt
from glmforge.model import GlmMoe
from helpers.tiny_data import TinyData


@pytest.fixture(scope="module")
def tokenizer(tiny_data: TinyData) -> Tokenizer:
    return Tokenizer.load(tiny_data.tokenizer)


@pytest.mark.parametrize("prompt", [[1, 2], (1, 2), np.array([1, 2]), torch.tensor([1, 2])], ids=lambda x: type(x))
def test_ids(prompt: list[int]) -> None:
    params = SamplingParams(stop_ids=(3,))
    assert encode_prompt(prompt, params, None) == ([1, 2], params)


def test_a_tokenizer_ends_answers(tokenizer: Tokenizer) -> None:
    ids, params = encode_prompt("import sys", SamplingParams(), tokenizer)
    assert ids == tokenizer.encode("import sys")
    assert (params.stop_ids, params.vocab_size) == (tokenizer.stop_ids, tokenizer.end_of_text_id + 1)
    _, params = encode_prompt(ids, SamplingParams(), tokenizer)
    assert params.vocab_size == tokenizer.vocab_size
    _, params = encode_prompt("x", SamplingParams(stop_ids=(9,), vocab_size=100), tokenizer)
    assert (params.stop_ids, params.vocab_size) == ((9,), 100)


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ("text", "prompts: is a single text; pass a list of"),
        ([1, 2, 3], r"prompts\[0\]: must be text or a list of token ids"),
        (["text"], r"prompts\[0\]: is text, but the engine has no tokenizer; pass"),
        ([[1], [2.5]], r"prompts\[1\]: must be text or a list of token ids"),
        ([[1], []], r"prompts\[1\]: is empty"),
    ],
    ids=str,
)
def test_one_bad_prompt_of_many(model: GlmMoe, prompts: list, words: str) -> None:
    engine = Engine(model)
    with pytest.raises(RequestError, match=words):
        engine.generate(prompts)
    assert engine.is_idle


@pytest.mark.parametrize(
    ("prompt", "settings", "words"),
    [
        ("caf\udce9", {}, r"prompt: not UTF-8 text: '\\udce9' is half"),
        ("x", {"stop": ["ok", "\ud800"]}, "stop: not UTF-8 text"),
        ("x", {"grammar": 'start: "\ud800"'}, "grammar: not UTF-8 text"),
        ("x", {"json_schema": "\ud800"}, "json_schema: not UTF-8 text"),
    ],
    ids=ascii,
)
def test_what_is_no_text(
    model: GlmMoe, tokenizer: Tokenizer, prompt: str, settings: dict[str, object], words: str
) -> None:
    """An argument in another encoding than UTF-8 comes with halves of surrogate pairs."""
    engine = Engine(model, tokenizer=tokenizer)
    with pytest.raises(RequestError, match=words):
        engine.add(prompt, SamplingParams(**settings))
    assert engine.is_idle


def test_text_in_and_out(model: GlmMoe, tokenizer: Tokenizer) -> None:
    engine = Engine(model, tokenizer=tokenizer)
    ((sample,),) = engine.generate(["import sys"], SamplingParams(max_new_tokens=8, min_new_tokens=8))
    assert sample.text == tokenizer.decode(sample.tokens)
    pieces = []
    engine.generate(["import sys"], SamplingParams(max_new_tokens=3), on_update=pieces.append)
    assert [update.token for update in pieces] == sample.tokens[:3]
