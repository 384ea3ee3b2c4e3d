"""paradyse simulate."""

import json
import pathlib
import unittest

from support import TINY_EVOFORMER, ProgramTest, uniform_plan

CONFIGS = pathlib.Path(__file__).resolve().parent.parent.parent / "configs"
DEMO = CONFIGS / "models" / "demo.toml"
GPT3 = CONFIGS / "models" / "gpt3-175b.toml"
A100 = CONFIGS / "clusters" / "8xA100-80GB.toml"
H100 = CONFIGS / "clusters" / "4096xH100.toml"

DEVICE = """
[[device]]
name = "{name}"
count = {count}
matmul_flops_per_second = {flops}
float32_flops_per_second = 5e11
matmul_fraction = 0.5
attention_fraction = 0.25
memory_bytes_per_second = 1e11
memory_bytes = {memory}
launch_seconds = 1e-6
host_bytes_per_second = 1e10
"""
STDIT = """
model_type = "stdit"
depth = 2
hidden_size = 256
num_heads = 8
in_channels = 4
patch_size = 2
"""
INSIDE = "[inside_node]\nbytes_per_second = {bandwidth}\nlatency_seconds = 1e-6\n"


class SimulateTest(ProgramTest):
    def cluster(self, devices=((2, 1e12, 16e9),), bandwidth=1e10, name="c.toml"):
        text = 'name = "small"\nranks_per_node = 8\n'
        for i, (count, flops, memory) in enumerate(devices):
            text += DEVICE.format(name=f"d{i}", count=count, flops=flops, memory=memory)
        return self.write(name, text + INSIDE.format(bandwidth=bandwidth))

    def simulate(self, *arguments, model=DEMO, cluster=None):
        return self.json_of("simulate", "--model", model, "--cluster", cluster or self.cluster(), *arguments)

    def refused(self, *arguments, model=DEMO, cluster=None):
        return self.error_of("simulate", "--model", model, "--cluster", cluster or self.cluster(), *arguments)

    def test_one_strategy(self):
        found = self.simulate("--length", 4096, "--attention", "UlyssesZ", "--recompute", "full")
        self.assertEqual((found["cluster"], found["ranks"], found["tokens"]), ("small", 2, 4096))
        self.assertGreater(found["seconds"], 0)
        self.assertAlmostEqual(found["tokens_per_s"], 4096 / found["seconds"], delta=1e-6 * found["tokens_per_s"])
        self.assertAlmostEqual(
            found["compute_share"] + found["exposed_share"] + found["idle_share"], 1, places=9)
        self.assertTrue(found["fits"])
        fullest = found["fullest"]
        self.assertEqual(
            fullest["peak_bytes"],
            fullest["static_bytes"] + fullest["saved_bytes"] + fullest["transient_bytes"])
        self.assertTrue(0 < found["model_utilisation"] < 1)
        text = self.run_program(
            "simulate", "--model", DEMO, "--cluster", self.cluster(), "--length", 4096, "--attention",
            "UlyssesZ").stdout
        self.assertIn("it fits", text)

    def test_a_plan_file(self):
        plan = uniform_plan("llama", [100, 37], 2, 2)
        path = self.write("plan.json", json.dumps(plan))
        found = self.simulate("--plan", path)
        self.assertEqual(found["tokens"], 137)
        # The same as a strategy of one's own naming.
        named = self.simulate("--length", "100,37", "--attention", "UlyssesZ")
        self.assertEqual(found["bytes_sent"], self.simulate("--plan", path)["bytes_sent"])
        self.assertEqual(named["tokens"], 137)
        plan["cluster"]["ranks"] = 4
        self.assertIn(
            "the plan is for 4 ranks, the cluster small has 2",
            self.refused("--plan", self.write("four.json", json.dumps(plan))))
        self.assertIn("leave out --length", self.refused("--plan", path, "--length", 3))

    def test_all_strategies_and_the_mix(self):
        found = self.simulate("--length", 3000)
        names = [choice["name"] for choice in found["choices"]]
        self.assertIn("MegatronTS+hold", names)
        self.assertIn("METP+pass, recompute full", names)
        self.assertTrue(names[-1].startswith("mix: "), names)
        fitting = [choice for choice in found["choices"] if choice["fits"]]
        self.assertEqual(found["best"], min(fitting, key=lambda choice: choice["seconds"])["name"])
        self.assertIn("best: ", self.run_program(
            "simulate", "--model", DEMO, "--cluster", self.cluster(), "--length", 3000).stdout)

    def test_memory_decides(self):
        roomy = self.simulate("--length", 3000)
        need = min(choice["fullest"]["peak_bytes"] for choice in roomy["choices"])
        tight = self.simulate("--length", 3000, "--memory", need)
        self.assertEqual(min(c["missing_bytes"] for c in tight["choices"]), 0)
        self.assertGreater(sum(not c["fits"] for c in tight["choices"]), 20)
        nothing = self.simulate("--length", 3000, "--memory", 1000)
        self.assertIsNone(nothing["best"])
        self.assertIn("no plan fits", self.run_program(
            "simulate", "--model", DEMO, "--cluster", self.cluster(), "--length", 3000, "--memory", 1000).stdout)

    def test_the_best_plan_is_saved_and_sound(self):
        path = self.folder / "best.json"
        found = self.simulate("--length", 2000, "--save-plan", path)
        self.run_program("plan", "check", path, "--model", DEMO)
        again = self.simulate("--plan", path)
        self.assertAlmostEqual(
            again["seconds"], min(c["seconds"] for c in found["choices"] if c["fits"]), places=12)

    def test_trace(self):
        path = self.folder / "trace.json"
        self.simulate("--length", 500, "--attention", "MegatronCZ", "--trace", path, "--trace-ranks", 1)
        events = json.loads(path.read_text())["traceEvents"]
        self.assertEqual({event["pid"] for event in events}, {0})
        self.assertEqual({event["ph"] for event in events}, {"M", "X", "C"})
        self.assertEqual({event["tid"] for event in events if event["ph"] == "X"}, {0, 1})
        self.assertTrue(any("layer 1 attention ring_attention" == event["name"] for event in events))

    def test_unlike_devices_share_unevenly(self):
        slow = self.cluster([(1, 1e12, 16e9), (1, 5e11, 16e9)])
        arguments = ["--length", 8000, "--attention", "MegatronCZ"]
        even = self.simulate(*arguments, "--even", cluster=slow)["seconds"]
        shared = self.simulate(*arguments, cluster=slow)["seconds"]
        self.assertLess(shared, 0.85 * even)
        path = self.folder / "shares.json"
        self.simulate(*arguments, "--save-plan", path, cluster=slow)
        group = json.loads(path.read_text())["micro_batches"][0]["groups"][0]
        self.assertAlmostEqual(group["shares"][0] / group["shares"][1], 2, delta=0.1)
        for options in [], ["--even"]:  # the plan's shares are kept
            self.assertAlmostEqual(
                self.simulate("--plan", path, *options, cluster=slow)["seconds"], shared, places=12)
        plan = json.loads(path.read_text())
        plan["micro_batches"][0]["groups"][0]["shares"] = [1, 2, 3]
        self.assertIn(
            "micro_batches[0].groups[0].shares: 3 for a group of 2 ranks",
            self.refused("--plan", self.write("three.json", json.dumps(plan)), cluster=slow))
        # All strategies are tried with shares, and the best is saved with them.
        best = self.simulate("--length", 8000, "--save-plan", path, cluster=slow)
        self.assertAlmostEqual(
            self.simulate("--plan", path, cluster=slow)["seconds"],
            min(choice["seconds"] for choice in best["choices"] if choice["fits"]), places=12)

    def test_gpt3_on_4096_ranks(self):
        found = self.simulate(
            "--length", 32768, "--attention", "UlyssesZ", "--mlp", "tensor-parallel", model=GPT3, cluster=H100)
        self.assertEqual((found["ranks"], found["tokens"]), (4096, 64 * 32768))
        self.assertTrue(0.05 < found["model_utilisation"] < 0.7, found)
        self.assertIn("learned 131072 positions", self.refused(
            "--length", 200000, "--attention", "UlyssesZ", model=GPT3, cluster=A100))

    def test_bytes_by_link(self):
        one = self.simulate("--length", 4096, "--attention", "UlyssesZ")
        self.assertEqual((one["bytes_inside_nodes"], one["bytes_between_nodes"]), (one["bytes_sent"], 0))
        self.assertEqual(one["bytes_by_node"], [[one["bytes_sent"]]])
        path = self.cluster([(4, 1e12, 16e9)], name="two.toml")
        path.write_text(path.read_text().replace("ranks_per_node = 8", "ranks_per_node = 2") +
                        "[between_nodes]\nbytes_per_second = 1e9\nlatency_seconds = 1e-5\n")
        two = self.simulate("--length", 4096, "--attention", "UlyssesZ", "--mlp", "gather", cluster=path)
        self.assertEqual(two["bytes_inside_nodes"] + two["bytes_between_nodes"], two["bytes_sent"])
        self.assertEqual(sum(map(sum, two["bytes_by_node"])), two["bytes_sent"])
        # Of three others two are on the other node.
        self.assertAlmostEqual(two["bytes_between_nodes"] / two["bytes_inside_nodes"], 2, delta=0.01)
        text = self.run_program(
            "simulate", "--model", DEMO, "--cluster", path, "--length", 4096, "--attention", "UlyssesZ").stdout
        self.assertRegex(text, r"sent .*: .* inside nodes, .* between them")
        self.assertRegex(text, r"from node +to 0 +to 1")
        self.assertIsNone(self.simulate(
            "--length", 32768, "--attention", "UlyssesZ", "--mlp", "hold", model=GPT3,
            cluster=H100)["bytes_by_node"])

    def test_additive(self):
        """What overlaps is gained where one group runs; groups that are unlike are told."""
        arguments = ["--length", 4096, "--attention", "UlyssesZ", "--mlp", "zero3", "--additive"]
        found = self.simulate(*arguments)
        self.assertLess(found["seconds"], found["additive"]["seconds"])
        self.assertAlmostEqual(
            found["additive"]["ratio"], found["seconds"] / found["additive"]["seconds"], places=12)
        micro = found["additive"]["micro_batches"]
        self.assertEqual(len(micro), 1)
        end = found["gradient_seconds"] + found["optimizer_seconds"]
        self.assertAlmostEqual(micro[0]["additive_seconds"] + end, found["additive"]["seconds"], places=12)
        self.assertAlmostEqual(micro[0]["seconds"] + end, found["seconds"], places=12)
        self.assertAlmostEqual(
            micro[0]["additive_group_seconds"][0], micro[0]["additive_seconds"], places=12)
        text = self.run_program(
            "simulate", "--model", DEMO, "--cluster", self.cluster(), *arguments, "--verbose").stdout
        self.assertIn("without overlap", text)
        self.assertRegex(text, r"slowest group additive\n *0 .* 0 \(ranks 0-1\)")
        self.assertNotIn("additive", self.simulate(*arguments[:-1]))
        self.assertIn("--additive", self.refused("--length", 9, "--additive"))

    def test_this_machine(self):
        """Speeds are positive and are told as a file that is read again; a plan can be played on it."""
        path = self.folder / "here.toml"
        found = self.json_of(
            "simulate", "--model", DEMO, "--cluster", "measured", "--ranks", 3, "--backend", "local",
            "--write-cluster", path)
        self.assertEqual((found["cluster"], found["ranks"], found["backend"]), ("measured", 3, "local"))
        self.assertEqual(path.read_text(), found["toml"])
        again = self.simulate(
            "--length", 4096, "--attention", "UlyssesZ", "--dtype", "float32", cluster=path)
        self.assertEqual((again["ranks"], again["cluster"]), (3, "measured"))
        self.assertGreater(again["seconds"], 0)
        text = self.run_program(
            "simulate", "--model", DEMO, "--cluster", "measured", "--ranks", 1).stdout
        self.assertIn("\ncount = 1\n", text)
        plan = self.write("plan.json", json.dumps(uniform_plan("llama", [300], 2, 2)))
        self.assertEqual(self.simulate("--plan", plan, cluster="measured")["ranks"], 2)
        over_gloo = json.loads(self.run_program(
            "launch", "-n", 2, "--", "simulate", "--model", DEMO, "--cluster", "measured", "--length",
            1024, "--attention", "DataZ", "--json").stdout)
        self.assertEqual(over_gloo["ranks"], 2)
        for flag, value in ("--ranks", 2), ("--write-cluster", path), ("--backend", "local"):
            self.assertIn(f"{flag} needs --cluster measured", self.refused("--length", 9, flag, value))

    def test_bad_input(self):
        self.assertIn("--length", self.refused())
        self.assertIn("--recompute needs --attention", self.refused("--length", 9, "--recompute", "full"))
        self.assertIn("MegatronTS", self.refused("--length", 9, "--attention", "MegatronT"))
        self.assertIn("divide", self.refused("--length", 9, "--domain", 3))
        self.assertIn("bfloat16", self.refused("--length", 9, "--dtype", "float64"))
        self.assertIn("--memory", self.refused("--length", 9, "--memory", "much"))
        self.assertIn("nowhere.toml: is not there; give a cluster file", self.refused("--length", 9, cluster="nowhere.toml"))
        self.assertIn("nowhere", self.refused("--length", 9, model="nowhere.toml"))
        bad = self.write("bad.toml", "name = [")
        self.assertIn("bad.toml:1: is not TOML", self.refused("--length", 9, cluster=bad))
        self.assertIn(
            "inside_node.bytes_per_second: expected a number from 1 to 1e+18, found 0",
            self.refused("--length", 9, cluster=self.cluster(bandwidth=0, name="zero.toml")))
        self.assertIn(
            "the folder /nowhere is not there; make it, or name another",
            self.error_of("simulate", "--model", DEMO, "--cluster", self.cluster(), "--length", 9, "--attention",
                          "USP", "--trace", "/nowhere/trace.json"))
        mine = self.write("mine", "notes")
        for option, what in (("--trace", "a trace"), ("--save-plan", "a plan")):
            said = self.refused("--length", 9, "--attention", "USP", option, mine)
            self.assertIn(f"is not {what} of paradyse, so it is not replaced", said)

    def test_layouts_of_samples(self):
        """Every layout at every level; the planned one is that of plan layout, and the best is saved."""
        planned, best, trace = (self.folder / name for name in ("planned.json", "best.json", "trace.json"))
        for model, sizes, rivals in (
                (self.write("stdit.toml", STDIT), ["--frames", 8, "--tokens", 32, "--batch", 3],
                 {"dsp", "ulysses", "ulysses-both", "ring", "megatron-sp", "megatron-lm"}),
                (self.write("evoformer.toml", TINY_EVOFORMER), ["--sequences", 12, "--residues", 24], {"dap"})):
            cluster = self.cluster([(4, 1e12, 16e9)])
            found = self.simulate(*sizes, "--save-plan", best, "--trace", trace, model=model, cluster=cluster)
            choices = {choice["name"]: choice for choice in found["choices"]}
            self.assertLessEqual(rivals | {"planned"}, set(choices))
            self.assertIn("planned, recompute full", choices)
            self.assertEqual(found["best"], min(choices, key=lambda name: choices[name]["seconds"]))
            self.run_program("plan", "check", best, "--model", model, "--cluster", cluster)
            self.assertAlmostEqual(self.simulate("--plan", best, model=model, cluster=cluster)["seconds"],
                                   choices[found["best"]]["seconds"], places=12)
            self.assertTrue(json.loads(trace.read_text())["traceEvents"])
            trace.unlink()
            self.run_program("plan", "layout", "--model", model, *sizes, "--ranks", 4, "--out", planned)
            self.simulate(*sizes, "--layout", "planned", "--save-plan", best, model=model, cluster=cluster)
            plans = [json.loads(path.read_text()) for path in (planned, best)]
            self.assertEqual(*(plan["programs"] for plan in plans))
            self.assertEqual(*(plan["lengths"] for plan in plans))
            text = self.run_program("simulate", "--model", model, "--cluster", cluster, *sizes).stdout
            self.assertIn("groups of 4 share samples and weights", text)

    def test_one_layout_in_every_sharding_group(self):
        model = self.write("stdit.toml", STDIT)
        cluster = self.cluster([(8, 1e12, 16e9)])
        out = self.folder / "plan.json"
        sizes = ["--frames", 8, "--tokens", 32, "--batch", 2]
        one = self.simulate(*sizes, "--layout", "dsp", "--recompute", "full", model=model, cluster=self.cluster(
            [(4, 1e12, 16e9)], name="half.toml"))
        found = self.simulate(*sizes, "--layout", "dsp", "--recompute", "full", "--domain", 4, "--additive",
                              "--save-plan", out, model=model, cluster=cluster)
        self.assertEqual(found["tokens"], 2 * one["tokens"])
        self.assertAlmostEqual(found["seconds"] - found["gradient_seconds"] - found["optimizer_seconds"],
                               one["seconds"] - one["gradient_seconds"] - one["optimizer_seconds"], places=12)
        self.assertAlmostEqual(found["additive"]["ratio"], found["seconds"] / found["additive"]["seconds"], places=12)
        plan = json.loads(out.read_text())
        self.assertEqual([(group["ranks"], group["documents"]) for group in plan["micro_batches"][0]["groups"]],
                         [([0, 1, 2, 3], [0, 1]), ([4, 5, 6, 7], [2, 3])])
        self.run_program("plan", "check", out, "--model", model, "--cluster", cluster)
        text = self.run_program("simulate", "--model", model, "--cluster", cluster, "--plan", out).stdout
        self.assertIn("sharding group 4, 4 samples of 1024 tokens", text)

    def test_memory_decides_of_layouts(self):
        model = self.write("stdit.toml", STDIT)
        sizes = ["--frames", 16, "--tokens", 256, "--batch", 2]
        peaks = {choice["name"]: choice["fullest"]["peak_bytes"] for choice in self.simulate(*sizes, model=model)["choices"]}
        self.assertNotIn("planned, within memory", peaks)
        full = peaks["planned, recompute full"]
        self.assertEqual(self.simulate(*sizes, "--memory", peaks["planned"], model=model)["best"], "planned")
        tight = self.simulate(*sizes, "--memory", (full + min(peaks["planned"], peaks["dsp"])) // 2, model=model)
        fits = {choice["name"]: choice["fits"] for choice in tight["choices"]}
        self.assertEqual((fits["planned"], fits["planned, recompute full"]), (False, True))
        self.assertTrue(fits["planned, within memory"])
        self.assertEqual(tight["best"], "planned, within memory")
        nothing = self.simulate(*sizes, "--memory", 1000, model=model)
        self.assertIsNone(nothing["best"])

    def test_what_samples_do_not_have(self):
        model = self.write("stdit.toml", STDIT)
        sizes = ["--frames", 4, "--tokens", 16]
        for arguments, said in (
                ([], "give a plan file (--plan) or the sizes of a sample (--tokens N --frames N)"),
                (["--frames", 4], "needs --tokens"),
                (["--batch", 2], "needs --tokens"),
                (["--length", 9], "--length is for language models"),
                ([*sizes, "--attention", "USP"], "--attention is for language models"),
                ([*sizes, "--mlp", "hold"], "--mlp is for language models"),
                ([*sizes, "--head-groups", 2], "--head-groups is for language models"),
                ([*sizes, "--even"], "--even is for language models"),
                ([*sizes, "--recompute", "full"], "--recompute needs --layout"),
                ([*sizes, "--additive"], "--additive needs one plan: give --plan, or the sizes of a sample with --layout"),
                ([*sizes, "--layout", "dps"], "--layout 'dps' is not known (did you mean 'dsp'?)"),
                ([*sizes, "--mesh", "2,2"], "--mesh 2,2: two numbers whose product is 2, the ranks of a group"),
                ([*sizes, "--domain", 3], "--domain 3: must divide"),
                ([*sizes, "--residues", 3], "--residues does not apply"),
                ([*sizes, "--ranks", 1], "--ranks needs --cluster measured")):
            self.assertIn(said, self.refused(*arguments, model=model))
        plan = self.folder / "plan.json"
        self.simulate(*sizes, "--save-plan", plan, model=model)
        for more in sizes[:2], ["--batch", 2], ["--layout", "dsp"], ["--domain", 1]:
            self.assertIn("--plan already says", self.refused("--plan", plan, *more, model=model))
        for option, value in ("--tokens", 9), ("--batch", 2), ("--mesh", "1,2"), ("--frames", 3), ("--layout", "dsp"):
            said = self.refused("--length", 9, option, value)
            self.assertIn(f"{option} is for video and protein models", said)
        self.assertIn("whose documents have --length", self.refused("--tokens", 9))

    def test_fewer_tokens_than_ranks(self):
        many = self.cluster([(8, 1e12, 16e9)])
        for attention in ("MegatronTS", "METP", "USP", "DataZ"):
            found = self.simulate("--length", 3, "--attention", attention, cluster=many)
            self.assertEqual(found["tokens"], 3)


if __name__ == "__main__":
    unittest.main()
