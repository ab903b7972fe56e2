"""The layout that a search found as a file that extends the run's own, ready for `glmforge train`."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.parallel import ParallelConfig
from glmforge.config.presets import preset_names
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.layout import phases_not_served, select_phase
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.search.search import Candidate

HEADER = "# Found by glmforge plan --search"
_SIZES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "micro_batch_size", "recompute")


def changed_settings(config: RunConfig, layout: Layout, own: ParallelConfig) -> dict[str, Any]:
    """The fields of `parallel` that make `own` those of `config`: sizes always, others where they differ."""
    found = config.parallel.model_dump(mode="json")
    before = own.model_dump(mode="json")
    named = {*_SIZES, "pipeline_schedule"} if layout.pp > 1 else set(_SIZES)
    return {field: value for field, value in found.items() if field in named or value != before[field]}


def settings_words(settings: Mapping[str, Any]) -> str:
    """As they are written on the command line."""
    return " ".join(f"parallel.{field}={_scalar(value)}" for field, value in settings.items())


def other_phases(candidate: Candidate, own: RunConfig, phase: str, limit: int) -> list[str]:
    """A line for each phase but `phase` that the layout does not serve, or only with more than `limit` bytes."""
    config = own.model_copy(update={"parallel": candidate.config.parallel})
    world_size = candidate.layout.world_size
    lines = phases_not_served(config, world_size, phase)
    for other in config.phases:
        if other.name == phase or any(line.startswith(f"phase {other.name} ") for line in lines):
            continue
        peak = estimate_memory(
            select_phase(config, other.name), resolve_layout(config, world_size, phase=other.name)
        ).peak
        if peak > limit:
            lines.append(f"phase {other.name} would need {peak / 1e9:.0f} GB: search for it with --phase {other.name}")
    return lines


def write_winner(
    candidate: Candidate,
    own: RunConfig,
    source: str,
    overrides: Iterable[str],
    path: Path,
    notes: Iterable[str],
    *,
    num_nodes: int,
) -> None:
    """Write `path`, which extends `source`, a file or a packaged run's name, and says `notes` in its comments.

    Sections that `overrides` (key.sub=value) changed are written in full, and a run that may not go on with so few
    nodes as `num_nodes` is allowed to. Raises `ConfigError` where `path` is a file that no search has written.
    """
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(HEADER):
        raise ConfigError(
            f"{path}: exists and was not written by a search; move it, or choose another file with --winner"
        )
    changed = {text.partition("=")[0].split(".")[0] for text in overrides} - {"parallel"}
    effective = own.model_dump(mode="json")
    content: dict[str, Any] = {"extends": _base(source, path.parent)}
    content |= {section: effective[section] for section in sorted(changed) if section in effective}
    base = own.parallel if not any(text.startswith("parallel.") for text in overrides) else None
    parallel = candidate.config.parallel.model_dump(mode="json")
    content["parallel"] = parallel if base is None else changed_settings(candidate.config, candidate.layout, base)
    if own.fault_tolerance.min_nodes > num_nodes:
        content.setdefault("fault_tolerance", {})["min_nodes"] = num_nodes
    body = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    comments = "".join(f"# {note}\n" for note in notes)
    path.write_text(f"{HEADER}\n{comments}{body}", encoding="utf-8")


def _base(source: str, directory: Path) -> str:
    if source in preset_names("run"):
        return source
    file = Path(source) / "config.yaml" if Path(source).is_dir() else Path(source)
    return os.path.relpath(file, directory)


def _scalar(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n").removesuffix("\n...")
