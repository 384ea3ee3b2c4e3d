"""Items of a dataset: what they say of their tokens is heeded, or refused by name."""

import collections
import unittest

import numpy
import paradyse.torch as pt
import torch
from ranks import IGNORED, llama, planner

IDS = [1, 2, 3, 4, 5]
SHIFTED = [2, 3, 4, 5, IGNORED]
LAST = [IGNORED, IGNORED, 4, 5, IGNORED]  # of a mask of the last two


class ItemsTest(unittest.TestCase):
    def setUp(self):
        self.planner = planner(llama(), ranks=1)

    def read(self, item):
        step = pt.Step(self.planner.plan([5]), [0], self.planner)
        mb, = step.micro_batches([item])
        return mb.inputs["input_ids"][0].tolist(), mb.labels[0].tolist()

    def test_forms_of_ids(self):
        for item in (IDS, tuple(IDS), torch.tensor(IDS), numpy.array(IDS, "uint16"), {"input_ids": torch.tensor(IDS)},
                     {"input_ids": numpy.array(IDS)}, {"input_ids": [torch.tensor(i) for i in IDS]},
                     collections.UserDict(input_ids=IDS), {"input_ids": IDS, "labels": torch.tensor(IDS)}):
            with self.subTest(item=item):
                self.assertEqual(self.read(item), (IDS, SHIFTED))

    def test_masks_say_what_counts(self):
        mask = [0, 0, 0, 1, 1]
        for said in ({"completion_mask": mask}, {"assistant_masks": torch.tensor(mask)}, {"labels": [IGNORED] * 3 + [4, 5]},
                     {"assistant_mask": numpy.array(mask, bool)}, {"response_mask": [0.0, 0.0, 0.0, 1.0, 1.0]}, {"loss_mask": mask},
                     {"labels": IDS, "completion_mask": mask},
                     {"completion_mask": [0, 0, 1, 1, 1], "assistant_masks": [1, 1, 0, 1, 1]},
                     {"completion_mask": mask, "assistant_masks": None}):  # None: not given, as in Arrow
            with self.subTest(said):
                self.assertEqual(self.read({"input_ids": IDS, **said}), (IDS, LAST))
        self.assertEqual(self.read({"input_ids": IDS, "loss_mask": [0] * 5})[1], [IGNORED] * 5)
        self.assertEqual(self.read({"input_ids": IDS, "loss_mask": [1] * 5})[1], SHIFTED)

    def test_what_says_only_that_it_is_one_document(self):
        self.assertEqual(self.read({
            "input_ids": IDS, "attention_mask": [1] * 5, "position_ids": torch.arange(5), "token_type_ids": [0] * 5,
            "seq_lengths": [5], "cu_seqlens": [0, 5], "seq_idx": [7] * 5, "special_tokens_mask": [1, 0, 0, 0, 1], "label": "a class", "weight": None,
            "length": 5, "id": 3}), (IDS, SHIFTED))

    def test_what_is_refused(self):
        for said, words in (
                ({"attention_mask": [1, 1, 1, 0, 0]}, r"document 0 has attention_mask .*padding"),
                ({"attention_mask": [1, 1, 1]}, "attention_mask"),
                ({"completion_mask": [1, 1]}, "completion_mask .* no mask of its 5 tokens"),
                ({"assistant_masks": [0, 1, 2, 1, 1]}, "assistant_masks .* no mask"),
                ({"completion_mask": "00011"}, "completion_mask .* no mask"),
                ({"label_mask": [0, 0, 0, 1, 1]}, "label_mask .*is not read"),
                ({"position_ids": [0, 1, 0, 1, 2]}, "position_ids .*several documents"),
                ({"position_ids": [2, 3, 4, 5, 6]}, "position_ids"), ({"token_type_ids": [0, 0, 1, 1, 1]}, "token_type_ids"),
                ({"segment_ids": torch.tensor([0, 0, 1, 1, 1])}, "segment_ids .*several documents"),
                ({"seq_lengths": [2, 3]}, "seq_lengths .*several documents"),
                ({"cu_seqlens": [0, 2, 5]}, "cu_seqlens .*several documents"),
                ({"cu_seq_lens_q": torch.tensor([0, 2, 5])}, "cu_seq_lens_q"), ({"seq_idx": [0, 0, 1, 1, 1]}, "seq_idx"),
                ({"weights": [0.5] * 5}, "weights .*is not read"), ({"weight": 0.0}, "weight .*is not read"),
                ({"sample_weight": torch.tensor(0.5)}, "sample_weight .*is not read"),
                ({"pixel_values": [[0.0]]}, "pixel_values .*is not read"),
                ({"labels": None}, "labels that are None"), ({"labels": [1, 2]}, "5 ids and 2 labels"),
                ({"labels": [1, 2, 3, 4, -1]}, "-1 in labels.*does not count is -100"),
                ({"labels": [1, 2, 3, 4, 99]}, "99 in labels, of a vocabulary of 64"),
                ({"labels": [1, 2, 3, 4, 5.5]}, "labels that are no row of whole numbers"),
                ({"input_ids": None}, "no input_ids"), ({"input_ids": [1, 2, -3, 4, 5]}, "-3 in input_ids"),
                ({"input_ids": [1, 2, 3, 4, 64]}, "64 in input_ids, of a vocabulary of 64"),
                ({"input_ids": [1, 2.7, 3, 4, 5]}, "input_ids that are no row of whole numbers"),
                ({"input_ids": "12345"}, "whole numbers: '12345'"), ({"input_ids": [True] * 5}, "whole numbers"),
                ({"input_ids": list("12345")}, "whole numbers"), ({"input_ids": [[1], [2, 3]]}, "whole numbers"),
                ({"input_ids": torch.tensor([IDS])}, "whole numbers: 2 dimensions"), ({"input_ids": IDS[:3]}, "3 ids")):
            with self.subTest(said), self.assertRaisesRegex(ValueError, words):
                self.read({"input_ids": IDS, **said})
        for item, words in (({"tokens": IDS}, "no input_ids, but tokens"), ({}, "nothing"), (None, "no input_ids"),
                            ("12345", "whole numbers"), ([1.5] * 5, "whole numbers")):
            with self.subTest(item=item), self.assertRaisesRegex(ValueError, words):
                self.read(item)

    def test_counts_that_are_not_those_of_the_documents_are_refused(self):
        step = pt.Step(self.planner.plan([5]), [0], self.planner, labels=[5])
        with self.assertRaisesRegex(ValueError, "document 0 has 4 labels that count, but 5 were given"):
            step.micro_batches([IDS])


if __name__ == "__main__":
    unittest.main()
