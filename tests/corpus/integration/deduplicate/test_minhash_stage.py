"""Near-deduplication from shards to shards."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import zstandard
from pyarrow import parquet
from pydantic import ValidationError

from glmforge.errors import ConfigError, DataError
from glmforge_corpus.deduplicate.minhash import REASON, TOO_SHORT, MinHash, least_shingles

WORDS = [f"word{k}" for k in range(2000)]


def text(seed: int, size: int = 60) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=size))


def changed(original: str, seed: int, times: int = 1) -> str:
    words, generator = original.split(), random.Random(seed)
    for _ in range(times):
        words[generator.randrange(len(words))] = generator.choice(WORDS)
    return " ".join(words)


def jaccard(a: str, b: str) -> float:
    sets = [{tuple(w[i : i + 5]) for i in range(max(1, len(w) - 4))} for w in (a.lower().split(), b.lower().split())]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def corpus() -> list[list[str]]:
    """Three shards, some of whose texts are variants of others'."""
    texts = [text(k) for k in range(40)]
    texts += [changed(texts[k], 100 + k, times=1 + k % 4) for k in range(30)]
    random.Random(7).shuffle(texts)
    return [texts[:25], texts[25:26], texts[26:]]


def pairs_in(directory: Path) -> dict[tuple[str, str], float]:
    table = parquet.read_table(directory / "clusters" / "00000" / "pairs.parquet").to_pydict()
    return dict(zip(zip(table["id_a"], table["id_b"], strict=True), table["jaccard"], strict=True))


def expected_pairs(shards: Sequence[Sequence[str]], threshold: float) -> dict[tuple[str, str], float]:
    documents = [(f"{s}.{r}", one) for s, texts in enumerate(shards) for r, one in enumerate(texts)]
    found = {(a, b): jaccard(x, y) for k, (b, y) in enumerate(documents) for a, x in documents[:k]}
    return {pair: value for pair, value in found.items() if value >= threshold}


def test_pairs_are_those_of_exact_jaccard_and_the_first_stays(write_shards: Any, run_stage: Any) -> None:
    shards = corpus()
    # 60 bands of 2 miss a pair at J = 0.6 once in 10^11.
    ran = run_stage(MinHash(threshold=0.6, bands=60, rows=2), write_shards(shards))
    expected = expected_pairs(shards, 0.6)
    assert len(expected) > 15
    assert pairs_in(ran.directory) == pytest.approx(expected, abs=1e-6)  # stored as float32
    later = {later for _, later in expected}
    everything = [f"{s}.{r}" for s, texts in enumerate(shards) for r in range(len(texts))]
    assert ran.ids == [name for name in everything if name not in later]
    assert ran.statistics.removed[REASON].documents == len(later)
    report = orjson.loads((ran.directory / "clusters" / "00000" / "report.json").read_bytes())
    assert report["duplicates"] == len(later)
    assert report["pairs"] == len(expected)


def test_results_do_not_depend_on_batches_or_the_order_of_tasks(write_shards: Any, run_stage: Any) -> None:
    stage = MinHash(threshold=0.6, store="shingles")
    one = run_stage(stage, write_shards(corpus()), "stage")
    again = run_stage(stage, write_shards(corpus(), "cut", cut=3), "again", backwards=True)
    assert one.checksums().keys() == again.checksums().keys()
    for path, files in one.checksums().items():
        assert files == again.checksums()[path], path


def test_check_only_reports_and_removes_nothing(write_shards: Any, run_stage: Any) -> None:
    shards = corpus()
    ran = run_stage(MinHash(threshold=0.6, check_only=True), write_shards(shards))
    assert [one for _, one in ran.documents()] == [one for texts in shards for one in texts]
    assert ran.statistics.removed == {}
    assert ran.statistics.counts["minhash: duplicates"] > 10
    assert pairs_in(ran.directory)


@pytest.mark.parametrize(
    ("keep", "stays"), [("first", "0.0"), ("longest", "1.0"), ("quality", "0.1")], ids=["first", "longest", "score"]
)
def test_which_copy_stays(write_shards: Any, run_stage: Any, keep: str, stays: str) -> None:
    base = text(1, 200)
    shards = [[base, base + " more"], [base + " more words"]]
    ran = run_stage(MinHash(threshold=0.9, keep=keep), write_shards(shards, scores=[[0.1, 0.9], [np.nan]]))
    assert ran.ids == [stays]
    table = parquet.read_table(ran.directory / "clusters" / "00000" / "clusters.parquet").to_pydict()
    assert table == {"cluster": ["0.0"] * 3, "id": ["0.0", "0.1", "1.0"], "kept": [k == stays for k in table["id"]]}


def test_an_unknown_score_is_an_error_that_names_it(write_shards: Any, run_stage: Any) -> None:
    shards = write_shards([[text(1), text(2)], []], scores=[[0.5, 0.5], []])  # no two are alike
    with pytest.raises(DataError, match=r"no score 'nonsense' \(available: quality\)"):
        run_stage(MinHash(keep="nonsense"), shards)
    assert run_stage(MinHash(keep="quality"), shards).ids == ["0.0", "0.1"]


