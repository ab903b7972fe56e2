import numpy as np
import pytest

from glmforge.data.documents.document import Document
from glmforge.data.tokens import tokenize
from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenize import tokenize_corpus
from glmforge.errors import DataError

TEXTS = ["The forge is hot.\n", "Größe <|endoftext|> 你好", "x", "even numbers " * 20]
DOCUMENTS = [Document(str(i), text, "memory") for i, text in enumerate(TEXTS)]


def test_each_document_is_its_ids_and_end_of_text(tokenizer, tokenizer_dir, tmp_path):
    info = tokenize_corpus(DOCUMENTS, tokenizer_dir, tmp_path / "s", source="memory")
    shard = TokenShard(tmp_path / "s")
    shard.check_tokenizer(tokenizer)
    assert [shard.document(i).tolist() for i in range(4)] == [
        [*tokenizer.encode(text), tokenizer.end_of_text_id] for text in TEXTS
    ]
    assert info == shard.info
    assert info.num_text_bytes == sum(len(text.encode()) for text in TEXTS)
    assert info.bytes_per_token == info.num_text_bytes / shard.num_tokens


def test_result_does_not_depend_on_how_documents_are_batched(tokenizer_dir, tmp_path, monkeypatch):
    whole = tokenize_corpus(DOCUMENTS, tokenizer_dir, tmp_path / "a")
    monkeypatch.setattr(tokenize, "BATCH_CHARACTERS", 10)
    seen = []
    assert tokenize_corpus(DOCUMENTS, tokenizer_dir, tmp_path / "b", progress=seen.append) == whole
    assert [progress.num_documents for progress in seen] == [1, 2, 4]
    assert seen[-1].num_tokens == whole.num_tokens
    assert (tmp_path / "a.idx").read_bytes() == (tmp_path / "b.idx").read_bytes()


def test_a_failing_corpus_leaves_no_shard(tokenizer_dir, tmp_path):
    def documents():
        yield DOCUMENTS[0]
        raise DataError("line 2 is broken")

    with pytest.raises(DataError, match="line 2 is broken"):
        tokenize_corpus(documents(), tokenizer_dir, tmp_path / "s")
    with pytest.raises(DataError, match="no documents"):
        tokenize_corpus([], tokenizer_dir, tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


def test_number_of_workers(tokenizer_dir, tmp_path):
    with pytest.raises(DataError, match="num_workers 0"):
        tokenize_corpus(DOCUMENTS, tokenizer_dir, tmp_path / "s", num_workers=0)


def test_token_ids_fit_their_type(tokenizer_dir, tmp_path):
    tokenize_corpus(DOCUMENTS, tokenizer_dir, tmp_path / "s")
    assert TokenShard(tmp_path / "s").document(0).dtype == np.uint16
