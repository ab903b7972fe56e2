"""Decontamination: how fast, how much planted contamination is found, and how much is found in text that is clean.

    python benchmarks/corpus/decontamination.py --more DIR       # 5 minutes, writes results/data_decontamination.json
    python benchmarks/corpus/decontamination.py --data DIR --repeats 3

All evaluation sets of `--data`/eval at once: GSM8K (train and test), MATH (test, and its 500), HumanEval, AIME 2024
and 2025, MMLU; and of `--more`, if given, as published: mbpp.jsonl (google-research), bbh/ (BIG-Bench-Hard), cmmlu/
(CMMLU's test set, four choices in Chinese as in C-Eval).

* Speed: CPU seconds (user + system) of searching 63 MB of real documents that are in memory, after a search that
  compiles and warms up; beside it a plain Python search for 13-grams in a set, on the first megabytes of the same.
* Recall: items drawn by seed from each set, planted in several ways; an item counts as found if it is named itself.
  "One word in 15": every 15th word (character, in Chinese), from a random one on, is replaced.
* False positives: what is found in real text that came into being without these sets. A finding there need not be
  wrong (history questions quote speeches that other texts quote, too), so each is listed. Programs: the standard
  library of the running Python. And the sets against each other, where MMLU has problems of MATH.

Expected before measuring: 50 MB per CPU second or more (an estimate from 5 ns a byte of hashing and one cache miss a
word); verbatim copies of items with at least 13 words found without exception, whatever their case, line breaks and
punctuation; of those with a tenth of the words edited about nine in ten (a run of 13 survives, or half the words in
intact n-grams); clean text: a few quotations per 100 MB.
"""

import argparse
import io
import json
import random
import re
import statistics
import sys
import sysconfig
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

sys.path.insert(0, str(Path(__file__).parents[1]))

from record import write_result

from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.decontaminate.contamination import Contamination
from glmforge_corpus.decontaminate.evaluation_sets import PROGRAM_FIELDS, EvaluationSet, Item

ROOT = Path(__file__).parents[2]
SETS = {
    "gsm8k-train": "gsm8k-train.jsonl",
    "gsm8k-test": "gsm8k-test.jsonl",
    "math-test": "math-test.jsonl",
    "math-500": "math_500.jsonl",
    "humaneval": "HumanEval.jsonl.gz",
    "aime24": "aime24.jsonl",
    "aime25": "aime25.jsonl",
    "mmlu": "mmlu.zip",
}
MORE = {"mbpp": "mbpp.jsonl", "bbh": "bbh", "cmmlu": "cmmlu/test"}
BATCH_DOCUMENTS = 2000
PYTHON_BYTES = 4_000_000
EXCERPT_WORDS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--items", type=int, default=300, help="planted items of each set")
    parser.add_argument("--more", type=Path, help="folder with further sets")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sets = [EvaluationSet(name=name, path=need(args.data / "eval" / file)) for name, file in SETS.items()]
    if args.more:
        sets += [EvaluationSet(name=name, path=need(args.more / file)) for name, file in MORE.items()]
    documents = list(debian_documents(need(args.data / "text" / "debian-docs-multilingual.jsonl.zst")))
    contamination, index = measure_loading(sets)
    result: dict[str, Any] = {"index": index}
    result["speed"] = measure_speed(contamination, documents, args.repeats)
    result["recall"] = measure_recall(contamination, clean_c4(args.data), args.items)
    result["clean_text"] = measure_false_positives(contamination, documents, args.data)
    result["sets_against_each_other"] = search_other_sets(contamination)
    result["neighbouring_problems"] = search_neighbours(args.data)
    write_result(
        "data_decontamination",
        result,
        code=["src/glmforge_corpus/decontaminate", "src/glmforge_corpus/words/characters.py"],
        libraries=["numba", "numpy", "pyarrow"],
        out=args.out,
    )
    print(json.dumps(result, indent=1, ensure_ascii=False))


def need(path: Path) -> Path:
    if not path.exists():
        raise SystemExit(f"{path}: not there: name the folder of the real data with --data")
    return path


def debian_documents(path: Path) -> Iterator[str]:
    with zstandard.ZstdDecompressor().stream_reader(path.open("rb")) as stream:
        for line in io.TextIOWrapper(stream, encoding="utf-8"):
            yield json.loads(line)["text"]


def clean_c4(data: Path) -> list[str]:
    return [json.loads(line)["text"] for line in need(data / "text" / "c4_demo.jsonl").open(encoding="utf-8")]


