"""Which licence a repository or a file is under: SPDX names from licence texts and from headers.

A licence is recognised by sentences that only it has, after everything but letters and digits is dropped, because
people reflow and reindent licences. Where a text names several GNU licences, its title is what comes first.
"""

import re
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

_NAMES = re.compile(r"(?i)^(licen[cs]e|copying|unlicense|copyright)([-_.].*)?$")
_SPDX = re.compile(rb"SPDX-License-Identifier:\s*([A-Za-z0-9.+() -]+)")
_WORD = re.compile(r"[a-z0-9.]+")
_MANIFEST = re.compile(r'"license"\s*:\s*"([A-Za-z0-9.+() -]+)"')
_HEADER_BYTES = 4096

# (SPDX name, sentences that must be there, sentences that must not), the first that fits.
_TEXTS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("Apache-2.0", ("apache license version 2.0", "terms and conditions for use reproduction and distribution"), ()),
    ("Apache-2.0", ("licensed under the apache license version 2.0",), ()),
    ("MPL-2.0", ("mozilla public license version 2.0",), ()),
    ("EPL-2.0", ("eclipse public license v 2.0",), ()),
    ("EPL-1.0", ("eclipse public license v 1.0",), ()),
    ("BSL-1.0", ("boost software license version 1.0",), ()),
    ("CC0-1.0", ("cc0 1.0 universal",), ()),
    ("CC-BY-NC", ("creative commons", "noncommercial"), ()),
    ("CC-BY-SA", ("creative commons", "sharealike"), ()),
    ("CC-BY-4.0", ("creative commons attribution 4.0",), ()),
    ("Unlicense", ("this is free and unencumbered software released into the public domain",), ()),
    ("Artistic-2.0", ("the artistic license 2.0",), ()),
    ("Python-2.0", ("python software foundation license version 2",), ()),
    ("NCSA", ("university of illinois ncsa open source license",), ()),
    ("BSD-4-Clause", ("redistribution and use in source and binary forms", "all advertising materials mentioning"), ()),
    ("BSD-3-Clause", ("redistribution and use in source and binary forms", "neither the name"), ()),
    ("BSD-3-Clause", ("redistribution and use in source and binary forms", "may not be used to endorse"), ()),
    ("BSD-2-Clause", ("redistribution and use in source and binary forms", "this list of conditions"), ()),
    ("Zlib", ("altered source versions must be plainly marked", "must not be misrepresented"), ()),
    ("PostgreSQL", ("permission to use copy modify and distribute this software and its documentation for any purpose "
                    "without fee and without a written agreement",), ()),
    ("MIT", ("permission is hereby granted free of charge to any person obtaining a copy",
             "shall be included in all copies"), ("notice shall not be used for evil", "shall be used for good")),
    ("MIT-0", ("permission is hereby granted free of charge to any person obtaining a copy",),
     ("shall be included", "shall be used for good")),
    ("ISC", ("permission to use copy modify and or distribute this software for any purpose with or without fee is "
             "hereby granted provided",), ()),
    ("ISC", ("permission to use copy modify and distribute this software for any purpose with or without fee is hereby "
             "granted provided",), ()),
    ("0BSD", ("permission to use copy modify and or distribute this software for any purpose with or without fee is "
              "hereby granted.",), ()),
)  # fmt: skip
_GNU = (
    ("AGPL-3.0", "gnu affero general public license"),
    ("LGPL", "gnu lesser general public license"),
    ("LGPL", "gnu library general public license"),
    ("GPL", "gnu general public license"),
)
UNKNOWN = "unknown"


def is_licence_file(path: str) -> bool:
    """Whether a file at the top of a repository is its licence, by its name."""
    return "/" not in path and _NAMES.match(PurePosixPath(path).name) is not None


def licence_of_text(text: str) -> str:
    """The SPDX name of a licence text, `UNKNOWN` for any other."""
    words = " ".join(_WORD.findall(text.lower()))
    flat = words.replace(". ", " ")
    gnu = sorted((flat.find(title), name) for name, title in _GNU if title in flat[:2000])
    if gnu:
        return gnu[0][1]
    for name, wanted, unwanted in _TEXTS:
        if all(part in words or part in flat for part in wanted) and not any(part in flat for part in unwanted):
            return name
    return UNKNOWN


def licences_of_repository(files: Iterable[tuple[str, str]]) -> list[str]:
    """SPDX names from the licence files and manifests at the top, given as (path, text), sorted; empty without any."""
    found = set()
    for path, text in files:
        if is_licence_file(path):
            found.add(licence_of_text(text))
        elif path == "package.json" and (match := _MANIFEST.search(text)):
            found.add(match.group(1).strip())
    return sorted(found)


def header_licence(data: bytes) -> str | None:
    """The SPDX expression in a file's header, None without."""
    match = _SPDX.search(data[:_HEADER_BYTES])
    return match.group(1).decode().strip() if match else None


def is_permitted(expression: str, permitted: Collection[str]) -> bool:
    """Whether an SPDX expression can be met with permitted licences alone: one of its alternatives, each part of it.
    An empty list permits any."""
    if not permitted:
        return True
    names = {name.lower() for name in permitted}
    flat = expression.replace("(", " ").replace(")", " ").lower()
    return any(
        all(
            part.split(" with ")[0].strip().removesuffix("-or-later").removesuffix("+") in names
            for part in option.split(" and ")
        )
        for option in flat.split(" or ")
    )
