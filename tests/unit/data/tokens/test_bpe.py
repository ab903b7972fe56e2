import json

import pytest

from glmforge.data.tokens import bpe
from glmforge.data.tokens.bpe import MAX_VOCAB_SIZE, train_tokenizer
from glmforge.data.tokens.special import MIN_VOCAB_SIZE, SPECIAL_TOKENS
from glmforge.data.tokens.tokenizer import token_byte_lengths
from glmforge.errors import DataError

TEXT = "one two three four five six seven eight nine ten; /nothink /nothink and 12345 ones isn't two\n" * 4


def test_special_tokens_are_the_last_of_the_vocabulary(tmp_path):
    tokenizer = train_tokenizer([TEXT], 300, tmp_path / "t")
    assert tokenizer.vocab_size == 300
    assert [tokenizer.special_id(token) for token in SPECIAL_TOKENS] == list(range(264, 300))
    assert len(SPECIAL_TOKENS) == 36
    # offsets of the published ids: 151,329 is <|endoftext|>, 151,336 <|user|>, 151,338 <|observation|>
    assert tokenizer.stop_ids == (264, 264 + 7, 264 + 9)


def test_every_text_survives_the_smallest_vocabulary(tmp_path):
    tokenizer = train_tokenizer(["no pair is seen twice"], MIN_VOCAB_SIZE, tmp_path / "t")
    text = "".join(map(chr, [*range(1, 1000), 0x4F60, 0x1F642]))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text.encode())


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("I'Ll it's", ["I", "'Ll", " it", "'s"]),
        ("12345", ["123", "45"]),
        ("a  b", ["a", " ", " b"]),
        ("x = y;;\n\n z", ["x", " =", " y", ";;\n\n", " z"]),
        ("  \n\n a", ["  \n\n", " a"]),
    ],
)
def test_tokens_do_not_cross_the_borders_of_the_split_rule(tmp_path, text, pieces):
    tokenizer = train_tokenizer([f"{text}\0"] * 50, MIN_VOCAB_SIZE + len(set("".join(pieces))) // 2, tmp_path / "t")
    borders = {len("".join(pieces[:i])) for i in range(1, len(pieces) + 1)}
    ends, position = set(), 0
    for token in tokenizer.encode(text):
        position += len(tokenizer.decode([token]))
        ends.add(position)
    assert borders <= ends


def test_training_is_deterministic(tmp_path):
    first = train_tokenizer([TEXT], 310, tmp_path / "a")
    second = train_tokenizer(iter([TEXT]), 310, tmp_path / "b")
    assert first.fingerprint == second.fingerprint


def test_corpus_cannot_teach_a_special_token_as_a_word(tmp_path):
    """`/nothink` is one word to the split rule; learnt as one it would take the special token's id."""
    tokenizer = train_tokenizer([TEXT.replace(" ", "/nothink ")], 310, tmp_path / "t")
    assert tokenizer.special_id("/nothink") == 310 - 36 + SPECIAL_TOKENS.index("/nothink")


def test_byte_lengths_are_those_of_the_text(tokenizer):
    lengths = token_byte_lengths(tokenizer)
    text = "Größe 你好 the numbers 🙂"
    assert lengths[tokenizer.encode(text)].sum() == len(text.encode())
    assert lengths[-36:].tolist() == [0] * 36
    assert lengths[:-36].min() == 1


@pytest.mark.parametrize(
    ("vocab_size", "complaint"),
    [
        (MIN_VOCAB_SIZE - 1, "must be at least 292"),
        (5000, "only .* tokens; add text, or lower --vocab-size to"),
        (MAX_VOCAB_SIZE + 1, "2,097,151: at most 2,097,150"),
    ],
)
def test_vocab_size_out_of_reach(tmp_path, vocab_size, complaint):
    with pytest.raises(DataError, match=complaint):
        train_tokenizer([TEXT], vocab_size, tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_more_text_than_the_trainer_can_count_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bpe, "MAX_TEXT_BYTES", len(TEXT))
    assert train_tokenizer([TEXT], 300, tmp_path / "t").vocab_size == 300
    with pytest.raises(DataError, match=r"bytes of text.*--sample-bytes 2e9"):
        train_tokenizer([TEXT, "."], 300, tmp_path / "u")
    assert not (tmp_path / "u").exists()


def test_existing_tokenizer_is_replaced_only_if_asked(tmp_path):
    train_tokenizer([TEXT], 300, tmp_path / "t")
    with pytest.raises(DataError, match="exists; choose another name, or pass --force"):
        train_tokenizer([TEXT], 310, tmp_path / "t")
    assert train_tokenizer([TEXT], 310, tmp_path / "t", overwrite=True).vocab_size == 310
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == [
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert json.loads((tmp_path / "t" / "tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"
