"""Folders and files of a stranger are read or refused; no name leads out of a folder or commands a terminal."""

import json
import os
import unittest

from paradyse.data.cli import printable
from paradyse.data.container import PairWriter
from paradyse.data.folder import Prepared, read_head
from paradyse.data.json_file import json_file
from paradyse.data.refusal import Refused
from support import FolderTest, document

HEAD = {"format": "paradyse-data", "version": 1, "vocab_size": 9, "end_id": None, "sources": ["in"],
        "shards": [{"name": "s", "documents": 1, "tokens": 3, "labels": 2, "sha256": ""}]}


class StrangersTest(FolderTest):
    def prepared(self, head):
        pair = PairWriter(self.folder / "s", "uint8")
        pair.add(document([1, 2, 3]).ids)
        pair.finish()
        self.write("data.json", head if isinstance(head, str) else json.dumps(head))
        return self.folder

    def test_the_head_of_a_folder(self):
        self.assertEqual(len(Prepared(self.prepared(HEAD))), 1)
        shard = HEAD["shards"][0]
        for edit in ({"shards": None}, {"shards": {}}, {"shards": [1]}, {"shards": [{}]}, {"vocab_size": None},
                     {"vocab_size": 2**70}, {"vocab_size": True}, {"end_id": "x"}, {"end_id": -1}, {"sources": 1},
                     {"sources": [None]}, *({"shards": [{**shard, "name": name}]} for name in (
                         "../s", "/etc/passwd", "a/b", "", "a\0b", 5)),
                     *({"shards": [{**shard, "tokens": tokens}]} for tokens in (-1, 2**63, 1e308, None))):
            with self.subTest(edit):
                self.refused("data.json", Prepared, self.prepared({**HEAD, **edit}))
        self.refused("nested too deeply", read_head, self.prepared("[" * 100_000))
        self.refused("nested too deeply", read_head, self.prepared('{"a":' * 100_000))
        whole = json.dumps(HEAD)
        for size in range(0, len(whole), 3):
            with self.subTest(size=size):
                self.refused("data.json", read_head, self.prepared(whole[:size]))
        for at in range(0, len(whole), 3):
            try:
                Prepared(self.prepared(whole[:at] + "9" + whole[at + 1:]))
            except Refused:
                pass

    def test_what_is_no_file(self):
        path = self.folder / "x.json"
        for make in (path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero"),
                     lambda: path.symlink_to("x.json"), lambda: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40)):
            make()
            self.refused(["x.json", "mend it"], json_file, path, "mend it")
            path.rmdir() if path.is_dir() else path.unlink()

    def test_names_on_a_terminal(self):
        self.assertEqual(printable("a\x1b[2J\x07\x9b\x7fé\tb\n"), "a\\x1b[2J\\x07\\x9b\\x7fé\tb\n")
        self.assertIn("\\x1b[2J", self.command("stats", "a\x1b[2J", code=2))


if __name__ == "__main__":
    unittest.main()
