"""One archive that says what happened to a run, for whoever is asked for help; also of a run that is dead or broken.

    bundle.json        what was taken, what was left out and why, how many secrets were removed
    system.json        machine, libraries and revision here and now; names of the variables that are set
    run.json, config.yaml, skipped.json, adapters.json
    metrics.jsonl ...  the last records of each
    logs/              the last 1,000 lines of each rank, of the run's own files and of its job's newest attempt
    hangs/             what each rank was doing
    checkpoints.json   of each its position, size, and what is wrong with it; manifests of the newest
    plan.txt           what the run's layout needs

A run's directory is not trusted: only regular files under known names are opened, never through a link and never
waiting, a bounded part of each is read, and all of it goes through `Redactor`. Whatever cannot be read is listed, not
an error.
"""

import io
import itertools
import json
import os
import re
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from glmforge.checkpoint.format.manifest import MANIFEST_FILE, find_problems, read_manifest
from glmforge.checkpoint.format.meta import read_meta
from glmforge.checkpoint.format.store import list_checkpoints
from glmforge.config.layout import resolve_layout
from glmforge.config.load import load_config
from glmforge.config.secrets import HIDDEN
from glmforge.doctor.redact import Redactor
from glmforge.errors import GlmforgeError
from glmforge.files import open_regular, parse_json, shown
from glmforge.observe.environment import describe_machine, git_revision, library_versions
from glmforge.observe.job_records import JobDirectory
from glmforge.observe.run import RunDirectory
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.stages.stage import stage_of

NUM_LINES = 1000
MEMBER_BYTES = 4 << 20
"""Most of a file that is read, and of a member of the archive."""
TOTAL_BYTES = 128 << 20
_LINE_BYTES = 1 << 16
_MOST_FILES = 2048
_LOG, _HANG = re.compile(r"rank-\d{5,9}\.log(\.\d)?", re.ASCII), re.compile(r"[\w-]{1,80}\.txt", re.ASCII)
_WHOLE = ("run.json", "config.yaml", "skipped.json", "adapters.json")
_RECORDS = ("events", "metrics", "anomalies", "evaluation", "benchmarks", "time")


class BundleError(GlmforgeError):
    """A run directory that is none, or an archive that cannot be written."""


