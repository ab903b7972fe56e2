"""A sentence-transformers model from its directory, run by transformers.

What such a directory holds is read here, so that the sentence-transformers package is not needed: `modules.json` lists
the parts; supported are a transformer, a pooling (mean, cls, max, mean_sqrt_len, lasttoken) and a normalisation.
A directory without `modules.json` is a plain transformers model and pooled by mean. Nothing is ever downloaded.

Texts are cut at the length that the model was made for (`sentence_bert_config.json`), 256 to 512 tokens for most: two
documents that begin alike are alike to it. Texts are batched by length, so that little is padded.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from glmforge.data.documents.batch import DocumentBatch
from glmforge.errors import DataError
from glmforge_corpus.deduplicate.embedder import EmbedderOptions, normalise

POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_lasttoken": "last",
}
BYTES_PER_TOKEN_AT_MOST = 32
"""Texts are cut to this many bytes per token before they are tokenised: a megabyte is not read for 256 tokens."""


class SentenceModel:
    """Embeds with a transformer and a pooling. Raises `DataError` where the directory holds anything else."""

    def __init__(self, options: EmbedderOptions) -> None:
        directory = Path(options.embedder)
        self._options = options
        transformer, self._pooling = _parts(directory)
        try:
            # Nothing in the directory may be run: no code of its own, no weights that are a pickle.
            self._tokenizer = AutoTokenizer.from_pretrained(transformer, local_files_only=True, trust_remote_code=False)
            self._model = AutoModel.from_pretrained(
                transformer, local_files_only=True, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
            )
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).split("\n")[0]
            raise DataError(
                f"embedder {directory}: not loadable by transformers ({reason}); is it complete?"
            ) from error
        self._model.eval().to(options.device)
        self._max_tokens = options.max_tokens or _max_tokens(transformer, self._model.config, self._tokenizer)
        self._tokenizer.truncation_side = "right"
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token

    @property
    def dim(self) -> int:
        return int(self._model.config.hidden_size)

    def embed(self, batch: DocumentBatch) -> NDArray[np.float32]:
        """`[n, dim]`."""
        texts = [self._options.prefix + text[: BYTES_PER_TOKEN_AT_MOST * self._max_tokens] for text in batch.texts]
        vectors = np.zeros((len(texts), self.dim), np.float32)
        order = np.argsort([len(text) for text in texts], kind="stable")
        for start in range(0, len(order), self._options.batch_size):
            rows = order[start : start + self._options.batch_size]
            vectors[rows] = self._forward([texts[row] for row in rows])
        return normalise(vectors)

    @torch.inference_mode()
    def _forward(self, texts: list[str]) -> NDArray[np.float32]:
        tokens = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt"
        ).to(self._options.device)
        hidden_BTD = self._model(**tokens).last_hidden_state
        pooled: NDArray[np.float32] = pool(hidden_BTD, tokens["attention_mask"], self._pooling).cpu().numpy()
        return pooled


def pool(hidden_BTD: torch.Tensor, mask_BT: torch.Tensor, pooling: str) -> torch.Tensor:
    """`[B, D]` of the token vectors that are no padding."""
    if pooling == "cls":
        first = mask_BT.argmax(1)
        return hidden_BTD[torch.arange(len(first), device=first.device), first]
    if pooling == "last":
        last = mask_BT.shape[1] - 1 - mask_BT.flip(1).argmax(1)
        return hidden_BTD[torch.arange(len(last), device=last.device), last]
    mask_BT1 = mask_BT.unsqueeze(-1).to(hidden_BTD.dtype)
    if pooling == "max":
        return hidden_BTD.masked_fill(mask_BT1 == 0, -torch.inf).amax(1)
    count_B1 = mask_BT1.sum(1).clamp(min=1)
    return (hidden_BTD * mask_BT1).sum(1) / (count_B1.sqrt() if pooling == "mean_sqrt_len" else count_B1)


def _parts(directory: Path) -> tuple[Path, str]:
    """(directory of the transformer, pooling) as `modules.json` tells."""
    if not (directory / "modules.json").is_file():
        return directory, "mean"
    transformer, pooling = directory, ""
    for module in _json(directory / "modules.json"):
        kind, path = str(module.get("type", "")).rsplit(".", 1)[-1], directory / str(module.get("path", ""))
        if kind == "Transformer":
            transformer = path
        elif kind == "Pooling":
            pooling = _pooling(path / "config.json")
        elif kind != "Normalize":
            raise DataError(
                f"{directory / 'modules.json'}: a part '{kind}' is not supported (only Transformer, Pooling and "
                "Normalize); serve the model behind an endpoint, and pass its URL"
            )
    if not pooling:
        raise DataError(f"{directory / 'modules.json'}: lists no Pooling; is it a sentence-transformers model?")
    return transformer, pooling


def _pooling(path: Path) -> str:
    config = _json(path)
    active = [name for field, name in POOLINGS.items() if config.get(field)]
    if not active and config.get("pooling_mode") in POOLINGS.values():
        active = [config["pooling_mode"]]
    others = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if len(active) != 1 or any(name not in POOLINGS for name in others):
        raise DataError(f"{path}: one pooling of {', '.join(POOLINGS.values())} is supported, not {others or active}")
    return active[0]


def _max_tokens(transformer: Path, config: Any, tokenizer: Any) -> int:
    path = transformer / "sentence_bert_config.json"
    said = _json(path).get("max_seq_length") if path.is_file() else None
    bounds = [said, getattr(config, "max_position_embeddings", None), getattr(tokenizer, "model_max_length", None)]
    return min([int(bound) for bound in bounds if bound], default=512)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); is the model directory complete?") from error
