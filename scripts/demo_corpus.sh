#!/usr/bin/env bash
# Copies real source files of this machine into .demo/corpus for `make demo`: Python, C and C++,
# Perl, manual pages and documentation, whatever is there, up to 60 MB; every two hundredth file into
# .demo/held_out.  Does nothing when that was done.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -d .demo/corpus && -d .demo/held_out ]] && exit 0
rm -rf .demo/partial .demo/corpus .demo/held_out
mkdir -p .demo/partial/held_out .demo/partial/corpus

/usr/bin/python3 - .demo/partial <<'PYTHON'
import gzip, hashlib, os, sys

MAX_TOTAL = 60_000_000  # bytes
MIN_FILE, MAX_FILE = 100, 1_000_000
KINDS = {  # kind -> roots, what a file's name ends in
    "python": (["/usr/lib", "/usr/share", "/usr/local/lib"], (".py",)),
    "c": (["/usr/include", "/usr/lib/gcc", "/usr/local/include"], (".h", ".hpp", ".c", ".cc", ".cpp")),
    "man": (["/usr/share/man/man%d" % i for i in range(1, 9)], (".gz",)),
    "perl": (["/usr/share/perl", "/usr/share/perl5"], (".pl", ".pm", ".pod")),
    "doc": (["/usr/share/doc"], (".txt", ".md", ".rst", ".html", "copyright", "README", ".gz")),
}


def paths(roots, endings):
    """Regular files below `roots`, in an order that mixes folders and is the same each time."""
    found = [os.path.join(folder, name) for root in roots for folder, _, names in os.walk(root)
             for name in names if name.endswith(endings)]
    return sorted((path for path in found if os.path.isfile(path) and not os.path.islink(path)),
                  key=lambda path: hashlib.md5(os.fsencode(path)).digest())


def text(path):
    """The file's bytes, unpacked, or None when it is no text of a fitting size."""
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            data = file.read(MAX_FILE + 1)
    except (OSError, EOFError):
        return None
    return data if MIN_FILE <= len(data) <= MAX_FILE and b"\0" not in data else None


left = {kind: iter(paths(*where)) for kind, where in KINDS.items()}
copied = dict.fromkeys(KINDS, 0)  # bytes
seen, total, count = set(), 0, 0
while left:
    kind = min(left, key=copied.get)  # so that no kind crowds out the others
    path = next(left[kind], None)
    if path is None:
        del left[kind]
        continue
    data = text(path)
    digest = data and hashlib.md5(data).digest()
    if data is None or digest in seen:
        continue
    if total + len(data) > MAX_TOTAL:
        break
    seen.add(digest)
    part = "held_out" if count % 200 == 199 else "corpus"
    target = os.path.join(sys.argv[1], part, kind, path[1:].removesuffix(".gz"))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(data)
    copied[kind] += len(data)
    total, count = total + len(data), count + 1
print("corpus: %d files, %.1f MB, in .demo/corpus, some in .demo/held_out\n  (MB: %s)" % (
    count, total / 1e6, ", ".join("%s %.1f" % (kind, size / 1e6) for kind, size in copied.items())))
if total < 20_000_000:
    print("corpus: less than 20 MB of source files on this machine; the demo repeats them")
PYTHON
mv .demo/partial/held_out .demo/partial/corpus .demo/
rmdir .demo/partial