@dataclass
class Bundle:
    """What goes into the archive.

    Attributes:
        members: name in the archive -> contents, secrets removed.
        left_out: name -> why.
        redactor: what the secrets were removed with.
    """

    redactor: Redactor = field(default_factory=Redactor)
    members: dict[str, bytes] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, make: Callable[[], str]) -> None:
        """Add what `make` gives, or say why there is nothing."""
        try:
            content = make().encode(errors="backslashreplace")
        except (OSError, GlmforgeError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
            # From a damaged run: whatever cannot be read is listed, and the rest is taken.
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            self.left_out[name] = self.redactor.text(" ".join(reason.split())[:300])
            return
        if sum(map(len, self.members.values())) + len(content) > TOTAL_BYTES:
            self.left_out[name] = f"the bundle has {TOTAL_BYTES >> 20} MiB already"
        else:
            self.members[name] = content

    def text(self, name: str, path: Path, *, lines: int | None = None) -> None:
        """Add the end of a text file."""
        self.add(name, lambda: self.redactor.text("\n".join(_last_lines(path, lines))) + "\n")

    def records(self, name: str, path: Path) -> None:
        """Add the last records of a file of JSON lines; a damaged line goes as text."""
        self.add(name, lambda: "".join(self._line(line) + "\n" for line in _last_lines(path, NUM_LINES)))

    def _line(self, line: str) -> str:
        try:
            return json.dumps(self.redactor.record(parse_json(line, dict, source="line", error=BundleError)))
        except BundleError:
            return self.redactor.text(line)


def make_bundle(run: Path, output: Path | None = None, *, redactor: Redactor | None = None) -> tuple[Path, Bundle]:
    """Write the archive of `run`; its path and what is in it. Raises `BundleError`."""
    if not run.is_dir():
        raise BundleError(f"{shown(run)}: no such directory; pass the directory of a run")
    output = output or Path(f"{run.resolve().name}-debug-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz")
    if output.exists():
        raise BundleError(f"{shown(output)}: already exists; remove it, or choose another --output")
    bundle = collect(run, Bundle(redactor or Redactor()))
    _write(output, bundle)
    return output, bundle


def collect(run: Path, bundle: Bundle) -> Bundle:
    """Everything about `run`, secrets removed."""
    redactor, files = bundle.redactor, RunDirectory(run)
    bundle.add("system.json", lambda: json.dumps(redactor.record(_system(run)), indent=1))
    for name in _WHOLE:
        bundle.add(name, lambda name=name: _structured(redactor, run / name))  # type: ignore[misc]
    for name in _RECORDS:
        bundle.records(f"{name}.jsonl", run / f"{name}.jsonl")
    for path in _files_in(files.logs, _LOG, bundle):
        bundle.text(f"logs/{path.name}", path, lines=NUM_LINES)
    for path in _files_in(files.hangs, _HANG, bundle):
        bundle.text(f"hangs/{path.name}", path)
    for path in _job_logs(bundle):
        bundle.text(f"logs/job/{path.name}", path, lines=NUM_LINES)
    bundle.add("lock.json", lambda: redactor.text("\n".join(_last_lines(_newest_claim(run), None))))
    bundle.add("checkpoints.json", lambda: json.dumps(redactor.record(_checkpoints(files.checkpoints)), indent=1))
    bundle.add("plan.txt", lambda: redactor.text(_plan(files.config)))
    return bundle


def _system(run: Path) -> dict[str, Any]:
    disk = os.statvfs(run)
    return {
        "machine": describe_machine(),
        "versions": library_versions(),
        "git_revision": git_revision(Path(__file__).parent),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load": os.getloadavg(),
        "free_bytes_of_run": disk.f_bavail * disk.f_frsize,
        "variables_set": sorted(os.environ),  # names alone
    }


def _structured(redactor: Redactor, path: Path) -> str:
    """JSON or YAML by its structure; as text if it has none, or aliases, which would multiply when written out."""
    text = _read(path)
    try:
        if path.suffix == ".json":
            return json.dumps(redactor.record(parse_json(text, dict, source=path.name, error=BundleError)), indent=1)
        if not any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            return yaml.safe_dump(redactor.record(yaml.safe_load(text)), sort_keys=False, allow_unicode=True)
    except (BundleError, yaml.YAMLError, RecursionError):
        pass
    return redactor.text(text)


def _checkpoints(root: Path) -> list[dict[str, Any]]:
    found = []
    for index, path in enumerate(list_checkpoints(root)[:_MOST_FILES]):
        entry: dict[str, Any] = {"name": path.name, "problems": []}
        found.append(entry)
        try:
            entry["problems"] = find_problems(path, checksums=False)[:20]
            manifest = read_manifest(path).files
            entry |= {"files": len(manifest), "bytes": sum(record.size for record in manifest.values())}
            entry["meta"] = read_meta(path).model_dump(mode="json", exclude={"config", "hooks", "extra_models"})
            if index < 3 and len(manifest) <= _MOST_FILES:
                entry[MANIFEST_FILE] = {name: record.model_dump() for name, record in manifest.items()}
        except (GlmforgeError, OSError) as error:
            entry["problems"] += [str(error)]
    return found


def _plan(config_file: Path) -> str:
    _read(config_file)  # a regular file of bounded size
    config = load_config(config_file)
    world_size = 1
    for size in itertools.chain((1,), (2**power for power in range(1, 14))):
        with suppress(GlmforgeError):
            resolve_layout(config, size)
            world_size = size
            break
    estimate = estimate_memory(config, resolve_layout(config, world_size), stage_of(config))
    lines = [f"memory of a rank at its peak, planned for {world_size} ranks (the fewest that the layout takes)"]
    for stage, place in enumerate(estimate.places):
        lines += [f"pipeline stage {stage}: {purpose} {size:,} bytes" for purpose, size in place.at_peak.most_common()]
    return "\n".join(lines) + "\n"


def _job_logs(bundle: Bundle) -> Iterator[Path]:
    """The logs of the newest attempt of the run's job, which its events name, if the job is this user's own."""
    for line in reversed(bundle.members.get("events.jsonl", b"").splitlines()):
        with suppress(ValueError, TypeError, GlmforgeError, OSError):
            named = json.loads(line).get("job_directory")
            if not isinstance(named, str) or HIDDEN in named:
                continue
            job = JobDirectory(Path(named))
            if job.root.stat().st_uid != os.geteuid():
                continue
            job.read()
            attempt = job.attempt(job.attempt_numbers()[-1])
            yield from _files_in(attempt.root, _LOG, bundle)
            return


def _newest_claim(run: Path) -> Path:
    claims = [path for path in _entries(run / ".lock") if path.name.isdecimal() and path.name.isascii()]
    if not claims:
        raise BundleError("no claim")
    return max(claims, key=lambda path: path.name)


def _files_in(directory: Path, names: re.Pattern[str], bundle: Bundle) -> Iterator[Path]:
    """Files of the given form of name; a directory that is a link is not entered."""
    try:
        found = sorted(path for path in _entries(directory) if names.fullmatch(path.name))
    except OSError as error:
        if directory.is_symlink() or directory.exists():
            bundle.left_out[f"{directory.name}/"] = error.strerror or "cannot be read"
        return
    yield from found


def _entries(directory: Path) -> list[Path]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with os.scandir(descriptor) as entries:
            return [directory / entry.name for entry in itertools.islice(entries, _MOST_FILES)]
    finally:
        os.close(descriptor)


def _read(path: Path) -> str:
    """The last `MEMBER_BYTES` of a regular file that is not a link. Raises `OSError`."""
    if path.is_symlink():
        raise OSError(0, "is a link")
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - MEMBER_BYTES))
        content = file.read(MEMBER_BYTES)
    if size > MEMBER_BYTES:
        content = content.partition(b"\n")[2]  # a line that was cut may be half a secret
    return content.decode(errors="backslashreplace")


def _last_lines(path: Path, number: int | None) -> list[str]:
    lines = _read(path).splitlines()
    return [_shortened(line) for line in (lines if number is None else lines[-number:])]


def _shortened(line: str) -> str:
    """Of an overlong line the beginning, up to a space: half a secret has no form to be known by."""
    if len(line) <= _LINE_BYTES:
        return line
    return f"{line[:_LINE_BYTES].rpartition(' ')[0]} [{len(line):,} characters]"


def _write(output: Path, bundle: Bundle) -> None:
    """Beside its name, then renamed; readable by its user alone."""
    about = {
        "taken": {name: len(content) for name, content in bundle.members.items()},
        "left_out": bundle.left_out,
        "secrets_removed": bundle.redactor.count,
    }
    members = {"bundle.json": json.dumps(about, indent=1).encode()} | bundle.members
    partial = output.with_name(f".{output.name}.partial-{os.getpid()}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, content in members.items():
                member = tarfile.TarInfo(f"{output.name.partition('.')[0]}/{name}")
                member.size, member.mtime = len(content), int(time.time())
                archive.addfile(member, io.BytesIO(content))
        partial.replace(output)
    except OSError as error:
        raise BundleError(f"{shown(output)}: cannot be written ({error.strerror}); choose another --output") from None
    finally:
        partial.unlink(missing_ok=True)
