"""Which programming language a program is in: from its path, or the interpreter that its first line names.

Names are lower case, as common usage has them ("python", "c++", "javascript").
"""

import re

_EXTENSIONS = {
    "assembly": "s asm",
    "c": "c h",
    "c#": "cs csx",
    "c++": "cc cpp cxx c++ hh hpp hxx ipp tpp inl",
    "clojure": "clj cljs cljc edn",
    "cmake": "cmake",
    "css": "css scss sass less",
    "csv": "csv tsv",
    "cuda": "cu cuh",
    "dart": "dart",
    "elixir": "ex exs",
    "erlang": "erl hrl",
    "f#": "fs fsi fsx",
    "fortran": "f f77 f90 f95 f03 f08 for",
    "go": "go",
    "graphviz": "dot gv",
    "groovy": "groovy gradle",
    "haskell": "hs lhs",
    "html": "html htm xhtml",
    "ini": "ini cfg",
    "java": "java",
    "javascript": "js jsx mjs cjs",
    "json": "json jsonl geojson webmanifest",
    "julia": "jl",
    "jupyter": "ipynb",
    "kotlin": "kt kts",
    "lisp": "el lisp lsp scm ss rkt",
    "lua": "lua",
    "makefile": "mk mak",
    "objective-c": "m mm",
    "ocaml": "ml mli",
    "pascal": "pas pp dpr",
    "perl": "pl pm t",
    "php": "php phtml",
    "powershell": "ps1 psm1",
    "protobuf": "proto",
    "python": "py pyi pyw pyx",
    "r": "r rmd",
    "ruby": "rb rake gemspec",
    "rust": "rs",
    "scala": "scala sbt",
    "shell": "sh bash zsh ksh fish",
    "sql": "sql",
    "svg": "svg",
    "swift": "swift",
    "tcl": "tcl tk",
    "tex": "tex sty cls bib",
    "toml": "toml",
    "typescript": "ts tsx mts cts",
    "verilog": "v sv svh",
    "vhdl": "vhd vhdl",
    "vim": "vim",
    "visual basic": "vb bas vbs",
    "vue": "vue svelte",
    "xml": "xml xsd xsl xslt rng plist",
    "yaml": "yaml yml",
    "zig": "zig",
}
BY_EXTENSION = {extension: name for name, extensions in _EXTENSIONS.items() for extension in extensions.split()}
BY_FILE_NAME = {
    "makefile": "makefile",
    "gnumakefile": "makefile",
    "dockerfile": "dockerfile",
    "cmakelists.txt": "cmake",
    "rakefile": "ruby",
    "gemfile": "ruby",
    "jenkinsfile": "groovy",
    ".bashrc": "shell",
    ".profile": "shell",
    ".vimrc": "vim",
}
_INTERPRETERS = {
    "bash": "shell",
    "sh": "shell",
    "dash": "shell",
    "zsh": "shell",
    "ksh": "shell",
    "fish": "shell",
    "python": "python",
    "pypy": "python",
    "perl": "perl",
    "ruby": "ruby",
    "node": "javascript",
    "deno": "typescript",
    "php": "php",
    "lua": "lua",
    "tclsh": "tcl",
    "wish": "tcl",
    "rscript": "r",
    "awk": "awk",
    "gawk": "awk",
    "make": "makefile",
    "julia": "julia",
    "groovy": "groovy",
    "escript": "erlang",
    "runghc": "haskell",
    "ocaml": "ocaml",
    "guile": "lisp",
}
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