@pytest.mark.parametrize(("keep", "meant"), [("longst", "longest"), ("frist", "first"), ("Longest", "longest")])
def test_a_slip_of_the_pen_is_no_score(keep: str, meant: str) -> None:
    with pytest.raises(ValidationError, match=f"did you mean '{meant}'"):
        MinHash(keep=keep)
    assert MinHash(keep="length").keep == "length"


def test_signature_verification_is_close_to_exact(write_shards: Any, run_stage: Any) -> None:
    shards = corpus()
    ran = run_stage(MinHash(threshold=0.5, bands=64, rows=2, verify="signature"), write_shards(shards))
    exact = expected_pairs(shards, 0.0)
    found = pairs_in(ran.directory)
    assert found
    for pair, value in found.items():
        assert abs(value - exact[pair]) < 5 * np.sqrt(0.25 / 128)  # five standard deviations of 128 entries
    assert {pair for pair, value in exact.items() if value > 0.75} <= found.keys()


def test_strange_documents(write_shards: Any, run_stage: Any) -> None:
    shards = [["", " \n", "word", "Word ", "other"], [], ["", "中文" * 40, "中文" * 40]]
    ran = run_stage(MinHash(), write_shards(shards))
    assert ran.ids == ["0.0", "0.1", "0.2", "0.4", "2.0", "2.1"]  # texts without a word are nobody's copies
    assert ran.statistics.counts["minhash: documents without a word"] == 3


def test_no_documents_at_all(write_shards: Any, run_stage: Any) -> None:
    assert run_stage(MinHash(), write_shards([[], []])).ids == []


def test_a_corpus_of_equal_documents_costs_pairs_in_proportion(write_shards: Any, run_stage: Any) -> None:
    count = 600
    ran = run_stage(MinHash(), write_shards([[text(1)] * count, [text(1)] * count]))
    assert ran.ids == ["0.0"]
    bands = MinHash().banding().number
    assert ran.statistics.counts["minhash: candidate pairs"] <= 4 * 2 * count * bands


def test_characters_and_punctuation(write_shards: Any, run_stage: Any) -> None:
    chinese = "敏捷的棕色狐狸跳过了那只懒狗然后在森林里消失得无影无踪再也没有回来过"
    shards = [[chinese, chinese + "啊"], ["Don't: stop! " + text(3), "don t stop " + text(3)]]
    kept = {}
    for shingle, strip in [("word", False), ("character", False), ("mixed", True)]:
        stage = MinHash(threshold=0.9, shingle=shingle, n=3, strip_punctuation=strip)  # type: ignore[arg-type]
        kept[shingle, strip] = run_stage(stage, write_shards(shards, f"in-{shingle}"), f"stage-{shingle}").ids
    assert kept["word", False] == ["0.0", "0.1", "1.0"]
    assert kept["character", False] == ["0.0", "1.0"]
    assert kept["mixed", True] == ["0.0", "1.0"]


# First and last letter of a script, what ends a clause in it, and what stands between syllables.
UNSPACED = {
    "Chinese": ("一", "龥", "，", ""), "Japanese": ("ぁ", "ん", "、", ""), "Thai": ("ก", "ฮ", " ", ""),
    "Lao": ("ກ", "ຮ", " ", ""), "Khmer": ("ក", "អ", "។", ""), "Burmese": ("က", "အ", "၊", ""),
    "Tibetan": ("ཀ", "ཧ", "། ", "་"),
}  # fmt: skip


def unspaced_text(script: str, generator: random.Random, syllables: int = 200) -> str:
    """Clauses of 20 letters or syllables; some letters are Latin, as in any technical text."""
    first, last, clause_end, syllable_end = UNSPACED[script]
    letters = [chr(generator.randint(ord(first), ord(last))) for _ in range(syllables)]
    letters[50:51] = [" Linux "]
    return "".join(f"{one}{clause_end if k % 20 == 19 else syllable_end}" for k, one in enumerate(letters))


@pytest.mark.parametrize("script", UNSPACED)
def test_copies_with_one_letter_changed_are_found_where_a_script_has_no_spaces(
    write_shards: Any, run_stage: Any, script: str
) -> None:
    generator = random.Random(3)
    texts = [unspaced_text(script, generator) for _ in range(20)]
    first = UNSPACED[script][0]
    copies = [one[:at] + first + one[at + 1 :] for at, one in zip(range(100, 300, 10), texts, strict=True)]
    ran = run_stage(MinHash(), write_shards([texts, copies]))
    # J is at least 190 / 200: 14 bands of 9 miss one of 20 such pairs with a probability of 10^-4.
    assert ran.ids == [f"0.{k}" for k in range(20)]
    assert ran.statistics.counts[TOO_SHORT] == 0
    clauses = run_stage(MinHash(shingle="word"), write_shards([texts, copies], "clauses"), "by-clause")
    assert clauses.statistics.counts[TOO_SHORT] == 40


