"""Limits lose nothing uncounted; every label is kept once by a split; a document without labels is left out and told."""

import random
import unittest

from paradyse.data.limits import limited
from paradyse.data.tally import Tally
from support import FolderTest, document


class LimitsTest(FolderTest):
    def limited(self, one, most, too_long):
        self.tally = Tally()
        found = list(limited(one, most, too_long, self.tally))
        self.assertEqual((self.tally.documents, self.tally.tokens, self.tally.labels),
                         (len(found), sum(len(f.ids) for f in found), sum(f.labels for f in found)))
        return found

    def said(self):
        return "\n".join(self.tally.lines())

    def test_cut(self):
        found, = self.limited(document(range(10), [0, 0, 1, 1, 1, 1, 1, 1, 0, 1]), 5, "cut")
        self.assertEqual((found.ids.tolist(), found.mask.tolist()), ([0, 1, 2, 3, 4], [0, 0, 1, 1, 1]))
        self.assertIn("cut to 5 tokens, which loses: 1 document, 5 tokens, 4 labels; first in:1", self.said())

    def test_an_answer_that_is_cut_away_is_told(self):
        """The prompt alone is longer than the limit: nothing would be learned of it."""
        self.assertEqual(self.limited(document(range(10), [0] * 6 + [1] * 4), 6, "cut"), [])
        self.assertIn("left out: without a label after the cut to 6 tokens: 1 document, 6 tokens", self.said())
        self.assertIn("4 tokens, 4 labels", self.said())
        self.assertEqual(self.limited(document(range(10), [1] + [0] * 9), 0, "cut"), [])  # token 0 is never predicted
        self.assertIn("left out: without a label: 1 document, 10 tokens", self.said())

    def test_split_scores_every_label_once(self):
        for seed in range(200):
            draw = random.Random(seed)
            length, most = draw.randrange(2, 60), draw.randrange(2, 20)
            mask = [int(draw.random() < 0.4) for _ in range(length)] if draw.random() < 0.7 else None
            pieces = self.limited(document(range(length), mask), most, "split")
            scored = [int(i) for piece in pieces for place, i in enumerate(piece.ids)
                      if place and (piece.mask is None or piece.mask[place])]
            expected = [i for i in range(1, length) if mask is None or mask[i]]
            with self.subTest(seed=seed, length=length, most=most):
                self.assertEqual(scored, expected)
                self.assertTrue(all(len(piece.ids) <= most for piece in pieces))

    def test_skip_and_refuse(self):
        self.assertEqual(self.limited(document(range(9)), 5, "skip"), [])
        self.assertIn("longer than 5 tokens: 1 document, 9 tokens, 8 labels", self.said())
        self.refused(["in:1", "has 9 tokens, more than the 5", "--too-long"], self.limited, document(range(9)), 5, "refuse")
        for how in ("cut", "split", "skip", "refuse"):
            self.assertEqual(len(self.limited(document(range(5)), 5, how)), 1)
            self.assertEqual(self.said(), "")

    def test_tallies_add_up(self):
        one, two = Tally(1, 2, 3), Tally(10, 20, 30)
        one.left_out("a", "x:1", 2, "row")
        two.left_out("a", "y:1", 5, "row")
        two.note("b", "z", tokens=1)
        one.add(two)
        self.assertEqual(one.lines(), ["left out: a: 7 rows; first x:1", "note: b: 1 document, 1 token; first z"])
        self.assertEqual((one.documents, one.tokens, one.labels), (11, 22, 33))
        self.assertEqual(Tally.from_json(one.to_json()), one)


if __name__ == "__main__":
    unittest.main()
