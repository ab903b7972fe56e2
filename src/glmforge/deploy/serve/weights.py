"""Weights that a trainer sends while the server runs. An update has these requests, in this order:

    POST /pause                                             no step is computed from now on; requests wait
    POST /weights/begin                                     {"tensors": {name: [type, shape]}}: what must be sent
    POST /weights/bucket   tensors as a safetensors file    {"checksums": {name: checksum}}
    POST /weights/commit   {"version": 7}                   caches of the old weights are forgotten
    POST /resume                                            refused between begin and commit
    GET  /weights                                           {"version": 7}; null before the first update

Names are those of published checkpoints. A checksum is the CRC-32 of what the model holds after it was written, read
where the engine reads it. The routes exist only with --allow-weight-updates, which needs API keys: who sends weights
decides what the model says.
"""

import asyncio
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from glmforge.checkpoint.convert.hf_names import published_pieces
from glmforge.checkpoint.format.safetensors_header import TYPES
from glmforge.checkpoint.values import crc32_of
from glmforge.config.parameters import parameter_table
from glmforge.errors import GlmforgeError
from glmforge.generate.asynchronous import AsyncEngine
from glmforge.generate.runner import WholeModel
from glmforge.protocol.body import read_body
from glmforge.protocol.request import ApiError, invalid

MAX_BUCKET_BYTES = 4 << 30
_NAME_OF = {dtype: name for name, dtype in TYPES.items()}


class WeightUpdates:
    """Of an engine whose weights are one whole model's; raises `GlmforgeError` for others."""

    def __init__(self, engine: AsyncEngine) -> None:
        runner = engine.engine.runner
        if not isinstance(runner, WholeModel):
            raise GlmforgeError("--allow-weight-updates: needs one process and no --adapter; leave them out")
        self.engine, self.is_paused = engine, False
        self.version: int | None = None
        state = runner.model.state_dict()
        pieces = [piece for row in parameter_table(runner.config).values() for piece in published_pieces(row)]
        self._targets = {piece.disk_name: state[piece.name][piece.index] for piece in pieces}
        self._missing: set[str] | None = None
        """Tensors that the present update has not brought yet; None outside one."""

    async def answer(self, path: str, body: bytes) -> dict[str, Any]:
        """Of one of the requests above. Raises `ApiError`."""
        if path == "/pause":
            await self._pause()
        elif path == "/resume":
            if self._missing is not None:
                raise ApiError(409, "invalid_request", "an update of the weights is not complete; commit it first")
            self._resume()
        elif path == "/weights/begin":
            await self._pause()
            self._missing = set(self._targets)
            shapes = {name: [_NAME_OF[one.dtype], list(one.shape)] for name, one in self._targets.items()}
            return {"tensors": shapes}
        elif path == "/weights/bucket":
            return {"checksums": await asyncio.to_thread(self._write, body)}
        elif path == "/weights/commit":
            self._commit(read_body(body).get("version"))
        return {"version": self.version}

    async def _pause(self) -> None:
        if not self.is_paused:
            self.is_paused = True
            await self.engine.pause()

    def _resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self.engine.resume()

    @torch.no_grad()
    def _write(self, body: bytes) -> dict[str, int]:
        if self._missing is None:
            raise ApiError(409, "invalid_request", "no update of the weights has begun")
        try:
            tensors = load(body)
        except (SafetensorError, ValueError, KeyError) as error:
            raise invalid(None, f"is not a safetensors file ({error})") from None
        for name, tensor in tensors.items():
            target = self._targets.get(name)
            if target is None or target.shape != tensor.shape or target.dtype != tensor.dtype:
                raise invalid(None, f"{name[:200]!r}: {tensor.dtype} {list(tensor.shape)} is not a tensor of the model")
        for name, tensor in tensors.items():
            self._targets[name].copy_(tensor)
        self._missing -= tensors.keys()
        return {name: crc32_of(self._targets[name]) for name in tensors}

    def _commit(self, version: object) -> None:
        if self._missing is None or self._missing:
            number = "no update has begun" if self._missing is None else f"{len(self._missing):,} tensors are missing"
            raise ApiError(409, "invalid_request", f"the update cannot be committed: {number}")
        if type(version) is not int:
            raise invalid("version", "must be an integer")
        self.engine.engine.weights_changed(version=version)
        self.version, self._missing = version, None
