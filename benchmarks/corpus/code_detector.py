"""Programs told from prose by their text alone: how many are found, how many texts of prose are taken for one.

    python benchmarks/corpus/code_detector.py --code DIR    # writes benchmarks/results/data_code_detector.json; minutes

Programs are the files of a known extension in the repositories below `--code` (those of the committed result are named
in it); prose are their Markdown files, and the web pages, manuals, encyclopedia, dialogues, mathematics and questions
of `--data`. A text is judged whole, and as an excerpt of whole lines of 200 to 1,500 bytes. Every group (a programming
language, a kind of prose) weighs the same. `asked` is the share of texts that are shown to the model at all.
"""

import argparse
import collections
import io
import itertools
import json
import random
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import xxhash
import zstandard
from record import write_result

from glmforge_corpus.filter import programming_language as content
from glmforge_corpus.filter.programming_language import content_model, language_of_path, language_of_text

ROOT = Path(__file__).resolve().parents[2]
CODE = ["src/glmforge_corpus/filter/code.py", "src/glmforge_corpus/filter/programming_language.py"]
MAX_TEXTS = 400  # of a group
NOT_CODE = {"csv", "svg", "jupyter", "tex", "graphviz"}
Text = tuple[str, bytes]  # group, text


def programs(root: Path) -> Iterator[Text]:
    for path in sorted(root.rglob("*")):
        language = language_of_path(path.name)
        markdown = path.suffix.lower() in (".md", ".rst")
        if (language is None or language in NOT_CODE) and not markdown:
            continue
        if path.is_symlink() or not path.is_file() or not 60 <= path.stat().st_size <= 300_000:
            continue
        yield "prose:markdown" if markdown else f"code:{language}", path.read_bytes()


def prose(data: Path) -> Iterator[Text]:
    packed = (data / "text/debian-docs-multilingual.jsonl.zst").open("rb")
    for line in io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(packed)):
        yield "prose:manuals", json.loads(line)["text"].encode()
    for line in (data / "text/c4_demo.jsonl").open("rb"):
        yield "prose:c4", json.loads(line)["text"].encode()
    text = (data / "text/wiki_demo.txt").read_text(errors="ignore")
    for start in range(0, min(len(text), 600_000), 3000):
        yield "prose:wiki", text[start : start + 3000].encode()
    for line in (data / "eval/math-test.jsonl").open("rb"):
        record = json.loads(line)
        yield "prose:math", f"{record['problem']}\n{record['solution']}".encode()
    with zipfile.ZipFile(data / "eval/mmlu.zip") as archive:
        for name in archive.namelist():
            if name.endswith("_val.csv") and "__MACOSX" not in name:
                yield "prose:questions", archive.read(name)
    for line in (data / "chat/v1_sft_demo.jsonl").open("rb"):
        yield "prose:dialogue", "\n".join(_strings(json.loads(line))).encode()
    for path in sorted((data / "chat").glob("*.json")):
        for record in json.loads(path.read_bytes()):
            yield f"prose:{path.stem}", "\n".join(_strings(record)).encode()


def _strings(value: object) -> Iterator[str]:
    """The longer strings of a JSON value."""
    if isinstance(value, str) and len(value) > 30:
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(item)


def gather(texts: Iterator[Text]) -> dict[str, list[bytes]]:
    """Group -> distinct texts, at most `MAX_TEXTS` drawn without regard to order; groups of five or more."""
    found: dict[str, dict[int, bytes]] = collections.defaultdict(dict)
    for kind, text in texts:
        if b"\0" not in text and text.strip() and text.decode(errors="replace").encode() == text:
            found[kind][xxhash.xxh3_64_intdigest(text, 1)] = text
    picked = {kind: [text for _, text in sorted(rows.items())][:MAX_TEXTS] for kind, rows in sorted(found.items())}
    return {kind: texts for kind, texts in picked.items() if len(texts) >= 5}


def excerpt(text: bytes, generator: random.Random) -> bytes:
    """Some whole lines of a text."""
    size = generator.randint(200, 1500)
    if len(text) <= size:
        return text
    start = generator.randrange(len(text) - size)
    start = text.find(b"\n", start, start + size // 2) + 1 or start
    return text[start : start + size].decode(errors="ignore").encode()


def measure(groups: dict[str, list[bytes]], generator: random.Random) -> dict[str, dict[str, float]]:
    """Per group: share called a program, of whole texts and of excerpts; share of programs whose language is found."""
    table = {}
    for kind, texts in groups.items():
        row: dict[str, float] = {"texts": len(texts)}
        for name, sample in (("whole", texts), ("excerpts", [excerpt(text, generator) for text in texts])):
            found = [language_of_text(text) for text in sample]
            row[name] = round(float(np.mean([answer is not None for answer in found])), 4)
            if name == "whole":
                row["asked"] = round(float(np.mean([content._has_syntax(text) for text in sample])), 4)
                if kind.startswith("code"):
                    right = [answer is not None and answer[0] == kind[5:] for answer in found]
                    row["language_from_content"] = round(float(np.mean(right)), 3)
        table[kind] = row
        print(kind, row, flush=True)
    return table


def summary(table: dict[str, dict[str, float]]) -> dict[str, float]:
    """Recall and false alarms with every group weighing the same; precision for equally many of both sides."""
    result = {}
    for name in ("whole", "excerpts"):
        recall = float(np.mean([row[name] for kind, row in table.items() if kind.startswith("code")]))
        alarms = float(np.mean([row[name] for kind, row in table.items() if kind.startswith("prose")]))
        result |= {f"{name} recall": round(recall, 4), f"{name} false alarms": round(alarms, 4)}
        result[f"{name} precision"] = round(recall / (recall + alarms), 4)
    return result


def milliseconds(texts: list[bytes]) -> float:
    """CPU milliseconds that the model takes for a text."""
    content_model().identify_bytes(texts[0])
    started = time.process_time()
    for text in texts:
        content_model().identify_bytes(text)
    return round((time.process_time() - started) * 1000 / len(texts), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--code", type=Path, required=True, help="a folder of repositories")
    arguments = parser.parse_args()
    groups = gather(itertools.chain(programs(arguments.code), prose(arguments.data)))
    table = measure(groups, random.Random(0))
    result = {
        "repositories": sorted(path.name for path in arguments.code.iterdir()),
        "cpu_milliseconds_per_text_shown": milliseconds(groups["prose:manuals"]),
        "fresh_summary": summary(table),
        "fresh": table,
    }
    print(json.dumps(result["fresh_summary"], indent=1))
    print(write_result("data_code_detector", result, code=CODE, libraries=("magika", "onnxruntime")))


if __name__ == "__main__":
    main()
