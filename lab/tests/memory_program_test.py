"""paradyse-lab memory: peaks of a step, one means of saving memory after the other."""

import unittest

from support import GOLDEN, PARADYSE_LAB, TINY_EVOFORMER, ProgramTest


class MemoryTest(ProgramTest):
    program = PARADYSE_LAB

    def test_what_memory_takes_is_a_table(self):
        protein = self.write("evoformer.toml", TINY_EVOFORMER)
        found = self.json_of("memory", "--model", protein, "--sequences", 24, "--residues", 32,
                             "--ranks", "2,3")
        names = [row["name"] for row in found["rows"]]
        self.assertEqual(names, ["naive", "+ tiled attention", "+ recompute", "+ whole layers", "+ chunking",
                                 "+ mixed precision", "+ offload", "+ 2 ranks", "+ 3 ranks"])
        rows = dict(zip(names, found["rows"]))
        peaks = [row["peak_bytes"] for row in found["rows"]]
        self.assertEqual(peaks, sorted(peaks, reverse=True))
        self.assertLess(peaks[4], peaks[0] / 6)
        for name, row in rows.items():
            self.assertEqual(row["peak_is"], "measured")
            self.assertLess(abs(row["peak_bytes"] / row["counted_bytes"] - 1), 0.1 if name == "naive" else 0.02)
            self.assertLess(row["gradient_error"], 2e-5 if row["dtype"] == "float32" else 0.12, name)
        counted = self.json_of("memory", "--model", protein, "--sequences", 24, "--residues", 32,
                               "--ranks", "2,3", "--counted")
        for row, ran in zip(counted["rows"], found["rows"]):
            self.assertEqual((row["peak_is"], row["seconds"]), ("counted", None))
            self.assertEqual(row["counted_bytes"], ran["counted_bytes"])
        self.assertIn("naive", self.run_program("memory", "--model", GOLDEN / "hf_gpt2", "--tokens", 40,
                                                "--ranks", 2).stdout)


if __name__ == "__main__":
    unittest.main()
