"""What the filters get wrong, on material that was not used to build them: programs, personal data, Chinese forms.

    python benchmarks/corpus/filter_errors.py --examples DIR         # writes benchmarks/results/data_filter_errors.json
    PYTHONPATH=OLD/src python benchmarks/corpus/filter_errors.py --examples DIR --out before.json

`--examples` are the example files of Pygments (tests/examplefiles of its repository), a folder per language. Prose is
of `--data`: C4 as it is, in capitals, cut short, one word a line; word problems; plays. Personal data are planted by
seeded generators in sentences, 200 of a kind, beside as many look-alikes that must stay. Chinese answers are those of
100 characters at least in chat/alpaca_zh_demo.json, taken for text that should be kept.
"""

# ruff: noqa: E501 - what is planted is not broken up

import argparse
import json
import random
import string
import sys
from pathlib import Path
from typing import Any

import numpy as np

from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.filter.language import Language
from glmforge_corpus.filter.pii.block import PII
from glmforge_corpus.filter.programming_language import detect_code
from glmforge_corpus.filter.rules.c4 import C4
from glmforge_corpus.filter.rules.fineweb import FineWeb
from glmforge_corpus.filter.rules.gopher import GopherQuality, GopherRepetition

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from record import write_result

LANGUAGES = [
    "c",
    "cpp",
    "csharp",
    "java",
    "javascript",
    "python",
    "go",
    "rust",
    "swift",
    "kotlin",
    "scala",
    "php",
    "perl",
    "lua",
    "haskell",
    "bash",
    "yaml",
    "json",
    "html",
    "css",
    "cmake",
    "make",
    "xml",
    "toml",
    "julia",
    "elixir",
    "dart",
    "objective-c",
    "fortran",
    "cobol",
    "nasm",
    "matlab",
    "ocaml",
    "clojure",
    "erlang",
    "awk",
    "vim",
    "powershell",
    "groovy",
]


def batch(texts: list[str], language: str | None = None) -> DocumentBatch:
    return DocumentBatch.from_columns(["t"] * len(texts), texts, "t", languages=[language] * len(texts))


def prose(data: Path) -> dict[str, list[str]]:
    c4 = [json.loads(line)["text"] for line in (data / "text/c4_demo.jsonl").open()]
    problems = [json.loads(line)["question"] for line in (data / "eval/gsm8k-test.jsonl").open()][:300]
    text = (data / "text/tinyshakespeare.txt").read_text()
    plays = [text[start : start + 600] for start in range(0, 180_000, 600)]
    return {
        "C4": c4,
        "C4 in capitals": [t.upper() for t in c4],
        "C4 in capitals, 150 characters": [t[:150].upper() for t in c4],
        "C4, 150 characters": [t[:150] for t in c4],
        "C4, 60 characters": [t[:60] for t in c4],
        "C4, a word a line": ["\n".join(t.split()[:60]) for t in c4],
        "word problems in capitals": [t.upper() for t in problems],
        "plays in capitals": [t.upper() for t in plays],
    }


