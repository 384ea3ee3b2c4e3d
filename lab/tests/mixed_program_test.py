"""paradyse-lab mixed: ranks of unlike memory and speed."""

import unittest

from support import PARADYSE_LAB, ProgramTest

MODEL = """
architectures = ["LlamaForCausalLM"]
model_type = "llama"
hidden_size = 48
num_hidden_layers = 6
num_attention_heads = 4
num_key_value_heads = 2
intermediate_size = 96
vocab_size = 61
rms_norm_eps = 1e-5
"""


class MixedTest(ProgramTest):
    program = PARADYSE_LAB

    def setUp(self):
        super().setUp()
        self.model = self.write("model.toml", MODEL)

    def bench(self, *options):
        return self.json_of("mixed", "--model", self.model, *options)

    def expect_gain(self, budgets, *options):
        """The longest document of uneven cuts is at least 80 % of the way to the ideal one."""
        sizes = [int(budget[:-3]) * 2**20 for budget in budgets]
        found = self.bench("--memory", ",".join(budgets), *options)["memory"]
        even, proportional = found["even"], found["proportional"]
        self.assertEqual(found["budgets"], sizes)
        self.assertEqual(even["shares"], [])
        self.assertEqual(len(proportional["shares"]), len(sizes))
        self.assertGreaterEqual(found["gain"], 0.8, found)
        self.assertAlmostEqual(
            found["gain"],
            (proportional["tokens"] - even["tokens"]) / (found["ideal"] - even["tokens"]))
        self.assertGreater(found["ideal"], even["tokens"])
        for longest in even, proportional:  # it ran; a longer one did not
            self.assertEqual(len(longest["peak_bytes"]), len(sizes))
            for peak, size in zip(longest["peak_bytes"], sizes):
                self.assertLessEqual(peak, size)
            self.assertGreater(longest["refused"], longest["tokens"])
            self.assertLess(longest["refused"], 1.1 * longest["tokens"] + 10)
        # Even cuts leave the larger rank's memory empty.
        fullest = [peak / size for peak, size in zip(proportional["peak_bytes"], sizes)]
        self.assertGreater(min(fullest), 0.85, found)
        return found

    def test_half_the_memory(self):
        self.expect_gain(["16MiB", "8MiB"])
        self.expect_gain(["8MiB", "16MiB"], "--attention", "AllGatherKV", "--recompute", "light")

    def test_more_ranks(self):
        self.expect_gain(["8MiB", "12MiB", "16MiB"], "--attention", "METP")

    def test_half_the_speed(self):
        found = self.bench("--slowdown", "1,2", "--length", 300, "--repeats", 2)["speed"]
        self.assertAlmostEqual(found["ideal"], 2 / 3)
        self.assertAlmostEqual(sum(found["shares"]), 1)
        self.assertTrue(0.55 < found["shares"][0] < 0.75, found)
        for kind in "even", "proportional":
            self.assertEqual([len(found[kind]["seconds"]), len(found[kind]["busy_s"])], [2, 2])
            self.assertGreater(min(found[kind]["seconds"] + found[kind]["busy_s"]), 0)
        self.assertIn("busy_gain", found)
        self.assertLessEqual(found["gain"]["least"], found["gain"]["median"])

    def test_errors(self):
        refused = ["mixed", "--model", self.model]
        self.assertIn("--slowdown 1,2", self.error_of(*refused))
        self.assertIn("ranks are identical", self.error_of(*refused, "--slowdown", "2,2"))
        self.assertIn("ranks are identical", self.error_of(*refused, "--memory", "8MiB"))
        self.assertIn("--slowdown: '0.5'", self.error_of(*refused, "--slowdown", "1,0.5"))
        self.assertIn("--memory: ", self.error_of(*refused, "--memory", "1,much"))
        self.assertIn("at least one byte", self.error_of(*refused, "--memory", "8MiB,0"))
        self.assertIn("cannot train on any document", self.error_of(*refused, "--memory", "8MiB,1KiB"))
        self.assertIn("whole documents", self.error_of(*refused, "--memory", "8MiB,9MiB", "--attention", "DataZ"))
        self.assertIn("usable cores", self.error_of(
            *refused, "--slowdown", ",".join(str(1 + r) for r in range(1000))))


if __name__ == "__main__":
    unittest.main()
