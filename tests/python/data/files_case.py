"""Which files are read, what is left out and counted, what is refused; and packed files to their ends."""

import glob
import gzip
import os
import unittest
import unittest.mock
from pathlib import Path

from paradyse.data.corpus import JsonLines
from paradyse.data.files import FASTA, LINES, TEXT, DataFile, data_files, matches
from paradyse.data.records import WHOLE, Reader, Unit
from paradyse.data.streams import Decoder, opened
from paradyse.data.tally import Tally
from support import FolderTest

ROW = '{"text": "a"}\n'


class FilesTest(FolderTest):
    def found(self, *given, ours=(), keys=()):
        self.tally = Tally()
        files = data_files([str(self.folder / one) for one in given], self.tally, list(ours), set(keys))
        return [(os.path.relpath(file.path, self.folder), file.kind) for file in files]

    def test_a_folder_is_sorted_by_bytes_and_counts_what_it_leaves_out(self):
        for name in ("d/B.jsonl", "d/a.jsonl", "d/sub/c.jsonl.gz", "d/Z/x.ndjson", "d/notes.txt", "d/part-00001"):
            self.write(name, gzip.compress(ROW.encode()) if name.endswith("gz") else ROW)
        self.write("d/.cache/x.jsonl", ROW)
        self.write("d/README.md", "# words")
        self.write("d/picture.png", b"\x89PNG\0")
        self.write("d/weights.safetensors", b"\0")
        (self.folder / "d/again.jsonl").symlink_to(self.folder / "d/B.jsonl")
        os.mkfifo(self.folder / "d/pipe")
        self.write("d/done/data.json", '{"format": "paradyse-data"}')
        self.assertEqual(self.found("d"), [
            ("d/B.jsonl", "JSONL"), ("d/Z/x.ndjson", "JSONL"), ("d/a.jsonl", "JSONL"), ("d/notes.txt", "text"),
            ("d/part-00001", "JSONL"), ("d/sub/c.jsonl.gz", "JSONL")])
        said = "\n".join(self.tally.lines())
        for words in ("hidden: 1 file; first", ".cache", "binary: 2 files", "read already: 1 file", "again.jsonl",
                      "pipe or socket: 1 file", "text beside JSONL", "README.md", "prepared data: 1 file"):
            self.assertIn(words, said)

    def test_a_data_json_of_others_is_no_prepared_folder(self):
        self.write("d/books/data.json", '{"title": "b"}')
        self.write("d/books/b.txt", "words")
        self.assertIn(("d/books/b.txt", "text"), self.found("d"))

    def test_a_pattern_leaves_out_what_a_folder_does(self):
        self.write("d/a.txt", "words")
        self.write("d/model/merges.txt", "a b")
        self.write("d/done/data.json", '{"format": "paradyse-data"}')
        (self.folder / "d/gone").symlink_to(self.folder / "nothing")
        self.assertEqual(self.found("d/[admo]*", ours=[(self.folder / "d/model").resolve()]), [("d/a.txt", "text")])
        with self.assertRaisesRegex(Exception, "is a link to a folder or to nothing"):
            self.found("d/g*")

    def test_a_pattern_is_a_shells(self):
        for name in ("d/a/x.txt", "d/b/x.txt", "d/b/y.txt", "d/.c/x.txt", "d/x.txt", "d/[a]/x.txt"):
            self.write(name, "words")
        for pattern in ("d/*/x.txt", "d/?/*.txt", "d/[!a]/*", "d/.c/*", "d/.*/x.txt", "d/*", "d/*/*", "d/[[]a]/*", "d/*/none"):
            self.assertEqual([str(path) for path in sorted(matches(self.folder / pattern))],
                             sorted(glob.glob(str(self.folder / pattern))), pattern)

    def test_a_folder_that_a_pattern_cannot_read_is_refused(self):
        for name in ("d/a/x.txt", "d/b/x.txt"):
            self.write(name, "words")

        def denying(call, denied):
            def called(path):
                if Path(path) == denied:
                    raise PermissionError(13, "Permission denied", str(path))
                return call(path)
            return called
        for name, call, denied, pattern in (("os.listdir", os.listdir, self.folder / "d/b", "d/*/*.txt"),
                                            ("pathlib.Path.lstat", Path.lstat, self.folder / "d/b/x.txt", "d/*/x.txt")):
            with unittest.mock.patch(name, denying(call, denied)):
                self.refused([denied, "cannot be read: Permission denied"], self.found, pattern)

    def test_names_that_data_json_cannot_hold_are_refused(self):
        (self.folder / "d").mkdir()
        open(os.fsencode(self.folder / "d") + b"/caf\xe9.txt", "w").close()
        with self.assertRaisesRegex(Exception, "not UTF-8"):
            self.found("d")

    def test_a_folder_of_text_is_read_whole(self):
        for name in ("b", "a.py", "c/x.txt"):
            self.write(f"d/{name}", "words")
        self.assertEqual(self.found("d"), [("d/a.py", "text"), ("d/b", "text"), ("d/c/x.txt", "text")])
        self.assertEqual(self.found("d/b", "d"), [("d/b", "text"), ("d/a.py", "text"), ("d/c/x.txt", "text")])
        self.assertEqual(self.found("d/*"), [("d/a.py", "text"), ("d/b", "text"), ("d/c/x.txt", "text")])
        self.assertEqual(self.found("d", ours=[self.folder / "d/c"]), [("d/a.py", "text"), ("d/b", "text")])

    def test_kinds(self):
        for name, kind in (("a.fa", "FASTA"), ("a.FASTQ.gz", "FASTQ"), ("a.parquet", "Parquet"), ("a.md", "text"),
                           ("a.ndjson.zst", "JSONL")):
            self.write(name, gzip.compress(b"x") if name.endswith("gz") else "x")
            self.assertEqual(self.found(name), [(name, kind)])
        self.write("own.json", '{"body": "x"}\n')
        self.refused("--text-key", self.found, "own.json")
        self.assertEqual(self.found("own.json", keys=["body"]), [("own.json", "JSONL")])

    def test_what_is_not_read_is_refused_by_name(self):
        for name, content, words in (
                ("a.csv", "x,y", "write its rows as JSONL"), ("a.arrow", "x", "JSONL or Parquet"), ("a.npy", "x", "convert"),
                ("a.bin", "x", "paradyse-data convert"), ("a.pdf", "x", "give its text"), ("a.tar.gz", "x", "tar -xf"),
                ("a.parquet.gz", "x", "unpack it: gunzip"), ("a.PARQUET.zst", "x", "unpack it: gunzip, or unzstd"),
                ("a", b"\x1f\x8bxx", "rename it"), ("b", b"\x28\xb5\x2f\xfdxx", "rename it"), ("c", b"PAR1xx", "rename it"),
                ("d", b"\xff\xfeh\0", "iconv"), ("e", b"\0\1\2", "not text"), ("a.json", '[{"text": "x"}]', "jq -c"),
                ("b.json", "{}", "holds no documents"), ("none", None, "is not there"), ("*.none", None, "matches no file")):
            if content is not None:
                self.write(name, content)
            with self.subTest(name):
                self.refused([name, words], self.found, name)

    def test_tables_links_and_packed_data_in_folders_are_refused(self):
        for name in ("a.csv", "a.tfrecord", "a.jsonl.bz2", "a.csv.gz", "a.parquet.gz"):
            path = self.write(f"{name}.d/{name}", "x")
            self.write(f"{name}.d/b.jsonl", ROW)
            self.refused([name, "move it out of the folder"], self.found, f"{name}.d")
            path.unlink()
        (self.folder / "l").mkdir()
        (self.folder / "l/link").symlink_to(self.folder / "a.csv.d")
        self.refused("link to a folder", self.found, "l")
        (self.folder / "empty").mkdir()
        self.refused("it is empty", self.found, "empty")


