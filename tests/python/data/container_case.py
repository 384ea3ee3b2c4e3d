"""The container is Megatron's to the byte, label masks are beside it, and damage is refused."""

import array
import os
import random
import struct
import threading
import unittest

import numpy as np
from paradyse.data.container import Pair, PairWriter, replace_file
from paradyse.data.document import Place, document_of, dtype_for, expect_ids, one_bos
from paradyse.data.folder import Prepared, Shard, ShardWriter, write_head
from support import FolderTest, document, raw_pair


class ContainerTest(FolderTest):
    def pair(self, name, documents, dtype="uint16"):
        writer = PairWriter(self.folder / name, dtype)
        for one in documents:
            writer.add(np.asarray(one))
        writer.finish()
        return self.folder / name

    def test_bytes_of_a_pair(self):
        prefix = self.pair("a.b", [[1, 2, 3], [70], [65499, 0]])
        expected = (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 3, 4) + struct.pack("<3i", 3, 1, 2)
                    + struct.pack("<3q", 0, 6, 8) + struct.pack("<4q", 0, 1, 2, 3))
        self.assertEqual((self.folder / "a.b.idx").read_bytes(), expected)
        self.assertEqual((self.folder / "a.b.bin").read_bytes(), struct.pack("<6H", 1, 2, 3, 70, 65499, 0))
        self.assertEqual(raw_pair(prefix), [[1, 2, 3], [70], [65499, 0]])

    def test_ids_that_the_type_does_not_hold(self):
        for dtype, beyond in (("int32", 2**31), ("uint16", 65536), ("uint16", -1)):
            writer = PairWriter(self.folder / "c", dtype)
            writer.add(np.array([0, 1]))
            self.refused(["c: document 1 has an id", beyond, f"the file's type {dtype} holds"],
                         writer.add, np.array([5, beyond]))
            writer.discard()

    # And of ours none is left, written to its end or not.
    def test_partial_files_of_a_user_stay(self):
        mine = {name: b"a download" for name in ("a.bin.partial", "a.idx.partial", "a.json.partial")}
        for name, content in mine.items():
            (self.folder / name).write_bytes(content)
        self.pair("a", [[1, 2]])
        replace_file(self.folder / "a.json", b"{}")
        PairWriter(self.folder / "b", "uint16").discard()
        self.assertEqual({name: (self.folder / name).read_bytes() for name in mine}, mine)
        self.assertEqual({file.name for file in self.folder.iterdir()} - set(mine), {"a.bin", "a.idx", "a.json"})

    def test_a_file_is_replaced_where_it_is(self):
        real, link, pipe = (self.folder / name for name in ("real", "link", "pipe"))
        real.write_text("before")
        real.chmod(0o640)
        link.symlink_to("real")
        replace_file(link, b"after")
        self.assertTrue(link.is_symlink())
        self.assertEqual((real.read_text(), real.stat().st_mode & 0o777), ("after", 0o640))
        os.mkfifo(pipe)
        read = []
        reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
        reader.start()
        replace_file(pipe, b"through")
        reader.join(10)
        self.assertEqual((read, pipe.is_fifo()), ([b"through"], True))
        self.assertRaises(IsADirectoryError, replace_file, self.folder, b"")
        self.assertEqual({path.name for path in self.folder.iterdir()}, {"real", "link", "pipe"})

    def test_random_pairs_come_back(self):
        for seed in range(20):
            draw = random.Random(seed)
            top = draw.choice([200, 60000, 200000])
            documents = [[draw.randrange(top) for _ in range(draw.randrange(1, 50))] for _ in range(draw.randrange(1, 30))]
            dtype = dtype_for(top)
            self.assertEqual(dtype, "int32" if top == 200000 else "uint16")
            prefix = self.pair(f"p{seed}", documents, dtype)
            with self.subTest(seed):
                self.assertEqual(raw_pair(prefix), documents)
                pair = Pair(prefix)
                self.assertEqual([pair[i].tolist() for i in range(len(pair))], documents)
                self.assertEqual(pair.lengths.tolist(), list(map(len, documents)))

    def test_documents_of_several_sequences(self):
        """As Megatron writes sentences: lengths 2, 1, 3 in documents of 2 and 1 sequences, in another order on disk."""
        (self.folder / "m.bin").write_bytes(struct.pack("<6i", 7, 8, 9, 1, 2, 3))
        (self.folder / "m.idx").write_bytes(
            b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 3, 3) + struct.pack("<3i", 2, 1, 3)
            + struct.pack("<3q", 12, 20, 0) + struct.pack("<3q", 0, 2, 3))
        pair = Pair(self.folder / "m")
        self.assertEqual([pair[0].tolist(), pair[1].tolist()], [[1, 2, 3], [7, 8, 9]])
        self.assertEqual(pair.lengths.tolist(), [3, 3])

    def test_damage_is_refused(self):
        prefix = self.pair("d", [[1, 2, 3], [4]])
        index, data = (prefix.with_suffix(ending).read_bytes() for ending in (".idx", ".bin"))
        for what, words, new_index, new_data in (
                ("cut data", "asks for 8", index, data[:-1]), ("cut index", "is damaged", index[:-8], data),
                ("magic", "MMIDIDX", b"TNTIDX" + index[6:], data), ("modes", "multimodal", index + b"\0\0", data),
                ("dtype", "the code 6", index[:17] + b"\6" + index[18:], data),
                ("bounds", "do not go up", index[:-8] + struct.pack("<q", 1), data)):
            prefix.with_suffix(".idx").write_bytes(new_index)
            prefix.with_suffix(".bin").write_bytes(new_data)
            with self.subTest(what):
                self.refused(words, Pair, prefix)
        self.refused("is not there", Pair, self.folder / "none")

    def test_masks_are_there_where_a_label_does_not_count(self):
        rows = [([5, 6, 7], None), ([8, 9], [1, 0]), ([1, 2, 3], [0, 1, 1]), ([4, 4], [1, 1])]
        writer = ShardWriter(self.folder / "s", 300)
        for line, (ids, mask) in enumerate(rows, 7):
            writer.add(document(ids, mask, line))
        entry = writer.finish()
        self.assertEqual((entry["documents"], entry["tokens"], entry["labels"]), (4, 10, 2 + 0 + 2 + 1))
        self.assertEqual(raw_pair(self.folder / "s.labels"), [[1, 1, 1], [1, 0], [0, 1, 1], [1, 1]])
        sources = array.array("Q", (self.folder / "s.sources.bin").read_bytes())
        self.assertEqual(sources.tolist(), [0, 7, 0, 8, 0, 9, 0, 10])
        # masks in which all count from token 1 on need no file; what an attempt before wrote goes
        writer = ShardWriter(self.folder / "s", 300)
        writer.add(document([1, 2], [0, 1]))
        writer.finish()
        self.assertFalse(list(self.folder.glob("s.labels*")))

    def test_a_label_is_that_of_its_own_token(self):
        """Unshifted: mask[i] is of token i, and token 0 is never predicted."""
        self.assertEqual(document([1, 2, 3], [1, 0, 1]).labels, 1)
        self.assertEqual(document([1, 2, 3], [1, 0, 0]).labels, 0)
        self.assertEqual(document([1, 2, 3]).labels, 2)

    def test_masks_of_another_data_set_are_refused(self):
        for ids, masks, word in (([[1, 2]], [[1]], "one byte for each token"), ([[1, 2]], [[1, 2]], "the byte 2")):
            self.pair("x", ids)
            self.pair("x.labels", masks, "uint8")
            self.refused(word, lambda: Shard(self.folder / "x").document(0, []))

    def test_a_folder_comes_back(self):
        shards = []
        for name, rows in (("00000", [[1, 2], [3, 4, 5]]), ("00002", [[6, 7]])):
            writer = ShardWriter(self.folder / name, 70000)
            for ids in rows:
                writer.add(document(ids, line=9))
            shards.append(writer.finish())
        self.refused("not finished", Prepared, self.folder)
        write_head(self.folder, vocab_size=70000, end_id=None, tokenizer=None, sources=["in"], shards=shards)
        found = Prepared(self.folder)
        self.assertEqual([one.ids.tolist() for one in found], [[1, 2], [3, 4, 5], [6, 7]])
        self.assertEqual([str(one.place) for one in found], ["in:9"] * 3)
        self.assertEqual((found.head["tokens"], found.head["labels"], found.head["dtype"]), (7, 4, "int32"))
        self.pair("00002", [[6]], "int32")
        self.refused("data.json says 1 and 2", Prepared, self.folder)

    def test_ids_are_of_the_vocabulary(self):
        writer = ShardWriter(self.folder / "v", 10)
        for ids in ([1, 10], [-1, 2]):
            self.refused(["in:1", "vocabulary of 10"], writer.add, document(ids))
        writer.discard()
        self.assertEqual(list(self.folder.iterdir()), [])
        expect_ids(document([0, 9]), 10)

    def test_one_bos(self):
        for ids, left in (([1, 1, 5], [1, 5]), ([1, 1, 1, 5, 1, 1], [1, 5, 1, 1]), ([1, 5], [1, 5]), ([1], [1]), ([5, 1, 1], [5, 1, 1])):
            mask = list(range(len(ids)))
            found = one_bos(document_of(ids, mask, Place(0, "in")), 1)
            self.assertEqual((found.ids.tolist(), found.mask.tolist()), (left, mask[len(mask) - len(left):]))
        self.assertEqual(one_bos(document([1, 1]), None).ids.tolist(), [1, 1])


if __name__ == "__main__":
    unittest.main()
