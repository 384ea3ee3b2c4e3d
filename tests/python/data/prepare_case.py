"""prepare: the same bytes by any number of processes and after any interruption; nothing is mixed or overwritten.

The tokenizer stands for one: packages are not needed here.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import unittest
from dataclasses import replace
from pathlib import Path

from paradyse.data.folder import Prepared
from paradyse.data.maker import Options
from paradyse.data.prepare import prepare
from support import FolderTest, Letters, contents, raw_pair

SLOW = "PARADYSE_TEST_SLOW"  # seconds that the tokenizer of a child takes for a batch


class Slow(Letters):
    def texts(self, texts):
        time.sleep(float(os.environ.get(SLOW, "0")))
        return super().texts(texts)


class PrepareTest(FolderTest):
    def setUp(self):
        super().setUp()
        draw = random.Random(1)
        for name in ("a", "b"):
            self.write(f"in/{name}.jsonl", "".join(
                json.dumps({"text": "".join(draw.choices("abc \u00e9", k=draw.randrange(80)))}) + "\n" for _ in range(300)))
        self.write("in/c.txt", "words")
        self.options = Options("letters", (str(self.folder / "in"),), shard_bytes=3000)

    def prepare(self, name, options=None, processes=1, load=Slow):
        return prepare(options or self.options, self.folder / name, processes, load)

    def test_documents_in_order_with_their_lines(self):
        said = self.prepare("out")
        found = Prepared(self.folder / "out")
        self.assertGreater(len(found.shards), 5)
        expected, places = [], []
        for name in ("a", "b"):
            for number, line in enumerate((self.folder / f"in/{name}.jsonl").read_text().splitlines(), 1):
                text = json.loads(line)["text"]
                if text:
                    expected.append([0, *(3 + byte for byte in text.encode()), 1])
                    places.append(f"{self.folder}/in/{name}.jsonl:{number}")
        expected.append([0, *(3 + byte for byte in b"words"), 1])
        places.append(f"{self.folder}/in/c.txt")
        self.assertEqual([ids for shard in found.shards for ids in raw_pair(shard.prefix)], expected)
        self.assertEqual([str(one.place) for one in found], places)
        tokens = sum(map(len, expected))
        self.assertIn(f"{len(expected)} documents, {tokens} tokens, {tokens - len(expected)} labels in "
                      f"{len(found.shards)} shards from 3 files", said[0])
        self.assertIn(f"left out: empty texts: {601 - len(expected)} texts; first", "\n".join(said))
        self.assertEqual((found.head["vocab_size"], found.head["end_id"], found.head["dtype"]), (259, 1, "uint16"))
        self.assertFalse((self.folder / "out/.prepare").exists())

    def test_the_same_bytes_by_several_processes(self):
        self.prepare("one")
        self.prepare("three", processes=3)
        self.assertEqual(contents(self.folder / "one"), contents(self.folder / "three"))

    def test_an_interrupted_one_goes_on(self):
        self.prepare("whole")
        for how in (signal.SIGINT, signal.SIGKILL):
            for processes in (1, 2):
                out = self.folder / f"out{how}{processes}"
                child = subprocess.Popen([sys.executable, __file__, "child", str(self.folder / "in"), str(out), str(processes)],
                                         env={**os.environ, SLOW: "0.15"}, stderr=subprocess.PIPE, text=True)
                end = time.monotonic() + 120
                while not list(out.glob(".prepare/0*.json")) and time.monotonic() < end:
                    time.sleep(0.01)
                child.send_signal(how)
                said = child.communicate(timeout=60)[1]
                made = {path.name: path.stat().st_mtime_ns for path in out.glob("0*.idx")}
                with self.subTest(how=how, processes=processes):
                    self.assertFalse((out / "data.json").exists())
                    self.refused("not finished", Prepared, out)
                    if how == signal.SIGINT:
                        self.assertRegex(said, r"has \d+ of \d+ shards; the same command continues")
                        self.assertNotIn("Traceback", said)
                        self.assertEqual(list(out.glob("*.partial")), [])
                    time.sleep(1)  # children of a killed one end by themselves
                    prepare(self.options, out, 1, Slow)
                    self.assertEqual(contents(out), contents(self.folder / "whole"))
                    records = [name for name, time_ns in made.items() if (out / name).stat().st_mtime_ns == time_ns]
                    self.assertGreater(len(records), 0)  # finished shards were not made again

    def test_other_options_or_inputs_are_not_mixed(self):
        self.broken("out")
        self.refused(["was begun with", "--max-tokens 0, now 9"], self.prepare, "out", replace(self.options, max_tokens=9))
        self.write("in/b.jsonl", '{"text": "other"}\n')
        self.refused(["b.jsonl, which is new or was changed"], self.prepare, "out")
        self.prepare("done")
        before = contents(self.folder / "done")
        self.assertIn("nothing to do", self.prepare("done")[0])
        self.refused("was made with --end-id", self.prepare, "done", replace(self.options, end_id="none"))
        self.assertEqual(contents(self.folder / "done"), before)

    def broken(self, name):
        """A folder whose making was refused in the middle."""
        fine = (self.folder / "in/b.jsonl").read_text()
        self.write("in/b.jsonl", fine + "{\n")
        said = self.refused("b.jsonl:301: is not JSON", self.prepare, name, processes=2)
        self.assertNotIn("Traceback", said)

    def test_a_refusal_leaves_whole_shards_alone(self):
        self.broken("out")
        self.assertTrue(list((self.folder / "out").glob("0*.idx")))
        self.assertEqual(list((self.folder / "out").glob("*.partial")), [])

    def test_a_folder_of_others_is_refused(self):
        self.write("mine/thesis.txt", "years of work")
        self.refused("not of paradyse-data", self.prepare, "mine")
        self.write("file", "x")
        self.refused("not of paradyse-data", self.prepare, "file")
        self.assertEqual([path.name for path in (self.folder / "mine").iterdir()], ["thesis.txt"])
        self.refused("is not there", self.prepare, "new", replace(self.options, inputs=("none",)))
        self.assertFalse((self.folder / "new").exists())

    def test_a_folder_with_the_name_of_ours_is_refused(self):
        mine = self.write("out/.prepare/lock", "mine"), self.write("out/.prepare/thesis", "mine")
        self.refused("is there and is not of paradyse-data", self.prepare, "out")
        self.assertEqual([path.read_text() for path in mine], ["mine"] * 2)
        mine[1].unlink()  # as a prepare leaves it that was ended at once
        self.prepare("out")

    def test_two_at_a_time_are_refused(self):
        child = subprocess.Popen([sys.executable, __file__, "child", str(self.folder / "in"), str(self.folder / "out"), "1"],
                                 env={**os.environ, SLOW: "0.3"}, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 120
        while not (self.folder / "out/.prepare/plan.json").exists() and time.monotonic() < end:
            time.sleep(0.01)
        self.refused("another paradyse-data prepare", self.prepare, "out")
        child.kill()
        child.communicate(timeout=60)

    def test_a_process_that_is_ended_from_outside(self):
        self.refused(["ended from outside", "--processes"], self.prepare, "out", processes=2, load=Dying)

    def test_nothing_left_is_refused(self):
        self.write("e.txt", "")
        said = self.refused("no document to use", self.prepare, "e", replace(self.options, inputs=(str(self.folder / "e.txt"),)))
        self.assertIn("empty texts: 1 text", said)

    def test_end_id_is_never_twice(self):
        class Ending(Letters):
            after = [1]

            def texts(self, texts):
                return [[*ids, 1] for ids in super().texts(texts)]

        for load, end, ids in ((Ending, "auto", [0, 100, 1]), (Letters, "auto", [0, 100, 1]), (Letters, "none", [0, 100])):
            self.write("x.txt", "a")
            out = f"{load.__name__}{end}"
            self.prepare(out, replace(self.options, inputs=(str(self.folder / "x.txt"),), end_id=end), load=load)
            self.assertEqual([one.ids.tolist() for one in Prepared(self.folder / out)], [ids])


class SequencesTest(FolderTest):
    def made(self, content, name="a.fa", **options):
        self.write(name, content)
        out = self.folder / f"out{len(list(self.folder.iterdir()))}"
        self.said = "\n".join(prepare(Options("letters", (str(self.folder / name),), **options), out, 1, Letters))
        return [one.ids.tolist() for one in Prepared(out)]

    def test_letters(self):
        self.assertEqual(self.made(">1\nACG\nT\n>2\nTT\n", letters=1), [[0, 68, 70, 74, 87, 1], [0, 87, 87, 1]])
        self.assertEqual(self.made("@1\nAC\n+\n!!\n", "a.fq", letters=1, end_id="none"), [[0, 68, 70]])

    def test_kmers_and_strides(self):
        self.assertEqual(self.made(">1\nACGTA\n", letters=2), [[0, 200, 201, 1]])
        self.assertIn("letters at the ends of sequences, too few for 2: 1 letter", self.said)
        self.assertEqual(self.made(">1\nACGT\n", letters=2, stride=1), [[0, 200, 2, 201, 1]])
        self.assertIn("2-mers that are no token of the tokenizer became <unk>: 1 2-mer; first", self.said)

    def test_unknown_and_small_letters(self):
        self.assertEqual(self.made(">1\nAcN\n", letters=1), [[0, 68, 2, 2, 1]])
        self.assertIn("2 letters", self.said)
        self.assertIn("--upper converts lower-case letters to upper case", self.said)
        self.assertEqual(self.made(">1\nAcg\n", letters=1, upper=True), [[0, 68, 70, 74, 1]])
        self.addCleanup(setattr, Letters, "unk_id", 2)
        Letters.unk_id = None
        self.refused(["a.fa:1", "the letter 'c'", "--upper"], self.made, ">1\nAcN\n", letters=1)

    def test_short_ones_are_told(self):
        self.assertEqual(self.made(">1\nAC\n>2\n>3\nA\n", letters=2), [[0, 200, 1]])
        self.assertIn("sequences without a letter: 1 sequence", self.said)
        self.assertIn("sequences shorter than 2 letters: 1 sequence", self.said)

    def test_kinds_are_not_mixed(self):
        self.refused("--letters, or --kmers K", self.made, ">1\nA\n")
        self.refused("for FASTA and FASTQ", self.made, "words", "a.txt", letters=1)


class Dying(Letters):
    def texts(self, texts):
        os.kill(os.getpid(), signal.SIGKILL)


def child(folder, out, processes):
    from paradyse.data.prepare import Interrupted
    try:
        prepare(Options("letters", (folder,), shard_bytes=3000), Path(out), int(processes), Slow)
    except Interrupted as error:
        sys.exit(str(error))


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:])
    else:
        unittest.main()
