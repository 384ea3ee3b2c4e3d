"""Units of a file are its records, each once, in order and with its line; what a row means is never guessed."""

import json
import random
import unittest

from paradyse.data.document import Place
from paradyse.data.files import FASTA, FASTQ, LINES, TEXT, DataFile
from paradyse.data.meaning import Chat, Keys, Prompt, meaning_of
from paradyse.data.records import Reader, units_of
from paradyse.data.tally import Tally
from support import FolderTest

PLACE = Place(0, "rows.jsonl", 3)


class UnitsTest(FolderTest):
    def records(self, kind, content, most=1 << 30, replace=False, name="f"):
        """(line, value) of all records, read in units of about `most` bytes."""
        path = self.write(name, content)
        file = DataFile(str(path), kind, True)
        self.tally = Tally()
        reader = Reader([file], replace, {"text"}, lambda: self.tally)
        self.units = list(units_of(0, file, most))
        found = [record for unit in self.units for record in reader.records(unit)]
        self.assertEqual(sum(unit.size for unit in self.units), path.stat().st_size)
        return [(record.place.line, record.value) for record in found]

    def test_lines_are_read_once_whatever_the_cut(self):
        for seed in range(10):
            draw = random.Random(seed)
            rows = [{"text": "x" * draw.randrange(60)} for _ in range(40)]
            lines = [(json.dumps(row) if draw.random() < 0.8 else "") + "\n" for row in rows]
            expected = [(number, row) for number, (row, line) in enumerate(zip(rows, lines), 1) if line.strip()]
            content = "".join(lines).removesuffix("\n" if draw.random() < 0.5 else "")
            for most in (1, 7, 50, 333, 10000):
                with self.subTest(seed=seed, most=most):
                    self.assertEqual(self.records(LINES, content, most), expected)
                    self.assertTrue(len(self.units) > 3 or most > 50)

    def test_sequences_are_read_once_whatever_the_cut(self):
        draw = random.Random(3)
        genes = ["".join(draw.choices("ACGT", k=draw.randrange(1, 70))) for _ in range(30)]
        fasta, fastq, at = "; a comment\n", "", 2
        expected_fasta, expected_fastq = [], []
        for number, gene in enumerate(genes):
            lines = [f">{number} words", *(gene[i:i + 10] for i in range(0, len(gene), 10)), ""]
            expected_fasta.append((at, gene))
            expected_fastq.append((4 * number + 1, gene))
            fasta, at = fasta + "\n".join(lines) + "\n", at + len(lines)
            fastq += f"@{number}\n{gene}\n+\n{'@' * len(gene)}\n"  # qualities may look like a name
        for most in (1, 40, 333, 100000):
            with self.subTest(most):
                self.assertEqual(self.records(FASTA, fasta, most), expected_fasta)
                self.assertEqual(self.records(FASTQ, fastq, most), expected_fastq)
                self.assertEqual(len(self.units) == 1, most == 100000)

    def test_blank_lines_between_records_of_fastq_move_no_border(self):
        draw = random.Random(4)
        text, expected, at = "\n", [], 2
        for number in range(40):
            gene = "".join(draw.choices("ACGT", k=draw.randrange(0, 9)))  # an empty sequence is a blank line, too
            expected.append((at, gene))
            blank = draw.randrange(4)
            text += f"@{number}\n{gene}\n+\n{'@' * len(gene)}\n" + "\n" * blank
            at += 4 + blank
        for most in (1, 7, 30, 100, 333, 100000):
            with self.subTest(most):
                self.assertEqual(self.records(FASTQ, text, most), expected)
                self.assertEqual(len(self.units) == 1, most == 100000)

    def test_a_text_is_whole(self):
        self.assertEqual(self.records(TEXT, "\ufeffa\r\nb\n"), [(0, "a\r\nb\n")])
        self.refused("NUL byte (byte 1)", self.records, TEXT, "a\0")
        self.refused("is not UTF-8", self.records, TEXT, b"\xff")
        self.assertEqual(self.records(TEXT, b"\xffa", replace=True), [(0, "\ufffda")])
        self.assertIn("1 character", "".join(self.tally.lines()))

    def test_lines_that_could_be_misread_are_refused(self):
        for line, words in (("{", "is not JSON"), (f'{{"text": {"1" * 5000}}}', "has a number of more digits"), ('{"text": NaN}', "has NaN"), ('{"text": 1, "text": 2}', "text twice"),
                            ("[1]", "is not an object"), ('{"text": "\\ud800"}', "surrogate"), ('{"text": "\0"}', "NUL"),
                            ("[" * 100000, "nested too deeply"), (b'{"text": "\xff"}', "is not UTF-8")):
            content = b'{"text": "fine"}\n\n' + (line.encode() if isinstance(line, str) else line)
            with self.subTest(line[:20]):
                self.refused(["f:3", words], self.records, LINES, content)
        self.assertEqual(self.records(LINES, '{"text": "\\ud83d\\ude00"}'), [(1, {"text": "\U0001f600"})])

    def test_sequences_that_are_none_are_refused(self):
        self.refused(["f:1", "begins with '>'"], self.records, FASTA, "ACGT\n")
        for content in ("@a\nACG\n+\n!!\n", "@a\nACG\n+\n", ">a\nA\n+\n!\n", "@a\nACG\nGGG\n!!!\n"):
            self.refused(["f:1", "not a record of FASTQ"], self.records, FASTQ, content)


