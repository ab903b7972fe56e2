"""`scripts/gpu.sh keep --out DIR`: take the results of a run on another machine over into `benchmarks/results`.

The machine that measured has no repository; this one has, and can say which revision the code was. It does so only if
the code here is the code that was measured.
"""

import json
import sys
from pathlib import Path

from gpu.source import FOLDERS, source_digest


def keep(folder: Path) -> int:
    """Exit status: 1 if a file cannot be taken over, with the reason in one line."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from record import RESULTS, ROOT, code_digest, git_revision

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
