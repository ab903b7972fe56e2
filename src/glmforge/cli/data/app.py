"""`glmforge data`: from raw documents to token shards.

What turns documents into clean text is a package of its own, `glmforge_corpus`, and brings its commands along. Only
this module asks for it, by name.
"""

from importlib import import_module

import typer

from glmforge.cli.data import chat, mixture, needles, preferences, tokens

app = typer.Typer(no_args_is_help=True, help="From raw documents to clean, deduplicated, packed token shards.")

_corpus = import_module("glmforge_corpus.cli")
_PANELS = {
    **_corpus.PANELS,
    "Tokens": (
        tokens.tokenizer,
        tokens.fertility,
        tokens.tokenize,
        chat.chat,
        preferences.preferences,
        mixture.mix,
        tokens.pack,
        needles.needles,
    ),
}
for panel, commands in _PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
