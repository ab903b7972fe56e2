"""The commands that this package adds to `glmforge data`, by the panel of its help that they stand in."""

from collections.abc import Callable

from glmforge_corpus.cli import corpus, quality, shape, synthesise

PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "A corpus": (corpus.run, corpus.extract, corpus.clean, corpus.dedup, corpus.decontaminate),
    "What is in it, and what is taken": (shape.analyze, shape.sample, shape.augment),
    "Models of quality": (quality.train_quality, quality.train_toxicity),
    "Synthetic data": (synthesise.problems, synthesise.generate),
}