def excerpts(folder: Path, draw: random.Random) -> list[str]:
    found = []
    for path in sorted(folder.iterdir()):
        text = path.read_bytes().decode(errors="ignore")
        if path.suffix == ".output" or len(text) < 60:
            continue
        found.append(text)
        for size in (100, 200, 400, 800, 1500):
            for _ in range(3 if len(text) > size else 0):
                start = draw.randrange(len(text) - size)
                start = text.find("\n", start, start + size // 2) + 1 or start
                if len(text[start : start + size].strip()) >= 50:
                    found.append(text[start : start + size])
    return found


def programs(examples: Path) -> dict[str, Any]:
    draw, found = random.Random(1), {}
    for language in LANGUAGES:
        if (examples / language).is_dir() and (texts := excerpts(examples / language, draw)):
            found[language] = [int(detect_code(batch(texts)).is_code.sum()), len(texts)]
    return {"found_of": found, "mean_recall": round(float(np.mean([a / b for a, b in found.values()])), 4)}


def called(texts: list[str]) -> dict[str, int]:
    labels = Language().process(batch(texts)).batch.table.column("language").to_pylist()
    return {"documents": len(texts), "code": labels.count("code"), "en": labels.count("en")}


def planted(draw: random.Random) -> dict[str, list[str]]:
    def letters(count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
        return "".join(draw.choice(alphabet) for _ in range(count))

    def iban() -> str:
        country, bank = draw.choice([("DE", letters(18, "0123456789")), ("GB", "NWBK" + letters(14, "0123456789")),
                                     ("ES", letters(20, "0123456789")), ("NL", "ABNA" + letters(10, "0123456789"))])  # fmt: skip
        number = int("".join(str(int(c, 36)) for c in bank + country + "00"))
        return f"{country}{98 - number % 97:02d}{bank}"

    def grouped(text: str, mark: str) -> str:
        return mark.join(text[i : i + 4] for i in range(0, len(text), 4))

    def password() -> str:
        return letters(4, string.ascii_lowercase) + letters(2, "23456789") + draw.choice("!#%&*+=?") + letters(4)

    mobile = lambda: f"1{draw.choice('3589')}{letters(9, '0123456789')}"  # noqa: E731
    names = ["password", "db_password", "api_key", "client_secret", "PASSWD", "access_token"]
    makers = {
        "iban, small letters": lambda: f"transfer it to {iban().lower()} today",
        "iban, small letters, grouped": lambda: f"account {grouped(iban().lower(), ' ')} please",
        "iban, hyphens": lambda: f"account {grouped(iban(), '-')}, thanks",
        "password in quotes": lambda: f'{draw.choice(names)} = "{password()}"',
        "password without": lambda: f"export {draw.choice(names).upper()}={letters(6)}7{letters(5)}",
        "key of 20 characters": lambda: draw.choice(["ghp_", "sk-", "hf_"]) + letters(16) + letters(4, "23456789"),
        "Chinese mobile in Chinese": lambda: f"有事请联系我{mobile()}，谢谢",
        "kept: product of matrices": lambda: draw.choice(["q", "A", "W1", "x_t"]) + "@" + draw.choice(
            ["k.transpose(-2, -1)", "np.linalg.inv(B)", "w.to(device)", "self.weight.detach()", "v.T.contiguous()"]),
        "kept: object identifier": lambda: f"host sends OID 2.5.{draw.choice((4, 29))}.{draw.randrange(1, 60)} from server",
        "kept: amount in Chinese": lambda: draw.choice(["共{}元", "约{}人", "总数为{}", "播放量{}次", "订单号：{}"]).format(mobile()),
        "kept: label of a form": lambda: f'"password": "{draw.choice(["Passwort", "Contraseña", "Salasana", "Heslo", "Wachtwoord"])}"',
    }  # fmt: skip
    return {name: [make() for _ in range(200)] for name, make in makers.items()}


def personal_data() -> dict[str, Any]:
    result = {}
    for name, texts in planted(random.Random(0)).items():
        masked = PII().process(batch(texts)).batch.texts
        result[name] = {"items": len(texts), "touched": sum(a != b for a, b in zip(texts, masked, strict=True))}
    return result


def chinese(data: Path) -> dict[str, Any]:
    answers = [r["output"] for r in json.loads((data / "chat/alpaca_zh_demo.json").read_bytes())]
    texts = [text for text in answers if len(text) >= 100]
    removed, any_of = {}, np.zeros(len(texts), bool)
    for block in (GopherQuality(), GopherRepetition(), C4(), FineWeb()):
        failed = np.any(list(block.process(batch(texts, "zh")).failed.values()), axis=0)
        removed[block.kind] = int(failed.sum())
        any_of |= failed
    return {"documents": len(texts), "removed_by": removed, "removed": int(any_of.sum())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--examples", type=Path, required=True)
    parser.add_argument("--before", type=Path, help="result of --out with older code, kept beside this one's")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "prose": {name: called(texts) for name, texts in prose(arguments.data).items()},
        "programs": programs(arguments.examples),
        "personal_data": personal_data(),
        "chinese_answers": chinese(arguments.data),
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(result))
        return
    if arguments.before:
        result["before"] = json.loads(arguments.before.read_bytes())
    print(write_result("data_filter_errors", result, code=["src/glmforge_corpus/filter"]).read_text())


if __name__ == "__main__":
    main()
