"""Figures of lengths against plain counts; pictures that are XML; inspect in 80 columns; the command's own errors."""

import json
import random
import unittest
import xml.etree.ElementTree as ElementTree

from paradyse.data.corpus import opened_corpus
from paradyse.data.folder import ShardWriter, write_head
from paradyse.data.histogram import svg_of
from paradyse.data.show import document_at, shown
from paradyse.data.stats import stats_of
from paradyse.data.tally import Tally
from support import FolderTest, document


class StatsTest(FolderTest):
    def folder_of(self, rows, name="d"):
        (self.folder / name).mkdir()
        writer = ShardWriter(self.folder / name / "00000", 100)
        for line, (ids, mask) in enumerate(rows, 1):
            writer.add(document(ids, mask, line))
        write_head(self.folder / name, vocab_size=100, end_id=None, tokenizer=None, sources=["in"], shards=[writer.finish()])
        return str(self.folder / name)

    def stats(self, *given, limit=None):
        return stats_of([opened_corpus(str(one), Tally()) for one in given], limit)

    def test_against_plain_counts(self):
        for seed in range(20):
            draw = random.Random(seed)
            rows = []
            for _ in range(draw.randrange(1, 80)):
                length = max(1, int(draw.lognormvariate(3, 1)))
                masked = draw.random() < 0.5 and seed % 2
                rows.append(([1] * length, [int(draw.random() < 0.2) for _ in range(length)] if masked else None))
            limit = draw.randrange(2, 50)
            found = self.stats(self.folder_of(rows, f"d{seed}"), limit=limit)
            lengths = sorted(len(ids) for ids, _ in rows)
            counted = [sum(1 for i in range(1, len(ids)) if mask is None or mask[i]) for ids, mask in rows]
            left = [sum(1 for i in range(1, min(limit, len(ids))) if mask is None or mask[i]) for ids, mask in rows]
            long = [len(ids) > limit for ids, _ in rows]
            with self.subTest(seed):
                self.assertEqual(found.percentiles["max"], lengths[-1])
                for p in (50, 90, 99):  # the least length that so many do not exceed
                    least = next(n for n in lengths if sum(m <= n for m in lengths) * 100 >= p * len(lengths))
                    self.assertEqual(found.percentiles[f"p{p}"], least)
                self.assertEqual(sum(one.documents for one in found.bins), len(rows))
                self.assertEqual(sum(one.tokens for one in found.bins), sum(lengths))
                for one in found.bins:
                    self.assertEqual(one.documents, sum(one.begin <= n < one.end for n in lengths))
                self.assertEqual(int(found.labels.sum()), sum(counted))
                self.assertEqual(vars(found.limited), {
                    "limit": limit, "documents": sum(long), "tokens": sum(max(0, n - limit) for n in lengths),
                    "labels": sum(counted) - sum(left), "unlabelled": sum(c > 0 and not k for c, k in zip(counted, left))})

    def test_what_is_printed(self):
        folder = self.folder_of([([1] * 5, [0, 0, 0, 0, 1]), ([1] * 4, None), ([1] * 20, None)])
        self.assertEqual(self.stats(folder, limit=4).text().splitlines(), [
            f"{folder}: 3 documents, 29 tokens, 23 labels", "  p50 5, p90 20, p99 20, max 20 tokens",
            "               tokens  documents                                 % of tokens",
            "         4-7                   2  ##############################        31.0",
            "         8-15                  0                                         0.0",
            "        16-31                  1  ###############                       69.0",
            "limit 4: 2 documents longer; cutting them loses 17 tokens (58.6 %) and 17 labels, and leaves 1 document without "
            "a label"])
        self.assertEqual(json.loads(self.command("stats", folder, "--json"))["p50"], 5)

    def test_the_picture(self):
        folder = self.folder_of([([1] * 5, None), ([1] * 5000, None)], "a<&b")
        tree = ElementTree.fromstring(svg_of(self.stats(folder)))
        self.assertIn("a<&b", "".join(tree.itertext()))
        self.assertEqual(len(tree.findall("{*}circle")), len(self.stats(folder).bins))
        self.command("stats", folder, "--svg", "x.svg")
        self.assertTrue((self.folder / "x.svg").read_text().startswith("<svg"))
        self.assertIn("cannot be written", self.command("stats", folder, "--svg", "none/x.svg", code=2))

    def test_a_picture_replaces_no_file_of_others(self):
        rows = self.write("rows.jsonl", '{"tokens": [1, 2, 3]}\n')
        for options in ((), ("--force",)):
            self.assertIn("is an input", self.command("stats", "rows.jsonl", "--svg", "rows.jsonl", *options, code=2))
        self.assertEqual(rows.read_text(), '{"tokens": [1, 2, 3]}\n')
        for content in ("thesis", "", "<svg>mine</svg>"):
            mine = self.write("mine.txt", content)
            with self.subTest(content):
                self.assertIn("is there already", self.command("stats", "rows.jsonl", "--svg", "mine.txt", code=2))
                self.assertEqual(mine.read_text(), content)
        for options in (("--force",), ()):  # then it is its own
            self.command("stats", "rows.jsonl", "--svg", "mine.txt", *options)
            self.assertTrue(mine.read_text().startswith("<svg"))
        (self.folder / "picture").symlink_to("mine.txt")
        mine.write_bytes(mine.read_bytes() + b"\n")
        self.command("stats", "rows.jsonl", "--svg", "picture")
        self.assertTrue((self.folder / "picture").is_symlink())
        self.assertFalse(mine.read_text().endswith("\n\n"))
        (self.folder / "link").symlink_to(self.folder / "nowhere")
        self.assertIn("is there already", self.command("stats", "rows.jsonl", "--svg", "link", code=2))
        self.assertIn("is for --svg", self.command("stats", "rows.jsonl", "--force", code=2))

    def test_inspect(self):
        folder = self.folder_of([([1] * 5, None), ([10, 2, 30, 4, 50], [1, 0, 1, 0, 1])])
        corpus = opened_corpus(folder, Tally())
        lines = shown(document_at(corpus, 1), 1, lambda ids: [f" p\n{i}" * (40 if i == 50 else 1) for i in ids], 0, 9)
        self.assertEqual(lines[:5], ["document 1: 5 tokens, 2 labels (*)", "from in:2", "0 10   \u00b7p\\n10",
                                     "1  2   \u00b7p\\n2", "2 30 * \u00b7p\\n30"])
        self.assertTrue(all(len(line) <= 80 for line in lines))
        self.assertEqual(shown(document_at(corpus, 1), 1, None, 3, 1)[2:], ["3 4", "1 token more: --from 4"])
        self.refused("none of number 2", document_at, corpus, 2)
        self.refused("beyond them", shown, document_at(corpus, 1), 1, None, 5, 1)
        self.assertIn("ids only: give --tokenizer", self.command("inspect", folder, "--document", 1))
        self.write("none.jsonl", '{"tokens": []}\n')
        self.assertEqual(self.command("inspect", "none.jsonl"), "ids only: give --tokenizer DIR to see what they stand "
                         "for\ndocument 0: 0 tokens, 0 labels (*)\nfrom none.jsonl:1\n")
        self.assertIn("has 0 tokens, numbered from 0; --from 1", self.command("inspect", "none.jsonl", "--from", 1, code=2))

    def test_errors_of_the_command(self):
        for arguments, words in (
                (["stats", "none"], "is not there"), (["stats", "x.txt"], "paradyse-data prepare"),
                (["inspect", "."], "is not a prepared folder, or not finished"),
                (["stats", "x.jsonl"], "has no document"), (["convert", "x.jsonl", "--to", "jsonl", "--out", "x.jsonl"], "there"),
                (["convert", "y.jsonl", "--to", "jsonl", "--out", "x.txt/o"], "name another place"),
                (["prepare", "--tokenizer", "none", "--input", "x.txt", "--out", "o", "--stride", "2"], "--kmers"),
                (["prepare", "--tokenizer", "none", "--input", "x.txt", "--out", "o", "--kmers", "0"], "whole number from 1"),
                (["prepare", "--tokenizer", "t", "--input", "x", "--out", "o", "--template-args", "[]"], "no object")):
            self.write("x.txt", "words")
            self.write("x.jsonl", "")
            self.write("y.jsonl", '{"tokens": [1, 2]}')
            with self.subTest(words):
                self.assertIn(words, self.command(*arguments, code=2))
        (self.folder / "data.json").write_text('{"format": "other"}')
        self.assertIn("is not of paradyse-data", self.command("stats", ".", code=2))


if __name__ == "__main__":
    unittest.main()
