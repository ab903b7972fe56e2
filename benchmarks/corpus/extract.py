"""Main text of web pages beside trafilatura and resiliparse, and how fast records are read.

    python benchmarks/corpus/extract.py            # five minutes; writes benchmarks/results/data_extract.json
    python benchmarks/corpus/extract.py --quick    # one round, writes nothing

Quality: the 474 pages with gold snippets of `web/pages-with-gold.tar.zst`. A snippet that must be in the text and is
counts for recall, one that must not and is counts against precision; F1 is over all snippets. White space, NFC and
invisible characters are made equal first, for all arms alike. The pages are shuffled with seed 0: on the first 237 the
extractor was developed; the errors on the next 118 were looked at afterwards and led to further rules; of the last 119
only sums were seen, five times. trafilatura's own rules were made with all of these pages in view (its sources name
some), so that none of its three columns is unseen.

Speed: CPU time of this process around the calls from a page's bytes to its text, arms taking turns, least and median
of the rounds; compilation comes before.

Expected before measuring: F1 as trafilatura's on pages that were worked on and a point less on others; 10 times its
speed, and plain resiliparse's.

trafilatura is no dependency. To have it take part, make an environment of its own:

    python -m venv /some/dir && /some/dir/bin/pip install 'trafilatura>=2' lxml_html_clean
    printf '%s\\n' SITE_PACKAGES_OF_GLMFORGE PATH_TO/src > /some/dir/lib/python3.11/site-packages/glmforge.pth
    /some/dir/bin/python benchmarks/corpus/extract.py
"""

import importlib.util
import io
import json
import random
import re
import statistics
import sys
import tarfile
import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import zstandard
from pyarrow import parquet
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.extract.html.page import decode, read_page
from glmforge_corpus.extract.inputs import Input, list_files
from glmforge_corpus.extract.normalise import Normalise
from glmforge_corpus.extract.records import Context
from glmforge_corpus.extract.stage import read_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import cpu_seconds, data_arguments
from record import write_result

NEEDED = ("web/pages-with-gold.tar.zst", "text/debian-docs-multilingual.jsonl.zst")
CODE = ("src/glmforge_corpus/extract", "src/glmforge/data/documents/batch.py")
PACKAGES = ("trafilatura", "resiliparse", "fastwarc", "numba", "pyarrow", "orjson", "ftfy", "lxml")
PARTS = {"developed": slice(0, 237), "looked_at": slice(237, 355), "unseen": slice(355, None), "all": slice(None)}
WHITE_SPACE, INVISIBLE = re.compile(r"\s+"), re.compile("[\u00ad\u200b-\u200d\ufeff]")

Arm = Callable[[bytes], str]


