"""transformers loads what we write, encodes like us, and renders the same prompts."""

from pathlib import Path

import pytest

from glmforge.data.chat_template.template import render
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.special import SPECIAL_TOKENS
from glmforge.data.tokens.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

TEXT = "The forge is hot, isn't it? Größe, 你好, 1234.\n\n  def strike(iron):\n\treturn iron\r\n"
USER = {"role": "user", "content": "U1"}
ANSWER = {"role": "assistant", "content": "A1", "reasoning_content": "R1"}
CALL = {
    "role": "assistant",
    "content": "<think>R2</think>A2",
    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": "ü", "b": [1, {"é": None}]}}}],
}
RESULT = {"role": "tool", "content": 'T <tag> & "quote"'}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "größer < kleiner", "parameters": {}}}]
CONVERSATIONS = {
    "one question": [USER],
    "system": [{"role": "system", "content": "SYS\n"}, USER],
    "history": [USER, ANSWER, USER],
    "current turn": [USER, ANSWER],
    "tools": [USER, CALL, RESULT, RESULT, ANSWER, USER, CALL, RESULT],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "U"}, {"type": "text", "text": "1"}]}],
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "t"
    train_tokenizer([TEXT] * 3, 320, path)
    return path


@pytest.fixture(scope="module")
def theirs(directory: Path):
    return transformers.AutoTokenizer.from_pretrained(directory)


def test_vocabulary(theirs, directory):
    ours = Tokenizer.load(directory)
    assert len(theirs) == ours.vocab_size == 320
    assert theirs.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(284, 320))
    assert theirs.eos_token == theirs.pad_token == "<|endoftext|>"
    assert theirs.eos_token_id == ours.end_of_text_id


@pytest.mark.parametrize("text", [TEXT, "", " ", "🙂\n \n", "x" * 50, "a<think>b</think>/nothink<|user|>"])
def test_encoding(theirs, directory, text):
    ours = Tokenizer.load(directory)
    ids = ours.encode_with_special_tokens(text)
    assert theirs(text).input_ids == ids
    assert theirs.decode(ids) == ours.decode(ids) == text
    assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_rendering(theirs, directory, messages, tools, add_generation_prompt, thinking):
    options = {"tools": tools, "add_generation_prompt": add_generation_prompt}
    text = theirs.apply_chat_template(messages, tokenize=False, enable_thinking=thinking, **options)
    assert text == render(messages, thinking=thinking, **options)
    ids = theirs.apply_chat_template(messages, enable_thinking=thinking, return_dict=False, **options)
    assert ids == Tokenizer.load(directory).apply_chat_template(messages, thinking=thinking, **options)


def test_thinking_is_the_default(theirs):
    assert theirs.apply_chat_template([USER], tokenize=False) == render([USER])


def test_round_trip_through_transformers(theirs, directory, tmp_path):
    """A directory that transformers has saved is a tokenizer of ours, too."""
    theirs.save_pretrained(tmp_path / "saved")
    ours, saved = Tokenizer.load(directory), Tokenizer.load(tmp_path / "saved")
    assert saved.encode(TEXT) == ours.encode(TEXT)
    assert saved.apply_chat_template([USER, ANSWER]) == ours.apply_chat_template([USER, ANSWER])
