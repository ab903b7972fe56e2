"""The reference of DPO: log-probabilities of every answer under the policy that the run began with.

They never change, so they are computed once, before the first step, by the model that is then trained: no second model
is held. The passes take the same rows in the same batches as the first epoch does, so that at the first step policy and
reference agree to the last bit in fp32. They are kept in the run's directory with what they depend on: the pairs, the
compute dtype, and the files of the first weights, which are only compared before the first step, as they may be
elsewhere later. A run that goes on reads them, on any number of ranks. If they are lost a run with adapters drawn from
its seed computes them again without adapters; any other cannot, as its weights have moved on.
"""

import io
import json
import logging
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from glmforge.backend.base import Backend
from glmforge.checkpoint.collective import run_on_rank_zero
from glmforge.checkpoint.initial_weights import initial_weights_directory
from glmforge.config.schema import RunConfig
from glmforge.data.files import write_whole
from glmforge.data.preferences.stream import PairStream
from glmforge.errors import CheckpointError, DataError
from glmforge.evaluate.preferences import answer_values
from glmforge.objectives.pairs import AnswerObjective
from glmforge.observe.alive import Alive, quiet
from glmforge.observe.run import RunDirectory
from glmforge.runtime.lease import ensure_writable

logger = logging.getLogger(__name__)


class Reference:
    """Fills in `PairStream.reference_P2` of the streams of a run: `train`, and `held_out` if there is one.

    Args:
        fingerprint: of the pairs, as JSON's types.
        objective: gives log-probabilities (`DpoObjective`, without MTP).
    """

    def __init__(
        self,
        config: RunConfig,
        backend: Backend,
        streams: Mapping[str, PairStream],
        fingerprint: Mapping[str, Any],
        objective: AnswerObjective,
    ) -> None:
        self._config, self._backend, self._streams, self._objective = config, backend, streams, objective
        self._file = RunDirectory(config.output_dir).reference
        pairs = {name: stream.num_pairs for name, stream in streams.items()} | dict(fingerprint)
        self._fingerprint = json.dumps({"pairs": pairs, "dtype": config.precision.compute}, sort_keys=True)

    def ensure(self, *, at_start: bool, alive: Alive = quiet) -> None:
        """Read or compute it, unless that is done. Collective.

        Args:
            at_start: the model still has the weights that the run began with.

        Raises:
            CheckpointError: it is neither kept nor can it be computed any more, or cannot be written.
        """
        if all(stream.reference_P2 is not None for stream in self._streams.values()):
            return
        found = run_on_rank_zero(lambda: self._read(at_start=at_start))
        if found is None:
            found = self._compute(at_start, alive)
            run_on_rank_zero(lambda: self._write(found))
        for name, stream in self._streams.items():
            stream.reference_P2 = found[name]

    def _compute(self, at_start: bool, alive: Alive) -> dict[str, np.ndarray]:
        lora, phase = self._config.lora, self._config.phases[0]
        if not at_start and (lora is None or lora.init_from is not None or lora.modules_to_save):
            raise CheckpointError(
                f"{self._file}: missing, or of other pairs, weights or precision.compute, and the run has trained on; "
                "restore it and the settings, or start a new run from the first weights"
            )
        if self._backend.world.is_main:
            logger.info("computing the reference's log-probabilities")
        self._backend.begin_phase(rope_theta=phase.rope_theta, capacity_factor=None, balance=phase.balance)
        with self._backend.evaluating() as model:
            return {
                name: answer_values(
                    model,
                    stream,
                    self._objective,
                    phase.batch_size,
                    self._config.parallel.micro_batch_size,
                    adapters=at_start,
                    alive=alive,
                    what="reference",
                )
                .float()
                .numpy()
                for name, stream in self._streams.items()
            }

    def _read(self, *, at_start: bool) -> dict[str, np.ndarray] | None:
        """What is kept, if it is this run's."""
        if not self._file.is_file():
            return None
        try:
            with np.load(self._file, allow_pickle=False) as file:
                kept = [file[name].tobytes().decode() for name in ("fingerprint", "weights")]
                if kept[0] != self._fingerprint or (at_start and kept[1] != self._weights()):
                    return None
                return {name: self._checked(file[name], stream) for name, stream in self._streams.items()}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            logger.warning("%s: damaged (%s)", self._file, error)
            return None

    @staticmethod
    def _checked(values_P2: np.ndarray, stream: PairStream) -> np.ndarray:
        if values_P2.shape != (stream.num_pairs, 2) or not np.isfinite(values_P2).all():
            raise ValueError("wrong shape, or not finite")
        return values_P2

    def _weights(self) -> str:
        """The files that the run began with."""
        lora, found = self._config.lora, list[tuple[str, int, int]]()
        base = None if self._config.init_from is None else initial_weights_directory(self._config.init_from)
        for directory in (base, None if lora is None else lora.init_from):
            files = [] if directory is None else sorted(path for path in directory.rglob("*") if path.is_file())
            found += [(path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files]
        return json.dumps(found)

    def _write(self, found: Mapping[str, np.ndarray]) -> None:
        ensure_writable(self._file)
        about = {"fingerprint": self._fingerprint, "weights": self._weights()}
        texts = {name: np.frombuffer(text.encode(), np.uint8) for name, text in about.items()}
        with io.BytesIO() as file:
            np.savez(file, allow_pickle=False, **texts, **found)
            try:
                write_whole(self._file, file.getvalue())
            except DataError as error:
                raise CheckpointError(str(error)) from error
