"""Metrics of a run in an experiment tracker with the API of Weights & Biases: wandb itself, or trackio.

    observe: {tracking: {package: wandb, project: moe}}

A tracker's run goes on when the run is resumed: its id is in `<run>/tracking.json`. Names are TensorBoard's tags, and
the step is a value of its own, so that steps trained again after a rollback are drawn over those before. wandb does its
work in a process of its own; what it cannot do (no network, no login, a full disk) ends the sink, not the run. Give it
to `Background`: its calls may take long.
"""

import json
import secrets
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from glmforge.config.observe import TrackingConfig
from glmforge.config.secrets import HIDDEN, is_secret
from glmforge.extras import needed_for
from glmforge.files import read_json
from glmforge.observe.bus import Kind
from glmforge.observe.metric_table import MetricTable
from glmforge.observe.metrics import METRICS, Record
from glmforge.observe.record_files import RunFileError, scalars
from glmforge.observe.run import write_text

_KINDS = (Kind.METRICS, Kind.EVALUATION, Kind.NEEDLES, Kind.BENCHMARK)
_LOGIN_S, _BEGIN_S = 10, 20
"""How long wandb asks for a login, and waits for its server: a process does not end before that."""


class Tracking:
    """One run of the tracker.

    Args:
        root: the run's directory, which gets wandb's files, too.
        name: the run's.
        config: shown beside the run; values of keys that look like secrets are hidden.

    Raises:
        MissingPackageError: the tracker is not installed.
    """

    def __init__(self, settings: TrackingConfig, root: Path, name: str, config: Mapping[str, Any]) -> None:
        self.name: str = settings.package
        with needed_for(f"observe.tracking.package: {settings.package}"):
            self._package = import_module(settings.package)
        self._settings, self._root, self._run_name = settings, root, settings.name or name
        self._config = without_secrets(config)
        self._table: MetricTable = METRICS
        self._run: Any = None

    def open(self, step: int, tokens: int, table: MetricTable) -> None:
        self._table = table
        if self._run is None:
            self._run = self._begin(tracker_id(self._root / "tracking.json", self._settings))

    def write(self, kind: Kind, record: Record) -> None:
        if self._run is None or kind not in _KINDS:
            return
        values = dict(scalars(self._table, record))
        if self._settings.package == "wandb":
            self._run.log(values | {"step": record["step"]})
        else:
            self._run.log(values, step=record["step"])

    def close(self) -> None:
        """Hand over what is left."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()

    def _begin(self, identity: str) -> Any:
        project, settings = self._settings.project, self._settings
        if settings.package == "trackio":  # it knows a run by its name
            name = f"{self._run_name}-{identity}"
            return self._package.init(project=project, name=name, config=self._config, resume="allow", embed=False)
        run = self._package.init(
            project=project,
            name=self._run_name,
            id=identity,
            resume=None if settings.mode == "offline" else "allow",
            mode=settings.mode,
            dir=self._root,
            config=self._config,
            save_code=False,
            reinit="create_new",
            settings=self._package.Settings(
                console="off", silent=True, disable_git=True, login_timeout=_LOGIN_S, init_timeout=_BEGIN_S
            ),
        )
        run.define_metric("*", step_metric="step")
        return run


def tracker_id(path: Path, settings: TrackingConfig) -> str:
    """That of earlier starts of the run with this package and project, or a new one, which is written to `path`."""
    wanted = {"package": settings.package, "project": settings.project}
    try:
        stored: dict[str, Any] = read_json(path, dict, error=RunFileError)
    except RunFileError:  # missing, or damaged: the tracker gets another run
        stored = {}
    identity = stored.get("id")
    if wanted.items() <= stored.items() and isinstance(identity, str) and identity.isalnum() and len(identity) <= 64:
        return identity
    identity = secrets.token_hex(4)
    write_text(path, json.dumps(wanted | {"id": identity}) + "\n")
    return identity


def without_secrets(value: Any) -> Any:
    """A configuration for others to see."""
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if isinstance(one, str) and is_secret(str(key), one) else without_secrets(one)
            for key, one in value.items()
        }
    return [without_secrets(one) for one in value] if isinstance(value, list) else value