def load_pages(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(gold, page) per URL, in the shuffled order."""
    with zstandard.open(path, "rb") as stream, tarfile.open(fileobj=io.BytesIO(stream.read())) as archive:
        members = [entry for entry in archive if entry.isfile()]
        files = {Path(entry.name).name: archive.extractfile(entry).read() for entry in members}  # type: ignore[union-attr]
    gold = json.loads(files["gold.json"])
    urls = sorted(gold)
    random.Random(0).shuffle(urls)
    return {url: gold[url] for url in urls}, {url: files[gold[url]["file"]] for url in urls}


def arms() -> dict[str, Arm]:
    found: dict[str, Arm] = {
        "glmforge": lambda page: read_page(page).text.decode(),
        "glmforge_recall_first": lambda page: read_page(page, recall_first=True).text.decode(),
        "resiliparse_main": lambda page: extract_plain_text(HTMLTree.parse(decode(page)), main_content=True),
        "resiliparse_all": lambda page: extract_plain_text(HTMLTree.parse(decode(page))),
    }
    if importlib.util.find_spec("trafilatura"):
        import trafilatura

        found["trafilatura"] = lambda page: trafilatura.extract(page, include_comments=False) or ""
        found["trafilatura_with_comments"] = lambda page: trafilatura.extract(page) or ""
        found["trafilatura_fast"] = lambda page: trafilatura.extract(page, include_comments=False, fast=True) or ""
    return found


def plain(text: str) -> str:
    return WHITE_SPACE.sub(" ", INVISIBLE.sub("", unicodedata.normalize("NFC", text))).strip()


def score(gold: dict[str, Any], texts: dict[str, str], urls: list[str]) -> dict[str, float]:
    hits = misses = false = 0
    for url in urls:
        text = plain(texts[url])
        found = sum(plain(snippet) in text for snippet in gold[url]["with"])
        hits, misses = hits + found, misses + len(gold[url]["with"]) - found
        false += sum(plain(snippet) in text for snippet in gold[url]["without"])
    precision, recall = hits / (hits + false), hits / (hits + misses)
    f1 = 2 * precision * recall / (precision + recall)
    return {"precision": round(precision, 4), "recall": round(recall, 4), "f1": round(f1, 4), "pages": len(urls)}


def timed(functions: dict[str, Callable[[], object]], num_bytes: dict[str, int], rounds: int) -> dict[str, Any]:
    """MB per CPU-second of each, taking turns."""
    return {
        name: {
            "MB_per_cpu_second": round(num_bytes[name] / 1e6 / min(values), 1),
            "median": round(num_bytes[name] / 1e6 / statistics.median(values), 1),
        }
        for name, values in cpu_seconds(functions, rounds).items()
    }


def measure_pages(path: Path, rounds: int) -> dict[str, Any]:
    gold, pages = load_pages(path)
    urls, found = list(gold), arms()
    for extract_text in found.values():  # compiles, and fills caches, on pages that are like the others
        for page in list(pages.values())[:5]:
            extract_text(page)
    texts: dict[str, dict[str, str]] = {}

    def extract(name: str) -> None:
        texts[name] = {url: found[name](page) for url, page in pages.items()}

    size = sum(map(len, pages.values()))
    speeds = timed({name: lambda name=name: extract(name) for name in found}, dict.fromkeys(found, size), rounds)  # type: ignore[misc]
    return {
        "bytes": size,
        **{
            name: {"speed": speeds[name], **{part: score(gold, texts[name], urls[cut]) for part, cut in PARTS.items()}}
            for name in found
        },
    }


def measure_records(path: Path, rounds: int) -> dict[str, Any]:
    """Readers alone, files in the page cache, megabytes of file (of text for Parquet and normalise)."""
    with zstandard.open(path, "rb") as stream:
        data = stream.read()
    texts = [orjson.loads(line)["text"] for line in data.splitlines()]
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "plain.jsonl").write_bytes(data)
        (place / "c.jsonl.zst").write_bytes(zstandard.compress(data))
        table = pa.table({"text": pa.array(texts, pa.large_string())})
        parquet.write_table(table, place / "c.parquet", row_group_size=5000)
        context = Context(lambda *_: None, lambda _: None, 64 << 20)
        functions: dict[str, Callable[[], object]] = {}
        for name in ("plain.jsonl", "c.jsonl.zst", "c.parquet"):
            source = Input.model_validate({"source": "s", "path": str(place / name)})
            (file,) = list_files(source)
            functions[name] = lambda file=file: [len(batch) for batch in read_file(file, context)]  # type: ignore[misc]
        functions["orjson_line_by_line"] = lambda: [orjson.loads(line)["text"] for line in data.splitlines()]
        batch = DocumentBatch.from_columns([str(i) for i in range(len(texts))], texts, "s")
        Normalise().process(batch)
        functions["normalise"] = lambda: Normalise().process(batch)
        line = "All of this line is plain ASCII, words and all.\n"
        ascii_text = DocumentBatch.from_columns(["0"], [line * 999_999 + "x"], "s")
        functions["normalise_ascii"] = lambda: Normalise().process(ascii_text)
        text_bytes = int(batch.text_lengths.sum())
        sizes = dict.fromkeys(functions, len(data)) | {"c.parquet": text_bytes, "normalise": text_bytes}
        sizes["normalise_ascii"] = int(ascii_text.text_lengths.sum())
        return timed(functions, sizes, rounds)


def main() -> None:
    args = data_arguments(__doc__, NEEDED, rounds=3)
    pages, records = (args.data / name for name in NEEDED)
    rounds = 1 if args.quick else args.rounds
    result = {
        "warnings": [
            *([] if importlib.util.find_spec("trafilatura") else ["trafilatura could not be imported: left out"]),
            "a shared machine: CPU seconds of the same code vary by a factor of up to two; compare within this run",
        ],
        "rounds": rounds,
        "pages": measure_pages(pages, rounds),
        "records": measure_records(records, max(rounds, 3)),
    }
    print(json.dumps(result, indent=1))
    if not args.quick:
        write_result("data_extract", result, code=CODE, libraries=PACKAGES, out=args.out)


if __name__ == "__main__":
    main()
