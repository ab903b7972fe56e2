"""Filter rules: megabytes per CPU-second, beside datatrove's.

    python benchmarks/corpus/filters.py            # ten minutes; writes benchmarks/results/data_filters.json
    python benchmarks/corpus/filters.py --quick    # a trial on a tenth, writes nothing

CPU time of this process around the calls, arms taking turns, least and median of the rounds. Compilation and tables
come before. Counts are not kept from one round to the next. `chain_*` sends documents through blocks one after another
as the `clean` stage does; each gets what the ones before have left. datatrove's filter classes take our splitter as
their tokeniser (their parameter `language` accepts one), or spaCy's.

Expected before measuring: 60 MB per CPU-second for the four blocks and some 1 % of that for datatrove.

spaCy is not a dependency. To have it take part, make an environment of its own:

    python -m venv /some/dir && /some/dir/bin/pip install spacy
    printf '%s\\n' SITE_PACKAGES_OF_GLMFORGE PATH_TO/src > /some/dir/lib/python3.11/site-packages/glmforge.pth
    /some/dir/bin/python benchmarks/corpus/filters.py
"""

import importlib.util
import json
import statistics
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import zstandard
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.utils.text import split_into_parts
from datatrove.utils.word_tokenizers import WordTokenizer
from harness import cpu_seconds, data_arguments, json_lines
from record import write_result
from resiliparse.extract.html2text import extract_plain_text

from glmforge.data.documents.batch import BATCH_BYTES, DocumentBatch
from glmforge_corpus.block import Block
from glmforge_corpus.filter.rules.c4 import C4
from glmforge_corpus.filter.rules.fineweb import FineWeb
from glmforge_corpus.filter.rules.gopher import GopherQuality, GopherRepetition
from glmforge_corpus.filter.rules.shared_counts import forget
from glmforge_corpus.pipeline.clean import run_blocks
from glmforge_corpus.pipeline.registry import block_class
from glmforge_corpus.pipeline.statistics import Statistics
from glmforge_corpus.words.split import sentence_spans, words_of

CODE = ("src/glmforge_corpus/filter/rules", "src/glmforge_corpus/words")
PACKAGES = ("numba", "pyarrow", "datatrove", "spacy", "resiliparse")
NUM_DOCUMENTS = 20_000
TIMED_DOCUMENTS = 100  # of datatrove's
BLOCKS: dict[str, Callable[..., Block]] = {
    "gopher_quality": GopherQuality,
    "gopher_repetition": GopherRepetition,
    "c4": C4,
    "fineweb": FineWeb,
}
THEIRS = {
    "gopher_quality": GopherQualityFilter,
    "gopher_repetition": GopherRepetitionFilter,
    "c4": C4QualityFilter,
    "fineweb": FineWebQualityFilter,
}
NEEDED = ("text/debian-docs-multilingual.jsonl.zst", "text/c4_demo.jsonl", "text/wiki_demo.txt")
NEEDED += ("web/pages-with-gold.tar.zst", "dedup/documents.jsonl.zst")
WARNINGS = [
    "shared machine: rates move by a quarter between runs, ratios of one run hold",
    "manuals are not web text: their lines are short and full of symbols, so that the rules remove most of them",
    "speed is measured on every second document, datatrove's on a hundred of those, with the published limits",
]


