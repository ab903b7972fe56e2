"""Which programming language a program is in, by what it says.

Each language has signs, regular expressions that end at a definite place; all are looked for at once by hyperscan in
the first kilobytes. A sign counts once however often it stands there, so that one habit does not outvote several; a
strong sign (marked "!") counts threefold. The language with most wins if it has enough of them and there is no draw.
"""

import functools
from typing import Any

import hyperscan
import numpy as np

READ_BYTES = 2048
"""Of a program's beginning, in which signs are looked for."""

MIN_SCORE = 2
_STRONG = 3

_SIGNS: dict[str, tuple[str, ...]] = {
    "c": (
        r"!^\s*#\s*include\s*[<\"][\w/+-]+\.h[>\"]",
        r"^\s*#\s*(?:ifndef|ifdef|define|endif|if) ",
        r"^typedef (?:struct|enum|union)\b",
        r"^(?:static|extern) [\w *]{2,40}\(",
        r"\w->\w",
        r"^\s*\}\s*\w+;$",
        r"\bsizeof\b",
        r"^(?:int|void|char) \*?\w+\(",
    ),
    "c++": (
        r"!^\s*#\s*include\s*<[a-z_]+>",
        r"!\bstd::",
        r"!^\s*template\s*<",
        r"!^\s*namespace \w+\s*(?:\{|$)",
        r"^\s*using namespace ",
        r"!^\s*(?:public|private|protected):\s*$",
        r"\bconst \w+\s?&",
        "_cast<",
        r"\bnullptr\b",
        r"^\s*class \w+",
        r"\boperator[=<(\[]",
        r"^\s*#\s*include\s*[<\"][\w/.+-]+\.h(?:pp)?[>\"]",
        r"\w::\w+\(",
    ),
    "cuda": (
        r"!\b__(?:global|device|host|shared)__\b",
        "!<<<",
        r"\bblockIdx\.",
        r"\bthreadIdx\.",
        r"\bcuda[A-Z]\w+\(",
    ),
    "java": (
        r"!^import (?:static )?[a-z]\w*(?:\.\w+){1,8};",
        r"^package [\w.]+;",
        r"\b(?:public|private|protected) (?:static |final |abstract )*class ",
        r"!@Override\b",
        r"\b(?:public|private|protected) (?:static |final )*[\w<>\[\]]+ \w+\(",
        r"\bSystem\.out\.",
        r"\) throws \w",
        r"\bfinal \w+ \w+ = ",
        r"^ \* @(?:param|author|since|return)\b",
    ),
    "c#": (
        r"!^\s*using (?:static )?[A-Z]\w*(?:\.\w+)*;",
        r"^\s*namespace [A-Z][\w.]*[;{]?\s*$",
        r"!\{ get; ",
        r"\bConsole\.Write",
        r"^\s*#region\b",
        r"\bpublic (?:static |override |virtual |async |readonly )*(?:string|bool|int|void|class|Task) ",
        r"/// <\w+>",
        r"\binternal \w+ ",
    ),
    "javascript": (
        r"\b(?:const|let) [\w${}, ]{1,60} = ",
        r"\bvar \w+ = ",
        r"\bfunction\s?\w*\([\w$, ]*\) ?\{",
        r"\) => ",
        r"!\brequire\(['\"]",
        r"!\bmodule\.exports\b",
        r"^\s*export (?:default|const|function) ",
        r"!^import [\w{}*, ]{1,80} from ['\"]",
        "===",
        r"\bdocument\.",
        r"\bconsole\.log\(",
        "'use strict'",
    ),
    "typescript": (
        r"!^\s*(?:export )?(?:interface|type) \w+(?:<[^\n>]{1,40}>)?(?: extends \w+)? ?[={]",
        r"!: (?:string|number|boolean|unknown|any)[;,)\[ ]",
        r"\bas const\b",
        r"\breadonly \w",
        "!^import type ",
        r"\): [\w<>\[\]]+ (?:=>|\{)",
        r"^import [\w{}*, ]{1,80} from ['\"]",
        r"\b(?:const|let) [\w${}, ]{1,60} = ",
        r"\) => ",
        r"^\s*export (?:default|const|function|class|enum) ",
        "===",
        r"\bz\.\w+\(",
        r"\b(?:describe|it|test|expect)\(",
    ),
    "go": (
        r"!^package \w+\s*$",
        r"!^func (?:\(\w+ \*?\w+\) )?\w+\(",
        " := ",
        r"!^import \($",
        r"!\bif err != nil\b",
        r"!^type \w+ (?:struct|interface) \{",
        r"\bfmt\.\w",
        r"\bdefer ",
        r"^\t\"[\w./-]+\"$",
        r"\bnil\b",
    ),
    "rust": (
        r"!\bfn \w+(?:<[^\n>]{1,40}>)?\(",
        r"!\blet mut ",
        r"!^\s*use (?:crate|std|super|core|\w+)::",
        r"!^\s*impl(?:<[^\n>]{1,40}>)? ",
        r"!\bpub (?:fn|struct|enum|mod|use|trait|type|const)\b",
        r"!^\s*#!?\[\w+",
        r"\w!\(",
        "-> (?:Result|Option|Self|&)",
        "&mut ",
        r"\.unwrap\(\)",
        "^//[!/] ",
        r"\bSome\(",
        r"^\s*mod \w+;",
        r"&self\b",
    ),
    "ruby": (
        r"!^\s*def (?:self\.)?\w+[?!]?(?:\([^\n)]{0,60}\))?\s*$",
        r"^\s*end\s*$",
        r"!\bdo \|\w",
        r"!^\s*require(?:_relative)? ['\"]",
        r"\battr_\w+ :",
        r"^\s*module [A-Z]",
        r"^\s*class [A-Z]\w*(?: < [\w:]+)?\s*$",
        r"\.each\b",
        r"\bputs ",
        "^# frozen_string_literal",
        r":\w+ => ",
        r"@\w+ = ",
    ),
    "elixir": (
        r"!^\s*defmodule [A-Z]",
        r"!^\s*defp? \w+[^\n]{0,80} do$",
        r"!\|> ",
        r"^\s*@(?:doc|moduledoc|spec|type)\b",
        r"%\{\w",
        r"^\s*alias [A-Z]",
        r"^\s*end\s*$",
        r"^\s*use [A-Z]",
        r"\bdo:? ",
    ),
    "php": (
        r"!<\?php\b",
        r"!\$this->",
        r"\bfunction \w+\([^\n)]{0,40}\$\w",
        r"^\s*use [A-Z]\w+(?:\\\w+)+;",
        r"^\s*namespace [A-Z]\w+(?:\\\w+)*;",
        r"\becho \$",
        r"\$\w+ = ",
    ),
    "perl": (
        r"!^\s*(?:my|our|local) [$@%(]",
        r"!^use (?:strict|warnings|utf8|vars|constant|parent|base)\b",
        r"!^\s*sub \w+\s*\{?$",
        r"\$_\b",
        "=~ ",
        r"!@_\b",
        r"->\{",
        r"!^package \w+(?:::\w+)*;",
        r"\$self\b",
        r"^=(?:head[1-4]|pod|cut|over|item)\b",
        "!^__(?:END|DATA)__$",
        r"\bqw[(/]",
        "^1;$",
        "^!!perl",
    ),
    "python": (
        r"!^\s*(?:async )?def \w+\([^\n]{0,120}:\s*$",
        r"!^\s*from [\w.]+ import ",
        r"!^import \w+(?:\.\w+)*(?: as \w+)?\s*$",
        r"^\s*class \w+[^\n]{0,60}:\s*$",
        r"^\s*(?:if|elif|for|while|with|try|except|else)\b[^\n;{}]{0,80}:\s*$",
        r"\bself\.\w",
        r"^\s*(?:raise|except) [A-Z]",
        r"^\s*\"\"\"",
        r"\bNone\b",
        r"!\b__(?:init|name|all|future)__\b",
        r"^\s*@\w+(?:\.\w+)*(?:\(|$)",
        r"\bassert \w",
        r"^\s*def \w+\(",
    ),
    "shell": (
        r"!^\s*(?:fi|done|esac)\s*(?:[;#)]|$)",
        r"^\s*(?:if|elif|while) !?\s*\[",
        r"!; ?(?:then|do)\s*$",
        r"\$\{\w",
        r"^\s*echo ",
        r"\"\$\w",
        r"^\s*(?:export|local|declare) \w+=",
        r"\$\(\w",
        r"^\w+\(\) ?\{",
        "^[A-Z_]+=",
        r" 2>&1\b",
        r"\|\| (?:exit|return|true)\b",
        r">\s?/dev/null",
        r"^\s*alias \w+=",
        r"\$[1@#?]",
    ),
    "powershell": (
        r"!^\s*(?:\[CmdletBinding\(|param\s*\()",
        r"!\b(?:Get|Set|New|Write|Remove|Invoke|Test|Add)-[A-Z]\w+",
        r"\$(?:true|false|null|env:)",
        " -(?:eq|ne|like|not|and) ",
    ),
    "lua": (
        r"!^\s*local function ",
        r"^\s*local \w+(?:, ?\w+)* = ",
        r"!^\s*local \w+\s*=\s*require\b",
        r"^\s*function [\w.:]+\(",
        r"\bthen\s*$",
        r" \.\. ",
        r"^\s*end[,)]?\s*$",
        "~=",
        r"^\s*--",
        r"\bnil\b",
        r"^return \w",
    ),
    "kotlin": (
        r"!\bfun (?:<[^\n>]{1,30}> )?(?:\w+\.)?\w+\(",
        r"\bval \w+(?:: [\w<>?]+)? = ",
        r"!^\s*(?:data|sealed|open|internal) class ",
        r"!\bcompanion object\b",
        r"\?\.let\b",
        r"^import [a-z]\w*(?:\.\w+)+$",
        r"^package [\w.]+$",
        r"\boverride fun ",
        r"\): [A-Z]\w+ (?:=|\{)",
    ),
    "swift": (
        r"!\bfunc \w+(?:<[^\n>]{1,40}>)?\(",
        r"!\bguard (?:let|case|!?\w)",
        r"\bif let \w",
        r"!^import (?:Foundation|UIKit|SwiftUI|XCTest|Dispatch)\b",
        r"\bvar \w+: ",
        r"\blet \w+ = ",
        r"^\s*(?:public |open |final |private |internal )*extension \w+",
        r"\bself\.\w",
        r"\)? (?:throws )?-> \w+ \{",
        r"!^//  \w+\.swift$",
        r"\bpublic init\b",
        "^@(?:objc|available|main)",
        r"!\bXCTAssert",
    ),
    "scala": (
        r"\bdef \w+(?:\[\w+\])?(?:\([^\n)]{0,60}\))?(?:: [\w\[\]]+)? = ",
        r"!\bcase class ",
        r"!^\s*object \w",
        r"\bval \w+ = ",
        r"\bimplicit ",
        r"!^import [\w.]+(?:\._|\.\{)",
        r"^package [\w.]+$",
        r"^\s*trait ",
    ),
    "haskell": (
        r"!^\w+ :: ",
        r"!^module [A-Z][\w.]*",
        r"!^import (?:qualified +)?[A-Z][\w.]*",
        r"\bwhere\s*$",
        " <- ",
        r"^data [A-Z]\w* =",
        r"^\{-# ",
    ),
    "ocaml": (
        r"!^let (?:rec )?\w+[^\n=]{0,60} =",
        r"^\s*\| [A-Z]\w*[^\n]{0,40} ->",
        r"!^open [A-Z]\w*$",
        r"\bmatch \w+ with\b",
        r"\(\* ",
        r" in\s*$",
    ),
    "erlang": (
        r"!^-(?:module|export|include|define|record|spec)\(",
        r"^\w+\([^\n)]{0,60}\) ->",
        "^%+ ",
    ),
    "clojure": (
        r"!^\(ns [\w.-]+",
        r"!^\(defn-? ",
        r"!\(:require\b",
        r"\(let \[",
    ),
    "lisp": (
        r"!^\s*\((?:defun|defvar|defmacro|defcustom|defgroup|defconst|defface|defsubst)\b",
        r"!\(setq ",
        r"!^\(require '",
        "^;;+ ",
        r"\((?:let\*?|lambda|define|cond) ",
    ),
    "r": (
        r"!\w <- function\(",
        r"\w <- ",
        r"!\blibrary\(\w+\)",
        "%>%",
        r"\bc\([\d\"']",
        "^#' ",
        r"\bTRUE\b",
        r"!\btest_that\(",
    ),
    "julia": (
        r"!^using [A-Z]\w*",
        r"^\s*end\s*$",
        r"!^function \w+(?:\{|\()",
        r"^\s*@\w+ ",
        r"::[A-Z]\w+",
        r"\bmutable struct ",
    ),
    "tcl": (
        r"!^\s*proc \w[\w:]* \{",
        r"^\s*set \w+ [\[\"$\w]",
        r"\[expr ",
        r"!^\s*(?:namespace eval|package require) ",
        r"\$\w+\]",
        r"^\s*\} else(?:if)? ?\{",
        r"^\s*foreach \w+ \$",
        r"!^\s*(?:start_server|test|tags) \{",
        r"\bputs ",
    ),
    "vim": (
        r"!^\s*(?:function|fu|fun)!? \w[\w:#]*\(",
        r"!^\s*(?:endif|endfunction|endfunc|endfor)\s*$",
        r"^\s*let [sgblv]:\w",
        r"!^\s*(?:syn|syntax|hi|highlight) \w",
        r"^\" ",
        r"^\s*(?:set|setlocal) \w+",
        r"^\s*(?:au|autocmd|command|nnoremap|noremap)!? ",
    ),
    "sql": (
        r"!(?i)^\s*(?:create|alter) (?:or replace )?(?:table|index|view|function|type|operator|extension"
        r"|sequence|aggregate)\b",
        r"!(?i)^\s*insert into ",
        r"(?i)^\s*select\b",
        r"!(?i)^\s*drop (?:table|index|function|view|database)\b",
        r"(?i)\bprimary key\b",
        r"(?i)\bvarchar\(",
        r"(?i)^\s*from \w",
        r"(?i)^\s*where \w",
        "^-- ",
        r"!(?i)^\s*(?:grant|revoke) \w",
    ),
    "fortran": (
        r"!(?i)^\s*(?:subroutine|program|module|end subroutine|implicit none|recursive)\b",
        r"(?i)^\s*(?:integer|real|double precision|character|logical)\b[^\n]{0,40}::",
        r"(?i)\bend (?:if|do)\b",
        r"(?i)^\s{5,}(?:integer|real|call|dimension|return|double precision)\b",
        r"(?i)\bcall \w+\(",
    ),
    "pascal": (
        r"!(?i)^\s*(?:unit|program) \w+;",
        r"!(?i)^\s*procedure \w",
        ":= ",
        r"(?i)^\s*begin\s*$",
        r"(?i)^\s*end[;.]\s*$",
        r"(?i)^uses\b",
    ),
    "css": (
        r"^\s*[.#]?[\w-]+(?:[ ,>.:#][\w .:#>,-]{0,60})? ?\{\s*$",
        r"!^\s*(?:color|margin|padding|width|height|display|font|background|border|position"
        r"|float)[\w-]*: ?[^\n;{]{1,40};",
        r"!^@(?:media|import|charset|keyframes|font-face)\b",
        r"\d(?:px|em|rem|%);",
    ),
    "html": (
        "!<!(?:DOCTYPE|doctype) html",
        r"!<html\b",
        r"</?(?:div|span|p|a|body|head|table|ul|li|script|link|meta|h[1-6]|button|input|tr|td)\b",
        "!</(?:head|title|script|body)>",
        r"\bhref=\"",
    ),
    "xml": (
        r"!<\?xml\b",
        r"!\bxmlns(?::\w+)?=",
        r"^\s*</?\w+:\w+",
        r"</\w+>\s*$",
        r"^\s*<\w[\w.-]*>",
    ),
    "json": (
        r"^\s*\"[^\"\n]{1,60}\"\s*:\s*[\"\[{\dtfn-]",
        r"![{,\[]\"[\w-]{1,40}\":",
        r"!^\s*\"[^\"\n]{1,60}\": [\"\[{\dtfn-][^\n;]{0,200}[,{\[\d\"\]]$",
    ),
    "yaml": (
        r"!^---\s*$",
        r"!^\s*- \w[\w-]*:(?: |$)",
        r"^[\w-]+:(?: |$)",
        r"^ {2,}[\w-]+: [\w\"'\[{$./-]",
        r"^ {2,}[\w-]+:$",
        r"^\s*- [\w\"'.$/]",
        "!^(?:on|jobs|version|name|services): ?",
    ),
    "toml": (
        r"!^\s*\[\[?[\w.\"-]+\]\]?\s*$",
        r"^[\w.-]+ = [\"\[{\d']",
        r"^[\w.-]+ = (?:true|false)$",
    ),
    "makefile": (
        r"!^\.PHONY\b",
        r"!^[\w.%$()/-]+\s*:[^=\n]{0,60}\n\t",
        r"\$\([A-Z_]+\)",
        r"^[A-Z_]+\s*[:?+]?= ",
        r"^\t[@-]",
        r"^(?:ifeq|ifneq|ifdef|endif)\b",
        r"\$[@<^]",
    ),
    "cmake": (
        r"!(?i)^\s*(?:cmake_minimum_required|add_library|add_executable|target_link_libraries"
        r"|find_package|include_guard|project|cmake_policy|macro|endmacro)\s*\(",
        r"(?i)^\s*(?:set|if|endif|foreach|endforeach|message|function|endfunction|include|check_\w+|list"
        r"|string|else|elseif)\s*\(",
        r"\$\{\w",
    ),
    "tex": (
        r"!\\begin\{\w+\*?\}",
        r"!\\(?:documentclass|usepackage)\b",
        r"\\(?:section|label|ref|cite|item|emph|textbf)\b",
    ),
    "dockerfile": (
        r"!^FROM [\w./:-]+",
        r"!^(?:ENTRYPOINT|WORKDIR|CMD \[)",
        "^(?:RUN|COPY|ENV|EXPOSE) ",
    ),
    "protobuf": (
        r"!^syntax = \"proto",
        r"!^message \w+ \{",
        r"^\s*(?:repeated |optional )?\w+ \w+ = \d+;",
        r"^\s*rpc \w",
    ),
    "groovy": (
        "!^apply plugin:",
        r"!^\s*(?:implementation|testImplementation|api|compile) [\w'\"(]",
        r"^(?:plugins|dependencies|repositories|android) \{",
    ),
    "objective-c": (
        r"!^@(?:interface|implementation|end|protocol|property)\b",
        "!^#import ",
        r"^[-+] \(\w",
    ),
    "assembly": (
        r"!^\s+(?:mov|push|pop|jmp|call|xor|lea|ret|ldr|str)[lqwbd]?\b",
        r"^\s*\.(?:globl|global|text|section|align|type)\b",
        r"^\w+:\s*(?:[;#]|$)",
    ),
}


@functools.cache
def _database() -> tuple[Any, list[tuple[int, int]], tuple[str, ...]]:
    """The compiled signs; language and weight of each; the languages."""
    signs = [(index, pattern) for index, patterns in enumerate(_SIGNS.values()) for pattern in patterns]
    weights = [(index, _STRONG if pattern.startswith("!") else 1) for index, pattern in signs]
    expressions = [pattern.removeprefix("!").encode() for _, pattern in signs]
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    flags = [hyperscan.HS_FLAG_MULTILINE | hyperscan.HS_FLAG_SINGLEMATCH] * len(signs)
    database.compile(expressions=expressions, ids=list(range(len(signs))), flags=flags)
    return database, weights, tuple(_SIGNS)


def language_of_signs(text: bytes) -> str | None:
    """The language that a program's first kilobytes show, or None."""
    database, weights, names = _database()
    scores = np.zeros(len(names))

    def found(sign: int, *_: object) -> None:
        language, weight = weights[sign]
        scores[language] += weight

    database.scan(text[:READ_BYTES], match_event_handler=found)
    best = int(scores.argmax())
    return names[best] if scores[best] >= MIN_SCORE and (scores == scores[best]).sum() == 1 else None
