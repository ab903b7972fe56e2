"""Near-duplicates in languages that are written without spaces: recall and precision, by how much a copy was changed.

    python benchmarks/corpus/minhash_languages.py        # 2 minutes; writes results/data_minhash_languages.json

Real text in Chinese and Japanese (manuals and the Universal Declaration of Human Rights), in Thai, Lao, Khmer, Burmese
and Tibetan (the Declaration), and in English for comparison, is cut into documents of 150 to 1,200 letters. A fifth of
them (all, where they are few) get a copy with a known share of their letters (English: words) changed: replaced, left
out or added, a third each. The stage runs with its defaults but for the threshold 0.8, once with each kind of unit.

recall, by share changed: planted copies of which either side was removed. reachable: the share of these copies whose
similarity reaches the threshold at all. recall of reachable: of those. precision: removed documents that have a partner
which is similar by 0.8. Similarity is that of sets of 5 units in plain Python, cut by regular expressions and hashed by
nothing of ours: letters of the language's script, and whatever else stands between spaces.

Expected before measuring: recall of reachable copies 0.99, of those with 1 % of the letters changed 0.95 or more, with
5 % next to none (the similarity is then about 0.95^5 / (2 - 0.95^5) = 0.63); precision 0.99 or more; by clauses
(`word`) next to nothing but equal texts.
"""

import argparse
import io
import json
import random
import re
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from pyarrow import parquet

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import write_result

from glmforge.data.documents.batch import BatchWriter, DocumentBatch
from glmforge_corpus.deduplicate.minhash import TOO_SHORT, MinHash
from glmforge_corpus.pipeline.stage import StageContext
from glmforge_corpus.pipeline.task import PlannedStep, run_task

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = {  # of the manuals, of the Declaration, letters
    "Chinese": ("zh", "cmn", "\u2e80-\u2fdf\u3005-\u3007\u3400-\u9fff"),
    "Japanese": ("ja", "jpn", "\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uff66-\uff9f"),
    "Thai": (None, "tha", "\u0e00-\u0e7f"),
    "Lao": (None, "lao", "\u0e80-\u0eff"),
    "Khmer": (None, "khm", "\u1780-\u17ff"),
    "Burmese": (None, "mya", "\u1000-\u109f"),
    "Tibetan": (None, "bod", "\u0f00-\u0fff"),
    "English": ("en", None, None),
}
RATES = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05)
THRESHOLD, SHINGLE = 0.8, 5
MAX_DOCUMENTS, FEW = 4000, 300


def texts_of(data: Path, language: str) -> Iterator[str]:
    """Whole documents in a language."""
    label, declaration, _ = LANGUAGES[language]
    with (data / "text" / "debian-docs-multilingual.jsonl.zst").open("rb") as file:
        for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), encoding="utf-8"):
            record = json.loads(line)
            if label and record["metadata"]["lang"] == label:
                yield record["text"]
    with zipfile.ZipFile(data / "text" / "udhr2.zip") as archive:
        for name in sorted(archive.namelist()):
            if declaration and re.fullmatch(rf"udhr2/{declaration}(_.*)?\.txt", name):
                yield archive.read(name).decode()


def documents_of(data: Path, language: str) -> list[str]:
    """Pieces of 150 to 1,200 letters, cut at line ends, each text once."""
    generator, found = random.Random(language), dict[str, None]()
    for text in texts_of(data, language):
        piece, size = "", generator.randint(150, 1200)
        for line in text.split("\n"):
            piece += line.strip() + "\n"
            if len(piece) >= size:
                if mostly(piece, language):
                    found[piece] = None
                piece, size = "", generator.randint(150, 1200)
    pieces = list(found)
    return generator.sample(pieces, min(MAX_DOCUMENTS, len(pieces)))


def mostly(piece: str, language: str) -> bool:
    """Whether half of what is no space belongs to the language's script."""
    letters = LANGUAGES[language][2] or "A-Za-z"
    return 2 * len(re.findall(f"[{letters}]", piece)) > len(re.sub(r"\s", "", piece))


def units_of(text: str, language: str) -> list[str]:
    letters = LANGUAGES[language][2]
    if language == "Tibetan":
        return text.replace("\u0f0b", " ").split()
    return re.findall(rf"[{letters}]|[^\s{letters}]+", text.lower()) if letters else text.lower().split()


