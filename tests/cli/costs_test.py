"""Measured costs, as a user meets them: profile, fit, plan layers of a model, and training by them."""
import hashlib
import json
import pathlib
import shutil
import signal
import subprocess
import time
import unittest

from support import PARADYSE, ProgramTest


class CostsTest(ProgramTest):
    measured = None  # name and text of a whole profile: measuring takes long, so tests share it
    costs = None  # text of what is fitted to it

    def setUp(self):
        super().setUp()
        self.config = self.write_run(3, """[costs]
profile_seconds = 900
[train]
steps = 8
tokens_per_step = 3000
""")

    def profile(self, *extra):
        return self.json_of("profile", "-c", self.config, "--lengths", "16,64,256", *extra)

    def measured_once(self):
        if CostsTest.measured is None:
            file = pathlib.Path(self.profile()["file"])
            CostsTest.measured = (file.name, file.read_text())
        name, text = CostsTest.measured
        costs = self.folder / "runs" / "costs"
        costs.mkdir(parents=True, exist_ok=True)
        (costs / name).write_text(text)
        return costs / name

    def fitted(self):
        profile = self.measured_once()
        if CostsTest.costs is None:
            CostsTest.costs = pathlib.Path(self.json_of("fit", "--profile", profile)["out"]).read_text()
        costs = profile.with_name(profile.name.replace(".profile.jsonl", ".costs.json"))  # where train looks for it
        costs.write_text(CostsTest.costs)
        return costs

    def train(self, *extra):
        folder = json.loads(
            self.run_program("train", "-c", self.config, "--json", *extra).stdout)["folder"]
        lines = (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()
        return pathlib.Path(folder), [json.loads(line) for line in lines]

    def test_profile_then_fit_then_train(self):
        file = self.measured_once()
        size = file.stat().st_size
        made = self.profile()  # all is there
        self.assertEqual(made["file"], str(file))
        self.assertEqual(made["steps_without_time"], 0)
        # lengths, levels, strategies, of which six gather weights and are measured with whole ones, too
        self.assertEqual(made["steps_measured"], 3 * 4 * (8 + 6))
        self.assertEqual(file.stat().st_size, size)

        short = ["train", "-c", self.config, "--set", "train.steps=1"]
        said = self.run_program(*short).stderr
        self.assertIn("plans use a closed form", said)
        out = str(file).replace(".profile.jsonl", ".costs.json")
        errors = self.json_of("fit", "--profile", file)
        self.assertEqual(errors["out"], out)  # where train looks for it
        self.assertIn(errors["best"], ("structured", "hybrid"))
        said = self.run_program(*short).stderr
        self.assertIn(f"plans use the {errors['best']} model of measured costs", said)

        # costs of three ranks are none of two
        message = self.error_of(
            "train", "-c", self.config, "--ranks", 2, "--set", f'costs.file="{out}"')
        self.assertIn("ranks is 3, but this run has 2", message)
        self.assertIn("paradyse profile", message)
        message = self.error_of(
            "profile", "-c", self.config, "--lengths", 64, "--ranks", 2, "--out", file)
        self.assertIn("ranks", message)
        self.assertEqual(file.stat().st_size, size)

    # A run folder may go elsewhere without the costs beside it, which stay those of the run.
    def test_a_moved_run_finds_its_costs(self):
        costs = self.fitted()
        self.run_program("train", "-c", self.config, "--set", "output.name=run", "--set", "train.steps=6")
        moved = self.folder / "elsewhere"
        moved.mkdir()
        run = shutil.move(self.folder / "runs" / "run", moved / "run")

        def resumed(steps, *more):
            return self.run_program("train", "--resume", run, "--set", f"train.steps={steps}", *more).stderr

        self.forget_costs_file(run)
        lost = shutil.copytree(run, moved / "lost")
        for steps in (7, 8):  # the second time its configuration names the new place
            said = resumed(steps)
            self.assertIn(f"measured costs are those of {costs}, where the run had them", said)
            self.assertIn("model of measured costs", said)
            self.assertNotIn("discarded", said)
        away = costs.rename(self.folder / "away.json")
        self.assertIn(f"({costs.name} in {moved}/costs or {self.folder}/runs/costs): from here on",
                      self.run_program("train", "--resume", lost, "--set", "train.steps=7").stderr)
        away.rename(costs)
        near = moved / "costs" / costs.name
        near.parent.mkdir()
        text = json.loads(costs.read_text())
        near.write_text(json.dumps({**text, "step_seconds": 1 + text["step_seconds"]}))  # of others
        self.assertIn(f"measured costs are those of {costs}", resumed(9))
        away = costs.rename(self.folder / "away.json")
        said = resumed(10)
        self.assertNotIn("measured costs are those of", said)
        self.assertIn("learned about time until its checkpoint is discarded: it was learned with other measured costs",
                      said)
        near.unlink()
        away.rename(near)
        self.assertNotIn("measured costs are those of", resumed(11))
        near.unlink()
        said = resumed(12)
        self.assertIn(f"there are none for this model, machine and number of ranks ({costs.name} in {moved}/costs)", said)
        self.assertIn("from here on it goes by a closed form", said)
        self.assertIn("--set costs.file=FILE", said)
        self.assertIn("it was learned with measured costs, and plans use a closed form now", said)
        said = resumed(13)  # from here on it goes by none
        self.assertNotIn("measured costs until now", said)
        self.assertNotIn("discarded", said)

    def forget_costs_file(self, run):
        """The newest checkpoint as an older program wrote it, which did not say where its costs were."""
        file = max((run / "checkpoints").iterdir()) / "state.json"
        state = json.loads(file.read_text())
        del state["sha256"], state["costs_file"]
        text = json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        file.write_text(json.dumps({**state, "sha256": hashlib.sha256(text.encode()).hexdigest()}))

    def test_what_is_learned_no_more_is_told(self):
        self.fitted()
        self.run_program("train", "-c", self.config, "--set", "output.name=run", "--set", "train.steps=6")
        run = self.folder / "runs" / "run"
        self.assertNotIn("discarded", self.run_program("train", "--resume", run, "--set", "train.steps=7").stderr)
        said = self.run_program("train", "--resume", run, "--set", "train.steps=8", "--set", "costs.correct=false").stderr
        self.assertNotIn("where the run had them", self.run_program(
            "train", "--resume", shutil.copytree(run, run.with_name("fewer")), "--ranks", 2, "--set", "train.steps=9").stderr)
        self.assertIn("learned about time until its checkpoint is discarded: costs.correct is false", said)

    def test_train_measures_where_it_is_told_to(self):
        arguments = ["--set", 'costs.file="measure"', "--set", "costs.profile_seconds=15",
                     "--set", "train.steps=1"]
        said = self.run_program("train", "-c", self.config, *arguments).stderr
        self.assertIn("measuring the strategies on this machine, once, for 15 s", said)
        self.assertIn("model of measured costs", said)
        said = self.run_program("train", "-c", self.config, *arguments).stderr
        self.assertNotIn("measuring", said)

    def test_a_profile_that_is_killed_goes_on(self):
        out = self.folder / "killed.jsonl"
        command = [PARADYSE, "profile", "-c", self.config, "--out", out,
                   "--lengths", "16", "--seconds", "600"]
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        while not out.exists() or out.read_text().count('"probe":"step"') < 20:
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        before = out.read_text()
        whole = before[:before.rindex("\n") + 1]
        made = self.json_of("profile", "-c", self.config, "--lengths", "16", "--out", out)
        self.assertEqual(made["steps_without_time"], 0)
        self.assertEqual(made["steps_measured"], 4 * (8 + 6))
        self.assertTrue(out.read_text().startswith(whole))

    def test_costs_of_something_else(self):
        model = self.folder / "model.toml"
        costs = self.fitted()
        arguments = ["plan", "layers", "--model", model, "--length", 500, "--fitted", costs]
        self.assertNotIn("note", self.json_of(*arguments, "--ranks", 3))
        self.assertIn("'dtype' is \"float32\" there and \"bfloat16\" here", self.error_of(
            *arguments, "--ranks", 3, "--dtype", "bfloat16"))
        text = costs.read_text()
        for best in ("structured", "hybrid"):
            costs.write_text(text.replace('"best": "structured"', f'"best": "{best}"').replace(
                '"best": "hybrid"', f'"best": "{best}"'))
            if best == "structured":
                found = self.json_of(*arguments, "--ranks", 2)
                self.assertIn("'ranks' is 3 there and 2 here", found["note"])
            else:
                message = self.error_of(*arguments, "--ranks", 2)
                self.assertIn("'ranks' is 3 there and 2 here", message)
                self.assertIn("paradyse profile", message)
        costs.write_text(text.replace('"machine": "', '"machine": "another '))
        self.assertIn("'machine' is", self.json_of(*arguments, "--ranks", 3)["note"])
        costs.write_text(costs.read_text().replace('"best": "hybrid"', '"best": "structured"'))
        note = self.json_of(*arguments, "--ranks", 2)["note"]
        self.assertIn("'machine' is", note)
        self.assertIn("'ranks' is 3 there and 2 here", note)

    def test_a_run_that_goes_on_with_costs_of_other_ranks(self):
        costs = self.fitted()
        costs.write_text(costs.read_text().replace('"best": "hybrid"', '"best": "structured"'))
        begun = self.run_program("train", "-c", self.config, "--set", "output.name=other", "--set", "train.steps=1",
                                 "--set", f'costs.file="{costs}"').stderr
        self.assertNotIn("extrapolates", begun)
        run = self.folder / "runs" / "other"
        said = self.run_program("train", "--resume", run, "--ranks", 2, "--set", "train.steps=2").stderr
        self.assertIn(f"{costs}: 'ranks' is 3 there and 2 here; the structured model extrapolates its seconds", said)

    def test_a_model_that_leaves_no_room(self):
        for command in (["profile", "--lengths", "64"], ["train", "--set", 'costs.file="measure"']):
            message = self.error_of(*command, "-c", self.config, "--memory-per-rank", "10KiB")
            self.assertIn("parallel.memory_per_rank is 10.0 KiB", message)
            self.assertIn("give more memory", message)

    def test_what_would_not_fit_is_not_run(self):
        made = self.json_of(
            "profile", "-c", self.config, "--out", self.folder / "small.jsonl", "--lengths",
            "64,4096", "--memory-per-rank", "1MiB", "--seconds", 900)
        self.assertGreater(made["steps_without_memory"], 0)
        self.assertGreater(made["steps_measured"], 0)
        size = (self.folder / "small.jsonl").stat().st_size
        arguments = ["profile", "-c", self.config, "--out", self.folder / "small.jsonl",
                     "--seconds", 900, "--lengths"]
        again = self.json_of(*arguments, "64,4096", "--memory-per-rank", "1MiB")
        self.assertEqual(again, made)
        self.assertEqual((self.folder / "small.jsonl").stat().st_size, size)
        # what lacked memory is measured where there is more
        lacking = [line for line in (self.folder / "small.jsonl").read_text().splitlines()
                   if '"step"' in line and '"memory"' in line]
        self.assertEqual(len(lacking), made["steps_without_memory"])

    def test_replay_gives_the_same_run(self):
        folder, steps = self.train()
        again, replayed = self.train_replay(folder)
        self.assertNotEqual(folder, again)
        for before, after in zip(steps, replayed, strict=True):
            self.assertEqual(before["plan_sha256"], after["plan_sha256"])
            self.assertEqual(before["loss"], after["loss"])
        message = self.error_of("train", "--replay", folder, "--set", "train.steps=9")
        self.assertIn("no plan of step 9; set train.steps = 8", message)
        message = self.error_of("train", "--replay", folder, "--set", "data.seed=9")
        self.assertIn("other lengths", message)
        message = self.error_of("train", "--replay", self.folder)
        self.assertIn("not a run folder", message)

    def test_replay_cuts_by_shares(self):
        folder, steps = self.train("--set", 'parallel.attention="MegatronCZ"')
        cut = 0
        for path in (folder / "plans").glob("step-*.json"):
            plan = json.loads(path.read_text())
            for micro_batch in plan["micro_batches"]:
                for group in micro_batch["groups"]:
                    if len(group["ranks"]) > 1:
                        group["shares"] = [1 + rank for rank in group["ranks"]]
                        cut += 1
            path.write_text(json.dumps(plan))
        self.assertGreater(cut, 0)
        _, replayed = self.train_replay(folder)
        self.assertNotEqual(
            [step["plan_sha256"] for step in steps], [step["plan_sha256"] for step in replayed])
        self.assertGreater(
            max(step["peak_bytes"] for step in replayed), max(step["peak_bytes"] for step in steps))
        for step, other in zip(steps, replayed, strict=True):
            self.assertAlmostEqual(step["loss"], other["loss"], delta=2e-3)

    def train_replay(self, run):
        folder = json.loads(self.run_program("train", "--replay", run, "--json").stdout)["folder"]
        lines = (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()
        return pathlib.Path(folder), [json.loads(line) for line in lines]

    def test_a_model_that_lies_about_memory(self):
        costs = self.fitted()
        # learns nothing on the way, or plans would differ by what was measured
        # of one size of long documents' groups, or another that needs less may be found
        same = ["--set", "costs.correct=false", "--set", 'parallel.layer_planner="exact"',
                "--set", "parallel.batch_planner=borders"]
        # room for what plans keep where their memory is known to suffice
        _, honest = self.train(*same, "--memory-per-rank", "1GiB")
        lie = json.loads(costs.read_text())
        lie["memory_overhead"] = -0.6
        liar = self.write("liar.json", json.dumps(lie))
        budget = int(1.02 * max(step["peak_bytes"] for step in honest) * 0.75)
        folder, steps = self.train(
            *same, "--set", f'costs.file="{liar}"', "--memory-per-rank", budget)
        self.assertGreater(sum(step["retries"] for step in steps), 0)
        self.assertEqual(len(steps), len(honest))
        for step, other in zip(steps, honest, strict=True):
            self.assertLessEqual(step["peak_bytes"], budget)
            self.assertEqual(step["documents"], other["documents"])
            self.assertEqual(step["tokens"], other["tokens"])
            self.assertAlmostEqual(step["loss"], other["loss"], delta=2e-3)

    def test_processes_go_on_from_lack_of_memory(self):
        # of three threads; that they are not those of four processes is no matter here
        told = json.loads(self.fitted().read_text())
        told["header"] |= {"backend": "gloo", "ranks": 4, "ranks_per_node": 4}
        self.config.write_text(self.config.read_text().replace("ranks = 3\n", ""))

        def train(overhead, *more):
            told["memory_overhead"] = overhead
            file = self.write(f"costs{overhead}.json", json.dumps(told))
            done = self.run_program(
                "launch", "-n", 4, "--", "train", "-c", self.config, "--backend", "gloo", "--json",
                "--set", f'costs.file="{file}"', "--set", "costs.correct=false",
                "--set", 'parallel.layer_planner="exact"', "--set", "parallel.batch_planner=borders",
                "--set", "train.steps=6", *more)
            folder = pathlib.Path(json.loads(done.stdout)["folder"])
            lines = (folder / "metrics.jsonl").read_text().splitlines()
            return done.stderr, [json.loads(line) for line in lines]

        # room for what plans keep where their memory is known to suffice
        _, honest = train(told["memory_overhead"], "--memory-per-rank", "1GiB")
        budget = int(0.75 * max(step["peak_bytes"] for step in honest))
        said, steps = train(-0.6, "--memory-per-rank", budget)
        self.assertIn("the step is repeated with a plan that needs less", said)
        self.assertGreater(sum(step["retries"] for step in steps), 0)
        self.assertEqual(len(steps), len(honest))
        for step, other in zip(steps, honest, strict=True):
            self.assertLessEqual(step["peak_bytes"], budget)
            self.assertEqual(step["documents"], other["documents"])
            self.assertEqual(step["tokens"], other["tokens"])
            self.assertAlmostEqual(step["loss"], other["loss"], delta=2e-5 * other["loss"])

    def test_the_layers_of_a_model(self):
        model = self.folder / "model.toml"
        arguments = ["plan", "layers", "--model", model, "--length", 5000, "--ranks", 3]
        free = self.json_of(*arguments)
        self.assertTrue(free["feasible"])
        self.assertEqual(sum(run["layers"] for run in free["program"]), 3)
        self.assertIsNone(free["longest_length"])
        tight = self.json_of(*arguments, "--capacity", int(0.7 * free["bytes"]["peak"]), "--explain")
        self.assertLessEqual(tight["bytes"]["peak"], 0.7 * free["bytes"]["peak"])
        self.assertEqual(sum(tight["bytes"][kind] for kind in ("static", "saved", "transient")),
                         tight["bytes"]["peak"])
        self.assertGreaterEqual(tight["longest_length"], 5000)
        self.assertGreater(len(tight["rejected"]), 0)
        none = self.json_of(*arguments, "--capacity", 200000)
        self.assertFalse(none["feasible"])
        self.assertGreater(none["missing_bytes"], 0)
        longest = self.json_of(*arguments, "--capacity", "1MiB")["longest_length"]
        for length, fits in ((longest, True), (longest + 1, False)):
            found = self.json_of("plan", "layers", "--model", model, "--length", length, "--ranks", 3,
                                 "--capacity", "1MiB")
            self.assertEqual(found["feasible"], fits, length)
            if not fits:
                self.assertGreater(found["missing_bytes"], 0)
                self.assertEqual(found["missing_bytes"], found["least_peak_bytes"] - found["budget_bytes"])
                self.assertEqual(
                    found["least_peak_bytes"],
                    found["static_bytes"] + found["saved_bytes"] + found["transient_bytes"])
        self.assertIn("--capacity is 0", self.error_of(*arguments, "--capacity", 0))
        self.assertIn("--length TOKENS", self.error_of("plan", "layers", "--model", model))
        self.assertIn("--costs FILE", self.error_of("plan", "layers"))
        self.assertIn("--capacity", self.error_of(*arguments, "--capacity", "much"))


if __name__ == "__main__":
    unittest.main()
