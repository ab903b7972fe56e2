"""Train the detector of programs, and measure it on programs and prose that it was not trained on.

    python benchmarks/data/code_detector.py --code DIR --fresh DIR            # trains, measures, prints; a minute
    python benchmarks/data/code_detector.py --code DIR --fresh DIR --write    # and writes weights and results

Programs are the files of a known extension under `--code` (repositories, anything) and under the directories where
this machine keeps sources: site-packages, /usr/include, /usr/share, /usr/lib. Prose are the texts of `--data`: manuals
in forty languages (many with listings in them), web pages, encyclopedia, declarations, chat, mathematics, and README
and documentation files of the same directories. Half of it, by a hash of the package or repository a file belongs to
(by that of the document, where there is no such thing), is for training; the other half, "held_out", guided the choice
of features. "fresh" was looked at when all was chosen: the directories under `--fresh`, and sets of questions, of
dialogues and of encyclopedia that took no part. A text is judged whole, and as an excerpt of whole lines of 200 to
1,500 bytes.

The committed weights come from `--code` with 43 well-known repositories beside the machine's own sources, and the
committed figures of fresh texts from 14 more; both are named under "repositories" in the results.

The model is a logistic regression on the features of `code_features`, with an L2 penalty, each group of texts (each
programming language, each kind of prose) weighing the same within its side.
"""

import argparse
import collections
import gzip
import io
import itertools
import json
import random
import site
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import xxhash
import zstandard
from record import write_result

from glmforge_corpus.filter.code.features import FEATURES, batch_features
from glmforge_corpus.filter.code.programming_language import language_of_content, language_of_path

HERE = Path(__file__).resolve().parent
CODE = ["src/glmforge_corpus/filter/code"]
WEIGHTS = HERE.parents[1] / "src/glmforge_corpus/filter/code/weights.py"
MAX_FILES = 400  # of a language on either side
PENALTY = 1e-3
NOT_CODE = {"csv", "svg", "jupyter", "tex", "graphviz"}
Text = tuple[str, str, bytes]  # group, unit that is not split, text


def programs(directories: list[Path]) -> Iterator[Text]:
    for root in directories:
        for path in sorted(root.rglob("*")):
            language = language_of_path(path.name)
            kind = "prose:markdown" if path.suffix.lower() in (".md", ".rst") else f"code:{language}"
            if (language is None or language in NOT_CODE) and kind != "prose:markdown":
                continue
            if path.is_symlink() or not path.is_file() or not 60 <= path.stat().st_size <= 300_000:
                continue
            unit = "/".join(path.relative_to(root).parts[:2][: max(1, len(path.relative_to(root).parts) - 1)])
            yield kind, f"{root.name}/{unit}", path.read_bytes()


def prose(data: Path) -> Iterator[Text]:
    packed = (data / "text/debian-docs-multilingual.jsonl.zst").open("rb")
    for line in io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(packed)):
        record = json.loads(line)
        english = record["metadata"]["lang"] == "en"
        yield "prose:manuals-en" if english else "prose:manuals", record["id"], record["text"].encode()
    for line in (data / "text/c4_demo.jsonl").open("rb"):
        text = json.loads(line)["text"]
        yield "prose:c4", text[:50], text.encode()
    with zipfile.ZipFile(data / "text/udhr2.zip") as archive:
        for name in archive.namelist():
            if name.endswith(".txt"):
                yield "prose:udhr", name, archive.read(name)
    for name in ("wikitext2-valid.txt", "wikitext2-test.txt", "tinyshakespeare.txt"):
        text = (data / "text" / name).read_bytes()
        for start in range(0, min(len(text), 600_000), 3000):
            yield "prose:books", f"{name}{start}", text[start : start + 3000].decode(errors="ignore").encode()
    for line in (data / "eval/math-test.jsonl").open("rb"):
        record = json.loads(line)
        text = record["problem"] + "\n" + record["solution"]
        yield "prose:math", record["problem"], text.encode()
    for line in (data / "eval/gsm8k-train.jsonl").open("rb"):
        record = json.loads(line)
        yield "prose:word problems", record["question"], f"{record['question']}\n{record['answer']}".encode()
    for line in gzip.decompress((data / "safety/harmless-base-test.jsonl.gz").read_bytes()).splitlines():
        text = json.loads(line)["chosen"].strip()
        yield "prose:chat", text, text.encode()


def fresh_prose(data: Path) -> Iterator[Text]:
    text = (data / "text/wiki_demo.txt").read_text(errors="ignore")
    for start in range(0, min(len(text), 600_000), 3000):
        yield "prose:wiki", str(start), text[start : start + 3000].encode()
    with zipfile.ZipFile(data / "eval/mmlu.zip") as archive:
        for name in archive.namelist():
            if name.endswith("_val.csv") and "__MACOSX" not in name:
                yield "prose:questions", name, archive.read(name)
    for line in (data / "chat/v1_sft_demo.jsonl").open("rb"):
        record = json.loads(line)
        yield "prose:dialogue", "", "\n".join(_strings(record)).encode()
    for path in sorted((data / "chat").glob("*.json")):
        for record in json.loads(path.read_bytes()):
            yield f"prose:{path.stem}", "", "\n".join(_strings(record)).encode()


def _strings(value: object) -> Iterator[str]:
    """The longer strings of a JSON value."""
    if isinstance(value, str) and len(value) > 30:
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(item)