def measure_loading(sets: list[EvaluationSet]) -> tuple[Contamination, dict[str, Any]]:
    Contamination.load(sets[-2:-1])  # compiles
    start = time.process_time()
    contamination = Contamination.load(sets)
    seconds = time.process_time() - start
    index = contamination.index
    tables = (index, contamination.edited.index)
    arrays = [array for one in tables for array in (one.bitmap, one.keys, one.slots, one.starts, one.postings)]
    return contamination, {
        "cpu_seconds": round(seconds, 2),
        "ngrams": len(index.starts) - 1,
        "megabytes": round(sum(array.nbytes for array in arrays) / 1e6, 1),
        "ngrams_left_out": {"in more than 10 items": index.num_common, "numbers and symbols": index.num_empty},
        "sets": {
            one.name: {"items": one.num_items, "searched_for": one.num_searchable, "too_short": one.num_short}
            for one in contamination.summaries
        },
    }


def batches(texts: list[str]) -> list[DocumentBatch]:
    parts = [texts[start : start + BATCH_DOCUMENTS] for start in range(0, len(texts), BATCH_DOCUMENTS)]
    return [DocumentBatch.from_columns([""] * len(part), part, "") for part in parts]


def measure_speed(contamination: Contamination, documents: list[str], repeats: int) -> dict[str, Any]:
    prepared = batches(documents)
    megabytes = sum(int(batch.text_lengths.sum()) for batch in prepared) / 1e6
    part = batches([text for text in documents if text.isascii()])
    grams = python_index(contamination.items)
    contamination.find_in(prepared[0])
    seconds, python = [], []
    for _ in range(repeats):
        start = time.process_time()
        for batch in prepared:
            contamination.find_in(batch)
        seconds.append(time.process_time() - start)
        python.append(python_search(part, grams))
    rates = sorted(megabytes / second for second in seconds)
    return {
        "megabytes": round(megabytes, 1),
        "mb_per_cpu_second": {"median": round(statistics.median(rates), 1), "min": round(rates[0], 1)},
        "python_set_of_13_grams_mb_per_cpu_second": round(statistics.median(python), 2),
        "repeats": repeats,
    }


