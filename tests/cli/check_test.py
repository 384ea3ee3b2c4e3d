"""paradyse check and paradyse plan check."""

import json
import os
import re
import unittest

from support import FAILED, GOLDEN, OK, USAGE, ProgramTest, read_tensors, uniform_plan

MODEL = GOLDEN / "hf_llama_gqa"
STDIT = GOLDEN.parent.parent / "configs" / "models" / "stdit_tiny.toml"
LONG = "PARADYSE_TEST_LONG" in os.environ
# Weights of a thousand: attention is a choice of one token that rounding turns over.
WIDE = """
model_type = "llama"
hidden_size = 8
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
intermediate_size = 8
vocab_size = 16
initializer_range = 1e3
"""


class CheckTest(ProgramTest):
    def test_every_strategy_is_right_on_this_machine(self):
        text = self.run_program("check", "--ranks", "1,2,3,4" if LONG else "1,4", timeout=400).stdout
        for name in ("MegatronTS", "UlyssesZ", "DataZ", "attention-output", "4 ranks"):
            self.assertIn(name, text)
        self.assertNotIn("TOO FAR", text)
        self.assertNotIn("DIFFER", text)

    def test_every_strategy_is_right_through_aten(self):
        """The form of every op that CUDA tensors take, on CPU tensors (src/run/device/): cases that
        cover the others, all in `make test-long`."""
        text = self.run_program(
            "check", "--ranks", "1,2,3,4" if LONG else "1,2,3", *([] if LONG else ["--quick"]),
            timeout=400, PARADYSE_ATEN_KERNELS="1").stdout
        self.assertIn("3 ranks", text)
        self.assertNotIn("TOO FAR", text)
        self.assertNotIn("DIFFER", text)

    def test_variables_that_choose_kernels_are_0_or_1(self):
        for name in ("PARADYSE_ATEN_KERNELS", "PARADYSE_FLASH"):
            message = self.run_program(
                "check", "--ranks", "1", "--strategy", "UlyssesZ", code=USAGE,
                **{"PARADYSE_ATEN_KERNELS": "1", name: "off"}).stderr
            self.assertIn(f"{name} in the environment is 'off'; 0 does without", message)

    def test_narrow_types(self):
        """bfloat16 (all strategies: make test-long), in both forms: the second runs what stands in
        for CUDA's flash attention."""
        few = [] if LONG else ["--strategy", "UlyssesZ"]
        for through_aten in ({}, {"PARADYSE_ATEN_KERNELS": "1"}):
            with self.subTest(**through_aten):
                text = self.run_program(
                    "check", "--dtype", "bfloat16,float16" if LONG else "bfloat16",
                    "--ranks", "1,2,3,4" if LONG else "1,3", *few, timeout=400, **through_aten).stdout
                self.assertIn("bfloat16", text)
                self.assertIn("The loss in bfloat16: tolerance 3.1e-03.", text)
                self.assertNotIn("TOO FAR", text)
                self.assertNotIn("DIFFER", text)

    def test_quick(self):
        """Few cases that cover all: each strategy with each verb, in each type, on some number of ranks."""
        arguments = ["check", "--quick", "--ranks", "1,2,4", "--dtype", "float32,bfloat16"]
        found = self.json_of(*arguments)
        self.assertTrue(found["ok"])
        self.assertLessEqual(found["cases"], 150)
        self.assertGreater(found["all_cases"], 30 * found["cases"])
        rows = found["rows"]
        self.assertEqual(len(rows), found["cases"])  # each row's number of ranks is one case
        self.assertEqual({row["ranks"] for row in rows}, {1, 2, 4})
        self.assertEqual(len({row["recompute"] for row in rows}), 5)
        for dtype in ("float32", "bfloat16"):
            self.assertEqual(
                {row["strategy"].split("+")[0] for row in rows if row["dtype"] == dtype},
                {"MegatronTS", "UlyssesZ", "MegatronCZ", "USP", "AllGatherKV", "ColossalZ", "METP", "DataZ",
                 "mixed layers"})
        for row in rows:
            self.assertLessEqual(row["error"], row["tolerance"])
        text = self.run_program("check", "--quick", "--ranks", "1,2", "--dtype", "float32",
                                "--strategy", "USP,METP").stdout
        self.assertRegex(text, r"Quick: \d+ of 630 cases, chosen to cover the others")
        self.assertIn("Without --quick all cases run", text)
        self.assertIn("leave --quick out", self.error_of("check", "--quick", "--model", STDIT))

    def test_quick_tells_what_is_too_far(self):
        model = self.write("wide.toml", WIDE)
        found = self.json_of("check", "--quick", "--model", model, "--ranks", "2", "--strategy", "METP",
                             "--dtype", "float32", code=FAILED)
        self.assertFalse(found["ok"])

    def test_json(self):
        found = self.json_of("check", "--ranks", 2, 3, "--dtype", "float64", "--strategy", "DataZ")
        self.assertTrue(found["ok"])
        self.assertEqual(found["counts_differ"], [])
        self.assertEqual(len(found["rows"]), 5 * 2)  # recompute levels and whole layers, numbers of ranks
        for row in found["rows"]:
            self.assertIn(row["ranks"], (2, 3))
            self.assertLessEqual(row["error"], row["tolerance"])

    def test_a_given_model(self):
        found = self.json_of("check", "--model", MODEL, "--ranks", "1,4")
        self.assertTrue(found["ok"])

    def test_models_of_every_architecture(self):
        for name in ("hf_gpt2", "hf_opt", "hf_bert", "hf_qwen2", "hf_qwen3", "hf_llama_yarn"):
            with self.subTest(model=name):
                found = self.json_of(
                    "check", "--model", GOLDEN / name, "--ranks", "3", "--dtype", "float64")
                self.assertTrue(found["ok"])

    def test_what_is_too_far_is_told(self):
        model = self.write("wide.toml", WIDE)
        arguments = ["check", "--model", model, "--ranks", "2", "--strategy", "METP",
                     "--dtype", "float32"]
        text = self.run_program(*arguments, code=FAILED).stdout
        self.assertRegex(text, r"METP\+gather +none .* TOO FAR\n")
        self.assertRegex(text, r"error too large: METP\+gather recompute none float32: .* in .*wide.toml, "
                               r"2 ranks, gradient of [a-z_.0-9]+\n")
        self.assertTrue(text.endswith("FAILED\n"))
        self.assertFalse(self.json_of(*arguments, code=FAILED)["ok"])

    def test_errors(self):
        self.assertIn("'UlyssesZ'", self.error_of("check", "--strategy", "Ulysses"))
        self.assertIn("'float32'", self.error_of("check", "--dtype", "flaot32"))
        self.assertIn("--ranks", self.error_of("check", "--ranks", "0"))
        self.assertIn("nowhere", self.error_of("check", "--model", self.folder / "nowhere"))


class PlanCheckTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.plan = uniform_plan("llama", [17, 1, 40], 2, 2)

    def write_plan(self):
        return self.write("plan.json", json.dumps(self.plan))

    def test_a_sound_plan(self):
        path = self.write_plan()
        text = self.run_program("plan", "check", path).stdout
        self.assertRegex(text, r"^ok [0-9a-f]{64}\n")
        self.assertIn("2 ranks", text)
        self.assertIn("3 documents of 58 tokens", text)
        found = self.json_of("plan", "check", path, "--model", MODEL, "--memory-per-rank", "1MiB")
        self.assertTrue(found["ok"])
        self.assertIn(found["hash"], text)

    def test_all_problems_are_told(self):
        self.plan["micro_batches"][0]["groups"][0]["documents"] = [0, 1, 1]
        self.plan["programs"]["all"][0]["layers"] = 3
        path = self.write_plan()
        done = self.run_program("plan", "check", path, code=FAILED)
        found = self.json_of("plan", "check", path, code=FAILED)
        self.assertFalse(found["ok"])
        self.assertGreaterEqual(len(found["problems"]), 3)
        for problem in found["problems"]:
            self.assertIn(problem, done.stdout)

    def test_a_plan_of_nothing(self):
        self.plan |= {"lengths": [], "micro_batches": []}
        path = self.write_plan()
        for more in ([], ["--model", MODEL], ["--model", MODEL, "--explain", "--memory-per-rank", "1GiB"]):
            found = self.json_of("plan", "check", path, *more, code=FAILED)
            self.assertEqual(len(found["problems"]), 1)
            self.assertIn("lengths: no documents", found["problems"][0])
        cluster = GOLDEN.parent.parent / "configs" / "clusters" / "8xA100-80GB.toml"
        for command in (["simulate", "--cluster", cluster, "--ranks", 2, "--plan", path],
                        ["train", "--data", self.write_documents([[1, 2, 3]]), "--plan", path, "--ranks", 2,
                         "--set", f'output.folder="{self.folder}/runs"']):
            with self.subTest(command[0]):
                done = self.run_program(*command, "--model", MODEL, code=None)
                self.assertIn(done.returncode, (FAILED, USAGE))
                self.assertIn("no documents", done.stderr)

    def test_what_does_not_fit(self):
        path = self.write_plan()
        found = self.json_of(
            "plan", "check", path, "--model", MODEL, "--memory-per-rank", "100KiB", code=FAILED)
        self.assertIn("needs", found["problems"][0])
        found = self.json_of(
            "plan", "check", path, "--model", GOLDEN / "hf_llama_mha_wide", code=FAILED)
        self.assertIn("layers", found["problems"][0])

    def test_what_fits_goes_by_the_type(self):
        self.plan = uniform_plan("llama", [17, 1, 40], 1, 2)
        path = self.write_plan()
        elements = sum(len(values) for _, _, values in
                       read_tensors(MODEL / "model.safetensors").values())
        # weight, gradient and two moments; a narrow weight's master; in evaluation the weight
        for options, bytes_per_element in [
                ([], 16),
                (["--dtype", "float32"], 16),
                (["--dtype", "float64"], 32),
                (["--dtype", "bfloat16"], 18),
                (["--dtype", "bfloat16", "--forward-only"], 2)]:
            def check(memory, code):
                return self.json_of("plan", "check", path, "--model", MODEL, *options,
                                    "--memory-per-rank", memory, code=code)

            problem = check(1, FAILED)["problems"][0]
            said = re.search(r"needs (\d+) bytes at its peak \([a-z, ]* (\d+),", problem)
            self.assertIsNotNone(said, problem)
            needed, held = map(int, said.groups())
            self.assertEqual(held, bytes_per_element * elements, options)
            self.assertTrue(check(needed, OK)["ok"])
            self.assertFalse(check(needed - 1, FAILED)["ok"])
        self.assertIn("'bfloat16'", self.error_of("plan", "check", path, "--dtype", "bloat16"))

    def test_explain(self):
        path = self.write_plan()
        arguments = ["plan", "check", path, "--model", MODEL, "--explain"]
        text = self.run_program(*arguments).stdout
        for word in ("embedding", "attention UlyssesZ, layers 0 1", "gather_weights", "head"):
            self.assertIn(word, text)
        programs = self.json_of(*arguments)["programs"]
        self.assertEqual(
            [program["part"] for program in programs], ["embedding", "attention", "mlp", "head"])
        self.assertEqual(programs[1]["layers"], [0, 1])
        self.assertIn("linear", programs[2]["text"])

    def test_errors(self):
        path = self.write_plan()
        self.assertIn("--model", self.error_of("plan", "check", path, "--explain"))
        self.assertIn("--model", self.error_of("plan", "check", path, "--memory-per-rank", "1GiB"))
        self.assertIn("nowhere", self.error_of("plan", "check", self.folder / "nowhere"))
        del self.plan["weight_domain"]
        self.assertIn("weight_domain", self.error_of("plan", "check", self.write_plan()))
        self.plan["wieght_domain"] = 2
        self.assertIn("'weight_domain'", self.error_of("plan", "check", self.write_plan()))


if __name__ == "__main__":
    unittest.main()
