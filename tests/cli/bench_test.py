"""paradyse bench step: strategies and plan files in turn."""

import json
import signal
import subprocess
import time
import unittest

from support import FAILED, GOLDEN, PARADYSE, ProgramTest, uniform_plan

MODEL = """
architectures = ["LlamaForCausalLM"]
model_type = "llama"
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 4
intermediate_size = 48
vocab_size = 61
rms_norm_eps = 1e-5
"""


class BenchStepTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.model = self.write("model.toml", MODEL)

    def bench(self, *options):
        return self.json_of("bench", "step", "--model", self.model, "--lengths", "40,9", "--repeats", 2, *options)

    def plan(self, name, lengths, strategy="UlyssesZ", mlp="gather", ranks=2, **more):
        plan = uniform_plan("llama", lengths, ranks, 2, strategy, mlp) | more
        return self.write(name, json.dumps(plan))

    def step(self, *options):
        return self.json_of("bench", "step", "--model", self.model, *options)

    def test_plans_take_turns(self):
        ulysses, megatron = self.plan("u.json", [40, 7]), self.plan("m.json", [40, 7], "MegatronTS", "hold")
        domains = self.plan("d.json", [47], "DataZ", weight_domain=1)
        plan = json.loads(domains.read_text())
        plan["micro_batches"][0]["groups"] = [{"ranks": [0], "documents": [0], "program": "all"},
                                              {"ranks": [1], "documents": [], "program": "all"}]
        domains.write_text(json.dumps(plan))
        found = self.step("--plan", ulysses, "--plan", megatron, "--plan", domains, "--attention", "UlyssesZ,DataZ",
                          "--recompute", "none,full", "--lengths", 20, "--repeats", 3)
        self.assertEqual(found["ranks"], 2)
        rows = found["rows"]
        self.assertEqual([row["name"] for row in rows], [
            str(ulysses), str(megatron), str(domains), "UlyssesZ+gather", "UlyssesZ+gather, recompute full",
            "DataZ+gather", "DataZ+gather, recompute full"])
        self.assertEqual([row["tokens"] for row in rows], [47, 47, 47, 20, 20, 40, 40])
        for row in rows:
            self.assertEqual((len(row["seconds"]), row["lacks_memory"]), (3, None))
            self.assertEqual(row["best_s"], min(row["seconds"]))
            ratios = [mine / first * 47 / row["tokens"] for mine, first in zip(row["seconds"], rows[0]["seconds"])]
            self.assertAlmostEqual(row["of_first"]["most"], max(ratios))
            self.assertEqual(row["peak_bytes"], row["counted_bytes"], row["name"])
            self.assertGreaterEqual(row["all_bytes_sent"], row["bytes_sent"])
        self.assertEqual(rows[0]["of_first"], {"median": 1, "least": 1, "most": 1})
        self.assertNotEqual(rows[0]["bytes_sent"], rows[1]["bytes_sent"])
        shown = self.run_program("bench", "step", "--model", self.model, "--plan", ulysses, "--plan", megatron,
                                 "--repeats", 1, "--breakdown").stdout
        self.assertIn("of first", shown)

    def test_what_does_not_fit_is_left_out(self):
        large, small = self.plan("large.json", [4000]), self.plan("small.json", [9])
        rows = self.step("--plan", large, "--plan", small, "--memory-per-rank", "600KiB", "--repeats", 1)["rows"]
        self.assertRegex(rows[0]["lacks_memory"], "does not fit: a rank needs .* of 600.0 KiB")
        self.assertNotIn("step_s", rows[0])
        self.assertGreater(rows[0]["counted_bytes"], 600 * 1024)
        self.assertEqual(rows[1]["of_first"]["median"], 1)
        alone = self.run_program("bench", "step", "--model", self.model, "--plan", large, "--memory-per-rank", "600KiB",
                                 code=FAILED).stdout
        self.assertIn("4000 tokens: does not fit", alone)

    def test_plans_of_others_are_refused(self):
        def refused(plan, *options):
            return self.error_of("bench", "step", "--model", self.model, "--plan", plan, *options)

        plan = self.plan("plan.json", [9])
        self.assertIn("is for 2 ranks, but there are 3: give --ranks 2", refused(plan, "--ranks", 3))
        other = json.loads(plan.read_text())
        other["model"]["sha256"] = 64 * "0"
        said = refused(self.write("other.json", json.dumps(other)))
        for part in ("other.json: model.sha256", "make a plan for this model"):
            self.assertIn(part, said)
        self.assertIn("nowhere.json", refused(self.folder / "nowhere.json"))
        self.assertIn("model.toml", refused(self.model))

    def test_a_signal_ends_it(self):
        done = subprocess.Popen(
            [PARADYSE, "bench", "step", "--model", self.model, "--lengths", "40", "--repeats", "1000000", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        time.sleep(2)
        done.send_signal(signal.SIGINT)
        self.assertEqual(done.communicate(timeout=30)[0], b"")
        self.assertEqual(done.returncode, -signal.SIGINT)

    def test_every_length(self):
        found = self.bench("--attention", "MegatronTS", "--ranks", 2)
        self.assertEqual([row["length"] for row in found["rows"]], [40, 9])
        for row in found["rows"]:
            self.assertEqual(row["documents"], 1)
            self.assertGreater(row["tokens_per_s"], 0)
            self.assertGreater(row["bytes_sent"], 0)
            self.assertNotIn("core_seconds", row)

    def test_a_length_is_the_same_beside_others(self):
        options = ("--attention", "MegatronTS", "--ranks", 2)
        together = self.bench(*options)["rows"]
        for row in together:
            alone = self.json_of("bench", "step", "--model", self.model, "--lengths", row["length"],
                                 "--repeats", 2, *options)["rows"][0]
            for name in ("peak_bytes", "bytes_sent", "model_flops", "touched_bytes", "documents"):
                self.assertEqual(row[name], alone[name], name)

    def test_gradients_are_clipped(self):
        plain, clipped = (self.bench("--attention", "MegatronTS", "--ranks", 2, *more)["rows"]
                          for more in ([], ["--max-grad-norm", "1e-3"]))
        self.assertEqual(len(plain), 2)
        for before, after in zip(plain, clipped, strict=True):  # ranks add up a norm
            self.assertGreater(after["bytes_sent"], before["bytes_sent"])

    def test_narrow_types_touch_fewer_bytes(self):
        wide, narrow = (self.bench("--attention", "DataZ", "--ranks", 2, "--dtype", dtype)["rows"]
                        for dtype in ("float32", "bfloat16"))
        self.assertEqual(len(wide), 2)
        for of_wide, of_narrow in zip(wide, narrow, strict=True):
            self.assertEqual(of_narrow["model_flops"], of_wide["model_flops"])
            self.assertGreater(of_narrow["touched_bytes"], 0.45 * of_wide["touched_bytes"])
            self.assertLess(of_narrow["touched_bytes"], 0.75 * of_wide["touched_bytes"])

    def test_a_document_for_each_rank(self):
        found = self.bench("--attention", "DataZ", "--ranks", 3)
        for row, length in zip(found["rows"], (40, 9)):
            self.assertEqual(row["documents"], 3)
            self.assertAlmostEqual(row["tokens_per_s"] * row["step_s"], 3 * length, delta=0.01 * length)
            self.assertGreater(row["model_utilisation"], 0)
            self.assertGreaterEqual(row["hardware_utilisation"], row["model_utilisation"])
            self.assertAlmostEqual(row["model_flops_per_second"] * row["step_s"] / row["model_flops"], 1)
            self.assertAlmostEqual(
                row["model_utilisation"] * found["matmul_flops_per_second"] * found["cores"]
                / row["model_flops_per_second"], 1)
            self.assertNotIn("share_of_data_sheet", row)  # of GPUs
            self.assertGreater(row["peak_bytes"], 0)

    def test_a_folder_with_its_configuration_alone(self):
        folder = self.folder / "model"
        folder.mkdir()
        (folder / "config.json").write_text((GOLDEN / "hf_llama_gqa" / "config.json").read_text())
        done = self.run_program(
            "bench", "step", "--model", folder, "--lengths", 8, "--ranks", 2, "--repeats", 1)
        self.assertIn(f"{folder}: weights are random (seed 1)", done.stderr)

    def test_where_the_time_goes(self):
        for row in self.bench("--attention", "MegatronCZ", "--ranks", 3, "--breakdown")["rows"]:
            parts = row["core_seconds"]
            self.assertEqual(
                set(parts), {"idle", "products", "attention", "other ops", "communication", "optimizer",
                             "between"})
            for name, seconds in parts.items():  # a processor's clock may tick too slowly for more
                self.assertGreaterEqual(seconds, 0, name)

    def test_how_messages_travel(self):
        sent = {}
        for options, overlap, reshard in (
                ([], True, True), (["--no-overlap"], False, True), (["--no-reshard-after-forward"], True, False),
                (["--no-overlap", "--no-reshard-after-forward"], False, False),
                (["--memory-per-rank", "1GiB"], True, False),
                (["--memory-per-rank", "1GiB", "--no-overlap"], False, False)):
            row = self.bench("--attention", "UlyssesZ", "--ranks", 2, *options)["rows"][0]
            self.assertEqual((row["overlap"], row["reshard_after_forward"]), (overlap, reshard), options)
            sent.setdefault(reshard, set()).add(row["bytes_sent"])
        self.assertEqual([len(sent[reshard]) for reshard in (False, True)], [1, 1])
        self.assertLess(max(sent[False]), min(sent[True]))
        shown = self.run_program("bench", "step", "--model", self.model, "--lengths", 8, "--ranks", 2, "--repeats", 1,
                                 "--no-reshard-after-forward", "--verbose").stdout
        self.assertIn("overlapped, weights kept", shown)

    def test_options_of_a_layer(self):
        tiled = self.bench("--attention", "UlyssesZ", "--recompute", "full", "--token-tiles", 2)
        whole = self.bench("--attention", "UlyssesZ", "--recompute", "full")
        self.assertEqual(tiled["rows"][0]["bytes_sent"], whole["rows"][0]["bytes_sent"])
        ring = self.bench("--attention", "USP", "--ulysses-degree", 1)
        row = self.bench("--attention", "USP", "--ulysses-degree", 4)
        self.assertNotEqual(ring["rows"][0]["bytes_sent"], row["rows"][0]["bytes_sent"])

    def test_errors(self):
        refused = ["bench", "step", "--model", self.model, "--lengths", 8]
        self.assertIn("multiple", self.error_of(*refused, "--attention", "USP", "--ulysses-degree", 3))
        self.assertIn("not UlyssesZ", self.error_of(*refused, "--attention", "UlyssesZ", "--head-groups", 2))
        self.assertIn("at least 1", self.error_of(*refused, "--token-tiles", -1))


if __name__ == "__main__":
    unittest.main()
