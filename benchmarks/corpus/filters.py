"""Filter rules: decisions beside datatrove's, with the same words and with spaCy's, and megabytes per CPU-second.

    python benchmarks/corpus/filters.py            # ten minutes; writes benchmarks/results/data_filters.json
    python benchmarks/corpus/filters.py --quick    # a trial on a tenth, writes nothing

Three questions:

1. Same words. datatrove's filter classes take our splitter as their tokeniser (their parameter `language` accepts
   one) and judge 20,000 real documents; so do our blocks. Once with the published limits for all documents
   ("published"), once with our limits for those in other languages ("per_language"): FineWeb-2's, less strict for
   Chinese.
2. Stock words. datatrove's filters with the tokeniser that it assigns to a language (spaCy, jieba, Sudachi,
   PyThaiNLP) against our blocks with our words, on fewer documents, since that takes seconds per hundred.
3. Speed. CPU time of this process around the calls, arms taking turns, least and median of the rounds. Compilation
   and tables come before. Counts are not kept from one round to the next. `chain_*` sends documents through blocks
   one after another as the `clean` stage does; each gets what the ones before have left.

Expected before measuring: all decisions equal with the same words, except where n-grams are equal as strings and
differ as words; 60 MB per CPU-second for the four blocks and some 1 % of that for datatrove; most differences from
stock at the share of alphabetic words, which depends on how finely punctuation is cut.

spaCy and its like are no dependency. To have them take part, make an environment of their own:

    python -m venv /some/dir
    /some/dir/bin/pip install spacy jieba sudachipy sudachidict-core pythainlp python-crfsuite
    printf '%s\\n' SITE_PACKAGES_OF_GLMFORGE PATH_TO/src > /some/dir/lib/python3.11/site-packages/glmforge.pth
    /some/dir/bin/python benchmarks/corpus/filters.py
"""

import argparse
import importlib.util
import io
import json
import statistics
import sys
import tarfile
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import orjson
import zstandard
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.utils.word_tokenizers import WordTokenizer, load_word_tokenizer
from record import write_result
from resiliparse.extract.html2text import extract_plain_text

from glmforge.data.documents.batch import BATCH_BYTES, DocumentBatch
from glmforge_corpus.block import Block
from glmforge_corpus.filter.rules.c4 import C4
from glmforge_corpus.filter.rules.fineweb import FineWeb
from glmforge_corpus.filter.rules.gopher import GopherQuality, GopherRepetition
from glmforge_corpus.filter.rules.language_limits import language_limits
from glmforge_corpus.filter.rules.shared_counts import forget
from glmforge_corpus.pipeline.clean import run_blocks
from glmforge_corpus.pipeline.statistics import Statistics
from glmforge_corpus.words.split import sentence_spans, split_words, words_of

ROOT = Path(__file__).parents[2]
CODE = ("src/glmforge_corpus/filter/rules", "src/glmforge_corpus/words")
PACKAGES = ("numba", "pyarrow", "datatrove", "spacy", "jieba", "sudachipy", "pythainlp", "resiliparse")
NUM_DOCUMENTS = 20_000
BLOCKS: dict[str, Callable[..., Block]] = {
    "gopher_quality": GopherQuality,
    "gopher_repetition": GopherRepetition,
    "c4": C4,
    "fineweb": FineWeb,
}
STOCK_CODES = {
    "en": "eng_Latn",
    "de": "deu_Latn",
    "fr": "fra_Latn",
    "es": "spa_Latn",
    "it": "ita_Latn",
    "pt": "por_Latn",
    "ru": "rus_Cyrl",
    "el": "ell_Grek",
    "zh": "cmn_Hani",
    "ja": "jpn_Jpan",
    "th": "tha_Thai",
}
STOCK_DOCUMENTS = 100
TIMED_DOCUMENTS = 100  # of datatrove's
STOCK_LONGEST = 20_000
WARNINGS = [
    "shared machine: rates move by a quarter between runs, ratios of one run hold",
    "manuals are not web text: their lines are short and full of symbols, so that the rules remove most of them",
    "speed is measured on every second document, datatrove's on a hundred of those, with the published limits",
]
OTHER_BLOCKS = ("language", "toxicity", "pii", "quality")


@dataclass(frozen=True, slots=True)
class Sample:
    source: str
    language: str | None
    text: str


# Data


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
    yield from (orjson.loads(line) for line in data.splitlines() if line)