def python_words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def words_of(text: str) -> list[str]:
    """Words, and characters of Chinese."""
    return re.findall(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+", text)


def python_index(items: Any) -> set[tuple[str, ...]]:
    grams = set()
    for item in items:
        for _, text in item.passages:
            words = python_words(text)
            grams.update(tuple(words[i : i + 13]) for i in range(len(words) - 12))
    return grams


def python_search(prepared: list[DocumentBatch], grams: set[tuple[str, ...]]) -> float:
    """MB per CPU second of the search that comes first to mind."""
    texts = [text for batch in prepared for text in batch.texts]
    done, start = 0, time.process_time()
    for text in texts:
        words = python_words(text)
        any(tuple(words[i : i + 13]) in grams for i in range(len(words) - 12))
        done += len(text)
        if done > PYTHON_BYTES:
            break
    return done / 1e6 / (time.process_time() - start)


def edit(text: str, share: float, generator: random.Random) -> str:
    """A share of the words replaced, removed, or joined by a new one, a third each."""
    words = text.split()
    for at in generator.sample(range(len(words)), round(share * len(words))):
        kind = generator.randrange(3)
        words[at] = ("edited", "", f"{words[at]} added")[kind]
    return " ".join(words)


def replace_each(text: str, step: int, generator: random.Random) -> str:
    """Every so many words, or characters of Chinese, another one."""
    chinese = 3 * sum("\u4e00" <= character <= "\u9fff" for character in text) > len(text)
    parts, space, new = (list(text), "", "变") if chinese else (text.split(), " ", "changed")
    for at in range(generator.randrange(step), len(parts), step):
        parts[at] = new
    return space.join(parts)


def kinds(filler: list[str]) -> dict[str, Callable[[Item, random.Random], str]]:
    def question(item: Item) -> str:
        return item.passages[0][1]

    def program(item: Item) -> str:
        return next((text for field, text in item.passages if field in PROGRAM_FIELDS), "")

    def embedded(item: Item, generator: random.Random) -> str:
        before, after = (" ".join(generator.sample(filler, 5)) for _ in range(2))
        return f"{before} {question(item)} {after}"

    return {
        "only the question, verbatim": lambda item, _: question(item),
        "question and answer": lambda item, _: "\n".join(text for _, text in item.passages),
        "wrapped at 40 characters, indented": lambda item, _: textwrap.indent(
            textwrap.fill(question(item), 40), "    "
        ),
        "upper case": lambda item, _: question(item).upper(),
        "no punctuation": lambda item, _: re.sub(r"[^\w\s]", " ", question(item)),
        "in 20 kB of other text": embedded,
        "5 % of the words edited": lambda item, generator: edit(question(item), 0.05, generator),
        "10 % of the words edited": lambda item, generator: edit(question(item), 0.1, generator),
        "10 % edited, in other text": lambda item, generator: edit(embedded(item, generator), 0.1, generator),
        "one word in 15 replaced": lambda item, generator: replace_each(question(item), 15, generator),
        "one word in 10 replaced": lambda item, generator: replace_each(question(item), 10, generator),
        "program, verbatim": lambda item, _: program(item),
        "program, one word in 15 replaced": lambda item, generator: re.sub(
            r"\w+", lambda word: "changed" if generator.randrange(15) == 0 else word[0], program(item)
        ),
        "20 % of the words edited": lambda item, generator: edit(question(item), 0.2, generator),
    }


def measure_recall(contamination: Contamination, filler: list[str], count: int) -> dict[str, Any]:
    """Per kind: of all planted items, of those by length of the question, and by set."""
    generator = random.Random(0)
    items: list[Item] = []
    names = list(dict.fromkeys(item.set_name for item in contamination.items))
    for name in names:
        own = [item for item in contamination.items if item.set_name == name]
        items += generator.sample(own, min(count, len(own)))
    lengths = [len(words_of(item.passages[0][1])) for item in items]
    groups = {
        "all": lambda item, words: True,
        "question under 8 words": lambda item, words: words < 8,
        "question of 8 to 12 words": lambda item, words: 8 <= words < 13,
        "question of 13 words or more": lambda item, words: words >= 13,
    } | {name: lambda item, words, name=name: item.set_name == name for name in names}
    result: dict[str, Any] = {}
    for kind, make in kinds(filler).items():
        texts = [make(item, generator) for item in items]
        named = {(f.document, f.set_name, f.item) for f in contamination.find(texts)}
        found = [(number, item.set_name, item.id) in named for number, item in enumerate(items)]
        result[kind] = {}
        for group, belongs in groups.items():
            rows = zip(found, items, lengths, texts, strict=True)
            here = [ok for ok, item, words, text in rows if text and belongs(item, words)]
            if here:
                result[kind][group] = {"recall": round(sum(here) / len(here), 4), "of": len(here)}
    return result


def measure_false_positives(contamination: Contamination, documents: list[str], data: Path) -> dict[str, Any]:
    names = ("wikitext2-valid.txt", "wikitext2-test.txt", "wiki_demo.txt")
    wiki = [need(data / "text" / name).read_text(encoding="utf-8") for name in names]
    texts = {
        "Debian documents in 40 languages": documents,
        "C4": clean_c4(data),
        "Wikipedia, by paragraph": [line for text in wiki for line in text.split("\n") if line.strip()],
        "Chinese instructions and answers": chat(data, "alpaca_zh_demo.json"),
        "English instructions and answers": chat(data, "alpaca_en_demo.json"),
        "Python's standard library": programs(),
        "Shakespeare": [need(data / "text" / "tinyshakespeare.txt").read_text(encoding="utf-8")],
    }
    result = {}
    for name, own in texts.items():
        findings = [f for batch in batches(own) for f in contamination.find_in(batch)]
        result[name] = {
            "documents": len(own),
            "megabytes": round(sum(len(text.encode()) for text in own) / 1e6, 2),
            "findings": len(findings),
            "what": [
                f"{f.set_name} {f.item} ({f.rule}, {f.run_words} words in a row, share {f.share:.2f}): "
                + " ".join(f.excerpt.split()[:EXCERPT_WORDS])
                for f in findings[:20]
            ],
        }
    return result


def chat(data: Path, name: str) -> list[str]:
    records = json.loads(need(data / "chat" / name).read_text(encoding="utf-8"))
    return ["\n".join(record[field] for field in ("instruction", "input", "output")) for record in records]


def programs() -> list[str]:
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths if "site-packages" not in path.parts]


def search_other_sets(contamination: Contamination) -> dict[str, Any]:
    """Items of each set that are found to hold one of another set, by rule and pair of sets."""
    texts = ["\n".join(text for _, text in item.passages) for item in contamination.items]
    counts: dict[str, dict[str, int]] = {}
    for start in range(0, len(texts), BATCH_DOCUMENTS):
        for finding in contamination.find(texts[start : start + BATCH_DOCUMENTS]):
            own = contamination.items[start + finding.document].set_name
            if own != finding.set_name:
                pair = counts.setdefault(f"{finding.set_name} in {own}", {})
                pair[finding.rule] = pair.get(finding.rule, 0) + 1
    return dict(sorted(counts.items()))


def search_neighbours(data: Path) -> dict[str, Any]:
    """Real problems of the same kind that are no copies on purpose: GSM8K's training half against its test half."""
    test = Contamination.load([EvaluationSet(name="gsm8k-test", path=data / "eval" / "gsm8k-test.jsonl")])
    train = [
        "\n".join(json.loads(line)[field] for field in ("question", "answer"))
        for line in (data / "eval" / "gsm8k-train.jsonl").open(encoding="utf-8")
    ]
    findings = test.find(train)
    return {
        "training problems of GSM8K": len(train),
        "found to hold one of its test items": len({f.document for f in findings}),
        "by rule": {rule: sum(f.rule == rule for f in findings) for rule in sorted({f.rule for f in findings})},
    }


if __name__ == "__main__":
    main()
