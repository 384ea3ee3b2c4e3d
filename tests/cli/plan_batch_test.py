"""paradyse plan batch, and plan check and simulate of what it writes."""

import gzip
import json
import os
import pathlib
import subprocess
import unittest

from batches import A100, LLAMA, BatchTest, lengths_of
from support import FAILED, PARADYSE

PLANNERS = ["fast", "exact", "static", "homogeneous", "longest-first"]


class PlanBatchTest(BatchTest):
    def check(self, plan, *arguments, code=0):
        found = self.json_of("plan", "check", plan, *arguments, code=code)
        self.assertEqual(found["ok"], code == 0)
        return found

    def test_models_on_clusters(self):
        lengths = lengths_of(64, 3, most=20_000)
        out = self.folder / "plan.json"
        for space in ("flexsp", "full"):
            for ranks in (8, 16):
                found = self.json_of(*self.on_cluster(
                    lengths, "--space", space, "--memory", "12GiB", "--out", out, ranks=ranks))
                self.assertEqual((found["ranks"], found["space"]), (ranks, space))
                self.check(out, "--model", self.folder / "model.toml", "--dtype", "bfloat16", "--memory-per-rank",
                           "12GiB")
                cluster = self.write("c.toml", A100.read_text().replace("count = 64", f"count = {ranks}"))
                played = self.json_of(
                    "simulate", "--model", self.folder / "model.toml", "--cluster", cluster, "--memory",
                    "12GiB", "--plan", out, "--additive")
                self.assertTrue(played["fits"])
                # the checker and the simulator take what the planner was given
                described = ["--model", self.folder / "model.toml", "--cluster", A100, "--ranks", ranks]
                checked = self.check(out, *described, "--memory-per-rank", "12GiB")
                self.assertEqual(checked["memory"][0]["device_bytes"], 12 * 2**30)
                self.assertEqual(checked["memory"][0]["peak_bytes"], max(checked["peak_bytes_of_ranks"]))
                self.assertEqual(len(checked["peak_bytes_of_ranks"]), ranks)
                self.assertIn("peak_bytes", self.json_of("simulate", *described, "--plan", out)["fullest"])
                self.assertAlmostEqual(found["simulated_seconds"], played["seconds"], places=9)
                self.assertAlmostEqual(played["planner_seconds_predicted"], found["seconds"], places=9)
                plan = json.loads(out.read_text())
                self.assertEqual(plan.pop("tiles")["products"], 0)
                self.assertNotIn("note", played)
                bare = self.json_of(
                    "simulate", *described, "--plan", self.write("bare.json", json.dumps(plan)))
                self.assertIn("those of a CPU are used", bare["note"])
                self.assertAlmostEqual(
                    played["additive"]["seconds"], found["seconds"], delta=0.02 * found["seconds"])

    def test_every_planner(self):
        lengths = [9000, 5000, 4000, 3000, 3000, 2000, 1000, 500]
        seconds = {}
        for planner in PLANNERS:
            found = self.json_of(*self.on_cluster(
                lengths, "--space", "flexsp", "--out", self.folder / "plan.json", "--planner", planner))
            self.assertEqual(found["planner"], planner)
            seconds[planner] = found["seconds"]
            self.check(self.folder / "plan.json")
        for planner in PLANNERS:
            self.assertGreaterEqual(seconds[planner], seconds["exact"] * (1 - 1e-9), planner)
        self.assertLessEqual(seconds["fast"], seconds["homogeneous"] * (1 + 1e-9))
        said = self.error_of(*self.on_cluster(lengths, "--planner", "flexsp-milp"))
        self.assertIn("is not known", said)
        self.assertIn("paradyse-lab", said)

    def test_exact(self):
        found = self.json_of(*self.on_cluster([9000, 5000, 4000, 3000], "--exact", ranks=4))
        self.assertEqual((found["planner"], found["optimal"], found["gap"]), ("exact", True, 0))
        self.assertEqual(found["bound"], "optimum, proved")
        said = self.error_of(*self.on_cluster(lengths_of(60, 4, most=20_000), "--exact"))
        self.assertIn("at most 14 documents", said)
        self.assertIn("60 documents on 8 ranks", said)
        self.assertNotIn("--memory", said)

    def test_explain(self):
        made = self.on_cluster(lengths_of(60, 5, most=20_000))
        self.assertIn("micro-batch 0: ", self.json_of(*made, "--explain")["explanation"])
        said = self.run_program(*made, "--explain").stdout
        for word in ("groups of", "computing", "share of rank time", "gap", "micro-batch", "fast took"):
            self.assertIn(word, said)
        self.assertNotIn("explanation", self.json_of(*made))

    def test_drops_what_exceeds_the_context_and_keeps_the_first(self):
        lengths = [3000, 20_000, 10, 5, 13_000, 700, 12_000, 400]
        out = self.folder / "plan.json"
        found = self.json_of(*self.on_cluster(lengths, "--batch", 4, "--context", 12_000, "--out", out))
        self.assertEqual((found["documents"], found["dropped"]), (4, 2))
        self.assertEqual(json.loads(out.read_text())["lengths"], [3000, 10, 5, 700])
        found = self.json_of(*self.on_cluster(lengths, "--context", 13_000, "--out", out))
        self.assertEqual((found["documents"], found["dropped"]), (7, 1))
        self.assertEqual(json.loads(out.read_text())["lengths"], lengths[:1] + lengths[2:])
        self.check(out)

    def test_the_plan_names_the_line_of_each_document(self):
        out = self.folder / "plan.json"
        made = self.on_cluster([], "--context", 12_000, "--batch", 3, "--out", out)
        self.write("lengths.txt", "\n3000\n20000\n\n10\n 5\n700\n")
        first = self.json_of(*made)
        plan = json.loads(out.read_text())
        self.assertEqual((plan["lengths"], plan["source"]), ([3000, 10, 5], [2, 5, 6]))
        self.write("lengths.txt", "3000\n10\n5\n")
        self.assertEqual(self.json_of(*made)["hash"], first["hash"])  # the same work from another file
        self.check(out)
        plan["source"].pop()
        out.write_text(json.dumps(plan))
        self.assertIn("source: 2 lines for 3 documents", self.check(out, code=FAILED)["problems"][0])

    def test_lengths_come_packed_or_from_standard_input(self):
        made = self.on_cluster([3000, 10, 5])
        text = (self.folder / "lengths.txt").read_bytes()
        plain = self.json_of(*made)["hash"]
        (self.folder / "lengths.txt").write_bytes(gzip.compress(text[:7]) + gzip.compress(text[7:]))
        self.assertEqual(self.json_of(*made)["hash"], plain)
        for sent in (text, gzip.compress(text)):
            command = [PARADYSE, *map(str, made), "--json"]
            command[command.index("--lengths") + 1] = "-"
            done = subprocess.run(command, input=sent, capture_output=True)
            self.assertEqual(json.loads(done.stdout)["hash"], plain)
        packed = gzip.compress(text)
        for damaged, said in ((packed[:-9], "is cut off"), (packed[:12] + b"?????" + packed[17:], "is damaged")):
            (self.folder / "lengths.txt").write_bytes(damaged)
            self.assertIn(said, self.error_of(*made))

    def test_group_sizes(self):
        out = self.folder / "plan.json"
        lengths = lengths_of(40, 8, most=20_000)
        for space, sizes in (("flexsp", {1, 2, 4, 8}), ("flexsp", {4}), ("full", {2, 3})):
            self.json_of(*self.on_cluster(
                lengths, "--space", space, "--group-sizes", ",".join(map(str, sizes)), "--out", out))
            groups = [group for micro_batch in json.loads(out.read_text())["micro_batches"]
                      for group in micro_batch["groups"] if group["documents"]]
            self.assertLessEqual({len(group["ranks"]) for group in groups}, sizes)
            self.check(out, "--model", self.folder / "model.toml")
        said = self.error_of(*self.on_cluster(lengths, "--group-sizes", "3"))
        self.assertIn("--group-sizes 3: there are no such groups here; accepted: 1, 2, 4, 8", said)
        said = self.error_of(*self.on_cluster(
            [150_000], "--group-sizes", "1", "--memory", "12GiB"))  # eight ranks would do
        self.assertIn("document 0 has 150000 tokens", said)

    def test_compare(self):
        made = self.on_cluster(lengths_of(40, 8, most=20_000))
        found = self.json_of(*made, "--compare")
        self.assertEqual([rival["planner"] for rival in found["rivals"]], ["static", "homogeneous", "longest-first"])
        for rival in found["rivals"]:
            self.assertEqual(rival["seconds"], self.json_of(*made, "--planner", rival["planner"])["seconds"])
        said = self.run_program(*made, "--compare").stdout
        self.assertRegex(said, r"(?m)^\*?\s*fast +\S+ +1\.000")
        few = self.json_of(*self.on_cluster([9000, 500]), "--compare")
        self.assertIn("exact", [rival["planner"] for rival in few["rivals"]])

    def test_stream(self):
        made = [*map(str, self.on_cluster([])), "--stream"]
        made[made.index("--lengths") + 1] = "-"
        with subprocess.Popen([PARADYSE, *made], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            for line, lengths in (("512 8192 300", [512, 8192, 300]), ("5,\t6", [5, 6])):
                program.stdin.write(line + "\n")
                program.stdin.flush()
                plan = json.loads(program.stdout.readline())  # before the next line is sent
                self.assertEqual(plan["lengths"], lengths)
                self.assertNotIn("seconds", plan["planner"])
                self.assertNotIn("source", plan)
            for line, said in (("5 six", "standard input, line 3: 'six' is not a length"),
                               ("", "at least one document"), ("5 9000000", "document 1 has 9000000 tokens")):
                program.stdin.write(line + "\n")
                program.stdin.flush()
                self.assertIn(said, json.loads(program.stdout.readline())["error"])
            self.assertEqual(program.communicate("7\n")[0].count("\n"), 1)
        self.assertEqual(program.returncode, FAILED)
        folder = os.open(self.folder, os.O_RDONLY)  # cannot be read as a file
        done = subprocess.run([PARADYSE, *made], stdin=folder, capture_output=True, text=True)
        os.close(folder)
        self.assertEqual((done.returncode, done.stdout), (FAILED, ""))
        self.assertIn("standard input: cannot be read to its end: Is a directory", done.stderr)
        out = self.folder / "plan.json"
        made = self.on_cluster([512, 8192, 300], "--out", out)
        self.json_of(*made)
        self.write("batches.txt", "512 8192 300\n")
        made[made.index("--lengths") + 1] = self.folder / "batches.txt"
        self.assertIn("--out cannot be combined with --stream", self.error_of(*made, "--stream"))
        streamed = json.loads(self.run_program(*made[:-2], "--stream").stdout)
        plan = json.loads(out.read_text())
        del plan["source"], plan["planner"]["seconds"]
        self.assertEqual(streamed, plan)

    def test_is_deterministic(self):
        made = self.on_cluster(lengths_of(100, 6, most=20_000), "--space", "full")
        hashes = {self.json_of(*made, *more)["hash"] for more in ([], [], ["--threads", 2], ["--threads", 3])}
        self.assertEqual(len(hashes), 1)

    def test_documents_that_are_too_long_are_named(self):
        lengths = [700, 150_000, 20, 120_000]
        for space, small in (("flexsp", "5GiB"), ("full", "2500MiB")):
            made = self.on_cluster(lengths, "--space", space, "--memory", small, ranks=8)
            said = self.error_of(*made)
            self.assertIn("document 1 has 150000 tokens", said)
            self.assertIn("1 more document", said)
            ranks = said.split("(--ranks ")[1].split(")")[0]
            memory = said.split("--memory ")[1].split()[0]
            made[made.index("--ranks") + 1] = ranks  # what is advised does
            self.run_program(*made)
            made[made.index("--ranks") + 1] = 8
            made[made.index("--memory") + 1] = memory
            self.run_program(*made)

    def test_documents_that_no_plan_counts(self):
        for length in (2**25, 2**57, 2**60, 2**63 - 1):
            made = self.on_cluster([3, length], "--context", 2**63 - 1)
            said = f"document 1 has {length} tokens, which is too large: "
            self.assertIn(said, self.error_of(*made))
            self.write("lengths.txt", f"5 6\n3 {length}\n")
            lines = self.run_program(*made[:made.index("--context")], "--stream", code=FAILED).stdout.splitlines()
            self.assertIn("micro_batches", json.loads(lines[0]))
            self.assertIn(said, json.loads(lines[1])["error"])

    def test_bad_options(self):
        for more, said in (
                (["--planner", "fats"], "did you mean 'fast'"), (["--space", "ful"], "did you mean 'full'"),
                (["--weight-domain", "nodes"], "did you mean 'node'"), (["--overlap"], "--space full"),
                (["--weight-domain", "node"], "--space full"), (["--memory", "much"], "--memory"),
                (["--memory", "0"], "at least one byte"), (["--batch", 0], "--batch"),
                (["--context", 0], "--context"), (["--reserve", 2], "--reserve"),
                (["--dtype", "bfloat"], "did you mean 'bfloat16'")):
            self.assertIn(said, self.error_of(*self.on_cluster([5], *more)))
        model = self.write("m.toml", LLAMA)
        lengths = self.lengths([5])
        self.assertIn("takes --cluster", self.error_of("plan", "batch", "--model", model, "--lengths", lengths))
        self.assertIn("--ranks", self.error_of(*self.on_cluster([5], ranks=0)))
        self.assertIn("8 ranks a node", self.error_of(*self.on_cluster([5], ranks=12)))
        said = self.error_of(*self.on_cluster([5], "--memory", "2GiB", ranks=1))
        self.assertIn("leaves no memory for a token on 1 ranks", said)
        self.assertIn("each needs", said)

    def test_only_plans_are_replaced(self):
        out = self.write("out", "notes")
        self.assertIn("is not a plan of paradyse", self.error_of(*self.on_cluster([5], "--out", out)))
        self.assertEqual(pathlib.Path(out).read_text(), "notes")
        os.remove(out)
        for lengths in ([5], [7, 8]):
            self.json_of(*self.on_cluster(lengths, "--out", out))
            self.assertEqual(json.loads(pathlib.Path(out).read_text())["lengths"], lengths)

    def test_bad_files(self):
        model = self.write("m.toml", LLAMA)
        for text, said in (("", "no length in it"), ("\n\n", "no length in it"), ("5\n0\n", "line 2: '0'"),
                           ("-3\n", "line 1: '-3'"), ("12\nmany\n", "line 2: 'many'"), ("1.5\n", "'1.5'"),
                           ("99999999999999999999\n", "is not a length")):
            path = self.write("bad.txt", text)
            message = self.error_of(
                "plan", "batch", "--model", model, "--cluster", A100, "--lengths", path)
            self.assertIn("bad.txt", message)
            self.assertIn(said, message)
        self.assertIn("nowhere.txt: is not there; give a file", self.error_of(
            "plan", "batch", "--model", model, "--cluster", A100, "--lengths", "nowhere.txt"))
        self.assertIn("all 2 documents are longer than the context of 10 tokens",
                      self.error_of(*self.on_cluster([11, 12], "--context", 10)))
        self.assertIn("nowhere.toml", self.error_of(
            "plan", "batch", "--model", model, "--cluster", "nowhere.toml", "--lengths",
            self.lengths([5])))
        for key, value in (("count", "0"), ("memory_bytes", "-1"), ("matmul_fraction", "1.5"),
                           ("launch_seconds", "-1e-6"), ("ranks_per_node", "7"), ("bytes_per_second", "0"),
                           ("matmul_flops_per_second", "nan")):
            lines = [f"{key} = {value}" if line.startswith(f"{key} =") else line
                     for line in A100.read_text().splitlines()]
            cluster = self.write("odd.toml", "\n".join(lines))
            message = self.error_of(
                "plan", "batch", "--model", model, "--cluster", cluster, "--lengths",
                self.lengths([5]))
            self.assertIn("odd.toml", message)
            self.assertIn(key, message)
        self.assertIn("is not there; make it, or name another", self.error_of(
            *self.on_cluster([5], "--out", self.folder / "no" / "plan.json")))

    def test_plans_for_others_are_refused(self):
        out = self.folder / "plan.json"
        self.run_program(*self.on_cluster([500, 60, 7], "--out", out))
        other = self.write("other.toml", LLAMA.replace("5632", "5120"))
        found = self.check(out, "--model", other, code=FAILED)
        self.assertIn("model.sha256", " ".join(found["problems"]))
        self.assertIn("the plan is for 8 ranks", self.error_of(
            "simulate", "--model", self.folder / "model.toml", "--cluster", A100, "--plan", out))
        plan = json.loads(out.read_text())
        plan["micro_batches"][0]["groups"][0]["documents"].append(99)
        self.write("nonsense.json", json.dumps(plan))
        found = self.check(self.folder / "nonsense.json", code=FAILED)
        self.assertIn("micro_batches[0].groups[0].documents", found["problems"][0])
        plan["weight_domain"] = "all"
        self.write("nonsense.json", json.dumps(plan))
        self.assertIn("weight_domain", self.error_of("plan", "check", self.folder / "nonsense.json"))


if __name__ == "__main__":
    unittest.main()
