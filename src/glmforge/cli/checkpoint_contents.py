"""What `glmforge checkpoint show` and `verify` find under a path, and how it is printed.

A path may be a checkpoint, a run, or the directory that a run's ranks wrote on a node's own disk. torch is imported
inside the functions, so that `--help` answers at once.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from glmforge.cli.tables import print_facts, print_table, table

if TYPE_CHECKING:
    from glmforge.checkpoint import CheckpointMeta

_MODEL_FIELDS = ("num_hidden_layers", "hidden_size", "n_routed_experts", "num_experts_per_tok", "vocab_size")


def local_steps(path: Path) -> list[Path]:
    """The steps, newest first, in a directory that ranks wrote on a node's own disk, or empty."""
    from glmforge.checkpoint import list_checkpoints

    candidates = [path] if is_checkpoint(path) else list_checkpoints(path)
    return candidates if any(any(step.glob("part-*.json")) for step in candidates) else []


def local_problems(step: Path) -> list[str]:
    """What differs from what the ranks recorded of their files; all are read."""
    from glmforge.checkpoint.format.verify import find_local_metadata_problems
    from glmforge.checkpoint.node_local.parts_of_ranks import find_part_problems, read_parts

    parts, problems = read_parts(step)
    problems += [line for part in parts for line in find_part_problems(step, part, checksums=True)]
    return problems or find_local_metadata_problems(step)


def show_local(path: Path) -> None:
    """What lies on this node; a rank that is missing here may be on another one."""
    from glmforge.checkpoint.node_local.parts_of_ranks import find_part_problems, missing_ranks, read_parts
    from glmforge.observe.units import format_bytes

    words = ("checkpoint", "state", "tier", "ranks here", "ranks missing")
    rows = table(*words, "size", in_words=words)
    lines = []
    for step in local_steps(path):
        parts, problems = read_parts(step)
        problems += [line for part in parts for line in find_part_problems(step, part, checksums=False)]
        size = sum(record.size for part in parts for record in part.files.values())
        missing = missing_ranks(parts) if parts else []
        state = "[red]broken[/]" if problems or not parts else "a part" if missing else "[green]whole[/]"
        tiers = {_tier(part.ephemeral) for part in parts}
        here = _ranges([part.rank for part in parts])
        rows.add_row(step.name, state, ", ".join(sorted(tiers)), here, _ranges(missing), format_bytes(size))
        lines += problems
    console = Console(soft_wrap=True)
    print_table("", rows, console)
    for line in lines:
        console.print(line, markup=False, highlight=False)


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] -> '0-2, 5'."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in spans)


def _tier(ephemeral: bool) -> str:
    return "ephemeral" if ephemeral else "permanent"


def is_checkpoint(path: Path) -> bool:
    """Whether the path is one checkpoint rather than a directory of them: by its name, or by what lies in it, as in the
    directory that `glmforge fisher` writes."""
    from glmforge.checkpoint.format.meta import META_FILE

    return path.resolve().name.startswith("step-") or (path / META_FILE).is_file()


def checkpoints_of(path: Path) -> list[Path]:
    """Of a run directory or its `checkpoints` directory, newest first."""
    from glmforge.checkpoint import list_checkpoints
    from glmforge.errors import CheckpointError

    checkpoints = list_checkpoints(path / "checkpoints") or list_checkpoints(path)
    if not checkpoints:
        raise CheckpointError(f"{path}: contains no checkpoints; pass a run directory or a step-... directory")
    return checkpoints


def show_run(path: Path) -> None:
    """All checkpoints of a run: whether they are whole, which is best by `checkpoint.keep_best`, which are aside."""
    from glmforge.checkpoint import read_meta
    from glmforge.checkpoint.format.manifest import find_problems, read_manifest
    from glmforge.checkpoint.format.store import list_kept_aside
    from glmforge.observe.units import format_bytes

    columns = ("checkpoint", "state", "tier", "phase", "saved (UTC)")
    rows = table(*columns, "tokens", "size", in_words=columns)
    problems_of = {checkpoint: find_problems(checkpoint, checksums=False) for checkpoint in checkpoints_of(path)}
    best, note = _best_of([checkpoint for checkpoint, problems in problems_of.items() if not problems])
    for checkpoint, problems in problems_of.items():
        if problems:
            rows.add_row(checkpoint.name, "[red]broken[/]", "", "", "", "", "")
            continue
        meta = read_meta(checkpoint)
        size = sum(record.size for record in read_manifest(checkpoint).files.values())
        words = (_tier(meta.ephemeral), meta.phase, meta.created.removesuffix("+00:00").replace("T", " "))
        state = f"[green]whole[/], {note}" if checkpoint == best else "[green]whole[/]"
        rows.add_row(checkpoint.name, state, *words, f"{meta.tokens_consumed:,}", format_bytes(size))
    for aside in list_kept_aside(next(iter(problems_of)).parent):
        rows.add_row(aside.name, "kept aside", "", "", "", "", "")
    console = Console(soft_wrap=True)
    print_table("", rows, console)
    for problem in (problem for problems in problems_of.values() for problem in problems):
        console.print(problem, markup=False, highlight=False)


