#!/usr/bin/env python3
"""Document lengths for benchmarks/switching.py: one number of tokens a line on stdout.

    benchmarks/lengths.py code --root /usr --max 16384 --count 60 --seed 1
    benchmarks/lengths.py dna --fasta genome.fa.gz --bins GRCh38 --max 16384 --count 60 --seed 1
    benchmarks/lengths.py bins --bins GitHubCode --max 16384 --count 60 --seed 1

code  bytes of real source files on this machine, whole files: a token a byte
dna   a real genome in 3-mers, cut to lengths drawn from published bins; the end of a sequence
      ends a document
bins  lengths drawn from published bins

The bins are those that ParaDySe published (arXiv 2511.13198) of GitHubCode in GPT-2 tokens and of
GRCh38 in 3-mers.  One length is drawn from each of --count equal parts of the published distribution,
log-uniform inside a bin, so that few lengths already have its shape; all are then scaled by one
factor, which makes the longest --max.  The same arguments on the same files give the same lengths,
in random order.
"""
import argparse
import gzip
import os
import random
import stat
import sys

K = 1000
# The lower end of the first bin is not published; our replay of the publication takes the same.
ENDS = [512, 4 * K, 8 * K, 16 * K, 32 * K, 64 * K, 128 * K]
BINS = {  # percent of the documents by bin, longest document
    "GitHubCode": ([65.7, 14.5, 9.8, 5.1, 2.7, 1.1, 1.1], 309 * K),
    "GRCh38": ([3.5, 26.4, 28.7, 21.2, 11.9, 5.5, 1.9], 624 * K),
}
SOURCES = {".c", ".cc", ".cpp", ".cxx", ".go", ".h", ".hh", ".hpp", ".java", ".js", ".lua", ".php",
           ".pl", ".pm", ".py", ".rb", ".rs", ".sh", ".tcl", ".ts"}
MER = 3  # bases in a token


class Refusal(Exception):
    """What is wrong and what to do."""


def quantile(bins, part):
    """The published length below which `part` (0 to 1) of the documents are."""
    shares, longest = BINS[bins]
    ends = [*ENDS, longest]
    left = part * sum(shares)  # rounded as published, they add up to less or more than 100
    for share, low, high in zip(shares, ends, ends[1:]):
        if left <= share:
            return low * (high / low) ** (left / share)
        left -= share
    return longest


def drawn(bins, longest, count, rng):
    """`count` lengths of the published shape, the longest of which is `longest`."""
    lengths = [quantile(bins, (part + rng.random()) / count) for part in range(count)]
    scale = longest / lengths[-1]
    rng.shuffle(lengths)
    return [max(1, round(length * scale)) for length in lengths]


def source_files(root, longest):
    """Bytes of the source files under `root` that are not empty and not longer, by path.

    A link is not followed, and a file that has several names counts once.
    """
    sizes = {}
    seen = set()
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(files):
            if os.path.splitext(name)[1].lower() not in SOURCES:
                continue
            path = os.path.join(folder, name)
            try:
                found = os.lstat(path)
            except OSError:
                continue  # gone, or not ours to see
            if stat.S_ISREG(found.st_mode) and 0 < found.st_size <= longest:
                file = (found.st_dev, found.st_ino)
                if file not in seen:
                    seen.add(file)
                    sizes[path] = found.st_size
    return sizes


def code(args):
    if not os.path.isdir(args.root):
        raise Refusal(f"--root {args.root} is no folder: give one that has source files")
    sizes = source_files(args.root, args.max)
    if len(sizes) < args.count:
        raise Refusal(
            f"{args.root} has {len(sizes)} source files of 1 to {args.max} bytes, --count asks for "
            f"{args.count}: ask for fewer, allow longer ones or give a --root with more")
    rng = random.Random(args.seed)
    return [sizes[path] for path in rng.sample(sorted(sizes), args.count)]


def contigs(path):
    """Bases of each sequence of a FASTA file, gzip or not."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        bases = []
        with (gzip.open if packed else open)(path, "rt", encoding="ascii") as file:
            for number, line in enumerate(file, 1):
                line = line.strip()
                if line.startswith(">"):
                    bases.append(0)
                elif line and not bases:
                    raise Refusal(f"{path}: line {number}: is no FASTA: a sequence begins with a "
                                  "line '>name'")
                elif line:
                    if not line.replace("*", "").replace("-", "").isalpha():
                        raise Refusal(f"{path}: line {number}: is no FASTA: {line[:40]!r} are no "
                                      "bases")
                    bases[-1] += len(line)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise Refusal(
            f"{path}: cannot be read ({error}): give a FASTA file, gzip or not; Debian has the "
            "genome of E. coli: apt-get install bowtie-examples; dpkg -L bowtie-examples | grep "
            "-E '[.](fa|fna|fasta)'") from error
    return bases


def dna(args):
    """One document after the other off the genome, none twice, each within one sequence."""
    wanted = drawn(args.bins, args.max, args.count, random.Random(args.seed))
    lengths = []
    for bases in contigs(args.fasta):
        left = bases // MER
        while left > 0 and len(lengths) < len(wanted):
            lengths.append(min(wanted[len(lengths)], left))  # the end of a sequence ends a document
            left -= lengths[-1]
    if len(lengths) < len(wanted):
        raise Refusal(
            f"{args.fasta} has {sum(lengths)} tokens of {MER} bases, which is enough for "
            f"{len(lengths)} documents, --count asks for {args.count}: ask for fewer, give a "
            "smaller --max or a longer genome")
    return lengths


def bins(args):
    return drawn(args.bins, args.max, args.count, random.Random(args.seed))


def whole(text):
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 1")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("--max", type=whole, required=True, help="tokens of the longest document")
    both.add_argument("--count", type=whole, required=True, help="documents")
    both.add_argument("--seed", type=int, default=1, help="of the draw (default 1)")
    of_bins = argparse.ArgumentParser(add_help=False)
    of_bins.add_argument("--bins", choices=list(BINS), required=True, help="published lengths")

    command = commands.add_parser("code", parents=[both], help="source files of this machine")
    command.add_argument("--root", default="/usr", help="folder with source files (default /usr)")
    command.set_defaults(run=code)
    command = commands.add_parser("dna", parents=[both, of_bins], help="a genome in 3-mers")
    command.add_argument("--fasta", required=True, help="FASTA file, gzip or not")
    command.set_defaults(run=dna)
    command = commands.add_parser("bins", parents=[both, of_bins], help="published bins alone")
    command.set_defaults(run=bins)

    args = parser.parse_args()
    try:
        for length in args.run(args):
            print(length)
    except Refusal as refusal:
        sys.exit(f"lengths.py: {refusal}")


if __name__ == "__main__":
    main()