@dataclass(frozen=True, slots=True)
class Sample:
    source: str
    language: str | None
    text: str


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
    manuals, c4, wiki, pages, chunks = (data / name for name in NEEDED)
    samples = [Sample("manuals", d["metadata"]["lang"], d["text"]) for d in json_lines(manuals)]
    samples += [Sample("c4", "en", d["text"]) for d in json_lines(c4)]
    samples += [Sample("wiki", "en", text) for text in wiki.read_text().split("\n") if len(text) > 200]
    samples += [Sample("web", None, text) for text in gold_pages(pages) if text.strip()]
    missing = NUM_DOCUMENTS - len(samples)
    samples += [Sample("chunks", "en", document["text"]) for document in json_lines(chunks)[:missing]]
    return samples[:: NUM_DOCUMENTS // num]


def batch_of(samples: list[Sample]) -> DocumentBatch:
    ids = [str(index) for index in range(len(samples))]
    texts, languages = [sample.text for sample in samples], [sample.language for sample in samples]
    return DocumentBatch.from_columns(ids, texts, "real", languages=languages)


def in_batches(samples: list[Sample]) -> list[DocumentBatch]:
    batches, part, size = [], [], 0
    for sample in samples:
        part.append(sample)
        size += len(sample.text.encode())
        if size >= BATCH_BYTES:
            batches.append(batch_of(part))
            part, size = [], 0
    return [*batches, batch_of(part)] if part else batches


class OurWords(WordTokenizer):
    """Our splitter in the form in which datatrove takes one."""

    def word_tokenize(self, text: str) -> list[str]:
        return words_of(text)

    def sent_tokenize(self, text: str) -> list[str]:
        return [text[a:b] for a, b in sentence_spans(text)]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        return list(sentence_spans(text))


def clean(blocks: list[Block], batches: list[DocumentBatch]) -> int:
    forget()
    total = Statistics()
    return sum(len(run_blocks(blocks, batch, total)) for batch in batches)


def run_datatrove(name: str, tokeniser: Any, samples: list[Sample]) -> None:
    split_into_parts.cache_clear()
    judge = THEIRS[name](language=tokeniser)
    for sample in samples:
        judge.filter(Document(text=sample.text, id=""))


def measure(samples: list[Sample], rounds: int, data: Path) -> dict[str, Any]:
    batches = in_batches(samples)
    megabytes = sum(int(batch.text_lengths.sum()) for batch in batches) / 1e6
    four = [make() for make in BLOCKS.values()]
    toxicity = block_class("toxicity")(lists=data / "safety" / "ldnoobw")
    full = [block_class("language")(), *four, toxicity, block_class("pii")(), block_class("quality")()]
    arms: dict[str, Callable[[], Any]] = {
        name: lambda make=make: clean([make()], batches) for name, make in BLOCKS.items()
    }
    arms["chain_of_four"] = lambda: clean(four, batches)
    arms["chain_of_four_fineweb_order"] = lambda: clean([four[1], four[0], *four[2:]], batches)
    arms["four_on_all_documents"] = lambda: (forget(), [block.process(batch) for batch in batches for block in four])
    arms["chain_full"] = lambda: clean(full, batches)
    few = samples[:: max(1, len(samples) // TIMED_DOCUMENTS)]
    few_megabytes = sum(len(sample.text.encode()) for sample in few) / 1e6
    stock = [("spacy", "eng_Latn")] if importlib.util.find_spec("spacy") else []
    for kind, tokeniser in (("our_words", OurWords("ours")), *stock):
        for name in BLOCKS:
            arms[f"datatrove_{name}_{kind}"] = lambda n=name, t=tokeniser: run_datatrove(n, t, few)
    for arm in arms.values():  # compiles and loads
        arm()
    size = {name: few_megabytes if name.startswith("datatrove") else megabytes for name in arms}
    return {
        "documents": len(samples),
        "megabytes": round(megabytes, 1),
        "megabytes_for_datatrove": round(few_megabytes, 2),
        "chain_full": [block.kind for block in full],
        "kept_by_chain_of_four": clean(four, batches),
        "megabytes_per_cpu_second": {
            name: {"best": round(size[name] / min(t), 2), "median": round(size[name] / statistics.median(t), 2)}
            for name, t in cpu_seconds(arms, rounds).items()
        },
    }


def main() -> None:
    args = data_arguments(__doc__, NEEDED, rounds=3)
    samples = load_samples(args.data, NUM_DOCUMENTS // 10 if args.quick else NUM_DOCUMENTS)
    result: dict[str, Any] = {"sources": dict(Counter(sample.source for sample in samples)), "warnings": WARNINGS}
    half = samples[::2]
    web = [sample for sample in half if sample.source in ("c4", "wiki", "web")]
    web *= max(1, 4_000_000 // sum(len(sample.text) for sample in web))
    result["speed"] = {name: measure(chosen, args.rounds, args.data) for name, chosen in (("all", half), ("web", web))}
    print(json.dumps(result, indent=1))
    if not args.quick:
        write_result("data_filters", result, code=CODE, libraries=PACKAGES, out=args.out)


if __name__ == "__main__":
    main()
