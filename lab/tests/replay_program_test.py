"""paradyse-lab replay: the ParaDySe publication from its own numbers."""

import unittest

from support import PARADYSE_LAB, ProgramTest


class ReplayTest(ProgramTest):
    program = PARADYSE_LAB

    def test_figures_beside_the_published_ones(self):
        found = self.json_of("replay")
        by_case = {(row["model"], row["corpus"]): row for row in found["reductions"]}
        self.assertEqual(len(by_case), 6)
        bert = by_case["BERT", "GitHubCode"]
        self.assertAlmostEqual(bert["best_against_worst"], -0.847, delta=0.005)
        self.assertAlmostEqual(bert["best_against_best"], -0.045, delta=0.003)
        self.assertEqual(bert["published_against_worst"], -0.8929)
        ablation = {row["without"]: row for row in found["ablation"]}
        self.assertLess(ablation["METP"]["longest"], 0.4 * ablation[""]["longest"])
        self.assertNotIn("longest", ablation["forest"])
        self.assertGreater(len(found["assumptions"]), 4)
        self.assertEqual([row["up_to"] for row in found["shares"]], [112128, 270336, 300032])
        for row in found["shares"]:
            self.assertGreater(row["share"], row["published"])
        self.assertEqual(found, self.json_of("replay"))
        self.assertNotEqual(
            found["reductions"], self.json_of("replay", "--seed", 2)["reductions"])

    def test_as_text(self):
        text = self.run_program("replay", "--sequences", 500).stdout
        for word in ("GRCh38", "published", "without", "assumed (500 sequences"):
            self.assertIn(word, text)


if __name__ == "__main__":
    unittest.main()
