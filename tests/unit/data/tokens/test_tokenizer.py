import json
import shutil

import pytest

from glmforge.data.tokens.special import SPECIAL_TOKENS
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_special_tokens_are_those_of_conversations_and_text_of_a_corpus_cannot_inject_them(tokenizer, token):
    text = f"before {token} after{token}"
    ids = tokenizer.encode(text)
    assert max(ids) < tokenizer.special_id(SPECIAL_TOKENS[0])
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_batch([text, ""]) == [ids, []]
    special = tokenizer.special_id(token)
    ids = tokenizer.encode_with_special_tokens(f"{token}a{token}")
    assert (ids[0], ids[-1]) == (special, special)
    assert len(ids) == 3


def test_chat_ids_are_the_rendered_prompt(tokenizer):
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True)
    assert tokenizer.decode(ids) == "[gMASK]<sop><|user|>\nhi<|assistant|>"
    assert [ids[0], ids[-1]] == [tokenizer.special_id("[gMASK]"), tokenizer.special_id("<|assistant|>")]


def test_half_of_a_surrogate_pair_is_no_text(tokenizer):
    for encode in (tokenizer.encode, tokenizer.encode_with_special_tokens):
        with pytest.raises(DataError, match=r"not UTF-8 text: '\\ud800'"):
            encode("ab\ud800")
    with pytest.raises(DataError, match="not UTF-8 text"):
        tokenizer.apply_chat_template([{"role": "user", "content": "\ud800"}])


def test_chat_template_of_the_directory_is_used(tokenizer_dir, tmp_path):
    directory = shutil.copytree(tokenizer_dir, tmp_path / "t")
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.decode(tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])) == "hi!"


def test_skipping_special_tokens_keeps_what_parsers_look_for(tokenizer):
    ids = tokenizer.encode_with_special_tokens("<|assistant|><think>a</think>b<|user|>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>a</think>b"


def test_unknown_special_token(tokenizer):
    with pytest.raises(DataError, match="'<bos>' is not one"):
        tokenizer.special_id("<bos>")


def test_fingerprint_is_of_the_content(tokenizer, tokenizer_dir, tmp_path):
    copy = shutil.copytree(tokenizer_dir, tmp_path / "t")
    assert Tokenizer.load(copy).fingerprint == tokenizer.fingerprint
    with (copy / "tokenizer.json").open("a") as file:
        file.write("\n")
    assert Tokenizer.load(copy).fingerprint != tokenizer.fingerprint


def _drop_special(content: dict) -> dict:
    return content | {"added_tokens": content["added_tokens"][:-1]}


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (None, "tokenizer.json: no such file: create one with 'glmforge data tokenizer', or"),
        (lambda text: text[: len(text) // 2], "not a GLM tokenizer"),
        (lambda text: "{}", "not a GLM tokenizer"),
        (lambda text: "[]", "not a GLM tokenizer"),
        (lambda text: json.dumps(_drop_special(json.loads(text))), r"lacks GLM's special tokens <\|video\|>"),
    ],
)
def test_unusable_directory(tokenizer_dir, tmp_path, damage, complaint):
    directory = shutil.copytree(tokenizer_dir, tmp_path / "t")
    path = directory / "tokenizer.json"
    text = path.read_text()
    path.unlink() if damage is None else path.write_text(damage(text))
    with pytest.raises(DataError, match=complaint):
        Tokenizer.load(directory)


def test_a_file_is_no_directory_of_a_tokenizer(tmp_path):
    (tmp_path / "t").write_text("")
    with pytest.raises(
        DataError, match=r"t/tokenizer.json: no such file: create one with 'glmforge data tokenizer', or"
    ):
        Tokenizer.load(tmp_path / "t")


@pytest.mark.parametrize(
    ("size", "complaint"),
    [
        (0, "padded_vocab_size 0 is less than the 360 tokens: create"),
        (359, "is less than the 360 tokens"),
        ("384", "'384' is not a row count"),
    ],
)
def test_a_padded_size_that_cannot_be(tokenizer_dir, tmp_path, size, complaint):
    directory = shutil.copytree(tokenizer_dir, tmp_path / "t")
    config = directory / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"padded_vocab_size": size}))
    with pytest.raises(DataError, match=complaint):
        Tokenizer.load(directory)


@pytest.mark.parametrize("index", [-1, 360])
def test_ids_outside_the_vocabulary(tokenizer, index):
    with pytest.raises(DataError, match=f"token id {index} is not in the vocabulary of 360"):
        tokenizer.id_to_token(index)


def test_ids_of_the_padding_say_nothing(tokenizer):
    assert tokenizer.decode([*tokenizer.encode("a"), 360, 383, *tokenizer.encode("b")]) == "ab"
