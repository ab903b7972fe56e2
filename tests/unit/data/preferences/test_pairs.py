"""Files of pairs become ids: the same prompt on both sides, control tokens the template's alone, and nothing lost."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glmforge.config.chat import ChatConfig
from glmforge.data.preferences.encode import EncodedPair
from glmforge.data.preferences.pairs import PairCounts, encode_records, ensure_pairs, load_pairs, pairs_path
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError, GlmforgeError
from helpers.preferences import write_preferences
from helpers.tiny_data import TinyData

PAIR = {"prompt": "How are you?", "chosen": "Well.", "rejected": "Go away."}


@pytest.fixture(scope="module")
def tokenizer(tiny_data: TinyData) -> Tokenizer:
    return Tokenizer.load(tiny_data.tokenizer)


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def encoded(path: Path, tokenizer: Tokenizer, **config: Any) -> tuple[list[EncodedPair], PairCounts]:
    counts = PairCounts()
    return [pair for _, pair in encode_records([path], tokenizer, ChatConfig(**config), counts)], counts


def test_both_sides_have_the_prompts_ids_and_are_trained_on_their_answer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (pair,), _ = encoded(write(tmp_path / "a.jsonl", PAIR), tokenizer)
    for side, answer in ((pair.chosen, "\nWell."), (pair.rejected, "\nGo away.")):
        assert np.array_equal(side.ids[: pair.num_prompt], pair.chosen.ids[: pair.num_prompt])
        assert not side.is_trained[: pair.num_prompt].any()
        assert side.is_trained[pair.num_prompt :].all()
        assert tokenizer.decode(side.ids[pair.num_prompt :].tolist()) == f"{answer}<|user|>"
        assert side.ids[-1] in tokenizer.stop_ids


def test_what_is_spelt_like_a_control_token_is_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    record = PAIR | {"prompt": "<|assistant|>", "chosen": "a<|user|>b", "rejected": "<|endoftext|>"}
    (pair,), _ = encoded(write(tmp_path / "a.jsonl", record), tokenizer)
    assert sum(int(token in tokenizer.stop_ids) for token in pair.chosen.ids.tolist()) == 2  # its turns' own
    assert sum(int(token in tokenizer.stop_ids) for token in pair.rejected.ids.tolist()) == 2


def test_reasoning_of_one_answer_has_both_prompts_ask_for_it(tokenizer: Tokenizer, tmp_path: Path) -> None:
    thought = {"role": "assistant", "content": "Well.", "reasoning_content": "Hm."}
    (pair,), _ = encoded(write(tmp_path / "a.jsonl", PAIR | {"chosen": [thought]}), tokenizer)
    texts = [tokenizer.decode(side.ids.tolist()) for side in (pair.chosen, pair.rejected)]
    assert ["Hm." in text for text in texts] == [True, False]
    assert not any("/nothink" in text for text in texts)
    (pair,), _ = encoded(tmp_path / "a.jsonl", tokenizer, thinking="off")
    assert "Hm." not in tokenizer.decode(pair.chosen.ids.tolist())


def test_everything_is_counted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tie, long = PAIR | {"rejected": PAIR["chosen"]}, PAIR | {"prompt": "why " * 200}
    file = write(tmp_path / "a.jsonl", PAIR, PAIR, tie, long, {"prompt": "no answers"}, PAIR | {"chosen": "x" * 40})
    pairs, counts = encoded(file, tokenizer, max_tokens=100)
    assert len(pairs) == counts.kept == 3
    assert (counts.records, counts.wrong, counts.ties, counts.too_long, counts.duplicates) == (6, 1, 1, 1, 1)
    assert counts.chosen_longer == 1
    assert counts.problems[0].startswith(f"{file}:5: not a preference pair")
    with pytest.raises(DataError, match=r"a.jsonl:4: \d+ tokens, more than 100; raise seq_len"):
        encoded(file, tokenizer, max_tokens=100, overlong="refuse")


def test_pairs_are_kept_and_a_damaged_file_is_told(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file, config, told = write_preferences(tmp_path / "a.jsonl", 7), ChatConfig(), list[str]()
    kept = pairs_path(file, tokenizer, config)
    ensure_pairs(file, kept, tokenizer, config)
    first = kept.stat().st_mtime_ns
    ensure_pairs(file, kept, tokenizer, config)
    assert kept.stat().st_mtime_ns == first
    pairs = load_pairs(kept, tell=told.append)
    assert (len(pairs), pairs.names) == (7, ("even", "odd"))
    assert told[0].startswith("7 records, 7 pairs")
    fresh, _ = encoded(file, tokenizer)
    start, length = pairs.starts_P2[3, 1], pairs.lengths_P2[3, 1]
    assert np.array_equal(pairs.ids[start : start + length], fresh[3].rejected.ids)
    write_preferences(file, 8)
    assert pairs_path(file, tokenizer, config) != kept
    content = kept.read_bytes()
    for damaged in (content[:-30], content[:500] + b"\0" * 8 + content[508:], b"", b"PK"):
        kept.write_bytes(damaged)
        with pytest.raises(DataError, match=r"damaged .*; remove it to encode"):
            load_pairs(kept)


def test_parquet_is_read_with_margin_and_category(tokenizer: Tokenizer, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(
        pyarrow.Table.from_pylist([PAIR | {"margin": 1.5, "category": "c", "other": 1}]), tmp_path / "a.parquet"
    )
    (pair,), _ = encoded(tmp_path / "a.parquet", tokenizer)
    assert (pair.margin, pair.category) == (1.5, "c")


def test_damaged_files_are_accepted_or_refused_in_one_line(tokenizer: Tokenizer, tmp_path: Path) -> None:
    rng, content = random.Random(0), write(tmp_path / "a.jsonl", *[PAIR] * 3).read_bytes()
    for number in range(200):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        file = tmp_path / f"{number}.jsonl{'.gz' if number % 2 else ''}"
        file.write_bytes(gzip.compress(bytes(damaged))[: -(number % 5) or None] if number % 2 else bytes(damaged))
        said: list[str] = []
        try:
            said += encoded(file, tokenizer)[1].problems
        except GlmforgeError as error:
            said.append(str(error))
        assert not any("\n" in line for line in said)
