"""Prompts: read, checked, encoded, and in an order without state."""

import importlib.util
import json
import re

import pytest

from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError
from glmforge.rl.prompts import _order, make_prompts, read_prompts, reasoning_gym_prompts

needs_gym = pytest.mark.skipif(not importlib.util.find_spec("reasoning_gym"), reason="needs glmforge[reasoning-gym]")

VERIFIER = {"kind": "number", "answer": "7"}
CALLS = [{"name": "stock", "arguments": {"item": "a"}}, {"name": "add", "arguments": {"x": 1}}]
CHAINED = {
    "id": "tools-4-1-0",
    "family": "tools",
    "level": 4,
    "question": "How many are left?",
    "messages": [
        {"role": "user", "content": "How many are left?"},
        {"role": "assistant", "content": "", "reasoning_content": "I ask.", "tool_calls": [{"function": CALLS[0]}]},
        {"role": "tool", "content": "5"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": CALLS[1]}]},
        {"role": "tool", "content": "6"},
        {"role": "assistant", "content": "6"},
    ],
    "tools": [{"type": "function", "function": {"name": "stock", "parameters": {}}}],
    "verifier": {"kind": "calls", "answer": "6", "calls": CALLS},
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    texts = [
        "What is three and four? It is 1234 and 7; isn't it?\n\n  def strike(iron):\n",
        "你好世界, привет\r\n\ttab\n",
    ]
    train_tokenizer(texts * 3, 320, directory)
    return Tokenizer.load(directory)


@pytest.fixture
def made(tokenizer, tmp_path):
    """The prompts of records, or of the text of a file."""

    def make(*records, **options):
        path = tmp_path / "problems.jsonl"
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        path.write_bytes("\n".join(lines).encode(errors="surrogateescape"))
        return make_prompts(read_prompts([path]), tokenizer, **options)

    return make


def numbered(count, **fields):
    return [{"prompt": f"What is {n}?", "verifier": VERIFIER, **fields} for n in range(count)]


def test_what_a_prompt_has(made, tokenizer):
    one, other = made(
        {"prompt": "What is 3 + 4?", "verifier": VERIFIER, "source": "sums", "difficulty": 0.25, "id": 17},
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "system": "Be brief.",
            "thinking": False,
            "verifier": VERIFIER,
        },
    ).prompts
    assert (one.id, one.source, one.difficulty, one.thinking, one.verifier) == ("17", "sums", 0.25, True, VERIFIER)
    assert tokenizer.decode(one.ids) == "[gMASK]<sop><|user|>\nWhat is 3 + 4?<|assistant|>"
    assert (other.source, other.difficulty, other.thinking) == ("problems", None, False)
    text = tokenizer.decode(other.ids)
    assert text == "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHi/nothink<|assistant|>\n<think></think>"
    assert re.fullmatch("[0-9a-f]{24}", other.id)
    assert made({"prompt": "Hi", "verifier": VERIFIER}, thinking=False).prompts[0].thinking is False


def test_what_a_user_spells_is_no_control_token(made, tokenizer):
    (prompt,) = made({"prompt": "a<|assistant|>b", "verifier": VERIFIER}).prompts
    assert list(prompt.ids).count(tokenizer.special_id("<|assistant|>")) == 1


def test_a_demonstration_is_left_out(made, tokenizer):
    """A record of `glmforge data problems`, whose calls take two replies."""
    (prompt,) = made(CHAINED).prompts
    assert (prompt.id, prompt.source, prompt.difficulty) == ("tools-4-1-0", "tools", 4)
    assert tokenizer.decode(prompt.ids).endswith("How many are left?<|assistant|>")
    assert '"name": "stock"' in tokenizer.decode(prompt.ids)
    assert prompt.verifier["calls"] == CALLS[:1]
    (later,) = made({**CHAINED, "messages": CHAINED["messages"][:3], "verifier": VERIFIER}).prompts
    assert [message["role"] for message in later.messages] == ["user", "assistant", "tool"]


def test_a_record_survives(made):
    (prompt,) = made(CHAINED).prompts
    (again,) = made(json.loads(json.dumps(prompt.record()))).prompts
    assert again == prompt


def test_whether_a_prompt_is_harmful(made):
    """A prompt that is said to be both is there twice, rather than whichever came first."""
    given = [{"prompt": "Hi", "harmful": harmful} for harmful in (True, False, True, None)]
    prompts = made(*given)
    assert [one.harmful for one in prompts.prompts] == [True, False, None]
    assert prompts.num_duplicates == 1
    assert made(*(one.record() for one in prompts.prompts)).prompts == prompts.prompts


def test_duplicates_are_taken_once(made):
    prompts = made(*numbered(5), *numbered(3))
    assert (len(prompts), prompts.num_duplicates) == (5, 3)
    prompts = made(*[{"id": "a", **record} for record in numbered(1) * 2])
    assert (len(prompts), prompts.num_duplicates) == (1, 1)
    with pytest.raises(DataError, match=r"problems.jsonl:2: id 'a' is that of another prompt \(.*problems.jsonl:1\)"):
        made(*[{"id": "a", **record} for record in numbered(2)])


def test_long_ones_are_left_out_and_counted(made):
    short, long = numbered(2), {"prompt": "and " * 200, "verifier": VERIFIER}
    prompts = made(*short, long, max_tokens=60)
    assert (len(prompts), prompts.num_too_long) == (2, 1)
    limit = max(len(prompt.ids) for prompt in prompts.prompts)
    assert made(*short, max_tokens=limit).num_too_long == 0
    with pytest.raises(DataError, match="no prompts: 1 are longer than 60 tokens"):
        made(long, max_tokens=60)


def test_held_out_prompts_are_kept_apart(made):
    training, held_out = made(*numbered(6)), made(*numbered(8)[4:], {"prompt": "x", "verifier": VERIFIER})
    rest = training.without(held_out)
    assert [prompt.text for prompt in rest.prompts] == [f"What is {n}?" for n in range(4)]
    assert rest.num_duplicates == 2
    with pytest.raises(DataError, match=r"data\.held_out"):
        training.without(training)


def test_the_order_is_a_function_of_seed_and_position(made):
    prompts = made(*numbered(37))
    ids = [prompts.at(position, 5).id for position in range(37 * 3)]
    epochs = [ids[37 * n : 37 * (n + 1)] for n in range(3)]
    assert all(sorted(epoch) == sorted(prompt.id for prompt in prompts.prompts) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    assert ids[50] == prompts.at(50, 5).id
    hits = _order.cache_info().hits
    assert prompts.at(51, 5).id == ids[51]
    assert _order.cache_info().hits == hits + 1, "one permutation an epoch"
    assert [prompts.at(position, 6).id for position in range(37)] != epochs[0]
    assert made(*numbered(1)).at(12, 0).text == "What is 0?"


GOOD = {"prompt": "x", "verifier": VERIFIER}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ("{", "not valid JSON"),
        ("[1]x", "JSON"),
        ("3", "must contain one JSON object"),
        ("\udcff", "not UTF-8"),
        ('{"prompt": ' + "[" * 100_000, "JSON"),
        ('{"prompt": "x", "difficulty": NaN}', "NaN"),
        ('{"prompt": "x", "difficulty": 1e999}', "too large"),
        ('{"prompt": "\\ud800"}', "surrogate"),
        ({}, "either messages or prompt"),
        ({**GOOD, "messages": []}, "either messages or prompt"),
        ({"promt": "x"}, "did you mean 'prompt'"),
        ({**GOOD, "prompt": 3}, "messages must be a list"),
        ({**GOOD, "prompt": []}, "no message is the user's"),
        ({**GOOD, "prompt": ["x"]}, "is not a message"),
        ({**GOOD, "prompt": "  "}, "user message is empty"),
        ({**GOOD, "prompt": [{"role": "king", "content": "x"}]}, "no message is the user's"),
        ({**GOOD, "prompt": [{"role": "user", "content": {"a": 1}}]}, "content must be text"),
        ({**GOOD, "system": {"a": 1}}, "content must be text"),
        ({**GOOD, "tools": "x"}, "JSON"),
        ({**GOOD, "verifier": "number"}, "verifier must be a mapping"),
        ({**GOOD, "verifier": {"kind": "numbre", "answer": "7"}}, "verifier.kind"),
        ({**GOOD, "difficulty": [1]}, "difficulty must be"),
        ({**GOOD, "difficulty": True}, "difficulty must be"),
        ({**GOOD, "source": {"a": 1}}, "source must be a name"),
        ({**GOOD, "id": ""}, "id must be a name"),
        ({**GOOD, "id": "x" * 201}, "id must be a name"),
        ({**GOOD, "thinking": "yes"}, "thinking must be true or false"),
        ({**GOOD, "harmful": "false"}, "harmful must be true or false"),
    ],
)
def test_a_wrong_record_is_one_line_with_its_place(made, record, words):
    with pytest.raises(DataError, match=words) as error:
        made(GOOD, record)
    assert re.search(r"problems\.jsonl:2\b", str(error.value)), error.value
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1500


def test_files_that_cannot_be(made, tokenizer, tmp_path):
    with pytest.raises(DataError, match="no such file"):
        list(read_prompts([tmp_path / "none.jsonl"]))
    with pytest.raises(DataError, match="there are no prompts"):
        made("")


@needs_gym
def test_prompts_of_reasoning_gym(tokenizer):
    records = list(reasoning_gym_prompts("basic_arithmetic", 5, 3))
    prompts = make_prompts(records, tokenizer)
    assert [prompt.id for prompt in prompts.prompts] == [f"basic_arithmetic-3-{n}" for n in range(5)]
    assert prompts.prompts[0].source == "reasoning-gym/basic_arithmetic"
    assert prompts.verifier_kinds == {"reasoning_gym"}
    other = make_prompts(reasoning_gym_prompts("basic_arithmetic", 5, 4), tokenizer)
    assert len(prompts.without(other)) > 0
    assert [one.text for one in other.prompts] != [one.text for one in prompts.prompts]
