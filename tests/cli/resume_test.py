"""paradyse train --resume: a run that was ended anyhow goes on to the bits of one that was not."""
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import time
import unittest

from support import FAILED, OK, PARADYSE, TINY_LLAMA, USAGE, ProgramTest, read_tensors, write_tensors

LONG = "PARADYSE_TEST_LONG" in os.environ

GPT2 = """
model_type = "gpt2"
n_embd = 24
n_layer = 2
n_head = 3
vocab_size = 256
n_positions = 640
"""


class ResumeTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.write("llama.toml", TINY_LLAMA.format(layers=2))
        self.write("gpt2.toml", GPT2)
        self.texts = self.folder / "texts"
        self.texts.mkdir()
        for i in range(9):
            line = f"the quick brown fox number {i} jumps over the lazy dog\n"
            (self.texts / f"{i}.txt").write_text(line * (1 + i * i // 6))
        # a step is a third of an epoch
        self.config = self.write("run.toml", f"""
[model]
path = "{self.folder}/llama.toml"
[data]
path = "{self.texts}"
[parallel]
ranks = 3
[train]
steps = 8
tokens_per_step = 700
[optimizer]
lr = 1e-2
warmup_steps = 5
[checkpoint]
every = 4
keep = 1000
[output]
folder = "{self.folder}/runs"
""")

    def straight(self, name, *settings):
        """The folder of a run from its first step to its last."""
        more = [word for setting in settings for word in ("--set", setting)]
        self.run_program("train", "--json", "-c", self.config, "--set", f"output.name={name}", *more)
        return self.folder / "runs" / name

    def cut(self, run, step, name):
        """The run as a kill after the checkpoint of `step` would have left it."""
        later = ["model", "summary.json", "trace*.json", "undone-*"]
        later += [f.name for f in (run / "checkpoints").iterdir() if int(f.name) > step]
        return shutil.copytree(
            run, self.folder / "runs" / name, ignore=shutil.ignore_patterns(*later))

    def metrics(self, run):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        same = ("step", "loss", "gradient_norm", "learning_rate", "loss_scale", "tokens", "plan_sha256",
                "late")
        return [{key: line[key] for key in same} for line in lines]

    def expect_same(self, run, straight, message=None):
        """Post: losses, weights, moments and plans are those of the straight run, bit by bit."""
        self.assertEqual(self.metrics(run), self.metrics(straight), message)
        files = ["model/model.safetensors", "model/config.json"]
        newest = max((straight / "checkpoints").iterdir(), key=lambda folder: int(folder.name))
        files += [file.relative_to(straight) for file in newest.glob("rank-*.safetensors")]
        self.assertGreater(len(files), 2)
        for file in files:
            self.assertEqual((run / file).read_bytes(), (straight / file).read_bytes(), (file, message))
        mine, theirs = (json.loads((folder / "summary.json").read_text()) for folder in (run, straight))
        for key in ("steps", "tokens", "first_loss", "last_loss", "steps_by_strategy", "interrupted"):
            self.assertEqual(mine[key], theirs[key], message)
        plans = [sorted(file.name for file in (folder / "plans").iterdir()) for folder in (run, straight)]
        self.assertEqual(*plans, message)

    def resume(self, run, *arguments, code=OK):
        return self.run_program("train", "--json", "--resume", run, *arguments, code=code)

    def started(self, run):
        """A process that trains the rest of the run, and has done a step."""
        command = [PARADYSE, "train", "--json", "--resume", str(run), "--set", "checkpoint.every=1"]
        process = subprocess.Popen(command,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        for line in process.stderr:  # ends with the process
            if line.startswith("resumed "):  # steps after the checkpoint are put aside
                steps = lambda: (run / "metrics.jsonl").read_text().count("\n")
                before = steps()
                while process.poll() is None and steps() == before:
                    time.sleep(0.005)
                return process
        self.fail(f"ended with {process.wait(timeout=60)}")


class SameBitsTest(ResumeTest):
    def test_of_every_precision_and_number_of_ranks(self):
        gpt2 = f"model.path={self.folder}/gpt2.toml"
        cases = {
            "alone": ["parallel.ranks=1"],
            "short": ["train.dtype=bfloat16", "parallel.attention=DataZ", "model.dropout=0.2"],
            # the loss scale has come down by then
            "scaled": ["train.dtype=float16", "parallel.ranks=4", "optimizer.lr=0.3",
                       "optimizer.max_grad_norm=0", "optimizer.warmup_steps=0"],
            # one tensor for q, k and v, and transposed; biases; dropout of the model's own
            "gpt2": [gpt2, "parallel.attention=METP", "train.dtype=bfloat16", "data.order=curriculum"],
        }
        if LONG:
            for dtype in ("float32", "float64", "bfloat16", "float16"):
                for ranks in (2, 3, 4, 5):
                    for name in ("auto", "MegatronTS", "MegatronCZ", "ColossalZ", "DataZ"):
                        cases[f"{dtype}{ranks}{name}"] = [
                            gpt2, f"train.dtype={dtype}", f"parallel.ranks={ranks}",
                            f"parallel.attention={name}", "data.order=sorted"]
        for name, settings in cases.items():
            with self.subTest(name):
                straight = self.straight(name, *settings)
                if name == "scaled":
                    self.assertLess(self.metrics(straight)[3]["loss_scale"], 65536)
                cut = self.cut(straight, 4, name + "_cut")
                said = self.resume(cut).stderr
                self.assertIn("after step 4 of 8", said)
                self.expect_same(cut, straight)
                # what the killed run wrote after that step is there still
                tail = (straight / "metrics.jsonl").read_text().splitlines()[4:]
                aside = cut / "undone-000004"
                self.assertIn(str(aside), said)
                self.assertEqual((aside / "metrics.jsonl").read_text().splitlines(), tail)
                self.assertEqual(len(list((aside / "plans").iterdir())), 4)

    # Whether a plan is late goes by clocks, and a run that goes on does as was done: also where it was
    # killed again before it came to that step.
    def test_of_late_plans(self):
        late = "parallel.planning_seconds=0"
        straight = self.straight("straight", late)
        self.assertGreater(json.loads((straight / "summary.json").read_text())["late_plans"], 0)
        for name, patience in (("none", "0"), ("all", "1e6")):
            cut = self.cut(straight, 4, name)
            self.resume(cut, "--set", f"parallel.planning_seconds={patience}")
            self.expect_same(cut, straight)
        twice = self.cut(straight, 4, "twice")
        config = (twice / "config.toml").read_text()  # as an earlier version wrote it
        for now, old in (("layer_planner", "planner"), ("timeout_seconds", "deadline_seconds"),
                         ("max_grad_norm", "clip_norm")):
            self.assertIn(f"\n{now} =", config)
            config = config.replace(f"\n{now} =", f"\n{old} =")
        (twice / "config.toml").write_text(config)
        aside = twice / "undone-000004" / "plans"
        aside.mkdir(parents=True)
        for step in (6, 7, 8):
            (twice / "plans" / f"step-{step:05}.json").rename(aside / f"step-{step:05}.json")
        (twice / "plans" / "step-00006.json").write_text("{")  # killed while it was written
        self.resume(twice, "--set", "parallel.planning_seconds=1e6")
        self.expect_same(twice, straight)

    # Also where plans go by none of it.
    def test_how_fast_ranks_are_is_kept(self):
        run = self.straight("straight", "train.steps=1", "train.tokens_per_step=60000", "costs.correct=false")
        state = json.loads((run / "checkpoints" / "000001" / "state.json").read_text())
        self.assertEqual([len(of_rank) for of_rank in state["learned"]["speeds"]], [1, 1, 1])
        self.assertEqual(state["learned"]["slow_since"], [0, 0, 0])

    # A run that began with relative names, in another folder.
    def test_from_another_folder(self):
        straight = self.straight("straight")
        config = self.config.read_text().replace(f"{self.folder}/", "")
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        for name in ("llama.toml", "texts"):
            os.rename(self.folder / name, elsewhere / name)
        (elsewhere / "run.toml").write_text(config)
        subprocess.run(
            [PARADYSE, "train", "-c", "run.toml", "--set", "output.name=far", "--set", "train.steps=4"],
            cwd=elsewhere, check=True, capture_output=True, timeout=300)
        far = elsewhere / "runs" / "far"
        self.resume(far, "--set", "train.steps=8")
        self.assertEqual(len(self.metrics(far)), 8)
        # moved as a whole: what it names is elsewhere now, and the message says how to say so
        moved = self.folder / "moved"
        os.rename(elsewhere, moved)
        message = self.error_of("train", "--resume", moved / "runs" / "far", "--set", "train.steps=9")
        self.assertIn(f"model.path: {elsewhere}/llama.toml does not exist", message)
        self.assertIn("--model PATH", message)
        model = ["--model", moved / "llama.toml"]
        self.assertIn("--data PATH", self.error_of("train", "--resume", moved / "runs" / "far", *model))
        self.resume(moved / "runs" / "far", *model, "--data", moved / "texts", "--set", "train.steps=9")
        # of a program that wrote them as they were given
        file = straight / "config.toml"
        file.write_text(file.read_text().replace(f"{self.folder}/texts", "texts"))
        self.assertIn("relative to the folder where the run started", self.error_of(
            "train", "--resume", straight, "--model", moved / "llama.toml"))

    # A job's command finds the run at its new place, by its new name, and goes on there to the same bits.
    def test_moved_runs_of_auto_resume(self):
        straight = self.straight("straight")
        runs, other = self.folder / "runs", self.folder / "other"

        def goes_on(run, *arguments, folder=None, config=self.config):
            done = subprocess.run(
                [PARADYSE, "train", "--json", "-c", str(config), "--auto-resume", run.name, *map(str, arguments)],
                cwd=folder or self.folder, capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, OK, done.stderr)
            self.assertIn("after step 4 of 8", done.stderr)
            self.expect_same(run, straight)
            said = (run / "config.toml").read_text()
            self.assertIn(f"folder = '{run.parent}'", said)
            self.assertIn(f"name = '{run.name}'", said)
            return done.stderr

        with self.subTest("another name"):
            said = goes_on(self.cut(straight, 4, "renamed"))
            self.assertIn("output.name = 'renamed' (was 'straight')", said)
        with self.subTest("another folder"):
            other.mkdir()
            run = shutil.move(self.cut(straight, 4, "away"), other / "straight")
            said = goes_on(run, "--set", f"output.folder={other}")
            self.assertIn(f"output.folder = '{other}' (was '{runs}')", said)
        with self.subTest("a link at its old place"):
            run = shutil.move(self.cut(straight, 4, "linked"), other / "linked")
            (runs / "linked").symlink_to(run)
            goes_on(runs / "linked")
        with self.subTest("all of it, with relative names"):
            project = self.folder / "project"
            project.mkdir()
            shutil.copytree(self.texts, project / "texts")
            shutil.copy(self.folder / "llama.toml", project)
            config = self.write("project/run.toml", self.config.read_text().replace(f"{self.folder}/", ""))
            subprocess.run(
                [PARADYSE, "train", "-c", "run.toml", "--auto-resume", "far"], cwd=project, check=True,
                capture_output=True, timeout=300)
            shutil.rmtree(project / "runs" / "far")
            shutil.move(self.cut(straight, 4, "far"), project / "runs" / "far")
            moved = self.folder / "moved"
            project.rename(moved)
            goes_on(moved / "runs" / "far", folder=moved, config=moved / config.name)

    # What a run names may be elsewhere, and the message says how to say so.
    def test_moved_files_of_auto_resume(self):
        straight = self.straight("straight")
        cut = self.cut(straight, 4, "cut")
        auto = ["train", "-c", self.config, "--auto-resume", "cut"]
        os.rename(self.texts, self.folder / "moved")
        os.rename(self.folder / "llama.toml", self.folder / "moved.toml")
        self.assertIn(f"--auto-resume cut: model.path: {self.folder}/llama.toml does not exist; give its new place with "
                      "--model PATH", self.error_of(*auto))
        model = ["--model", self.folder / "moved.toml"]
        self.assertIn(f"data.path: {self.texts} does not exist; give its new place with --data PATH",
                      self.error_of(*auto, *model))
        data = ["--data", self.folder / "moved"]
        (self.folder / "moved" / "9.txt").write_text("one more\n")
        error = self.error_of(*auto, *model, *data)
        self.assertIn("has other documents", error)
        self.assertIn("give their new place with --data", error)
        (self.folder / "moved" / "9.txt").unlink()
        self.assertEqual(len(self.metrics(cut)), 8)  # nothing was put aside
        said = self.run_program(*auto, *model, *data).stderr
        self.assertIn(f"data.path = '{self.folder}/moved' (was '{self.texts}')", said)
        self.expect_same(cut, straight)

    # The configuration in its folder says where it was.
    def test_moved_runs_of_resume(self):
        straight = self.straight("straight")
        moved = self.folder / "elsewhere"
        moved.mkdir()
        run = shutil.move(self.cut(straight, 4, "cut"), moved / "new")
        said = self.resume(run).stderr
        self.assertIn(f"output.folder = '{moved}' (was '{self.folder}/runs')", said)
        self.assertIn("output.name = 'new' (was 'straight')", said)
        self.expect_same(run, straight)
        config = (run / "config.toml").read_text()
        self.assertIn(f"folder = '{moved}'", config)
        self.assertNotIn("output.", self.resume(run, "--set", "train.steps=9").stderr)  # it is known by then
        for setting in (f"output.folder={self.folder}", "output.name=other"):
            self.assertIn("cannot change in a run", self.error_of("train", "--resume", run, "--set", setting))

    def expect_same_adapters(self, cut, straight):
        """The run that was cut goes on to the same adapters, and they are exported."""
        self.resume(cut)
        self.run_program("export", cut, self.folder / "out")
        self.assertEqual(self.metrics(cut), self.metrics(straight))
        for name in ("adapter_model.safetensors", "adapter_config.json"):
            whole = (straight / "model" / name).read_bytes()
            self.assertEqual((cut / "model" / name).read_bytes(), whole, name)
            self.assertEqual((self.folder / "out" / name).read_bytes(), whole, name)

    def test_adapters_whose_folder_is_gone(self):
        first = self.straight("first", "lora.r=3")
        begun_with = self.folder / "adapters"
        shutil.copytree(first / "model", begun_with)
        straight = self.straight("straight", f"lora.path={begun_with}")
        cut = self.cut(straight, 4, "cut")
        shutil.rmtree(begun_with)
        self.expect_same_adapters(cut, straight)

    # The run keeps the settings that it began with; what is asked for now counts more.
    def test_adapters_whose_folder_was_written_again(self):
        begun_with = self.folder / "adapters"
        shutil.copytree(self.straight("first", "lora.r=3") / "model", begun_with)
        straight = self.straight("straight", f"lora.path={begun_with}")
        cut, asked = (self.cut(straight, 4, name) for name in ("cut", "asked"))
        shutil.rmtree(begun_with)
        shutil.copytree(self.straight("other", "lora.r=5") / "model", begun_with)
        self.assertIn("has another shape", self.error_of("train", "--resume", asked, "--set", f"lora.path={begun_with}"))
        self.expect_same_adapters(cut, straight)

    # The command of a job is the same at every start, whatever became of the folder.
    def test_adapters_of_a_restart(self):
        begun_with = self.folder / "adapters"
        first, other = self.straight("first", "lora.r=3"), self.straight("other", "lora.r=5")
        shutil.copytree(first / "model", begun_with)
        straight = self.straight("straight", f"lora.path={begun_with}")
        for name, now in (("gone", None), ("rewritten", other)):
            with self.subTest(name):
                run = self.cut(straight, 4, name)
                shutil.rmtree(begun_with, ignore_errors=True)
                if now:
                    shutil.copytree(now / "model", begun_with)
                self.run_program("train", "--json", "-c", self.config, "--auto-resume", name,
                                 "--set", f"lora.path={begun_with}")
                self.assertEqual(self.metrics(run), self.metrics(straight))

    def moments(self, name, weights):
        """A folder of moments of AdamW after 2 steps, whose numbers are those of these weights."""
        content = weights.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8:8 + length])
        header["__metadata__"] = {"format": "pt", "optimizer": "AdamW", "steps": "2"}
        text = json.dumps(header).encode()
        for moment in ("exp_avg", "exp_avg_sq"):
            (self.folder / name / moment).mkdir(parents=True)
            (self.folder / name / moment / "model.safetensors").write_bytes(
                struct.pack("<Q", len(text)) + text + content[8 + length:])
        return self.folder / name

    # A run begins with them, and has its own from then on.
    def test_moments_of_another_program(self):
        model = self.straight("first", "train.steps=1") / "model"
        weights = read_tensors(model / "model.safetensors")
        write_tensors(self.folder / "ones.safetensors",
                      {name: (shape, [1e-3] * len(values)) for name, (_, shape, values) in weights.items()})
        moments = self.moments("moments", self.folder / "ones.safetensors")
        begins = (f"model.path={model}", f"optimizer.path={moments}")
        straight = self.straight("straight", *begins)
        cut, again = (self.cut(straight, 4, name) for name in ("cut", "again"))
        others = self.moments("others", self.folder / "ones.safetensors")
        for path in (others, moments, ""):
            error = self.error_of("train", "--resume", cut, "--set", f"optimizer.path={path}")
            self.assertIn("optimizer.path is", error)
            self.assertIn("only a new run begins with the moments of another program", error)
        restart = ["train", "-c", self.config, "--auto-resume", "again", "--set", begins[0], "--set"]
        self.assertIn("only a new run", self.error_of(*restart, f"optimizer.path={others}"))
        self.resume(cut)
        self.expect_same(cut, straight)
        shutil.rmtree(moments)
        self.run_program(*restart, begins[1])
        self.expect_same(again, straight)

    # Nothing that is given is passed over in silence.
    def test_what_is_not_read(self):
        first, other = self.straight("first", "lora.r=3"), self.straight("other", "lora.r=3", "data.seed=2")
        with self.subTest("adapters"):
            straight = self.straight("straight", f"lora.path={first}/model")
            cut = self.cut(straight, 4, "cut")
            said = self.resume(cut, "--set", f"lora.path={other}/model").stderr
            self.assertIn(f"the configuration of {other}/model is that of the run; its adapters are not read", said)
            self.assertEqual(self.metrics(cut), self.metrics(straight))
        with self.subTest("weights"):
            models = [self.straight(f"model{seed}", "train.steps=1", f"data.seed={seed}") / "model" for seed in (1, 2)]
            straight = self.straight("whole", f"model.path={models[0]}")
            cut, same = self.cut(straight, 4, "whole_cut"), self.cut(straight, 4, "whole_same")
            said = self.resume(cut, "--model", models[1]).stderr
            self.assertIn(f"the configuration of {models[1]} is that of the run; its weights are not read", said)
            self.expect_same(cut, straight)
            self.assertNotIn("not read", self.resume(same).stderr)
        with self.subTest("plans"):
            straight = self.straight("planned", "train.steps=4", "costs.correct=false")
            self.run_program("train", "--json", "--replay", straight, "--set", "output.name=replayed",
                             "--set", "train.steps=2")
            cut = self.cut(self.folder / "runs" / "replayed", 2, "replayed_cut")
            self.assertRegex(self.resume(cut, "--set", "train.steps=3").stderr, "plans are those that were given\n")
            said = self.resume(cut, "--set", "train.steps=4", "--set", "parallel.attention=METP",
                               "--set", "costs.file=none").stderr
            self.assertIn("plans are those that were given; parallel.attention, costs.file cannot change them", said)
            self.assertEqual([line["plan_sha256"] for line in self.metrics(cut)],
                             [line["plan_sha256"] for line in self.metrics(straight)])
        with self.subTest("another plan"):
            data = self.write_documents([list(range(1, 60))])
            step = (f"data.path={data}", "train.tokens_per_step=1")
            plan = self.straight("one", *step, "train.steps=1") / "plans" / "step-00001.json"
            changed = self.write("changed.json", plan.read_text() + "\n")
            begins = ["train", "--json", "-c", self.config, "--auto-resume", "by_plan",
                      *(word for setting in step for word in ("--set", setting))]
            self.run_program(*begins, "--plan", plan, "--set", "train.steps=1")
            self.assertNotIn("not read", self.run_program(*begins, "--plan", plan, "--set", "train.steps=2").stderr)
            said = self.run_program(*begins, "--plan", changed, "--set", "train.steps=3").stderr
            self.assertIn(f"--plan {changed} is not read: the run goes by the plans that it was given", said)

    # They are in no fingerprint of a model.
    def test_other_dropout_is_refused(self):
        file = self.folder / "llama.toml"
        before = file.read_text()
        file.write_text(before + "attention_dropout = 0.5\n")
        straight = self.straight("straight")
        cut = self.cut(straight, 4, "cut")
        for rate in ("0.0", "0.25"):
            file.write_text(before + f"attention_dropout = {rate}\n")
            error = self.error_of("train", "--resume", cut)
            self.assertIn(f"attention_dropout of attention is {rate.removesuffix('.0')}, but", error)
            self.assertIn("trained with 0.5", error)
        file.write_text(before + "attention_dropout = 0.5\n")
        self.resume(cut)
        self.expect_same(cut, straight)
        # of an older program, which does not say
        older = self.cut(straight, 4, "older")
        state_file = older / "checkpoints" / "000004" / "state.json"
        state = json.loads(state_file.read_text())
        del state["sha256"], state["dropout"]
        text = json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        state["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        state_file.write_text(json.dumps(state))
        self.resume(older)
        self.expect_same(older, straight)

    def test_ranks_with_other_dropout(self):
        other = self.write("other.toml", (self.folder / "llama.toml").read_text() + "attention_dropout = 0.5\n")
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        ranks = [subprocess.Popen(
            [PARADYSE, "train", "-c", str(self.config), "--ranks", "2", "--model", str(model)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(port)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for rank, model in enumerate((self.folder / "llama.toml", other))]
        for rank in ranks:
            error = rank.communicate(timeout=60)[1]
            self.assertEqual(rank.returncode, USAGE, error)
            self.assertIn("the dropout of model.path is none on rank 0 and attention_dropout of attention 0.5", error)

    # Processes go on where threads stopped.
    def test_over_gloo(self):
        straight = self.straight("straight")
        cut = self.cut(straight, 4, "cut")
        self.run_program("launch", "-n", 3, "--", "train", "--resume", cut)
        self.expect_same(cut, straight)

    def test_interrupts_and_kills(self):
        straight = self.straight("straight", "train.steps=60", "model.dropout=0.1")
        run = self.cut(straight, 4, "interrupted")
        for number in (signal.SIGINT, signal.SIGTERM):  # by keyboard, and by a batch system
            process = self.started(run)
            if number == signal.SIGINT:
                process.send_signal(signal.SIGSTOP)
                self.assertIn("another program is training", self.resume(run, code=FAILED).stderr)
                process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            error = process.communicate(timeout=60)[1]
            self.assertEqual(process.returncode, 128 + number, error)
            done = len(self.metrics(run))
            self.assertLess(done, 60)
            self.assertTrue((run / "checkpoints" / f"{done:06}").is_dir())
            self.assertTrue(json.loads((run / "summary.json").read_text())["interrupted"])
        said = self.resume(run).stderr
        self.assertRegex(said, "moved to .*/model-")  # those of the interrupts were others
        self.expect_same(run, straight)
        self.kill_and_resume(straight, 400 if LONG else 20)

    def kill_and_resume(self, straight, least):
        """Post: however often a run is killed, it comes to the bits of the straight one."""
        seed = random.randrange(2**32)
        draw = random.Random(seed)
        run, kills, runs = None, 0, 0
        while kills < least:
            if run is None:
                runs += 1
                run = self.cut(straight, draw.choice([4, 8]), f"killed{runs}")
            process = self.started(run)
            time.sleep(draw.uniform(0, 0.1))
            process.kill()
            if process.wait(timeout=60) == OK:  # it was through
                self.expect_same(run, straight, seed)
                run = None
            else:
                kills += 1
        if run is not None:
            self.resume(run)
            self.expect_same(run, straight, seed)
            left = [f.name for f in (run / "checkpoints").iterdir() if not f.name.isdigit()]
            self.assertEqual(left, [], seed)


class CheckpointTest(ResumeTest):
    def test_when_and_how_many(self):
        run = self.straight("minutes", "checkpoint.every=0", "checkpoint.minutes=1e-9", "checkpoint.keep=2")
        self.assertEqual(sorted(f.name for f in (run / "checkpoints").iterdir()), ["000007", "000008"])
        # through: to resume changes nothing
        before = {file: file.read_bytes() for file in run.rglob("*.safetensors")}
        self.resume(run)
        self.assertEqual(before, {file: file.read_bytes() for file in run.rglob("*.safetensors")})
        # more steps than it was for: a longer schedule from there on
        said = self.resume(run, "--set", "train.steps=10", "--set", "optimizer.lr=0.02").stderr
        for words in ("after step 8 of 10", "train.steps = 10 (was 8)", "optimizer.lr = 0.02 (was 0.01)",
                      "config-until-000008.toml", "model-1"):
            self.assertIn(words, said)
        self.assertEqual([line["step"] for line in self.metrics(run)], list(range(1, 11)))
        self.assertEqual(sorted(f.name for f in run.glob("trace*")),
                         ["trace-000008-1.json", "trace-000008.json", "trace.json"])
        none = self.straight("none", "checkpoint.keep=0", "train.steps=1", "parallel.ranks=1")
        self.assertFalse((none / "checkpoints").exists())
        self.assertIn("has no checkpoint", self.resume(none, code=USAGE).stderr)

    # The state from before the step.
    def test_loss_that_is_no_number(self):
        self.run_program(
            "train", "-c", self.config, "--set", "output.name=nan", "--set", "optimizer.lr=1e30",
            "--set", "optimizer.max_grad_norm=0", "--set", "checkpoint.every=0", code=FAILED)
        run = self.folder / "runs" / "nan"
        done = len(self.metrics(run))
        self.assertEqual([f.name for f in (run / "checkpoints").iterdir()], [f"{done:06}"])

    def test_refusals_and_a_full_disk(self):
        straight = self.straight("straight", "checkpoint.every=3")
        self.assertEqual(
            sorted(f.name for f in (straight / "checkpoints").iterdir()), ["000003", "000006", "000008"])
        run = self.cut(straight, 3, "cut")
        self.expect_refusals(run)

        def limit():  # a rank's file takes 70 KB
            resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000))

        full = subprocess.run(
            [PARADYSE, "train", "--resume", str(run), "--set", "checkpoint.failures=2",
             "--set", "checkpoint.every=1", "--set", "output.model=false"],
            preexec_fn=limit, capture_output=True, text=True, timeout=60)
        self.assertEqual(full.returncode, FAILED, full.stderr)
        for words in ("checkpoint of step 4 could not be written", "rank-0000", "File too large",
                      "Training continues", "failure 1 of checkpoint.failures = 2",
                      "checkpoint of step 5 could not be written", "000003 is complete",
                      "that was failure 2", "--resume"):
            self.assertIn(words, full.stderr)
        self.assertEqual(max(f.name for f in (run / "checkpoints").iterdir()), "000003")
        self.resume(run, "--set", "checkpoint.every=3", "--set", "output.model=true")
        self.expect_same(run, straight)

    def expect_refusals(self, run):
        """Post: a run that something is wrong with is as it was."""
        rank = run / "checkpoints" / "000003" / "rank-00001.safetensors"

        def flipped(content):
            middle = len(content) * 3 // 4
            return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1:]

        before = (run / "metrics.jsonl").read_bytes()
        for file, change, words in [
                (rank, flipped, ["rank-00001", "XXH64"]),
                (self.texts / "3.txt", flipped, ["data.path", "other documents"]),
                (self.folder / "llama.toml",
                 lambda content: content.replace(b"size = 40", b"size = 44"), ["model.path", "shape"])]:
            with self.subTest(words):
                content = file.read_bytes()
                file.write_bytes(change(content))
                error = self.resume(run, code=None)
                self.assertEqual(error.returncode, USAGE, error.stderr)
                for word in words:
                    self.assertIn(word, error.stderr)
                file.write_bytes(content)
        for arguments, words in [
                (["--resume-from", "7"], ["--resume-from 7", "step 3", "previous"]),
                (["--set", "train.dtype=bfloat16"], ["train.dtype", "float32", "--model"]),
                (["-c", self.config], ["leave -c"])]:
            with self.subTest(words):
                error = self.resume(run, *arguments, code=USAGE).stderr
                for word in words:
                    self.assertIn(word, error)
        self.assertIn("not a run folder", self.resume(self.texts, code=USAGE).stderr)
        self.assertEqual((run / "metrics.jsonl").read_bytes(), before)


if __name__ == "__main__":
    unittest.main()