def gold_pages(path: Path) -> Iterator[str]:
    with (
        zstandard.ZstdDecompressor().stream_reader(path.open("rb")) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        for member in archive:
            if member.isfile() and member.name.endswith((".html", ".htm")):
                file = archive.extractfile(member)
                assert file is not None
                yield extract_plain_text(file.read().decode(errors="replace"), main_content=True)


def load_samples(data: Path, num: int) -> list[Sample]:
    """Manuals in forty languages, web pages, encyclopedia, and chunks of manuals until there are `num`."""
    needed = ["text/debian-docs-multilingual.jsonl.zst", "text/c4_demo.jsonl", "text/wiki_demo.txt"]
    needed += ["web/pages-with-gold.tar.zst", "dedup/documents.jsonl.zst", "text/udhr2.zip"]
    for name in needed:
        if not (data / name).is_file():
            raise SystemExit(f"{data / name}: no such file: give the directory of the real data with --data")
    manuals, c4, wiki, pages, chunks, _ = (data / name for name in needed)
    samples = [Sample("manuals", d["metadata"]["lang"], d["text"]) for d in json_lines(manuals)]
    samples += [Sample("c4", "en", d["text"]) for d in json_lines(c4)]
    samples += [Sample("wiki", "en", text) for text in wiki.read_text().split("\n") if len(text) > 200]
    samples += [Sample("web", None, text) for text in gold_pages(pages) if text.strip()]
    missing = NUM_DOCUMENTS - len(samples)
    for document, _ in zip(json_lines(chunks), range(missing), strict=False):
        samples.append(Sample("chunks", "en", document["text"]))
    return samples[:: NUM_DOCUMENTS // num]


def thai(data: Path) -> list[Sample]:
    """The Declaration of Human Rights in Thai, in pieces of ten paragraphs."""
    with zipfile.ZipFile(data / "text" / "udhr2.zip") as archive:
        name = next(name for name in archive.namelist() if name.endswith("/tha.txt") or name.endswith("udhr_tha.txt"))
        lines = archive.read(name).decode("utf-8-sig").splitlines()
    return [Sample("udhr", "th", "\n".join(lines[i : i + 25])) for i in range(0, len(lines), 25)]


def batch_of(samples: list[Sample], languages: bool) -> DocumentBatch:
    names = [sample.language if languages else None for sample in samples]
    ids = [str(index) for index in range(len(samples))]
    return DocumentBatch.from_columns(ids, [sample.text for sample in samples], "real", languages=names)


# Decisions


class OurWords(WordTokenizer):
    """Our splitter in the form in which datatrove takes one."""

    def word_tokenize(self, text: str) -> list[str]:
        return words_of(text)

    def sent_tokenize(self, text: str) -> list[str]:
        return [text[a:b] for a, b in sentence_spans(text)]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        return list(sentence_spans(text))


def datatrove_filter(name: str, tokeniser: Any, language: str | None) -> Any:
    """datatrove's filter with its own defaults, or with the limits that ours has for `language`."""
    limits = language_limits().get(language or "")
    if name == "c4":
        return C4QualityFilter(language=tokeniser)
    if limits is None:
        classes = {"gopher_quality": GopherQualityFilter, "gopher_repetition": GopherRepetitionFilter}
        return classes.get(name, FineWebQualityFilter)(language=tokeniser)
    if name == "gopher_quality":
        leasts = {"min_doc_words": limits.min_words, "min_stop_words": limits.min_stop_words}
        return GopherQualityFilter(
            min_avg_word_length=limits.min_mean_word_length,
            max_avg_word_length=limits.max_mean_word_length,
            max_non_alpha_words_ratio=limits.min_alphabetic_words,
            stop_words=list(limits.stop_words),
            language=tokeniser,
            **{name: least for name, least in leasts.items() if least is not None},
        )
    if name == "gopher_repetition":
        return GopherRepetitionFilter(
            dup_line_frac=limits.max_duplicate_lines,
            top_n_grams=tuple(limits.top_n_grams.items()),
            dup_n_grams=tuple(limits.repeated_n_grams.items()),
            language=tokeniser,
        )
    return FineWebQualityFilter(
        line_punct_thr=limits.min_ended_lines,
        short_line_thr=999,
        char_duplicates_ratio=0.1,
        new_line_ratio=limits.max_new_lines,
        language=tokeniser,
    )


def our_decisions(block: Block, batch: DocumentBatch) -> tuple[np.ndarray, list[list[str]], list[str]]:
    """(kept `[n]`, rules that each document fails, texts)."""
    outcome = block.process(batch)
    failed = np.array(list(outcome.failed.values()))
    names = [rule.partition(": ")[2] for rule in outcome.failed]
    return ~failed.any(0), [[names[r] for r in np.flatnonzero(column)] for column in failed.T], outcome.batch.texts


def cause(name: str, verdict: str, sample: Sample, rules: list[str]) -> str:
    """Why a decision differs, as far as a program can tell; "unexplained" where it cannot."""
    if any(c in sample.text for c in "\uff11"):
        return "full-width 1 counts as punctuation there"
    if name == "gopher_repetition" and ("duplicated" in verdict or not rules):
        return "n-grams equal as strings, not as words"
    if name == "gopher_quality" and "stop_words" in verdict and sample.language in ("ja", "ko", "zh", "th"):
        return "stop words within runs of a script without spaces count here"
    return "unexplained"


def same_words(samples: list[Sample]) -> dict[str, Any]:
    """Question 1."""
    tables: dict[str, Any] = {}
    tokeniser = OurWords("ours")
    for arm in ("published", "per_language"):
        chosen = samples
        if arm == "per_language":
            chosen = [sample for sample in samples if sample.language in language_limits()]
        batch = batch_of(chosen, languages=arm == "per_language")
        tables[arm] = {"documents": len(chosen)}
        for name, make in BLOCKS.items():
            if arm == "per_language" and name == "c4":
                continue
            kept, rules, texts = our_decisions(make(per_language=arm == "per_language"), batch)
            filters = {
                language: datatrove_filter(name, tokeniser, language)
                for language in ({sample.language for sample in chosen} if arm == "per_language" else {None})
            }
            causes: Counter[str] = Counter()
            same_text = theirs_kept = 0
            for index, sample in enumerate(chosen):
                document = Document(text=sample.text, id=str(index))
                verdict = filters[sample.language if arm == "per_language" else None].filter(document)
                theirs_kept += verdict is True
                if (verdict is True) != kept[index]:
                    causes[cause(name, str(verdict), sample, rules[index])] += 1
                elif verdict is True:
                    same_text += document.text == texts[index]
            tables[arm][name] = {
                "kept_by_ours": int(kept.sum()),
                "kept_by_datatrove": theirs_kept,
                "same_decision": len(chosen) - causes.total(),
                "same_decision_percent": round(100 - 100 * causes.total() / len(chosen), 3),
                "same_text_of_those_both_keep": same_text,
                "causes_of_differences": dict(causes),
            }
            print(arm, name, tables[arm][name], flush=True)
    causes_of_all = sum((Counter(row["causes_of_differences"]) for table in tables.values()
                         for row in table.values() if isinstance(row, dict)), Counter())  # fmt: skip
    return tables | {"differences": causes_of_all.total(), "causes_of_differences": dict(causes_of_all)}


def stock_words(samples: list[Sample], data: Path) -> dict[str, Any]:
    """Question 2."""
    by_language: dict[str, list[Sample]] = defaultdict(list)
    for sample in [*samples, *thai(data)]:
        if sample.language in STOCK_CODES and 0 < len(sample.text) <= STOCK_LONGEST:
            by_language[sample.language].append(sample)
    table: dict[str, Any] = {}
    for language, code in STOCK_CODES.items():
        try:
            load_word_tokenizer(code).word_tokenize("a")
            load_word_tokenizer(code).sent_tokenize("a")
        except ImportError as error:
            table[language] = f"not run: {error}".splitlines()[0]
            continue
        every = by_language[language]
        chosen = every[:: max(1, len(every) // STOCK_DOCUMENTS)][:STOCK_DOCUMENTS]
        batch = batch_of(chosen, languages=True)
        ours_words = len(split_words(batch.text_bytes, batch.text_offsets).hashes)
        stock = sum(len(load_word_tokenizer(code).word_tokenize(sample.text)) for sample in chosen)
        row: dict[str, Any] = {"documents": len(chosen), "our_words_per_stock_word": round(ours_words / stock, 3)}
        for name, make in BLOCKS.items():
            kept, rules, _ = our_decisions(make(), batch)
            theirs = datatrove_filter(name, code, language)
            verdicts = [theirs.filter(Document(text=sample.text, id="")) for sample in chosen]
            stock_kept = np.array([verdict is True for verdict in verdicts])
            only_ours = Counter(str(verdicts[i][1]) for i in np.flatnonzero(kept & ~stock_kept))
            only_stock = Counter(rules[i][0] for i in np.flatnonzero(~kept & stock_kept))
            row[name] = {
                "kept_by_ours": int(kept.sum()),
                "kept_by_stock": int(stock_kept.sum()),
                "same_decision": int((kept == stock_kept).sum()),
                "kept_by_ours_only_stock_says": dict(only_ours),
                "kept_by_stock_only_we_say": dict(only_stock),
            }
        table[language] = row
        print(language, row, flush=True)
    rows = [row for row in table.values() if isinstance(row, dict)]
    documents = sum(row["documents"] for row in rows)
    table["all"] = {"documents": documents} | {
        name: {"same_decision_percent": round(100 * sum(row[name]["same_decision"] for row in rows) / documents, 2)}
        for name in BLOCKS
    }
    return table


# Speed


def clean(blocks: list[Block], batches: list[DocumentBatch]) -> int:
    forget()
    total = Statistics()
    return sum(len(run_blocks(blocks, batch, total)) for batch in batches)


def other_blocks(data: Path) -> tuple[list[Block], list[str]]:
    """The blocks of other rules that this version has, with their defaults, and the names of those it has not."""
    registry = import_module("glmforge_corpus.pipeline.registry")
    blocks, absent = [], []
    for name in OTHER_BLOCKS:
        options = {"lists": data / "safety" / "ldnoobw"} if name == "toxicity" else {}
        try:
            blocks.append(registry.block_class(name)(**options))
        except (ImportError, AttributeError, ValueError) as error:
            absent.append(f"{name}: {error}".splitlines()[0])
    return blocks, absent


def in_batches(samples: list[Sample]) -> list[DocumentBatch]:
    batches, part, size = [], [], 0
    for sample in samples:
        part.append(sample)
        size += len(sample.text.encode())
        if size >= BATCH_BYTES:
            batches.append(batch_of(part, languages=True))
            part, size = [], 0
    return [*batches, batch_of(part, languages=True)] if part else batches


def speed(samples: list[Sample], rounds: int, data: Path) -> dict[str, Any]:
    """Question 3, on all documents and on those of the web, most of which pass."""
    web = [sample for sample in samples if sample.source in ("c4", "wiki", "web")]
    results: dict[str, Any] = {}
    for name, chosen in (("all", samples), ("web", web * max(1, 4_000_000 // sum(len(s.text) for s in web)))):
        results[name] = _speed(chosen, rounds, data)
        print(name, json.dumps(results[name]), flush=True)
    return results


def _speed(samples: list[Sample], rounds: int, data: Path) -> dict[str, Any]:
    batches = in_batches(samples)
    megabytes = sum(int(batch.text_lengths.sum()) for batch in batches) / 1e6
    four = [BLOCKS[name]() for name in BLOCKS]
    others, absent = other_blocks(data)
    language = [block for block in others if block.kind == "language"]
    rest = [block for block in others if block.kind != "language"]
    arms: dict[str, Callable[[], Any]] = {
        name: lambda make=make: clean([make()], batches) for name, make in BLOCKS.items()
    }
    arms["chain_of_four"] = lambda: clean(four, batches)
    arms["chain_of_four_fineweb_order"] = lambda: clean([four[1], four[0], *four[2:]], batches)
    arms["four_on_all_documents"] = lambda: (forget(), [block.process(batch) for batch in batches for block in four])
    if others:
        arms["chain_full"] = lambda: clean([*language, *four, *rest], batches)
    few = samples[:: max(1, len(samples) // TIMED_DOCUMENTS)]
    few_megabytes = sum(len(sample.text.encode()) for sample in few) / 1e6
    stock = importlib.util.find_spec("spacy") is not None
    for kind, tokeniser in (("our_words", OurWords("ours")), *((("spacy", "eng_Latn"),) if stock else ())):
        for name in BLOCKS:
            arms[f"datatrove_{name}_{kind}"] = lambda n=name, t=tokeniser: _datatrove(n, t, few)
    times: dict[str, list[float]] = defaultdict(list)
    for turn in range(rounds + 1):
        for name, arm in arms.items():
            if name.startswith("datatrove") and turn > 2:
                continue
            started = time.process_time()
            arm()
            if turn:  # the first compiles and loads
                times[name].append(time.process_time() - started)
    size = {name: few_megabytes if name.startswith("datatrove") else megabytes for name in arms}
    return {
        "documents": len(samples),
        "megabytes": round(megabytes, 1),
        "megabytes_for_datatrove": round(few_megabytes, 2),
        "chain_full": [block.kind for block in [*language, *four, *rest]],
        "blocks_not_there": absent,
        "kept_by_chain_of_four": clean(four, batches),
        "megabytes_per_cpu_second": {
            name: {"best": round(size[name] / min(t), 2), "median": round(size[name] / statistics.median(t), 2)}
            for name, t in times.items()
        },
    }


def _datatrove(name: str, tokeniser: Any, samples: list[Sample]) -> None:
    from datatrove.utils.text import split_into_parts

    split_into_parts.cache_clear()
    judge = datatrove_filter(name, tokeniser, None)
    for sample in samples:
        judge.filter(Document(text=sample.text, id=""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    samples = load_samples(arguments.data, NUM_DOCUMENTS // 10 if arguments.quick else NUM_DOCUMENTS)
    result: dict[str, Any] = {"sources": dict(Counter(sample.source for sample in samples)), "warnings": WARNINGS}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "speed": lambda: speed(samples[::2], arguments.rounds, arguments.data),
        "stock_words": lambda: stock_words(samples, arguments.data),
        "same_words": lambda: same_words(samples),
    }
    for name, part in parts.items():
        result[name] = part()
    if not arguments.quick:
        write_result("data_filters", result, code=CODE, libraries=PACKAGES)


if __name__ == "__main__":
    main()