def _best_of(whole: list[Path]) -> tuple[Path | None, str]:
    """The best lasting checkpoint by the newest one's `checkpoint.keep_best`, and a note for the table."""
    from pydantic import ValidationError

    from glmforge.checkpoint import read_meta
    from glmforge.checkpoint.policy.retain import best_checkpoint
    from glmforge.config.checkpoint import KeepBestConfig

    try:
        keep_best = KeepBestConfig.model_validate(read_meta(whole[0]).config["checkpoint"]["keep_best"])
    except (LookupError, TypeError, ValidationError):  # no whole checkpoint, or no keep_best
        return None, ""
    found = best_checkpoint((path for path in whole if not read_meta(path).ephemeral), keep_best)
    return (None, "") if found is None else (found[0], f"best {keep_best.metric}: {found[1]:.4g}")


def show_checkpoint(path: Path) -> bool:
    """Print what a checkpoint says of itself, and its files; whether they are there, of the right sizes."""
    from glmforge.checkpoint import read_meta
    from glmforge.checkpoint.format.manifest import find_problems, read_manifest
    from glmforge.observe.units import format_bytes

    console = Console(soft_wrap=True)
    files = table("file", "size", "SHA-256", in_words=("file", "SHA-256"))
    for name, record in read_manifest(path).files.items():
        files.add_row(name, format_bytes(record.size), record.sha256[:16])
    print_facts([*_facts(read_meta(path)), *_adapter_facts(path)], console)
    print_table("", files, console)
    problems = find_problems(path, checksums=False)
    for problem in problems:
        console.print(problem, markup=False, highlight=False)
    return not problems


def show_sizes(path: Path) -> bool:
    """Bytes by kind of a checkpoint, of a run's newest, or of Megatron's; whether all are as expected."""
    from glmforge.checkpoint.find import find_checkpoint
    from glmforge.checkpoint.sizes import megatron_sizes, sizes_by_kind
    from glmforge.observe.units import format_bytes

    is_megatron = (path / "common.pt").is_file()
    checkpoint = path if is_megatron or is_checkpoint(path) else find_checkpoint(path)
    kinds = megatron_sizes(checkpoint) if is_megatron else sizes_by_kind(checkpoint)
    rows = table("kind", "expected", "actual", "share", "", in_words=("kind",))
    total = sum(kind.actual for kind in kinds)
    for kind in kinds:
        expected = "-" if kind.expected is None else format_bytes(kind.expected)
        note = f"[red]differs by {kind.actual - (kind.expected or 0):+,} bytes[/]" if kind.differs else ""
        rows.add_row(kind.kind, expected, format_bytes(kind.actual), f"{kind.actual / max(total, 1):.1%}", note)
    rows.add_row("all files of the manifest", "", format_bytes(total), "", "")
    print_table(f"{checkpoint}", rows, Console(soft_wrap=True))
    return not any(kind.differs for kind in kinds)


def _facts(meta: "CheckpointMeta") -> list[tuple[str, str]]:
    samples = ", ".join(f"{phase} {count:,}" for phase, count in meta.samples_consumed.items())
    model = meta.config.get("model")
    model = model if isinstance(model, dict) else {}
    return [
        ("step", f"{meta.step:,}"),
        ("phase", meta.phase),
        ("tier", _tier(meta.ephemeral)),
        ("tokens", f"{meta.tokens_consumed:,}"),
        ("samples", samples),
        ("run", str(meta.config.get("name", "?"))),
        ("model", ", ".join(f"{field} {model[field]}" for field in _MODEL_FIELDS if field in model)),
        ("data", ", ".join(meta.data_fingerprint)),
        ("tokenizer", meta.tokenizer_fingerprint),
        ("ranks", str(meta.world_size)),
        ("saved (UTC)", meta.created),
        ("revision", meta.git_revision or "not a git checkout"),
        ("versions", ", ".join(f"{library} {version}" for library, version in meta.versions.items())),
    ]


def _adapter_facts(path: Path) -> list[tuple[str, str]]:
    """What a checkpoint of adapters says beside; 'glmforge adapter show' has the tensors."""
    from glmforge.checkpoint.format.sharded_adapter import is_sharded_adapter, read_description

    if not is_sharded_adapter(path):
        return []
    found = read_description(path)
    return [
        ("adapters", f"rank {found.lora.rank}, mode {found.mode}, {found.num_shards} shards"),
        ("base weights", f"{found.base.source}, fingerprint {found.base.fingerprint[:16]}"),
    ]
