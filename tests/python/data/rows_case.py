"""Parquet rows and zstd frames: all of them, in order, by any cut; damage is refused."""

import json
import tracemalloc
import unittest

import pyarrow
import pyarrow.parquet
import zstandard
from paradyse.data.folder import Prepared
from paradyse.data.maker import Options
from paradyse.data.prepare import prepare
from paradyse.data.streams import opened
from support import FolderTest, Letters, contents


class RowsTest(FolderTest):
    def parquet(self, name, rows, group=7):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), self.folder / name, row_group_size=group)

    def prepared(self, *names, out="out", processes=1, **options):
        inputs = tuple(str(self.folder / name) for name in names)
        self.said = "\n".join(prepare(Options("letters", inputs, **options), self.folder / out, processes, Letters))
        return list(Prepared(self.folder / out))

    def test_parquet(self):
        rows = [{"text": "abc"[: 1 + i % 3] * (1 + i), "id": i} for i in range(50)] + [{"text": None, "id": 1}]
        self.parquet("a.parquet", rows)
        found = self.prepared("a.parquet", shard_bytes=1)
        self.assertEqual([bytes((one.ids[1:-1] - 3).tolist()).decode() for one in found], [row["text"] for row in rows[:-1]])
        self.assertEqual([one.place.line for one in found], list(range(1, 51)))
        self.assertEqual(len(Prepared(self.folder / "out").shards), 8)
        self.assertIn("keys not used: id", self.said)
        self.assertIn("empty texts: 1 text; first " + str(self.folder / "a.parquet:51"), self.said)
        for name, row, words in (("m", {"messages": None}, "chats without a turn of the role assistant: 1 chat"),
                                 ("p", {"prompt": None, "completion": None}, "empty completions: 1 document")):
            self.write(f"{name}.jsonl", json.dumps({"text": "a"}) + "\n" + json.dumps(row) + "\n")
            self.assertEqual(len(self.prepared(f"{name}.jsonl", out=name)), 1)
            self.assertIn(words, self.said)
        self.prepared("a.parquet", out="two", processes=2, shard_bytes=1)
        self.assertEqual(contents(self.folder / "out"), contents(self.folder / "two"))

    def test_parquet_columns_of_one_name(self):
        table = pyarrow.table([["ab", "c"], ["d", "e"]], names=["text", "text"])
        pyarrow.parquet.write_table(table, self.folder / "t.parquet")
        self.refused("t.parquet: has several columns 'text'", self.prepared, "t.parquet")

    def test_parquet_values_that_python_does_not_have(self):
        ends = pyarrow.py_buffer(bytes((0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0)))
        bad = pyarrow.StringArray.from_buffers(2, ends, pyarrow.py_buffer(b"ab\xff"))  # not UTF-8
        pyarrow.parquet.write_table(pyarrow.table({"text": bad}), self.folder / "n.parquet")
        self.refused("n.parquet:2: is not UTF-8 (byte 0xff at 0); convert it", self.prepared, "n.parquet")
        for number, column in enumerate((bad, bad.dictionary_encode(), bad.cast("large_string", safe=False))):
            pyarrow.parquet.write_table(pyarrow.table({"text": column}), self.folder / "n.parquet")
            found = self.prepared("n.parquet", out=f"n{number}", invalid="replace")
            self.assertEqual([bytes((one.ids[1:-1] - 3).tolist()).decode() for one in found], ["ab", "\ufffd"])
            self.assertIn("U+FFFD in place of bytes that are not UTF-8 (--invalid replace): 1 character", self.said)
        turns = pyarrow.StructArray.from_arrays([pyarrow.array(["user", "user"]), bad], ["role", "content"])
        pyarrow.parquet.write_table(pyarrow.table({"messages": pyarrow.ListArray.from_arrays([0, 1, 2], turns)}),
                                    self.folder / "m.parquet")
        self.refused("m.parquet:2: is not UTF-8", self.prepared, "m.parquet", out="m")
        for number, (unit, value) in enumerate((("ns", 1), ("ms", 2**60))):  # between microseconds, and after year 9999
            pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"], "train": pyarrow.array(
                [None, value], pyarrow.timestamp(unit))}), self.folder / "t.parquet")
            self.refused(["t.parquet:2: has a value of train (timestamp[", "in another type"], self.prepared, "t.parquet",
                         out=f"t{number}")

    def test_parquet_that_is_damaged_in_its_middle(self):
        self.parquet("d.parquet", [{"text": "abc" * n} for n in range(1, 400)], group=50)
        whole = (self.folder / "d.parquet").read_bytes()
        self.write("d.parquet", whole[:200] + bytes(400) + whole[600:])
        self.refused(["d.parquet: cannot be read as Parquet"], self.prepared, "d.parquet")

    def test_parquet_of_other_keys(self):
        self.parquet("a.parquet", [{"body": "a", "labels": [1]}])
        self.refused("a.parquet:1: has no document; it has body", self.prepared, "a.parquet")
        self.refused("the list labels", self.prepared, "a.parquet", text_key="body", out="o2")
        for place, (weight, words) in enumerate(((1.0, ""), (0.0, "b.parquet:1: has weight = 0.0"), (None, ""))):
            self.parquet("b.parquet", [{"text": "ab", "weight": weight}, {"text": "c", "weight": 1.0}])
            if words:
                self.refused(words, self.prepared, "b.parquet", out=f"w{place}")
            else:
                self.assertEqual(len(self.prepared("b.parquet", out=f"w{place}")), 2)
        for place, (key, value) in enumerate((("train", False), ("loss", False), ("ignore", True), ("masked", True),
                                              ("loss_scale", 0.5), ("Trainable", 0))):
            self.parquet("u.parquet", [{"text": "ab", key: None}, {"text": "c", key: value}])
            self.refused(f"u.parquet:2: has {key} = ", self.prepared, "u.parquet", out=f"u{place}")
        for place, mask in enumerate((b"\0\1", "01")):
            self.parquet("l.parquet", [{"text": "ab", "loss_mask": None}, {"text": "ab", "loss_mask": mask}])
            self.refused("l.parquet:2: has loss_mask = ", self.prepared, "l.parquet", out=f"l{place}")
        for key in ("label", "kto_tag"):
            self.parquet("k.parquet", [{"prompt": "a", "completion": "b", key: False}])
            self.refused(f"k.parquet:1: has {key} = false", self.prepared, "k.parquet", out=key)
        whole = (self.folder / "a.parquet").read_bytes()
        for damaged in (whole[:-9], b"PAR1", b""):
            self.write("d.parquet", damaged)
            self.refused(["d.parquet", "as Parquet"], self.prepared, "d.parquet", out="o3")

    def test_messages_of_parquet_have_no_nulls(self):
        class Chats(Letters):
            template, marks = "x", False

            def render(self, chat, count, template_args, place, prompt=False):
                return json.dumps(chat.messages[:count])[1:-1] + (", {" if prompt and count < len(chat.messages) else "")

            def bare(self, text):
                return list(map(ord, text))

        Chats.vocab_size = 300
        self.parquet("a.parquet", [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "name": "c"}]}])
        prepare(Options("letters", (str(self.folder / "a.parquet"),)), self.folder / "out", 1, Chats)
        one, = Prepared(self.folder / "out")
        text = "".join(map(chr, one.ids))
        self.assertNotIn("null", text)
        self.assertEqual("".join(chr(i) for i, m in zip(one.ids, one.mask) if m), '"role": "assistant", "content": "b", "name": "c"}')

    def test_zstd_of_several_frames_is_read_to_its_end(self):
        lines = [json.dumps({"text": "x" * n}) + "\n" for n in range(1, 40)]
        frames = [zstandard.compress("".join(lines[i:i + 10]).encode()) for i in range(0, 40, 10)]
        self.write("a.jsonl.zst", b"".join(frames))
        self.assertEqual([len(one.ids) - 2 for one in self.prepared("a.jsonl.zst")], list(range(1, 40)))
        stream = zstandard.ZstdCompressor().compressobj()  # a frame that does not say its size
        self.write("b.zst", stream.compress(b"y" * 5000000) + stream.flush())
        with opened(self.folder / "b.zst") as content:
            self.assertEqual(content.read(), b"y" * 5000000)
        for number, damaged in enumerate((b"".join(frames)[:-3], b"".join(frames)[:-30], b"junk", frames[0] + b"junk")):
            self.write("c.jsonl.zst", damaged)
            self.refused(["c.jsonl.zst", "cut or damaged"], self.prepared, "c.jsonl.zst", out=f"cut{number}")

    def test_zstd_is_unpacked_a_little_at_a_time(self):
        packer = zstandard.ZstdCompressor().compressobj()
        parts = [packer.compress(bytes(1 << 20)) for _ in range(256)]
        self.write("a.zst", b"".join(parts) + packer.flush())
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        count = 0
        with opened(self.folder / "a.zst") as content:
            while block := content.read(1 << 16):
                count += len(block)
        self.assertEqual(count, 256 << 20)
        self.assertLess(tracemalloc.get_traced_memory()[1], 64 << 20)


if __name__ == "__main__":
    unittest.main()
