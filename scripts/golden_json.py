"""The JSON that scripts/make_*_golden.py store: a key a line, and long lines wrapped."""
import json
import textwrap

WIDTH = 110


def json_text(values):
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    wrapped = (textwrap.fill(line, WIDTH, initial_indent=" ", subsequent_indent="   ",
                             break_long_words=False, break_on_hyphens=False) for line in lines)
    return "{\n" + ",\n".join(wrapped) + "\n}\n"