class MeaningTest(FolderTest):
    def meaning(self, row, keys=Keys()):
        self.tally = Tally()
        return meaning_of(row, keys, PLACE, self.tally)

    def test_what_rows_are(self):
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}]
        tools = [{"name": "f"}]
        self.assertEqual(self.meaning({"text": "a", "id": 7}), "a")
        self.assertIn("keys not used: id", self.tally.lines()[0])
        self.assertEqual(self.meaning({"text": None}), "")
        self.assertEqual(self.meaning({"messages": turns, "prompt": "shown", "tools": tools}), Chat(turns, 0, tools))
        self.assertEqual(self.meaning({"messages": json.dumps(turns), "tools": json.dumps(tools)}), Chat(turns, 0, tools))
        self.assertEqual(self.meaning({"prompt": "a", "completion": "b"}), Prompt("a", "b"))
        self.assertEqual(self.meaning({"prompt": turns[:1], "completion": turns[1:], "chat_template_kwargs": {"x": 1}}),
                         Chat(turns, 1, None, {"x": 1}))
        self.assertEqual(self.meaning({"text": "a", "messages": turns}, Keys(text="text")), "a")
        self.assertEqual(self.meaning({"text": "a", "dialog": turns}, Keys(messages="dialog")), Chat(turns))

    def test_what_could_be_read_in_two_ways_is_refused(self):
        turn = {"role": "assistant", "content": "a"}
        for row, words in (
                ({"text": "a", "messages": [turn]}, "has text and messages"),
                ({"text": "a", "prompt": "a", "completion": "b"}, "has text and prompt and completion"),
                ({"tokens": [1]}, "paradyse-data convert"), ({"conversations": []}, "from and value"),
                ({"chosen": "a", "rejected": "b"}, "preferences"), ({"instruction": "a", "output": "b"}, "write prompt"),
                ({"prompt": "a"}, "it has prompt"), ({}, "it has nothing"), ({"text": 5}, "takes a string"),
                ({"text": "a", "labels": [1]}, "the list labels"), ({"text": "a", "loss_mask": [1]}, "the list loss_mask"),
                ({"messages": [{"from": "human", "value": "a"}]}, "without a role"), ({"messages": "a"}, "not JSON"),
                ({"messages": [turn, {"role": "user", "content": [{"type": "image"}]}]}, "messages[1]"),
                ({"messages": [{**turn, "weight": 0}]}, "--loss last"), ({"messages": [{**turn, "train": False}]}, "train"),
                ({"messages": [{**turn, "weight": 0.0}]}, "with weight: 0.0"),
                ({"messages": [{**turn, "weight": "0"}]}, "with weight: \"0\""),
                ({"messages": [{**turn, "train": "false"}]}, "true or 1"), ({"messages": [{**turn, "loss": ""}]}, "with loss"),
                ({"messages": [{**turn, "masked": "True"}]}, "false or 0"), ({"messages": [{**turn, "ignore": 1.0}]}, "ignore"),
                ({"messages": [{**turn, "loss_scale": "0.5"}]}, "with loss_scale"),
                ({"prompt": "a", "completion": "b", "label": False}, "has label = false beside prompt and completion"),
                ({"prompt": [turn], "completion": [turn], "label": True}, "has label = true beside prompt and completion"),
                ({"messages": [turn], "label": False}, "has label = false beside messages"),
                ({"messages": [turn], "kto_tag": True}, "has kto_tag = true beside messages"),
                ({"messages": [{**turn, "loss_weight": 0.5}]}, "loss_weight"), ({"messages": [{**turn, "loss": False}]}, "loss"),
                ({"messages": [{**turn, "trainable": 0}]}, "trainable"), ({"messages": [{**turn, "masked": True}]}, "masked"),
                ({"text": "a", "weight": 0.0}, "has weight = 0.0"), ({"text": "a", "sample_weight": 0.5}, "sample_weight"),
                ({"messages": [turn], "weight": 0}, "has weight = 0"), ({"text": "a", "train": False}, "has train = false"),
                ({"prompt": "a", "completion": "b", "weight": 2}, "has weight = 2"),
                ({"text": "a", "seq_lengths": [1, 2]}, "the list seq_lengths"),
                ({"messages": [{**turn, "content": 5}]}, "it takes a string"), ({"messages": [turn], "tools": {}}, "a list"),
                ({"prompt": "a", "completion": [turn]}, "the other not"),
                ({"prompt": "a", "completion": "b", "tools": [{}]}, "nothing can use them")):
            with self.subTest(words):
                self.refused(["rows.jsonl:3", words], self.meaning, row)
        for row in ({"weight": 1}, {"weight": 1.0}, {"weight": None}, {"weight": "5 kg"}, {"weights": [1, 1]}, {"label": 3}, {"train": True}, {"label": False},
                    {"train": "false"}):
            with self.subTest(row):
                self.assertEqual(self.meaning({"text": "a", **row}), "a")
        self.assertEqual(self.meaning({"prompt": "a", "completion": "b", "label": 1}), Prompt("a", "b"))
        said = {"weight": "1.0", "train": "True", "masked": "false", "ignore": 0, "mask": "0"}
        self.assertEqual(self.meaning({"messages": [{**turn, **said}]}).messages, [{**turn, **said}])
        good = {**turn, "weight": 1, "train": True, "loss": None}
        self.assertEqual(self.meaning({"messages": [good]}).messages, [good])
        self.refused("has no body; it has text", self.meaning, {"text": "a"}, Keys(text="body"))


if __name__ == "__main__":
    unittest.main()