def gather(texts: Iterator[Text], split: bool = True) -> dict[bool, dict[str, list[bytes]]]:
    """held out? -> group -> texts, at most `MAX_FILES` drawn without regard to order."""
    found: dict[bool, dict[str, list[tuple[int, bytes]]]] = {
        side: collections.defaultdict(list) for side in (False, True)
    }
    for kind, unit, text in texts:
        if b"\0" in text or not text.strip():
            continue
        try:
            text.decode()
        except UnicodeDecodeError:
            continue
        held_out = bool(split and xxhash.xxh3_64_intdigest(unit.encode()) & 1)
        found[held_out][kind].append((xxhash.xxh3_64_intdigest(text, 1), text))
    picked = {}
    for side, groups in found.items():
        unique = {kind: [text for _, text in sorted(dict(rows).items())][:MAX_FILES] for kind, rows in groups.items()}
        picked[side] = {kind: texts for kind, texts in sorted(unique.items()) if len(texts) >= 5}
    return picked


def excerpt(text: bytes, generator: random.Random) -> bytes:
    """Some whole lines of a text."""
    size = generator.randint(200, 1500)
    if len(text) <= size:
        return text
    start = generator.randrange(len(text) - size)
    start = text.find(b"\n", start, start + size // 2) + 1 or start
    return text[start : start + size].decode(errors="ignore").encode()


def features_of(texts: list[bytes]) -> np.ndarray:
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    return batch_features(np.frombuffer(b"".join(texts), np.uint8), offsets)


def fit(groups: dict[str, list[bytes]], generator: random.Random) -> tuple[np.ndarray, float]:
    """Weights and bias, by Newton's method."""
    rows, targets, weights = [], [], []
    for kind, texts in groups.items():
        both = texts + [excerpt(text, generator) for text in texts]
        rows.append(features_of(both))
        targets.append(np.full(len(both), kind.startswith("code")))
        weights.append(np.full(len(both), min(1.0, len(texts) / 40) / len(both)))
    x, y, weight = np.concatenate(rows), np.concatenate(targets).astype(float), np.concatenate(weights)
    for side in (0, 1):
        weight[y == side] *= 0.5 / weight[y == side].sum()
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-6
    z = np.column_stack([(x - mean) / scale, np.ones(len(x))])
    solution = np.zeros(z.shape[1])
    penalty = np.diag([*np.full(len(FEATURES), PENALTY), 0])
    for _ in range(30):
        p = 1 / (1 + np.exp(-z @ solution))
        gradient = z.T @ (weight * (p - y)) + penalty @ solution
        hessian = (z * (weight * p * (1 - p))[:, None]).T @ z + penalty + 1e-9 * np.eye(len(solution))
        solution -= np.linalg.solve(hessian, gradient)
    slopes = solution[:-1] / scale
    return slopes, float(solution[-1] - slopes @ mean)


def measure(
    groups: dict[str, list[bytes]], weights: np.ndarray, bias: float, generator: random.Random
) -> dict[str, dict[str, float]]:
    """Per group: share called a program, of whole texts and of excerpts; share of programs whose language is found."""
    table = {}
    for kind, texts in groups.items():
        row: dict[str, float] = {"texts": len(texts)}
        for name, sample in (("whole", texts), ("excerpts", [excerpt(text, generator) for text in texts])):
            row[name] = round(float((features_of(sample) @ weights + bias > 0).mean()), 4)
        if kind.startswith("code"):
            row["language_from_content"] = round(
                float(np.mean([language_of_content(text) == kind[5:] for text in texts])), 3
            )
        table[kind] = row
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parents[2] / "shared/data")
    parser.add_argument("--code", type=Path, action="append", default=[])
    parser.add_argument("--fresh", type=Path, action="append", default=[])
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    system = [Path(path) for path in (*site.getsitepackages(), "/usr/include", "/usr/share", "/usr/lib/node_modules")]
    directories = [path for path in (*arguments.code, *system) if path.is_dir()]
    generator = random.Random(0)
    groups = gather(itertools.chain(programs(directories), prose(arguments.data)))
    fresh = gather(itertools.chain(programs(arguments.fresh), fresh_prose(arguments.data)), split=False)[False]
    weights, bias = fit(groups[False], generator)
    result: dict[str, object] = {}
    for name, texts in (("fresh", fresh), ("held_out", groups[True])):
        table = measure(texts, weights, bias, generator)
        result |= {f"{name}_summary": summary(table), name: table}
    result["trained_on"] = {kind: len(texts) for kind, texts in groups[False].items()}
    result["repositories"] = {
        "trained on half of": sorted(path.name for path in arguments.code),
        "fresh": sorted(path.name for path in arguments.fresh),
    }
    print(json.dumps(result, indent=1))
    if arguments.write:
        lines = [f'    "{name}": {weight:.3f},' for name, weight in zip(FEATURES, weights, strict=True)]
        doc = '"""Weights of the detector of programs, as `benchmarks/data/code_detector.py` fitted them."""'
        WEIGHTS.write_text("\n".join([doc, "", f"BIAS = {bias:.3f}", "WEIGHTS = {", *lines, "}", ""]))
        print(f"wrote {write_result('data_code_detector', result, code=CODE)} and {WEIGHTS}", file=sys.stderr)


if __name__ == "__main__":
    main()