class StreamsTest(FolderTest):
    def read(self, path):
        with opened(path) as stream:
            return stream.read()

    def test_gzip(self):
        content = os.urandom(3000)
        path = self.write("a.gz", gzip.compress(content[:1000]) + gzip.compress(content[1000:]))  # two members
        self.assertEqual(self.read(path), content)
        whole = path.read_bytes()
        for damaged in (whole[:-5], whole[:-8] + b"00000000", b"no gzip"):
            path.write_bytes(damaged)
            self.refused([path, "cut or damaged"], self.read, path)
        self.refused("No such file", self.read, Path(self.folder / "none.gz"))

    def test_what_unpacks_without_end_is_refused(self):
        self.write("a.txt.gz", gzip.compress(b"x" * 1001))
        self.write("a.jsonl.gz", gzip.compress(b'{"tokens": [1]}\n' * 100 + b'"' + b"x" * 1001))
        self.write("a.fasta.gz", gzip.compress(b">a\nAC\n>b\n" + b"ACGT\n" * 201))
        with unittest.mock.patch("paradyse.data.streams.MOST_UNPACKED", 1000), \
                unittest.mock.patch("paradyse.data.records.MOST_UNPACKED", 1000):
            self.refused("a.txt.gz: unpacks to more than", self.records, "a.txt.gz", TEXT)
            self.refused("a.jsonl.gz:101: is a line of more than", self.records, "a.jsonl.gz", LINES)
            self.refused("a.jsonl.gz:101: is a line of more than", list, JsonLines(str(self.folder / "a.jsonl.gz"), Tally()))
            self.refused("a.fasta.gz:3: is a sequence of more than", self.records, "a.fasta.gz", FASTA)
            self.write("a.fasta", gzip.decompress((self.folder / "a.fasta.gz").read_bytes()))
            self.assertEqual(len(self.records("a.fasta", FASTA)), 2)  # it takes no more memory than it has bytes

    def records(self, name, kind):
        file = DataFile(str(self.folder / name), kind, True)
        return list(Reader([file], False, {"text"}, Tally).records(Unit(0, 0, WHOLE, 1, 1)))

    def test_utf8(self):
        self.assertEqual(Decoder(False).text("größe".encode(), "x"), "größe")
        self.refused(["x: is not UTF-8", "byte 0xf6 at 2", "iconv", "--invalid replace"], Decoder(False).text,
                     "größe".encode("latin1"), "x")
        decoder = Decoder(True)
        self.assertEqual((decoder.text(b"a\xff\xef\xbf\xbd\xfe", "x"), decoder.replaced), ("a\ufffd\ufffd\ufffd", 2))


if __name__ == "__main__":
    unittest.main()
