#!/usr/bin/env python3
"""Refuses JSON that is parsed past the reader that sees NUL bytes.

nlohmann's parser stops at a NUL byte as if the text ended there. So sources call json_in() or ordered_json_in()
(src/plan/base/json_text.h); one that needs the parser itself calls no_nul(), or looks for the byte, within the lines before.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARSES = re.compile(r"\b(?:json|ordered_json|Json)::(?:parse|sax_parse|accept)\(|\b(?:sax_parse|from_cbor)\(")
LOOKS = re.compile(r"\bno_nul\(|find\('\\0'\)")
LINES_BEFORE = 12


def problems(text):
    """The lines (from 1) that parse without looking."""
    lines = [line.split("//")[0] for line in text.split("\n")]
    return [
        number for number, line in enumerate(lines, 1)
        if PARSES.search(line) and not any(map(LOOKS.search, lines[max(0, number - LINES_BEFORE):number]))]


def main():
    # The rule sees what it is for.
    assert problems("a;\nauto b = json::parse(text);") == [2]
    assert problems("if (x || !json::sax_parse(line, &c)) {") == [1]
    assert problems("no_nul(text);\nreturn nlohmann::json::parse(text);") == []
    found = [
        f"{path.relative_to(ROOT)}:{number}: parses JSON without no_nul(): call json_in() of src/plan/base/json_text.h"
        for folder in ("src", "lab", "include")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".cc", ".h") and "tests" not in path.parts for number in problems(path.read_text())]
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
