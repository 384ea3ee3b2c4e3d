"""paradyse plan layout: elements that plans and rivals send, and what is refused."""

import json
import pathlib
import unittest

from support import GOLDEN, ProgramTest, gradient_error, read_tensors

MODELS = pathlib.Path(__file__).resolve().parent.parent.parent / "configs" / "models"
A100 = MODELS.parent / "clusters" / "8xA100-80GB.toml"


def both(plan):
    return plan["elements_per_rank_forward"] + plan["elements_per_rank_backward"]


class PlanLayoutTest(ProgramTest):
    def video(self, *arguments, model="stdit", frames=64, tokens=4096, ranks=8):
        return ["plan", "layout", "--model", model, "--frames", frames, "--tokens", tokens, "--ranks", ranks, *arguments]

    def alignment(self, sequences, residues, ranks, *arguments, model="evoformer"):
        return ["plan", "layout", "--model", model, "--sequences", sequences, "--residues", residues,
                "--ranks", ranks, *arguments]

    def test_video(self):
        plan = self.json_of(*self.video())
        unit = 64 * 4096 * 1152 * 7 // 64  # f M / p
        self.assertLessEqual(plan["elements_per_rank_forward"], 2 * unit)
        self.assertEqual(sorted(plan["rivals"]),
                         ["dsp", "megatron-lm", "megatron-sp", "ring", "ulysses", "ulysses-both"])
        self.assertEqual(plan["rivals"]["dsp"]["elements_per_rank_forward"], 2 * unit)
        self.assertEqual(plan["rivals"]["ulysses-both"]["elements_per_rank_forward"], 8 * unit)
        self.assertEqual(plan["rivals"]["megatron-sp"]["elements_per_rank_forward"], 64 * unit)
        parts = [part["part"] for part in plan["parts"]]
        self.assertEqual(parts, ["spatial_attention", "spatial_mlp", "temporal_attention", "temporal_mlp"])
        for part in plan["parts"]:
            self.assertIn(part["in"]["x"], ["S(frames)", "S(patches)"])
            self.assertEqual(part["in"], part["out"])
        grouped = self.json_of(*self.video("--kv-ratio", 0.25, "--width", 2304, ranks=4))
        self.assertEqual(
            grouped["rivals"]["ulysses"]["elements_per_rank_forward"], 2.5 * 64 * 4096 * 2304 * 3 // 16)
        self.assertEqual(plan, self.json_of(*self.video(model=MODELS / "stdit.toml")))

    def test_alignments(self):
        for sequences, residues, ranks, ratio in [(128, 256, 2, 1.23), (128, 256, 8, 2), (512, 384, 8, 1.7)]:
            plan = self.json_of(*self.alignment(sequences, residues, ranks))
            self.assertGreaterEqual(both(plan["rivals"]["dap"]), ratio * both(plan))
            self.assertEqual(len(plan["parts"]), 9 * plan["layers"])
        self.assertEqual(
            self.json_of(*self.alignment(128, 256, 8)),
            self.json_of(*self.alignment(128, 256, 8, model=MODELS / "evoformer.toml")))

    def test_seconds_are_those_of_a_cluster(self):
        plan = self.json_of(*self.video("--objective", "seconds", "--cluster", A100))
        for rival in plan["rivals"].values():
            self.assertLessEqual(plan["seconds"], rival["seconds"] * (1 + 1e-9))
        self.assertIn("--cluster", self.error_of(*self.video("--objective", "seconds")))
        self.assertIn("has 8", self.error_of(*self.video("--cluster", A100, ranks=16)))

    def test_people_read_it_too(self):
        text = self.run_program(*self.alignment(128, 256, 8), "--explain").stdout
        self.assertIn("triangle_outgoing", text)
        self.assertIn("the next best candidate costs", text)
        self.assertIn("dap", text)

    def test_sizes_are_bounded_by_what_is_attended(self):
        file = self.folder / "plan.json"
        # no axis attends over all rows
        for model, arguments in (
                ("extra-msa", self.alignment(5120, 5000, 64, "--out", file, model="extra-msa")),
                ("stdit", self.video("--out", file, frames=600, tokens=40000))):
            plan = self.json_of(*arguments)
            self.assertGreater(both(plan), 0)
            self.assertTrue(self.json_of("plan", "check", file, "--model", model)["ok"])
            self.assertTrue(self.json_of("plan", "check", file)["ok"])
            file.unlink()
        for out in ([], ["--out", file]):
            why = self.error_of(*self.video("--batch", 1 << 20, *out, frames=1 << 24, tokens=1 << 24))
            self.assertIn(f"--tokens {1 << 24} --frames {1 << 24} --batch {1 << 20}: too large", why)
            why = self.error_of(*self.alignment(1 << 24, 1 << 24, 4, *out))
            self.assertIn(f"--sequences {1 << 24} --residues {1 << 24} --batch 1: too large", why)
            why = self.error_of(*self.text(1 << 24, 4, "--batch", 1 << 20, *out))
            self.assertIn(f"--tokens {1 << 24} --batch {1 << 20}: too large", why)
        llama = MODELS / "llama-8b.toml"
        for command in (["plan", "layers", "--model", llama, "--ranks", 4],
                        ["simulate", "--model", llama, "--cluster", A100]):
            self.assertIn("--length: too large: 1e+24 pairs", self.error_of(*command, "--length", 10 ** 12))

    def test_within_memory(self):
        file = self.folder / "plan.json"
        tiny = ["--batch", 4, "--dtype", "float32"]
        sizes = {"frames": 6, "tokens": 16, "ranks": 2, "model": MODELS / "stdit_tiny.toml"}
        peaks = []
        budget = 1 << 30
        for _ in range(3):
            plan = self.json_of(*self.video(*tiny, "--memory-per-rank", budget, "--out", file, **sizes))
            memory = plan["memory"]
            self.assertLessEqual(memory["peak_bytes"], budget)
            self.assertEqual(memory["samples_at_once"] * memory["micro_batches"] >= 4, True)
            self.assertTrue(self.json_of("plan", "check", file, "--model", MODELS / "stdit_tiny.toml", "--dtype", "float32",
                                         "--memory-per-rank", budget)["ok"])
            file.unlink()
            peaks.append(memory["peak_bytes"])
            budget = memory["peak_bytes"] * 3 // 4
        self.assertEqual(peaks, sorted(peaks, reverse=True))
        self.assertIn("recomputed", self.run_program(
            *self.video(*tiny, "--memory-per-rank", peaks[-1], **sizes)).stdout)
        self.assertIn("no plan fits", self.error_of(*self.video(*tiny, "--memory-per-rank", "10KiB", **sizes)))
        self.assertIn("--objective elements", self.error_of(
            *self.video("--memory-per-rank", "1GiB", "--objective", "seconds", "--cluster", A100)))

    def text(self, tokens, ranks, *arguments, model=MODELS / "llama-70b.toml"):
        return ["plan", "layout", "--model", model, "--tokens", tokens, "--ranks", ranks, *arguments]

    def test_language_models(self):
        plan = self.json_of(*self.text(65536, 8))
        self.assertEqual((plan["model"], plan["layers"]), ("llama", 1))
        self.assertEqual(sorted(plan["rivals"]),
                         ["all-gather-kv", "megatron-lm", "megatron-sp", "metp", "ring", "ulysses", "usp"])
        self.assertEqual([part["part"] for part in plan["parts"]], ["attention", "mlp"])
        for rival in plan["rivals"].values():
            self.assertLessEqual(both(plan), both(rival))
        # sequence shards in attention, head and width shards beside: faster than either alone
        plan = self.json_of(*self.text(32768, 16, "--objective", "seconds", "--cluster",
                                       MODELS.parent / "clusters" / "64xH100.toml"))
        self.assertEqual([part["strategy"] for part in plan["parts"]], ["AllGatherKV", "hold"])
        self.assertLess(plan["seconds"], 0.95 * min(rival["seconds"] for rival in plan["rivals"].values()))
        # fewer tokens than ranks: some have none, nobody has copies
        plan = self.json_of(*self.text(3, 4))
        self.assertEqual([part["in"] for part in plan["parts"]], [{"x": "S(tokens)"}] * 2)
        by_degree = self.text(131072, 16, "--objective", "seconds", "--cluster",
                              MODELS.parent / "clusters" / "64xH100.toml")
        self.assertEqual(self.json_of(*by_degree)["parts"][0]["options"], {"ulysses_degree": 8})
        self.assertIn("USP, ulysses_degree 8", self.run_program(*by_degree).stdout)

    def test_planned_layouts_of_language_models_are_played(self):
        file = self.folder / "plan.json"
        model = GOLDEN / "hf_llama_gqa"
        documents = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [9, 8, 7, 6, 5, 4, 3, 2, 1]]
        data = self.write("two.jsonl", "".join(json.dumps({"tokens": one}) + "\n" for one in documents))
        gradients = []
        for ranks in (1, 3, 4):
            self.run_program(*self.text(9, ranks, "--batch", 2, "--out", file, model=model))
            self.assertTrue(self.json_of("plan", "check", file, "--model", model)["ok"])
            out = self.folder / f"{ranks}.safetensors"
            self.run_program("grad", "--model", model, "--data", data, "--plan", file, "--dtype", "float64", "--out", out)
            gradients.append(read_tensors(out))
            file.unlink()
        for other in gradients[1:]:
            self.assertLessEqual(gradient_error(other, gradients[0]), 1e-10)
        # by seconds short documents leave weights where they are, as Megatron does
        of_layouts = {"planned": [], "megatron-sp": [], "by seconds": ["--objective", "seconds", "--cluster", A100]}
        plans = []
        for name, more in of_layouts.items():
            layout = ["--layout", name] if not more else more
            plans += ["--plan", self.folder / name]
            self.run_program(*self.text(9, 2, "--batch", 2, *layout, "--out", plans[-1], model=model))
        rows = self.json_of("bench", "step", "--model", model, *plans, "--repeats", 1)["rows"]
        self.assertEqual([row["name"] for row in rows], [str(self.folder / name) for name in of_layouts])
        for row in rows:
            self.assertGreater(row["peak_bytes"], row["saved_bytes"])
        self.assertLess(rows[2]["bytes_sent"], rows[0]["bytes_sent"])

    def test_what_language_models_have_not_is_refused(self):
        self.assertIn("needs --tokens", self.error_of("plan", "layout", "--model", MODELS / "llama-70b.toml", "--ranks", 2))
        self.assertIn("--frames is for video", self.error_of(*self.text(64, 2, "--frames", 4)))
        self.assertIn("leave --mesh out", self.error_of(*self.text(64, 4, "--mesh", "2,2")))
        self.assertIn("plan layers", self.error_of(*self.text(64, 4, "--memory-per-rank", "1GiB")))
        self.assertIn("learned", self.error_of(*self.text(1 << 20, 4, model=GOLDEN / "hf_gpt2")))

    def test_what_cannot_be_is_refused(self):
        self.assertIn("did you mean 'stdit'", self.error_of(*self.video(model="sdtit")))
        self.assertIn("--tokens", self.error_of("plan", "layout", "--model", "stdit", "--frames", 4, "--ranks", 2))
        self.assertIn("--residues does not apply", self.error_of(*self.video("--residues", 9)))
        self.assertIn("--frames does not apply", self.error_of(*self.alignment(9, 9, 2, "--frames", 4)))
        self.assertIn("--width 1000: stdit: hidden_size: 1000 is not a multiple",
                      self.error_of(*self.video("--width", 1000)))
        self.assertIn("divides", self.error_of(*self.video("--kv-ratio", 0.3)))
        self.assertIn("--kv-ratio 0.1875: stdit: num_key_value_heads: 3 does not divide",
                      self.error_of(*self.video("--kv-ratio", 0.1875)))
        self.assertIn("--kv-ratio 0.5: stdit3: num_key_value_heads: is not known",
                      self.error_of(*self.video("--kv-ratio", 0.5, "--text-tokens", 9, model="stdit3")))
        self.assertIn("--width does not apply", self.error_of(*self.alignment(9, 9, 2, "--width", 64)))
        wrong = self.write("wrong.toml", 'model_type = "stdit"\nhiden_size = 64\n')
        self.assertIn("did you mean 'hidden_size'", self.error_of(*self.video(model=wrong)))
        wrong = self.write("small.toml", 'model_type = "stdit"\ndepth = 0\n')
        self.assertIn("depth: expected a whole number from 1", self.error_of(*self.video(model=wrong)))
        wrong = self.write("type.toml", 'model_type = "video"\n')
        message = self.error_of(*self.video(model=wrong))
        self.assertIn('model_type is "video"; accepted is "llama"', message)
        self.assertIn('"stdit", "evoformer"', message)


if __name__ == "__main__":
    unittest.main()
