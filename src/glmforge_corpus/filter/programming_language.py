"""Is a document a program, and in which language?

A path in the metadata (`path`, `file_path`, `filename`), or else the id, is believed if its name or extension is one
that only programs have; then a `#!` line. Extensions that a page of text may have as well (.html, .php, .json) and the
path of a URL are no evidence: there, as where nothing is named, the text decides. Programs here are also markup, style
sheets and configuration (HTML, CSS, JSON, YAML). Names are lower case, as common usage has them ("python", "c++").

Texts are classified by Google's Magika (Fratantonio et al. 2024), a small neural network in a wheel with its weights.
It takes milliseconds per text, so it sees only texts with signs of syntax: one ordinary web page in a hundred. What it
calls markup, style sheets or configuration is a program here, too; what it calls Markdown, CSV or TeX is not.
"""

import functools
import re
from typing import TYPE_CHECKING, Any

from glmforge.extras import needed_for

if TYPE_CHECKING:
    from magika import Magika
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from glmforge.data.documents.batch import DocumentBatch

_EXTENSIONS = {
    "assembly": "s asm", "c": "c h", "c#": "cs csx", "c++": "cc cpp cxx c++ hh hpp hxx ipp tpp inl",
    "clojure": "clj cljs cljc edn", "cmake": "cmake", "css": "css scss sass less", "csv": "csv tsv", "cuda": "cu cuh",
    "dart": "dart", "elixir": "ex exs", "erlang": "erl hrl", "f#": "fs fsi fsx", "fortran": "f f77 f90 f95 f03 f08 for",
    "go": "go", "graphviz": "dot gv", "groovy": "groovy gradle", "haskell": "hs lhs", "html": "html htm xhtml",
    "ini": "ini cfg", "java": "java", "javascript": "js jsx mjs cjs", "json": "json jsonl geojson webmanifest",
    "julia": "jl", "jupyter": "ipynb", "kotlin": "kt kts", "lisp": "el lisp lsp scm ss rkt", "lua": "lua",
    "makefile": "mk mak", "objective-c": "m mm", "ocaml": "ml mli", "pascal": "pas pp dpr", "perl": "pl pm t",
    "php": "php phtml", "powershell": "ps1 psm1", "protobuf": "proto", "python": "py pyi pyw pyx", "r": "r rmd",
    "ruby": "rb rake gemspec", "rust": "rs", "scala": "scala sbt", "shell": "sh bash zsh ksh fish", "sql": "sql",
    "svg": "svg", "swift": "swift", "tcl": "tcl tk", "tex": "tex sty cls bib", "toml": "toml",
    "typescript": "ts tsx mts cts", "verilog": "v sv svh", "vhdl": "vhd vhdl", "vim": "vim",
    "visual basic": "vb bas vbs", "vue": "vue svelte", "xml": "xml xsd xsl xslt rng plist", "yaml": "yaml yml",
    "zig": "zig",
}  # fmt: skip
BY_EXTENSION = {extension: name for name, extensions in _EXTENSIONS.items() for extension in extensions.split()}
BY_FILE_NAME = {
    "makefile": "makefile", "gnumakefile": "makefile", "dockerfile": "dockerfile", "cmakelists.txt": "cmake",
    "rakefile": "ruby", "gemfile": "ruby", "jenkinsfile": "groovy", ".bashrc": "shell", ".profile": "shell",
    ".vimrc": "vim",
}  # fmt: skip
_INTERPRETERS = {
    "bash": "shell", "sh": "shell", "dash": "shell", "zsh": "shell", "ksh": "shell", "fish": "shell",
    "python": "python", "pypy": "python", "perl": "perl", "ruby": "ruby", "node": "javascript", "deno": "typescript",
    "php": "php", "lua": "lua", "tclsh": "tcl", "wish": "tcl", "rscript": "r", "awk": "awk", "gawk": "awk",
    "make": "makefile", "julia": "julia", "groovy": "groovy", "escript": "erlang", "runghc": "haskell",
    "ocaml": "ocaml", "guile": "lisp",
}  # fmt: skip
_SHEBANG = re.compile(rb"#![ \t]*(?:\S*/)?([^/\s]+)(?:[ \t]+(?:-\S+[ \t]+|\w+=\S*[ \t]+)*(?:\S*/)?([^/\s]+))?")


def language_of_path(path: str) -> str | None:
    """The language that a file's name tells, or None."""
    name = path.partition("?")[0].partition("#")[0].rpartition("/")[2].lower()
    stem, dot, extension = name.rpartition(".")
    return BY_FILE_NAME.get(name) or (BY_EXTENSION.get(extension) if dot and stem else None)


def language_of_interpreter(text: bytes) -> str | None:
    """The language that a program's `#!` line tells, or None; reads its first 200 bytes."""
    if not text.startswith(b"#!"):
        return None
    found = _SHEBANG.match(text[:200].split(b"\n", 1)[0])
    if not found:
        return None
    program = (found[2] if found[1] == b"env" and found[2] else found[1]).decode("ascii", "replace").lower()
    return _INTERPRETERS.get(program) or _INTERPRETERS.get(program.rstrip("0123456789.-"))


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


CODE = "code"
PATH_KEYS = ("path", "file_path", "filename", "max_stars_repo_path")

_NO_EVIDENCE = frozenset({"html", "php", "xml", "csv", "tex", "json", "vue"})


@dataclass(frozen=True, slots=True)
class CodeFound:
    """What the detector says of a batch.

    Attributes:
        is_code: `[n]`.
        scores: `[n]`, the probability of being a program; 1 where a name says so, 0 for all others.
        languages: row -> programming language, of the programs.
    """

    is_code: NDArray[np.bool_]
    scores: NDArray[np.float32]
    languages: dict[int, str]


def detect_code(batch: DocumentBatch, *, by_text: bool = True) -> CodeFound:
    """Find the programs of a batch: by their names, and otherwise by their texts, unless disabled."""
    scores, languages = np.zeros(len(batch), np.float32), dict[int, str]()
    text, offsets = batch.text_bytes, batch.text_offsets
    for row, (name, metadata) in enumerate(zip(batch.ids, batch.table.column("metadata").to_pylist(), strict=True)):
        path = _path(metadata) or name
        named = None if "://" in path else language_of_path(path)
        start, stop = offsets[row], offsets[row + 1]
        certain = None if named in _NO_EVIDENCE else named
        certain = certain or language_of_interpreter(text[start : min(start + 200, stop)].tobytes())
        if certain:
            languages[row], scores[row] = certain, 1
        elif by_text and (found := language_of_text(text[start:stop].tobytes())):
            languages[row], scores[row] = named or found[0], found[1]
    is_code = np.zeros(len(batch), np.bool_)
    is_code[list(languages)] = True
    return CodeFound(is_code, scores, languages)


def _path(metadata: str | None) -> str | None:
    """The path that metadata tell; they are parsed only if they have one of the keys."""
    if not metadata or not any(key in metadata for key in PATH_KEYS):
        return None
    values = orjson.loads(metadata)
    return next((value for key in PATH_KEYS if isinstance(value := values.get(key), str)), None)
