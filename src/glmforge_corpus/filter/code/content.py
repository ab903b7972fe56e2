"""Which programming language a text is in, where no file name says it: Google's Magika (Fratantonio et al. 2024).

Magika is a small neural network for the content of files, in a wheel with its weights; it takes milliseconds per text,
so a text is shown to it only if it has signs of syntax at all. Of ordinary web pages that is one in a hundred. What it
calls markup, style sheets or configuration is a program here, too; what it calls Markdown, CSV or TeX is not.
"""

import functools
from typing import TYPE_CHECKING, Any

from glmforge.extras import needed_for

if TYPE_CHECKING:
    from magika import Magika

MIN_BYTES = 32
"""A shorter text tells too little: "123" might be anything."""

_READ_BYTES = 2048
_SYNTAX = b'{}()[];=<>_/\\#$&|*+@"`'
MIN_SYNTAX = 0.02
"""Share of these characters in the beginning of a text below which it is taken for prose."""

# fmt: off
_SAME_NAME = (
    "awk", "c", "clojure", "cmake", "cobol", "coffeescript", "css", "dart", "dockerfile", "elixir", "erlang",
    "fortran", "go", "groovy", "haskell", "hcl", "html", "ini", "java", "javascript", "json", "julia", "kotlin",
    "lisp", "lua", "makefile", "matlab", "ocaml", "pascal", "perl", "php", "powershell", "prolog", "python", "r",
    "ruby", "rust", "scala", "shell", "smali", "solidity", "sql", "swift", "tcl", "toml", "typescript", "verilog",
    "vhdl", "vue", "xml", "yaml", "zig",
)
# fmt: on
LANGUAGES = {name: name for name in _SAME_NAME} | {
    "appleplist": "xml",
    "asm": "assembly",
    "batch": "batch",
    "bazel": "python",
    "cpp": "c++",
    "cs": "c#",
    "csproj": "xml",
    "erb": "html",
    "gemfile": "ruby",
    "gemspec": "ruby",
    "gradle": "groovy",
    "handlebars": "html",
    "ipynb": "jupyter",
    "jinja": "html",
    "objectivec": "objective-c",
    "proto": "protobuf",
    "scss": "css",
    "textproto": "protobuf",
    "twig": "html",
    "vba": "visual basic",
    "vcxproj": "xml",
}
"""Magika's labels that are programs, and our names for them (`programming_language`)."""


def language_of_text(text: bytes) -> tuple[str, float] | None:
    """(programming language, probability) if the UTF-8 text is a program, else None."""
    if len(text) < MIN_BYTES or not _has_syntax(text):
        return None
    found = content_model().identify_bytes(text)
    language = LANGUAGES.get(str(found.output.label))
    return (language, float(found.score)) if language else None


def _has_syntax(text: bytes) -> bool:
    head = text[:_READ_BYTES]
    return len(head) - len(head.translate(None, _SYNTAX)) >= MIN_SYNTAX * len(head)


@functools.cache
def content_model() -> "Magika":
    """The model, on one thread: the pipeline has a process per core.

    Raises:
        MissingPackageError: magika is not installed.
    """
    with needed_for("language.code: true (programs told by their text; `code: names` goes by file names alone)"):
        import magika
        import onnxruntime

    class OneThread(magika.Magika):
        def _init_onnx_session(self) -> Any:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            return onnxruntime.InferenceSession(self._model_path, options, providers=["CPUExecutionProvider"])

    return OneThread()
