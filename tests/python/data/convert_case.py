"""Conversions come back as they were; what a format cannot hold is refused or counted."""

import json
import random
import struct
import unittest
import unittest.mock

import numpy as np
from paradyse.data.convert import convert
from paradyse.data.corpus import opened_corpus
from paradyse.data.folder import Prepared
from paradyse.data.tally import Tally
from support import FolderTest, raw_pair

END, BEGIN = 50256, 128000


class ConvertTest(FolderTest):
    def jsonl(self, name, rows):
        """rows: (ids, labels or None)"""
        return str(self.write(name, "".join(json.dumps({"tokens": ids, **({"labels": labels} if labels else {})}) + "\n"
                                            for ids, labels in rows)))

    def convert(self, source, to, name, **named):
        self.said = "\n".join(convert([source] if isinstance(source, str) else source, to, self.folder / name, **named))
        return str(self.folder / name)

    def rows(self, given):
        """ids and labels as JSONL has them, of any format."""
        return [(one.ids.tolist(), None if one.mask is None or one.mask.all() else np.where(one.mask, one.ids, -100).tolist())
                for one in opened_corpus(given, Tally())]

    def test_round_trips(self):
        for seed in range(10):
            draw = random.Random(seed)
            top = draw.choice([250, 60000, 100000])
            rows = []
            for _ in range(draw.randrange(1, 40)):
                ids = [draw.randrange(top) for _ in range(draw.randrange(2, 30))]
                labels = None if draw.random() < 0.5 else [i if draw.random() < 0.5 else -100 for i in ids[:-1]] + ids[-1:]
                if labels and labels[1:] == ids[1:]:
                    labels = None
                rows.append((ids, labels))
            source = self.jsonl(f"{seed}.jsonl", rows)
            with self.subTest(seed):
                self.assertEqual(self.rows(source), rows)
                prepared = self.convert(source, "prepared", f"p{seed}", shard_tokens=100)
                pair = self.convert(prepared, "megatron", f"m{seed}")
                back = self.convert(pair, "jsonl", f"b{seed}.jsonl")
                for one in (prepared, pair, f"{pair}.bin", f"{pair}.idx", back):
                    self.assertEqual(self.rows(one), rows)
                self.assertEqual(raw_pair(pair), [ids for ids, _ in rows])
                found = Prepared(self.folder / f"p{seed}")
                self.assertEqual([one.place.line for one in found], list(range(1, len(rows) + 1)))
                self.assertEqual(found.vocab_size, max(max(ids) for ids, _ in rows) + 1)
                self.assertTrue(all(100 <= entry["tokens"] < 130 for entry in found.head["shards"][:-1]))

    def test_label_masks_that_are_gone_are_missed(self):
        source = self.jsonl("s.jsonl", [([1, 2, 3], [-100, -100, 3])])
        prepared = self.convert(source, "prepared", "p")
        for file in (self.folder / "p").glob("*.labels.*"):
            file.unlink()
        with self.assertRaisesRegex(Exception, "says that 1 labels of 3 tokens count"):
            self.rows(prepared)

    def test_what_would_be_lost_is_refused(self):
        for row in ({"weight": 0}, {"sample_weight": 0.5}, {"target_mask": [1, 0]}, {"cu_seqlens": [0, 2, 3]},
                    {"seq_lengths": [2, 1]}, {"seq_idx": [0, 0, 1]}, {"sample_weights": [1, 0]}, {"segment_ids": [0, 0, 1]},
                    {"sequence_lens_mask": {"a": 1}}, {"train": False}, {"extra": [4, 5, 6]}):
            source = str(self.write("s.jsonl", json.dumps({"tokens": [1, 2, 3], **row}) + "\n"))
            with self.subTest(row), self.assertRaisesRegex(Exception, "would be lost"):
                self.rows(source)
        for row in ({"weight": 1}, {"cu_seqlens": [0, 2]}, {"seq_lengths": [2]}, {"token_type_ids": [0, 0]},
                    {"label": "a class"}, {"labels_of": ["a", "b", "c"]}, {"weight": "5 kg"}):
            source = str(self.write("t.jsonl", json.dumps({"tokens": [1, 2], **row}) + "\n"))
            with self.subTest(row):
                self.assertEqual(self.rows(source), [([1, 2], None)])
        # What is kept out of nothing is not written as text first.
        extra = {"tokens": [1, 2], "notes": "x" * 100}
        source = str(self.write("e.jsonl", json.dumps(extra) + "\n"))
        with unittest.mock.patch("paradyse.data.corpus.json.dumps", side_effect=AssertionError("dumped")):
            self.assertEqual(self.rows(source), [([1, 2], None)])
        both = str(self.write("b.jsonl", '{"tokens": [1, 2], "input_ids": [3, 4]}\n'))
        self.refused(["b.jsonl:1", "has tokens and input_ids"], self.rows, both)
        null = str(self.write("n.jsonl", '{"tokens": null, "input_ids": [3, 4]}\n'))
        self.assertEqual(self.rows(null), [([3, 4], None)])

    def test_no_file_of_others_is_replaced_or_removed(self):
        source = self.jsonl("s.jsonl", [([1, 2, 3], [-100, 2, 3])])
        for name in ("m.bin", "m.idx", "m.labels.bin", "m.labels.idx", "m.sources.bin"):
            mine = self.write(name, "mine")
            with self.subTest(name):
                self.refused([name, "is there already"], self.convert, source, "megatron", "m")
                self.assertEqual(mine.read_text(), "mine")
            mine.unlink()
        (self.folder / "link").symlink_to(self.folder / "nowhere")
        self.refused(["link", "is there already"], self.convert, source, "jsonl", "link")

    def test_keys_of_jsonl(self):
        for row, expected in (
                ({"input_ids": [1, 2, 3], "loss_mask": [0, 0, 1]}, [-100, -100, 3]),
                ({"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "completion_mask": [1, 1, 0]}, [-100, 2, -100]),
                ({"tokens": [1, 2], "attention_mask": [1, 1], "labels": None, "id": "x"}, None)):
            self.write("k.jsonl", json.dumps(row))
            self.assertEqual(self.rows(str(self.folder / "k.jsonl"))[0][1], expected)
        for row, words in (
                ({"tokens": [1, 2, 3], "labels": [2, 3, -100]}, "labels are unshifted"),  # shifted by one
                ({"tokens": [1, 2], "labels": [1]}, "2 tokens and 1 values"), ({"tokens": [1.5]}, "whole numbers"),
                ({"tokens": [True]}, "whole numbers"), ({"tokens": [2**40]}, "beyond 32 bits"), ({"text": "a"}, "prepare"),
                ({"tokens": [1, 2], "attention_mask": [1, 0]}, "without padding"),
                ({"tokens": [1, 2], "loss_mask": [2, 0]}, "other values"),
                ({"tokens": [1, 2], "position_ids": [0, 1]}, "the list position_ids")):
            self.write("k.jsonl", json.dumps(row))
            with self.subTest(words):
                self.refused(["k.jsonl:1", words], self.rows, str(self.folder / "k.jsonl"))

    def test_several_inputs_and_empty_documents(self):
        a, b = self.jsonl("a.jsonl", [([1, 2], None), ([], None)]), self.jsonl("b.jsonl", [([9], None), ([3, 4], None)])
        out = self.convert([a, b], "prepared", "p")
        self.assertIn("left out: without a label: 2 documents, 1 token; first " + a + ":2", self.said)
        self.assertIn("by the largest id", self.said)
        self.assertEqual([str(one.place) for one in Prepared(self.folder / "p")], [f"{a}:1", f"{b}:2"])
        self.refused("not one of a vocabulary of 4", self.convert, [a, b], "prepared", "q", vocab_size=4)
        self.assertFalse((self.folder / "q").exists())
        self.refused("is there already", self.convert, a, "prepared", "p")
        self.refused("is a shard of the prepared folder", self.rows, f"{out}/00000")
        self.refused("no document to convert", self.convert, self.jsonl("e.jsonl", [([], None)]), "jsonl", "e2.jsonl")
        self.assertFalse((self.folder / "e2.jsonl").exists())

    def llmc(self, name, magic, version, dtype, ids, count=None):
        head = np.zeros(256, "<i4")
        head[:3] = magic, version, len(ids) if count is None else count
        return str(self.write(name, head.tobytes() + np.asarray(ids, dtype).tobytes()))

    def test_gpt2_of_llmc(self):
        source = self.llmc("g.bin", 20240520, 1, "<u2", [END, 1, 2, END, 3, END, 4])
        self.assertEqual([ids for ids, _ in self.rows(source)], [[1, 2, END], [3, END], [4, END]])
        prepared = self.convert(source, "prepared", "p")
        self.assertIn(f"the delimiter {END} before each document of llm.c ends it here: 3 documents", self.said)
        self.assertEqual((Prepared(self.folder / "p").end_id, Prepared(self.folder / "p").vocab_size), (END, 50257))
        back = self.convert(prepared, "llmc-gpt2", "back.bin")
        self.assertEqual((self.folder / "back.bin").read_bytes(), (self.folder / "g.bin").read_bytes())
        self.assertEqual(len(self.rows(back)), 3)

    def test_llama3_of_llmc(self):
        source = self.llmc("l.bin", 20240801, 7, "<u4", [BEGIN, 1, 2, BEGIN, 99999])
        self.assertEqual([ids for ids, _ in self.rows(source)], [[BEGIN, 1, 2], [BEGIN, 99999]])
        self.convert(self.convert(source, "megatron", "m"), "llmc-llama3", "back.bin")
        self.assertEqual((self.folder / "back.bin").read_bytes(), (self.folder / "l.bin").read_bytes())

    def test_what_llmc_cannot_hold(self):
        masked = self.jsonl("m.jsonl", [([1, 2, 3], [-100, -100, 3])])
        self.refused(["m.jsonl:1", "--drop-labels"], self.convert, masked, "llmc-gpt2", "o.bin")
        self.assertEqual(list(self.folder.glob("o.bin*")), [])
        out = self.convert(masked, "llmc-gpt2", "o.bin", drop_labels=True)
        self.assertIn("all of whose labels count now (--drop-labels): 1 document", self.said)
        self.assertIn(f"the delimiter {END} was added before each document: 1 document", self.said)
        self.assertEqual(self.rows(out), [([1, 2, 3, END], None)])
        self.refused("within it", self.convert, self.jsonl("i.jsonl", [([1, END, 2], None)]), "llmc-gpt2", "i.bin")
        self.refused("vocabulary of 50257", self.convert, self.jsonl("v.jsonl", [([1, 60000], None)]), "llmc-gpt2", "v.bin")
        self.convert(self.jsonl("t.jsonl", [([END, 1, END], None)]), "llmc-gpt2", "t.bin")
        self.assertIn("one of two delimiters", self.said)
        self.assertIn("t.bin: 1 document, 2 tokens, 1 label", self.said)  # of the file

    def test_tokens_of_llmc_are_those_of_the_file(self):
        for to, size in (("llmc-gpt2", 2), ("llmc-llama3", 4)):
            self.convert(self.jsonl("s.jsonl", [([1, 2, 3], None)] * 25), to, f"{to}.bin")
            tokens = ((self.folder / f"{to}.bin").stat().st_size - 1024) // size
            self.assertEqual(tokens, 100)
            self.assertIn(f"{to}.bin: 25 documents, 100 tokens, 75 labels", self.said)

    def test_files_of_llmc_that_begin_in_a_document_or_are_cut(self):
        source = self.llmc("g.bin", 20240520, 1, "<u2", [7, 8, END, 1])
        self.assertEqual([ids for ids, _ in self.rows(source)], [[7, 8], [1, END]])
        self.convert(source, "jsonl", "g.jsonl")
        self.assertIn("so within a document", self.said)
        self.refused("cut or damaged", self.rows, self.llmc("c.bin", 20240520, 1, "<u2", [END, 1], count=3))
        self.write("h.bin", struct.pack("<3i", 20240522, 1, 0))  # llm.c's evaluation files
        self.refused("no format that is read", self.rows, str(self.folder / "h.bin"))

    def test_labels_beside_a_megatron_pair_are_told(self):
        self.convert(self.jsonl("m.jsonl", [([1, 2, 3], [-100, -100, 3])]), "megatron", "m")
        self.assertIn("Megatron does not read the label masks", self.said)
        self.assertEqual(raw_pair(f"{self.folder}/m.labels"), [[0, 0, 1]])


if __name__ == "__main__":
    unittest.main()
