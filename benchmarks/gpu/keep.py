"""`scripts/gpu.sh keep --out DIR`: take the results of a run on another machine over into `benchmarks/results`.

The machine that measured has no repository and records a digest of the files themselves. This one has a repository
and adds the revision, if the code here is the code that was measured.
"""

import hashlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src/glmforge", "benchmarks/gpu")


def source_digest() -> str:
    """SHA-256 of all Python files and presets below `FOLDERS`, with their names."""
    digest = hashlib.sha256()
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in (".py", ".yaml"):
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def keep(folder: Path) -> int:
    """Exit status: 1 if a file cannot be taken over, with the reason in one line."""
    from record import RESULTS, code_digest, git_revision  # not on a machine that only measures

    status = 0
    for file in sorted(folder.glob("gpu_*.json")):
        content = json.loads(file.read_text("utf-8"))
        if "figures" not in content:
            continue
        if content["dry"] or content["source"] != source_digest():
            reason = "a dry run measures nothing" if content["dry"] else "the code here is not the code it measured"
            print(f"{file.name}: not taken over: {reason}", file=sys.stderr)
            status = 1
            continue
        content["measured"] = {
            "revision": git_revision(ROOT),
            "date": content["date"],
            "command": content["command"],
            "machine": content["device"],
            "versions": content["versions"],
            "code": list(FOLDERS),
            "code_digest": code_digest(FOLDERS),
        }
        (RESULTS / file.name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
        print(f"{file.name}: {len(content['figures'])} figures")
    return status
