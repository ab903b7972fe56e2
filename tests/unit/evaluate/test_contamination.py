"""A planted leak in a run's own token shards is found, and nothing else is."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.shard_writer import ShardWriter
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError
from glmforge.evaluate.contamination import documents_of, find_leaks
from helpers.results import item

NAMES = "Ada Boris Chidi Dunja Emeka Farah Goran Hanna Ivan Jun Kofi Lena Malik Nora Omar Priya".split()  # noqa: SIM905
THINGS = "eggs pens coins shells apples stamps tickets bricks candles cards marbles loaves".split()  # noqa: SIM905
PLACES = "market school harbour station library bakery garden village".split()  # noqa: SIM905


def problem(draw: np.random.Generator) -> str:
    """A word problem such as GSM8K's; two of them share turns of phrase."""
    first, second = draw.choice(NAMES, 2, replace=False)
    thing, other = draw.choice(THINGS, 2, replace=False)
    a, b, c, d, e = draw.integers(11, 999, 5)
    return (
        f"{first} brings {a} {thing} to the {draw.choice(PLACES)} and gives {b} of them to {second}. On the way {c} "
        f"{thing} break, then {first} swaps {d} for {other}. How many {thing} are left after {second} returns {e}?"
    )


@pytest.fixture(scope="module")
def problems() -> list[str]:
    draw = np.random.default_rng(0)
    return [problem(draw) for _ in range(400)]


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory, problems: list[str]) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer") / "small"
    train_tokenizer(problems[:50], 500, directory)
    return directory


def shard_of(prefix: Path, texts: Sequence[str], tokenizer_dir: Path) -> Path:
    words = Tokenizer.load(tokenizer_dir)
    documents = [[*words.encode(text), words.end_of_text_id] for text in texts]
    with ShardWriter(prefix, words.vocab_size) as writer:
        writer.add(np.concatenate([np.array(ids) for ids in documents]), np.array([len(ids) for ids in documents]))
        writer.finish(words.fingerprint, "test", num_text_bytes=sum(map(len, texts)))
    return prefix


def test_fifty_leaked_items_are_found_and_none_else(
    tmp_path: Path, problems: list[str], tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaks stand inside other text, in capitals, with other punctuation; the rest of the shard are 200 problems of the
    same pattern. The shards are read in many parts."""
    monkeypatch.setattr("glmforge.evaluate.contamination._BATCH_CHARACTERS", 30_000)
    questions, others = problems[:200], problems[200:]
    leaked = set(range(0, 200, 4))
    planted = [f"Forum post.\n\n{questions[n].upper().replace(',', ' -')}\n\nSolved!" for n in sorted(leaked)]
    clean = shard_of(tmp_path / "clean", others[:100], tokenizer_dir)
    mixed = shard_of(tmp_path / "mixed", [*others[100:150], *planted, *others[150:]], tokenizer_dir)
    (found,) = find_leaks({"gsm8k": questions}, documents_of([clean, mixed], tokenizer_dir))
    assert set(found.found) == leaked
    assert set(found.found.values()) == {str(mixed)}
    assert found.num_searchable == found.num_items == 200


def test_thirteen_words_in_a_row_are_proof_and_twelve_are_not() -> None:
    words = "one tall heron stood beside the old mill pond while quick frogs dived under floating green leaves".split()  # noqa: SIM905
    question = {"b": [" ".join(words)]}
    for number, is_leak in ((13, True), (12, False)):
        (found,) = find_leaks(question, [("shard", "so " + " ".join(words[2 : 2 + number]) + " and more")])
        assert bool(found.found) == is_leak


def test_short_questions_count_whole_and_very_short_ones_not_at_all() -> None:
    questions = {"a": ["Which bird sings before dawn near cold northern lakes?"], "b": ["Who won?"]}
    text = "which bird sings before dawn near cold northern lakes - who won"
    short, very_short = find_leaks(questions, [("shard", text)])
    assert (list(short.found), short.num_searchable) == ([0], 1)
    assert (list(very_short.found), very_short.num_searchable) == ([], 0)


def test_scores_without_leaked_items() -> None:
    (found,) = find_leaks({"gsm8k": ["a"] * 4}, [])
    found.found.update({0: "shard", 1: "shard"})
    items = [item(n, float(n < 2)) for n in range(4)]
    assert [one and one.mean for one in found.scores(items)] == [0.5, 0.0, 1.0]
    assert found.scores([item(0, 1.0, benchmark="math")]) == [None, None, None]


def test_a_run_brings_its_shards_encoded_conversations_and_tokenizer(
    tmp_path: Path, problems: list[str], tokenizer_dir: Path
) -> None:
    conversations = tmp_path / "chat.jsonl"
    conversations.write_text("{}\n")
    shard_of(tmp_path / "chat.jsonl.tokens-0123456789abcdef", problems[:3], tokenizer_dir)
    (tmp_path / "chat.jsonl.tokens-0123456789abcdef.pack-64-00.idx").write_bytes(b"a packing, not a shard")
    shard_of(tmp_path / "text", problems[3:5], tokenizer_dir)
    config = {"text": tmp_path / "text", "chat": conversations}
    sources = "".join("    - name: {}\n      path: {}\n".format(*pair) for pair in config.items())
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(
        f"name: r\nextends: demo\ndata:\n  tokenizer: {tokenizer_dir}\n  sources:\n{sources}"
    )
    texts = [text for _, text in documents_of([run])]
    assert texts == [*problems[3:5], *problems[:3]]


@pytest.mark.parametrize(
    ("source", "message"),
    [("nothing", "no token shard is there"), ("shard.bin", "give --tokenizer"), (".", "config.yaml")],
)
def test_wrong_sources_are_one_line(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "shard.bin").touch()
    with pytest.raises(Exception, match=message) as raised:
        list(documents_of([tmp_path / source]))
    assert "\n" not in str(raised.value)


def test_a_shard_of_another_tokenizer_is_refused(tmp_path: Path, problems: list[str], tokenizer_dir: Path) -> None:
    prefix = shard_of(tmp_path / "shard", problems[:2], tokenizer_dir)
    train_tokenizer(problems[100:], 480, tmp_path / "other")
    with pytest.raises(DataError, match="written by another tokenizer"):
        list(documents_of([prefix], tmp_path / "other"))
