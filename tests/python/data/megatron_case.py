"""Megatron-core's own class reads what is written, and what it writes is read."""

import random
import unittest

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from paradyse.data.convert import convert
from paradyse.data.corpus import opened_corpus
from paradyse.data.folder import Prepared, ShardWriter, write_head
from paradyse.data.tally import Tally
from support import FolderTest, document


class MegatronTest(FolderTest):
    def test_its_class_reads_ours(self):
        for top in (300, 100000):
            draw = random.Random(top)
            rows = [[draw.randrange(top) for _ in range(draw.randrange(2, 40))] for _ in range(60)]
            masks = [[draw.randrange(2) for _ in row[1:]] + [1] for row in rows]
            folder = self.folder / str(top)
            folder.mkdir()
            writer = ShardWriter(folder / "00000", top)
            for ids, mask in zip(rows, masks):
                writer.add(document(ids, mask))
            write_head(folder, vocab_size=top, end_id=None, tokenizer=None, sources=["in"], shards=[writer.finish()])
            for prefix, expected in ((folder / "00000", rows), (folder / "00000.labels", masks)):
                theirs = IndexedDataset(str(prefix))
                self.assertEqual([theirs[i].tolist() for i in range(len(theirs))], expected)
                self.assertEqual(theirs.document_indices.tolist(), list(range(61)))
            self.assertEqual([one.ids.tolist() for one in Prepared(folder)], rows)

    def test_what_its_builder_writes_is_read(self):
        for dtype in (np.uint16, np.int32, np.int64):
            prefix = self.folder / dtype.__name__
            builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
            builder.add_document(torch.tensor([1, 2, 3, 4]), [3, 1])  # two sequences
            builder.add_document(torch.tensor([5, 6]), [2])
            builder.finalize(f"{prefix}.idx")
            self.assertEqual([one.ids.tolist() for one in opened_corpus(str(prefix), Tally())], [[1, 2, 3, 4], [5, 6]])
            convert([str(prefix)], "jsonl", self.folder / f"{dtype.__name__}.jsonl")


if __name__ == "__main__":
    unittest.main()
