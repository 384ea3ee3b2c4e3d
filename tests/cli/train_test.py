"""paradyse train and eval, as a user runs them: small runs in a temporary folder."""
import json
import os
import pathlib
import signal
import subprocess
import time
import unittest

from support import PARADYSE, ProgramTest


class TrainTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.config = self.write_run(2, """[train]
steps = 25
tokens_per_step = 1500
[optimizer]
lr = 1e-2
warmup_steps = 5
""")

    def train(self, *extra, code=0):
        return self.run_program("train", "-c", self.config, *extra, code=code)

    def summary(self, *extra):
        return json.loads(self.train("--json", *extra).stdout)

    def eval(self, model, data, ranks):
        return self.json_of("eval", "--model", model, "--data", data, "--ranks", ranks)

    def test_learns_with_every_architecture(self):
        models = pathlib.Path(__file__).resolve().parents[2] / "configs" / "models"
        for text in sorted((self.folder / "texts").iterdir())[20:]:
            text.unlink()  # these models are wider than the others here
        masked = self.folder / "masked.jsonl"
        with masked.open("w") as file:  # every third byte is to be found, from the others
            for text in sorted((self.folder / "texts").iterdir()):
                ids = list(text.read_bytes())
                tokens = [256 if i % 3 == 1 else id for i, id in enumerate(ids)]
                labels = [id if i % 3 == 1 else -100 for i, id in enumerate(ids)]
                file.write(json.dumps({"tokens": tokens, "labels": labels}) + "\n")
        for name in ("gpt2", "opt", "bert", "qwen2", "qwen3"):
            with self.subTest(model=name):
                more = ["--set", f"model.path={models / name}.toml", "--set", "train.steps=12",
                        "--set", "train.tokens_per_step=600", "--set", "optimizer.lr=3e-3", "--set", "optimizer.warmup_steps=2"]
                if name == "bert":
                    more += ["--set", f"data.path={masked}"]
                summary = self.summary(*more)
                self.assertLess(summary["last_loss"], 0.9 * summary["first_loss"])
                data = masked if name == "bert" else self.folder / "texts"
                model = pathlib.Path(summary["folder"]) / "model"
                one, two = self.eval(model, data, 1), self.eval(model, data, 2)
                self.assertAlmostEqual(one["loss"], two["loss"], 4)
                config = json.loads((model / "config.json").read_text())
                self.assertEqual(config["model_type"], name)

    # Half of the texts as bytes, half as ids of which only the last ten are to be predicted.
    def test_labels_of_a_causal_model(self):
        def data(name, labels):
            path = self.folder / name
            with path.open("w") as file:
                for i, text in enumerate(sorted((self.folder / "texts").iterdir())):
                    ids = list(text.read_bytes())
                    file.write(json.dumps(
                        {"text": text.read_text()} if i % 2 and labels != "none"
                        else {"tokens": ids, **({"labels": labels(ids)} if callable(labels) else {})}) + "\n")
            return path

        def metrics(path, *more):
            summary = self.summary("--set", f"data.path={path}", "--set", "train.steps=4", *more)
            lines = (pathlib.Path(summary["folder"]) / "metrics.jsonl").read_text().splitlines()
            return [json.loads(line)["loss"] for line in lines], summary

        plan = ["--set", "parallel.attention=UlyssesZ", "--set", "parallel.recompute=none"]
        last_ten = data("last_ten.jsonl", lambda ids: [-100] * (len(ids) - 10) + ids[-10:])
        plain, _ = metrics(data("plain.jsonl", None), *plan)
        own, _ = metrics(data("own.jsonl", list), *plan)
        some, summary = metrics(last_ten, *plan)
        self.assertEqual(own, plain)
        self.assertNotEqual(some, plain)
        model = summary["folder"] + "/model"
        one, two = self.eval(model, last_ten, 1), self.eval(model, last_ten, 2)
        self.assertAlmostEqual(one["loss"], two["loss"], 4)
        texts = sorted((self.folder / "texts").iterdir())
        self.assertEqual(
            one["predicted_tokens"],
            sum(text.stat().st_size - 1 if i % 2 else 10 for i, text in enumerate(texts)))

        # no label of a batch counts: no loss, and the weights stay, decay or not
        nothing = self.write(
            "nothing.jsonl", json.dumps({"tokens": [1] * 60, "labels": [1] + [-100] * 59}) + "\n")
        done = self.train("--json", "--set", f"data.path={nothing}", "--set", "train.steps=2",
                          "--set", f"data.eval_path={nothing}", "--set", "optimizer.weight_decay=0.1")
        self.assertIn("step 1: none of its tokens has a label that counts", done.stderr)
        self.assertIn("no held-out token has a label that counts", done.stderr)
        summary = json.loads(done.stdout)
        self.assertIsNone(summary["last_loss"])
        folder = pathlib.Path(summary["folder"])
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["loss"] for line in lines], [None, None])
        again = self.eval(folder / "model", nothing, 2)
        self.assertEqual((again["loss"], again["predicted_tokens"]), (None, 0))
        text = self.run_program("eval", "--model", folder / "model", "--data", nothing).stdout
        self.assertIn("no loss: none of 1 documents", text)
        untrained = self.summary("--set", "train.steps=1", "--set", "optimizer.lr=0")["folder"]
        self.assertEqual(
            *((pathlib.Path(one) / "model" / "model.safetensors").read_bytes()
              for one in (folder, untrained)))

    def test_dropout_of_the_model_and_over_it(self):
        path = self.folder / "gpt2.toml"
        path.write_text("""
model_type = "gpt2"
n_embd = 24
n_layer = 1
n_head = 3
vocab_size = 256
n_positions = 64
""")
        here = ["--set", f"model.path={path}", "--set", "train.steps=2", "--set", "data.max_tokens=0",
                "--set", "costs.correct=false"]  # else the times of steps change plans and the last bits

        def losses(*more):
            folder = pathlib.Path(self.summary(*here, *more)["folder"])
            lines = (folder / "metrics.jsonl").read_text().splitlines()
            return [json.loads(line)["loss"] for line in lines]

        own = losses()
        self.assertEqual(own, losses())
        self.assertNotEqual(own, losses("--set", "model.dropout=0"))
        self.assertNotEqual(own, losses("--set", "model.attention_dropout=0"))
        # seeds of the weights and of dropout; the first step tells the latter apart
        plan = ["--set", "parallel.attention=DataZ"]
        other = ["--set", "parallel.attention=MegatronTS", "--set", "parallel.recompute=full"]
        for a, b in zip(losses(*plan), losses(*other)):
            self.assertAlmostEqual(a, b, 4)
        error = self.error_of(
            "train", "-c", self.config, *here, "--set", "data.max_tokens=65")
        self.assertIn("64 learned positions", error)

    def test_learns_and_leaves_a_run_folder(self):
        summary = self.summary()
        self.assertLess(summary["last_loss"], 0.8 * summary["first_loss"])
        folder = pathlib.Path(summary["folder"])
        for name in ["config.toml", "metrics.jsonl", "summary.json", "trace.json"]:
            self.assertTrue((folder / name).is_file(), name)
        steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([s["step"] for s in steps], list(range(1, 26)))
        # a step counts for every strategy that it runs; which ones depends on how fast this machine is
        by_strategy = summary["steps_by_strategy"]
        self.assertGreaterEqual(sum(by_strategy.values()), 25)
        self.assertLessEqual(max(by_strategy.values()), 25)
        for step in steps:
            self.assertEqual(step["peak_bytes"] > 0, True)
            self.assertLess(abs(step["peak_bytes"] / step["predicted_peak_bytes"] - 1), 0.02)
        self.assertEqual(len(list((folder / "plans").iterdir())), 25)
        trace = json.loads((folder / "trace.json").read_text())
        names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
        self.assertEqual(names, {1: "steps", 2: "rank 0", 3: "rank 1", 4: "rank 2"})
        spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
        self.assertEqual({e["tid"] for e in spans}, set(names))
        self.assertEqual([e["name"] for e in spans if e["tid"] == 1], [f"step {i}" for i in range(1, 26)])
        self.assertIn("backward", {e["cat"] for e in spans})
        self.assertGreater(max(e["args"]["bytes"] for e in trace["traceEvents"] if e["ph"] == "C"), 1e5)
        # every plan of the run is one that the checker accepts
        plan = sorted((folder / "plans").iterdir())[3]
        self.run_program("plan", "check", plan, "--model", folder / "model")
        # the saved model is one that other commands read; its resolved configuration runs again
        again = self.eval(folder / "model", self.folder / "texts", 2)
        self.assertLess(again["loss"], summary["first_loss"])
        sample = ["generate", "--model", folder / "model", "--prompt", "the quick", "--max-new-tokens", "12"]
        written = self.json_of(*sample)
        self.assertEqual(len(written["tokens"]), 12)
        self.assertRegex(written["text"], "[a-z ]")
        shown = self.run_program("train", "-c", folder / "config.toml", "--print-config").stdout
        self.assertIn("steps = 25", shown)

    def steps_of(self, summary):
        lines = (pathlib.Path(summary["folder"]) / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    # Whatever the step runs: all ranks in every micro-batch, all documents, and what was predicted.
    def test_says_what_groups_took(self):
        summary = self.summary("--set", "train.steps=4")
        folder = pathlib.Path(summary["folder"])
        steps = self.steps_of(summary)
        for number, step in enumerate(steps, 1):
            plan = json.loads((folder / "plans" / f"step-{number:05}.json").read_text())
            self.assertEqual(len(step["groups"]), len(step["micro_batch_seconds"]))
            groups = [group for micro in step["groups"] for group in micro]
            planned = [group for micro in plan["micro_batches"] for group in micro["groups"]]
            for group, asked in zip(groups, planned, strict=True):
                self.assertEqual(group["ranks"], asked["ranks"])
                self.assertEqual(group["documents"], len(asked["documents"]))
                self.assertEqual(
                    group["tokens"], sum(plan["lengths"][d] for d in asked["documents"]))
                predicted = asked["predicted"]["seconds"]
                self.assertAlmostEqual(group["predicted"], predicted, delta=1e-5 * predicted)
                self.assertGreater(group["seconds"], 0)
            self.assertEqual(sum(group["tokens"] for group in groups), step["tokens"])
            self.assertEqual(len(step["idle"]), 3)
            for share in step["idle"]:
                self.assertGreaterEqual(share, 0)
                self.assertLess(share, 1)
        idle = sum(step["seconds"] * sum(step["idle"]) / 3 for step in steps)
        self.assertAlmostEqual(summary["idle_share"], idle / summary["seconds"], 5)
        self.assertAlmostEqual(
            summary["predicted_seconds"], sum(step["predicted_seconds"] for step in steps))
        said = self.train("--set", "train.steps=2", "--set", "train.metrics_groups=false").stdout
        self.assertRegex(said, "predicted +[0-9.]+ s for [0-9.]+ s of steps")
        self.assertRegex(said, "idle +[0-9.]+ %")
        newest = max((self.folder / "runs").iterdir(), key=lambda run: run.stat().st_mtime_ns)
        for step in self.steps_of({"folder": newest}):
            self.assertNotIn("groups", step)
            self.assertEqual(len(step["idle"]), 3)

    # Nothing is learned, so costs at the end are those of the plans.
    def test_compares_plans_with_the_best_static_run(self):
        summary = self.summary("--set", "train.steps=4", "--set", "costs.file=none")
        one = summary["best_static"]
        self.assertEqual(one["steps"], 4)
        self.assertAlmostEqual(one["ratio"], one["seconds"] / one["ours"])
        self.assertAlmostEqual(one["ours"] / summary["predicted_seconds"], 1, 6)
        written = json.loads((pathlib.Path(summary["folder"]) / "summary.json").read_text())
        self.assertEqual(written["best_static"], one)
        # a document a step by one strategy: a static run does as well, and the best no worse
        static = self.summary(
            "--set", "train.steps=3", "--set", "train.tokens_per_step=1", "--set", "costs.file=none",
            "--set", "parallel.attention=METP", "--set", "parallel.recompute=full")
        self.assertLessEqual(static["best_static"]["ratio"], 1 + 1e-9)
        # more steps than are looked at
        many = self.summary("--set", "train.steps=40", "--set", "train.tokens_per_step=1")
        self.assertEqual(many["best_static"]["steps"], 32)
        said = " ".join(self.train("--set", "train.steps=2").stdout.split())
        self.assertRegex(
            said, r"best static only \w+, .*2 of 2 steps; this run's plans: [0-9.e-]+ s, ratio [0-9.]+ ")

    # Its documents stand in another order than a step draws them; its MLP takes tokens in tiles.
    def test_goes_by_a_plan_made_by_hand(self):
        data = self.write_documents([[i * i % 256 for i in range(n)] for n in (200, 70, 71, 70)])
        here = ["--set", f"data.path={data}", "--set", "train.tokens_per_step=411",
                "--set", "train.steps=3"]
        own = self.summary(*here, "--ranks", 2)
        plan = json.loads((pathlib.Path(own["folder"]) / "plans" / "step-00001.json").read_text())
        plan.pop("predicted", None)
        layer = [{"part": "attention", "strategy": "USP", "recompute": "full", "ulysses_degree": 1},
                 {"part": "mlp", "strategy": "gather", "recompute": "none", "token_tiles": 3}]
        plan["lengths"] = [70, 71, 200, 70]
        plan["programs"] = {"mine": [{"layers": plan["model"]["layers"], "parts": layer}]}
        plan["micro_batches"] = [
            {"groups": [{"ranks": [0, 1], "documents": documents, "program": "mine"}]}
            for documents in ([2], [0, 1, 3])]
        file = self.write("mine.json", json.dumps(plan))
        mine = self.summary(*here, "--ranks", 2, "--plan", file)
        for ours, theirs in zip(self.steps_of(own), self.steps_of(mine), strict=True):
            self.assertAlmostEqual(ours["loss"], theirs["loss"], delta=1e-4)
        played = json.loads(
            (pathlib.Path(mine["folder"]) / "plans" / "step-00003.json").read_text())
        self.assertEqual(played["programs"], plan["programs"])
        self.assertEqual(sorted(played["lengths"]), sorted(plan["lengths"]))

        error = self.error_of("train", "-c", self.config, *here, "--ranks", 2, "--plan", file,
                              "--set", "train.tokens_per_step=100")
        self.assertIn("train.tokens_per_step = 411", error)
        error = self.error_of("train", "-c", self.config, *here, "--ranks", 3, "--plan", file)
        self.assertIn("is for 2 ranks, but there are 3", error)
        other = json.loads(file.read_text())
        other["model"].update(name="another", sha256="0123")
        error = self.error_of("train", "-c", self.config, *here, "--ranks", 2, "--plan",
                              self.write("other.json", json.dumps(other)))
        self.assertIn("the plan is for a model 'another' 0123, this one is a llama", error)
        error = self.error_of("train", "--plan", file, "--replay", own["folder"])
        self.assertIn("give only one of them", error)

    # What a run file asks of a strategy is in every plan of the run.
    def test_options_of_strategies(self):
        here = ["--set", "train.steps=2", "--set", "parallel.attention=METP"]
        summary = self.summary(
            *here, "--set", "parallel.head_groups=1", "--set", "parallel.token_tiles=2")
        for path in (pathlib.Path(summary["folder"]) / "plans").iterdir():
            for program in json.loads(path.read_text())["programs"].values():
                for run in program:
                    attention, mlp = run["parts"]
                    self.assertEqual(attention["head_groups"], 1)
                    self.assertEqual(mlp["token_tiles"], 2)
        error = self.error_of("train", "-c", self.config, *here, "--set", "parallel.head_groups=9")
        self.assertIn("head_groups 9 of 'METP'", error)
        error = self.error_of("train", "-c", self.config, "--set", "parallel.token_tile=2")
        self.assertIn("token_tiles", error)

    def test_same_seed_gives_the_same_losses(self):
        losses = []
        for _ in range(2):
            folder = pathlib.Path(self.summary("--set", "train.steps=12", "--set", "parallel.attention=UlyssesZ",
                                               "--set", "parallel.recompute=none",
                                               "--set", "costs.correct=false")["folder"])
            lines = (folder / "metrics.jsonl").read_text().splitlines()
            losses.append([json.loads(line)["loss"] for line in lines])
        self.assertEqual(losses[0], losses[1])

    def test_strategy_changes_nothing_but_speed(self):
        finals = []
        for name in ["MegatronTS", "UlyssesZ", "DataZ"]:
            finals.append(self.summary("--set", f"parallel.attention={name}", "--set", "train.steps=8",
                                       "--set", "train.dtype=float64")["last_loss"])
        self.assertLess(max(finals) - min(finals), 1e-8)

    def test_evaluation_after_training(self):
        held_out = self.folder / "held_out"
        held_out.mkdir()
        (held_out / "a.txt").write_text("the quick brown fox number 3 jumps over the lazy dog\n" * 9)
        summary = self.summary("--set", f"data.eval_path={held_out}", "--set", "train.steps=8")
        again = self.eval(summary["folder"] + "/model", held_out, 3)
        self.assertAlmostEqual(summary["eval_loss"], again["loss"], places=5)

    def test_jsonl_orders_and_too_long(self):
        data = self.folder / "data.jsonl"
        data.write_text("".join(json.dumps({"tokens": [i % 200] * (5 + 13 * i)}) + "\n"
                                for i in range(20)))
        all_lengths = [18 + 13 * i for i in range(19)]  # 5 is less than data.min_tokens
        for order in ["shuffled", "sorted", "curriculum"]:
            summary = self.summary("--data", str(data), "--set", f"data.order={order}",
                                   "--set", "data.curriculum_share=1", "--set", "train.steps=3",
                                   "--set", "train.tokens_per_step=600")
            self.assertEqual(summary["steps"], 3)
            plans = sorted(pathlib.Path(summary["folder"]).glob("plans/*.json"))
            steps = [json.loads(plan.read_text())["lengths"] for plan in plans]
            for lengths in steps:  # documents up to the budget, no further
                self.assertGreaterEqual(sum(lengths), 600)
                self.assertLess(sum(lengths[:-1]), 600)
            drawn = [n for lengths in steps for n in lengths]
            if order == "sorted":
                self.assertEqual(drawn, all_lengths[:len(drawn)])
            elif order == "curriculum":
                self.assertEqual(drawn, sorted(drawn))
            else:
                self.assertNotEqual(drawn, sorted(drawn))
        cut = self.summary("--data", str(data), "--set", "data.max_tokens=100",
                           "--set", "train.steps=2")
        self.assertEqual(cut["data"]["cut"], 12)
        skipped = self.summary("--data", str(data), "--set", "data.max_tokens=100",
                               "--set", "data.too_long=skip", "--set", "train.steps=2")
        self.assertEqual(skipped["data"]["skipped_long"], 12)
        refused = self.train("--data", str(data), "--set", "data.max_tokens=100",
                             "--set", "data.too_long=refuse", code=2)
        self.assertIn("data.jsonl:", refused.stderr)
        said = self.train("--data", str(data), "--set", "train.steps=1", "--set", "data.protein=true",
                          "--set", "data.sequences=3").stderr
        self.assertIn("data.protein is for protein models and does nothing for a model of type", said)
        self.assertIn("data.sequences is for protein models and does nothing", said)

    def test_ctrl_c_saves(self):
        process = subprocess.Popen(
            [PARADYSE, "train", "-c", str(self.config), "--set", "train.steps=100000"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        runs = self.folder / "runs"
        deadline = time.time() + 60
        while time.time() < deadline and not list(runs.glob("*/plans/step-00003.json")):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("interrupted after", out)
        folder = next(runs.iterdir())
        self.assertTrue((folder / "model" / "model.safetensors").is_file())
        self.assertTrue(json.loads((folder / "summary.json").read_text())["interrupted"])
        self.eval(folder / "model", self.folder / "texts", 1)

    def test_nothing_is_overwritten(self):
        self.summary("--set", "output.name=mine", "--set", "train.steps=1")
        # known before the data are looked at
        again = self.train("--set", "output.name=mine", "--data", "nowhere", code=2)
        self.assertIn("exists already", again.stderr)

    def test_same_run_twice_gives_the_same_bits(self):
        same = ["--set", "costs.correct=false", "--set", "train.steps=4"]
        # whatever the clocks say: a plan that is late by them is waited for
        first = self.summary(*same, "--set", "parallel.planning_seconds=0")
        second = self.summary(*same)
        self.assertTrue(first["repeatable"] and second["repeatable"])
        self.assertEqual(first["late_plans"], 0)
        model = "model/model.safetensors"
        self.assertEqual((pathlib.Path(first["folder"]) / model).read_bytes(),
                         (pathlib.Path(second["folder"]) / model).read_bytes())

    def test_says_what_it_compares_and_whether_it_can_be_repeated(self):
        for steps, words in [(1, r"loss +[\d.]+ \(of the one step that has a loss\)"),
                             (3, r"\(the first and the last step; \d+ % of the\s+first\)")]:
            done = self.train("--set", f"train.steps={steps}", "--set", "output.trace=false")
            self.assertRegex(done.stdout, words)
            self.assertIn("repeatable: no, plans use speeds that are measured", done.stderr)
            folder = max((self.folder / "runs").iterdir())
            summary = json.loads((folder / "summary.json").read_text())
            losses = [json.loads(line)["loss"]
                      for line in (folder / "metrics.jsonl").read_text().splitlines()]
            self.assertEqual(summary["loss_steps"], steps // 2)
            self.assertEqual([summary["first_loss"], summary["last_loss"]], [losses[0], losses[-1]])
            self.assertFalse(summary["repeatable"])

    def test_a_folder_that_cannot_be_written_is_known_first(self):
        file = self.write("file", "")
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for arguments in [["train", "-c", self.config, "--data", "nowhere", "--set", "output.folder=/proc/x"],
                          ["train", "-c", self.config, "--data", "nowhere", "--set", "output.folder="],
                          ["simulate", "--model", "nowhere", "--cluster", "nowhere", "--trace", pipe],
                          ["train", "-c", self.config, "--data", "nowhere", "--set", f"output.folder={file}"],
                          ["profile", "-c", self.config, "--model", "nowhere", "--out", file / "x"],
                          ["profile", "-c", self.config, "--model", "nowhere", "--set", f"output.folder={file}"],
                          ["grad", "--model", "nowhere", "--data", "nowhere", "--out", "/proc/x"],
                          ["fit", "--profile", "nowhere", "--out", file / "x"],
                          ["plan", "batch", "--model", "nowhere", "--cluster", "nowhere", "--lengths", "1",
                           "--out", self.folder],
                          ["simulate", "--model", "nowhere", "--cluster", "nowhere", "--save-plan", "no/x"],
                          ["report", "nowhere", "--out", "/proc/x"]]:
            with self.subTest(arguments):
                failed = self.run_program(*arguments, code=2)
                self.assertRegex(failed.stderr, "(cannot be written|is not a folder|is not there; make it|is a folder"
                                 "|output.folder is empty|is a pipe without a reader)")
                self.assertNotIn("nowhere", failed.stderr)
        self.assertEqual(file.read_text(), "")

    # A pipe in which nothing comes, though somebody could write: whoever reads it waits.
    def test_a_signal_ends_it_while_it_reads(self):
        pipe = self.folder / "pipe.toml"
        os.mkfifo(pipe)
        self.assertIn("pipe", self.error_of("train", "-c", self.config, "--data", pipe))
        for command, code in [(["train", "-c", pipe], -signal.SIGTERM),
                              (["train", "-c", self.config, "--plan", pipe], -signal.SIGTERM),
                              (["launch", "-n", 2, "--", "train", "-c", pipe], 128 + signal.SIGTERM)]:
            with self.subTest(command):
                end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
                process = subprocess.Popen(
                    [PARADYSE, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(2)
                children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                self.assertEqual(len(children), 2 if command[0] == "launch" else 0)
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(timeout=20), code)
                os.close(end)
                self.assertFalse(any(pathlib.Path(f"/proc/{child}/exe").exists() for child in children))
        self.assertEqual(list(self.folder.glob("runs/*")), [])

    def test_says_what_is_wrong(self):
        for arguments, code, words in [
            (["--set", "train.stepz=3"], 2, ["stepz", "steps"]),
            (["--set", "parallel.attention=Ulyses"], 2, ["Ulyses", "UlyssesZ"]),
            (["--set", "parallel.memory_per_rank=lots"], 2, ["parallel.memory_per_rank", "lots", "512MiB"]),
            (["--data", self.folder / "nowhere"], 2, ["data.path", "nowhere"]),
            (["--model", self.folder / "nowhere"], 2, ["model.path", "nowhere"]),
            (["--set", "data.path="], 2, ["data.path is not set"]),
            (["--set", "parallel.memory_per_rank=1MiB"], 1, ["no plan fits", "longest document"]),
            (["--set", "optimizer.lr=1e30", "--set", "optimizer.max_grad_norm=0",
              "--set", "optimizer.warmup_steps=0"], 1, ["loss is", "optimizer.lr"]),
        ]:
            with self.subTest(arguments):
                failed = self.train(*arguments, code=code)
                for word in words:
                    self.assertIn(word, failed.stderr)


if __name__ == "__main__":
    unittest.main()