def changed(text: str, rate: float, language: str, generator: random.Random, pool: list[str]) -> str:
    """Some words of English, some characters of any other text, replaced by, preceded by, or without one."""
    space = " " if language == "English" else ""
    parts = text.split(" ") if space else list(text)
    for at in generator.sample(range(len(parts)), round(rate * len(parts))):
        new = generator.choice(pool)
        parts[at] = (new, "", new + space + parts[at])[generator.randrange(3)]
    return space.join(parts)


def shingles_of(text: str, language: str) -> set[tuple[str, ...]]:
    units = units_of(text, language)
    size = min(SHINGLE, len(units))
    return {tuple(units[i : i + size]) for i in range(len(units) - size + 1)}


def best_partners(texts: list[str], language: str) -> list[float]:
    """The similarity of each text to the text most like it: all pairs that have a shingle in common."""
    sets = [shingles_of(text, language) for text in texts]
    holders = defaultdict(list)
    best = [0.0] * len(texts)
    for number, shingles in enumerate(sets):
        common: dict[int, int] = defaultdict(int)
        for shingle in shingles:
            for other in holders[shingle][-200:]:  # of boilerplate, the latest
                common[other] += 1
            holders[shingle].append(number)
        for other, count in common.items():
            value = count / (len(shingles) + len(sets[other]) - count)
            best[number], best[other] = max(best[number], value), max(best[other], value)
    return best


def removed_by(stage: MinHash, texts: list[str], work: Path) -> tuple[set[int], int]:
    """(numbers of the texts that are removed, texts too short to judge)."""
    work.mkdir()
    with BatchWriter(work / "in.parquet") as writer:
        writer.write(DocumentBatch.from_columns([str(k) for k in range(len(texts))], texts, "benchmark"))
    short = 0
    for step in stage.steps(StageContext(work, [work / "in.parquet"])):
        planned = PlannedStep(step, work, "benchmark")
        for task in range(step.num_tasks):
            run_task(planned, task)
            short += planned.statistics(task).counts[TOO_SHORT]
    table = parquet.read_table(work / "clusters" / "00000" / "clusters.parquet").to_pydict()
    return {int(name) for name, kept in zip(table["id"], table["kept"], strict=True) if not kept}, short


def measure(data: Path, language: str) -> dict[str, Any]:
    generator = random.Random(0)
    originals = documents_of(data, language)
    sample = originals[:200]
    pool = sorted(
        {part for text in sample for part in (text.split() if language == "English" else text) if part.strip()}
    )
    texts, planted = list(originals), []
    count = len(originals) if len(originals) < FEW else len(originals) // 5
    for number in generator.sample(range(len(originals)), count):
        rate = RATES[len(planted) % len(RATES)]
        planted.append((number, len(texts), rate))
        texts.append(changed(originals[number], rate, language, generator, pool))
    similar = [
        len(a & b) / len(a | b)
        for a, b in ((shingles_of(texts[a], language), shingles_of(texts[b], language)) for a, b, _ in planted)
    ]
    best = np.array(best_partners(texts, language))
    result: dict[str, Any] = {"documents": len(texts), "letters": sum(map(len, texts)), "copies": len(planted)}
    with tempfile.TemporaryDirectory() as directory:
        for unit in ("mixed", "word"):
            stage = MinHash(threshold=THRESHOLD, shingle=unit)
            removed, short = removed_by(stage, texts, Path(directory, unit))
            found = np.array([a in removed or b in removed for a, b, _ in planted])
            reach, rates = np.array(similar) >= THRESHOLD, np.array([rate for *_, rate in planted])
            partners = best[sorted(removed)]
            result[unit] = {
                "removed": len(removed),
                "precision": round(float((partners >= THRESHOLD).mean()), 4),
                "least similarity of a removed document": round(float(partners.min()), 4),
                "recall of reachable copies": round(float(found[reach].mean()), 4),
                "recall by share changed": {
                    f"{rate:.1%}": {
                        "recall": round(float(found[rates == rate].mean()), 4),
                        "reachable": round(float(reach[rates == rate].mean()), 4),
                        "of": int((rates == rate).sum()),
                    }
                    for rate in RATES
                },
                "too short to judge": short,
            }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    content = {
        "what": f"copies with known changes, J >= {THRESHOLD}, shingles of {SHINGLE}",
        "languages": {language: measure(arguments.data, language) for language in LANGUAGES},
    }
    write_result(
        "data_minhash_languages",
        content,
        code=["src/glmforge_corpus/deduplicate", "src/glmforge_corpus/words/characters.py"],
        libraries=["numba", "numpy", "pyarrow"],
        out=arguments.out,
    )
    print(json.dumps(content, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