def test_documents_that_are_too_short_to_judge_are_counted(write_shards: Any, run_stage: Any) -> None:
    assert [least_shingles(threshold, 5) for threshold in (0.85, 0.8, 0.5, 1.0)] == [62, 45, 15, 0]
    shards = [[text(1, 65), text(2, 66), "", text(3, 3)], [text(4, 400)]]
    ran = run_stage(MinHash(), write_shards(shards))
    assert ran.statistics.counts[TOO_SHORT] == 2  # 65 words have 61 shingles
    for size, judged in ((65, False), (66, True)):
        words = text(1, size).split()
        words[size // 2] = "changed"
        assert (jaccard(text(1, size), " ".join(words)) >= 0.85) == judged


@pytest.mark.parametrize("store", ["signatures", "shingles"])
def test_new_documents_are_compared_with_an_index(write_shards: Any, run_stage: Any, store: Any) -> None:
    old, newer, newest = (
        [text(1), text(2)],
        [changed(text(1), 5), text(3)],
        [text(4), text(2) + " end", text(3) + " end"],
    )
    options: dict[str, Any] = {"threshold": 0.7, "store": store}
    first = run_stage(MinHash(**options), write_shards([old], "old"), "first")
    for path in (first.shards[0], first.directory.parent / "old" / "00000" / "documents.parquet"):
        path.unlink()  # the old text is not read again
    second = run_stage(MinHash(**options, index=(first.directory,)), write_shards([newer], "newer"), "second")
    assert second.ids == ["0.1"]
    third = run_stage(MinHash(threshold=0.7, index=(second.directory,)), write_shards([newest], "newest"), "third")
    assert third.ids == ["0.0"]  # the index names the one before it
    exact = jaccard(text(1), newer[0])
    (value,) = pairs_in(second.directory).values()
    assert value == pytest.approx(exact, abs=1e-6 if store == "shingles" else 0.2)  # 128 entries: 5 deviations


def test_an_index_keeps_its_documents_whatever_they_weigh(write_shards: Any, run_stage: Any) -> None:
    index = run_stage(MinHash(store="shingles"), write_shards([[text(1)]], "old"), "old-stage").directory
    stage = MinHash(threshold=0.7, bands=None, keep="longest")
    with pytest.raises(DataError, match="bands x rows"):
        stage.model_copy(update={"index": (index,)}).check()
    stage = MinHash(keep="longest", index=(index,))
    assert run_stage(stage, write_shards([[text(1) + " x"]], "new"), "new-stage").ids == []


def test_what_is_no_index_is_refused(write_shards: Any, run_stage: Any, tmp_path: Path) -> None:
    plain = run_stage(MinHash(), write_shards([[text(1)]])).directory
    for path in (plain, tmp_path / "nowhere"):
        with pytest.raises(DataError, match="no index; pass the directory of a minhash stage that"):
            MinHash(index=(path,)).check()
    made = run_stage(MinHash(store="signatures"), write_shards([[text(1)]], "other"), "made").directory
    with pytest.raises(DataError, match="shingle options"):
        MinHash(index=(made,), n=4).check()
    (made / "clusters" / "00000" / "index.json").write_text("{")
    with pytest.raises(DataError, match=r"index\.json: cannot be read"):
        MinHash(index=(made,)).check()


def test_bands_without_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="set both bands and rows, or neither"):
        MinHash(bands=3)
    assert issubclass(ConfigError, ValueError)


def test_documents_larger_than_a_batch(write_shards: Any, run_stage: Any) -> None:
    block = " ".join(text(k, 1000) for k in range(100)) + "\n"
    huge = block * (20_000_000 // len(block))
    ran = run_stage(MinHash(), write_shards([[text(1)], [huge, huge + "end", text(1)]]))
    assert ran.ids == ["0.0", "1.0"]


DATA = Path(__file__).parents[5] / "shared" / "data" / "dedup"


@pytest.mark.skipif(not DATA.is_dir(), reason=f"needs real documents in {DATA}")
def test_real_documents_with_known_pairs(write_shards: Any, run_stage: Any) -> None:
    count = 20_000
    with (DATA / "documents.jsonl.zst").open("rb") as file:
        data = zstandard.ZstdDecompressor().stream_reader(file).read(40_000_000)
    texts = [orjson.loads(line)["text"] for line in data.split(b"\n")[:count]]
    known = np.load(DATA / "pairs.npz")
    inside = np.maximum(known["a"], known["b"]) < count
    low, high = (np.minimum, np.maximum)
    exact = {
        (int(low(a, b)), int(high(a, b))): float(value)
        for a, b, value in zip(known["a"][inside], known["b"][inside], known["jaccard"][inside], strict=True)
    }
    shards = [[(str(k), texts[k]) for k in range(start, start + 5000)] for start in range(0, count, 5000)]
    ran = run_stage(MinHash(threshold=0.8), write_shards(shards))
    found = {(int(a), int(b)): value for (a, b), value in pairs_in(ran.directory).items()}
    assert found == pytest.approx({pair: exact[pair] for pair in found}, abs=1e-6)
    similar = {pair for pair, value in exact.items() if value >= 0.8}
    assert len(found.keys() & similar) >= 0.99 * len(similar)
