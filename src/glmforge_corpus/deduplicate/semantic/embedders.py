"""What turns texts into vectors whose direction tells what they are about.

Three kinds, told apart by what `embedder` says: the word `lexical` (`lexical_embedder.py`: words in common, not
meaning; needs nothing), a directory of a sentence-transformers model (`sentence_model.py`), or the URL of an
OpenAI-compatible embeddings endpoint (`embedding_endpoint.py`).
"""

import functools

from glmforge.extras import needed_for
from glmforge_corpus.deduplicate.semantic.embedder import Embedder, EmbedderOptions


def check_embedder(options: EmbedderOptions) -> None:
    """Raises `DataError` for what cannot work on this machine."""
    options.check_settings()
    if options.is_directory:
        make_embedder(options)


@functools.lru_cache(maxsize=1)
def make_embedder(options: EmbedderOptions) -> Embedder:
    """The embedder that the options name, kept for the next task of this process.

    Raises:
        DataError: its model cannot be loaded.
    """
    if options.is_url:
        from glmforge_corpus.deduplicate.semantic.embedding_endpoint import EndpointEmbedder

        return EndpointEmbedder(options)
    if options.is_directory:
        with needed_for(f"embedder {options.embedder}"):
            from glmforge_corpus.deduplicate.semantic.sentence_model import SentenceModel
        return SentenceModel(options)
    from glmforge_corpus.deduplicate.semantic.lexical_embedder import LexicalEmbedder

    return LexicalEmbedder()
