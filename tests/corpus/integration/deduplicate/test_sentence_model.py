"""Sentence-transformers directories: a tiny random BERT, made here, against pooling by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from glmforge.data.documents.batch import DocumentBatch
from glmforge.errors import DataError
from glmforge_corpus.deduplicate.embedder import EmbedderOptions
from glmforge_corpus.deduplicate.semantic import make_embedder
from glmforge_corpus.deduplicate.sentence_model import POOLINGS, pool

transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "a", "mat", "dog", "ran", "far", "away"]
TEXTS = ["the cat sat", "a dog ran far away on the mat", "cat", "the mat sat on the cat the mat sat on the cat"]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("model")
    (directory / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(str(directory / "vocab.txt")).save_pretrained(directory)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, initializer_range=0.5,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(directory)
    write_parts(directory, "pooling_mode_mean_tokens")
    return directory


def write_parts(directory: Path, pooling: str, last: str = "sentence_transformers.models.Normalize") -> None:
    types = ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling", last]
    modules = [{"idx": i, "path": "" if i == 0 else f"{i}_Part", "type": kind} for i, kind in enumerate(types)]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8}))
    (directory / "1_Part").mkdir(exist_ok=True)
    (directory / "1_Part" / "config.json").write_text(json.dumps(dict.fromkeys(POOLINGS, False) | {pooling: True}))


def embed(directory: Path, texts: list[str], **options: object) -> np.ndarray:
    make_embedder.cache_clear()
    embedder = make_embedder(EmbedderOptions(embedder=str(directory), **options))
    return embedder.embed(DocumentBatch.from_columns([""] * len(texts), texts, ""))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_are_those_of_the_model_and_pooling_by_hand(model_dir: Path, pooling: str) -> None:
    write_parts(model_dir, pooling)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    model = transformers.AutoModel.from_pretrained(model_dir).eval()
    expected = []
    for text in TEXTS:
        tokens = tokenizer([text], truncation=True, max_length=8, return_tensors="pt")
        with torch.no_grad():
            hidden = model(**tokens).last_hidden_state[0].numpy()
        by_hand = {"mean": hidden.mean(0), "mean_sqrt_len": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}
        vector = (by_hand | {"max": hidden.max(0)})[POOLINGS[pooling]]
        expected.append(vector / np.linalg.norm(vector))
    # Padding changes the shapes of float32 products of two layers: some last bits of numbers below 1.
    assert np.allclose(embed(model_dir, TEXTS), expected, atol=1e-5)
    assert np.allclose(embed(model_dir, TEXTS, batch_size=1), expected, atol=1e-5)
    write_parts(model_dir, "pooling_mode_mean_tokens")


def test_padding_on_the_left_is_not_pooled() -> None:
    hidden = torch.arange(8.0).reshape(1, 4, 2)
    mask = torch.tensor([[0, 0, 1, 1]])
    root = 2**0.5
    expected = {"mean": [5, 6], "cls": [4, 5], "max": [6, 7], "mean_sqrt_len": [10 / root, 12 / root], "last": [6, 7]}
    for name, values in expected.items():
        assert pool(hidden, mask, name)[0].tolist() == pytest.approx(values)


def test_texts_are_cut_at_the_models_length_or_the_one_asked_for(model_dir: Path) -> None:
    vectors = embed(model_dir, ["the cat sat on a mat dog", "the cat sat on a mat ran"])  # [CLS] + 6 words + [SEP]
    assert np.allclose(vectors[0], vectors[1], atol=1e-6)
    vectors = embed(model_dir, ["the cat sat on a mat dog", "the cat sat on a mat ran"], max_tokens=9)
    assert not np.allclose(vectors[0], vectors[1], atol=1e-3)


def test_a_prefix_is_put_before_every_text(model_dir: Path) -> None:
    assert np.allclose(embed(model_dir, ["cat"], prefix="the "), embed(model_dir, ["the cat"]), atol=1e-6)


def test_a_plain_transformers_model_is_pooled_by_mean(model_dir: Path) -> None:
    with_parts = embed(model_dir, TEXTS[:3], max_tokens=8)
    (model_dir / "modules.json").rename(model_dir / "aside")
    plain = embed(model_dir, TEXTS[:3], max_tokens=8)
    (model_dir / "aside").rename(model_dir / "modules.json")
    assert np.array_equal(with_parts, plain)


def test_parts_that_are_not_known_are_refused(model_dir: Path, tmp_path: Path) -> None:
    write_parts(model_dir, "pooling_mode_mean_tokens", last="sentence_transformers.models.Dense")
    with pytest.raises(DataError, match="a part 'Dense' is not supported"):
        embed(model_dir, TEXTS)
    write_parts(model_dir, "pooling_mode_weightedmean_tokens")
    with pytest.raises(DataError, match="one pooling of mean"):
        embed(model_dir, TEXTS)
    write_parts(model_dir, "pooling_mode_mean_tokens")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match="not loadable by transformers"):
        embed(tmp_path, TEXTS)
