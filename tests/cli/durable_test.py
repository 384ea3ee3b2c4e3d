"""Runs that go on: on other ranks, by plans they were given, past damage, full disks and bad steps."""
import itertools
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import subprocess
import time
import unittest

from resume_test import ResumeTest as Runs
from support import FAILED, OK, PARADYSE, USAGE, read_tensors

LONG = "PARADYSE_TEST_LONG" in os.environ
EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "slurm" / "train.sbatch"


class DurableTest(Runs):
    def setUp(self):
        super().setUp()
        text = self.config.read_text()
        self.config.write_text(text + '[costs]\ncorrect = false\n')

    def losses(self, run):
        return [line["loss"] for line in self.metrics(run)]

    def lines(self, run):
        return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]

    def expect_same_losses(self, run, straight, message=None):
        """Post: the same documents in the same steps, and losses that differ by rounding alone."""
        mine, theirs = self.metrics(run), self.metrics(straight)
        self.assertEqual([line["tokens"] for line in mine], [line["tokens"] for line in theirs], message)
        for one, other in zip(mine, theirs):
            self.assertAlmostEqual(one["loss"], other["loss"], delta=1e-6, msg=message)

    def begun(self, *arguments):
        """A process that trains."""
        process = subprocess.Popen(
            [PARADYSE, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        return process

    def await_steps(self, process, run, steps):
        metrics = run / "metrics.jsonl"
        while process.poll() is None and (
                not metrics.exists() or metrics.read_text().count("\n") < steps):
            time.sleep(0.005)


class OtherRanksTest(DurableTest):
    def test_of_any_number(self):
        sizes = [1, 2, 3, 4, 6, 8] if LONG else [1, 2, 4]
        models = {"tied": "", "untied": "257", "wide": "50257"}
        seed = random.randrange(2**32)
        draw = random.Random(seed)
        llama = (self.folder / "llama.toml").read_text()
        for name, vocabulary in models.items():
            text = llama
            if vocabulary:
                text = text.replace("vocab_size = 256", f"vocab_size = {vocabulary}").replace(
                    "tie_word_embeddings = true", "tie_word_embeddings = false")
            (self.folder / "llama.toml").write_text(text)
            offload = ["optimizer.offload=true"] if name == "untied" else []
            straight = {
                ranks: self.straight(
                    f"{name}{ranks}", "train.dtype=float64", "model.dropout=0.1",
                    "model.attention_dropout=0.2", "output.trace=false", f"parallel.ranks={ranks}", *offload)
                for ranks in sizes}
            pairs = [pair for pair in itertools.product(sizes, sizes) if pair[0] != pair[1]]
            for before, after in pairs if LONG else draw.sample(pairs, 2):
                with self.subTest(name, before=before, after=after, seed=seed):
                    cut = self.cut(straight[before], 4, f"{name}_{before}_{after}")
                    said = self.resume(cut, "--ranks", after).stderr
                    self.assertIn(f"the run had {before} rank", said)
                    self.assertIn(f"parallel.ranks = {after} (was {before})", said)
                    self.expect_same_losses(cut, straight[before], (before, after, seed))
                    shutil.rmtree(cut)

    def test_of_processes(self):
        straight = self.straight("straight", "train.dtype=float64")
        cut = self.cut(straight, 4, "cut")
        self.run_program("launch", "-n", 2, "--", "train", "--resume", cut)
        self.expect_same_losses(cut, straight)

    # Twice in an epoch, each time on another number of ranks.
    def test_kills(self):
        settings = ["train.dtype=float64", "model.dropout=0.1", "model.attention_dropout=0.2", "train.steps=24"]
        straight = self.straight("straight", *settings)
        run = self.cut(straight, 4, "killed")
        for ranks in (2, 4):
            done = len(self.metrics(run))
            process = self.begun(
                "train", "--resume", run, "--ranks", ranks, "--set", "checkpoint.every=1")
            self.assertTrue(any(line.startswith("resumed ") for line in process.stderr))
            self.await_steps(process, run, min(done, 8) + 2)
            process.kill()
            process.wait(timeout=60)
        self.resume(run, "--ranks", 1)
        self.expect_same_losses(run, straight)


class GivenPlansTest(DurableTest):
    def test_replayed_plans_are_kept(self):
        recorded = self.straight("recorded", "parallel.attention=MegatronTS")
        self.run_program(
            "train", "--json", "--replay", recorded, "--set", "output.name=replayed",
            "--set", "parallel.attention=DataZ")
        replayed = self.folder / "runs" / "replayed"
        hashes = [line["plan_sha256"] for line in self.metrics(recorded)]
        self.assertEqual([line["plan_sha256"] for line in self.metrics(replayed)], hashes)
        shutil.rmtree(recorded)  # its plans are in the run's own folder
        cut = self.cut(replayed, 4, "cut")
        self.assertIn("plans are those that were given", self.resume(cut).stderr)
        self.expect_same(cut, replayed)
        changed = self.cut(replayed, 4, "changed")
        plan = changed / "given" / "plans" / "step-00007.json"
        plan.write_text(plan.read_text().replace("1", "2", 1))
        self.assertIn("given", self.resume(changed, code=USAGE).stderr)
        shutil.rmtree(changed / "given")
        self.assertIn("are gone", self.resume(changed, code=USAGE).stderr)
        fewer = self.cut(replayed, 4, "fewer")
        said = self.resume(fewer, "--ranks", 2).stderr
        self.assertIn("given are for 3 ranks, and there are 2: from here on plans are made", said)

    def test_a_plan_of_all_steps_is_kept(self):
        documents = self.write_documents([[(7 * i + d) % 256 for i in range(40)] for d in range(6)])
        self.straight("first", f"data.path={documents}", "train.tokens_per_step=80", "train.steps=1")
        plan = self.folder / "plan.json"
        shutil.copy(self.folder / "runs" / "first" / "plans" / "step-00001.json", plan)
        self.run_program(
            "train", "--json", "-c", self.config, "--plan", plan, "--set", "output.name=planned",
            "--set", f"data.path={documents}", "--set", "train.tokens_per_step=80")
        plan.unlink()
        planned = self.folder / "runs" / "planned"
        cut = self.cut(planned, 4, "cut")
        self.resume(cut)
        self.expect_same(cut, planned)


class DamageTest(DurableTest):
    def test_the_one_before_takes_the_place(self):
        straight = self.straight("straight", "checkpoint.every=2")
        for name, arguments, step in (
                ("damaged", [], 4), ("previous", ["--resume-from", "previous"], 4),
                ("named", ["--resume-from", "2"], 2)):
            run = self.cut(straight, 6, name)
            file = run / "checkpoints" / "000006" / "rank-00001.safetensors"
            if name == "damaged":
                content = bytearray(file.read_bytes())
                content[-9] ^= 1
                file.write_bytes(content)
            said = self.resume(run, *arguments).stderr
            self.assertIn(f"after step {step} of 8", said)
            if name == "damaged":
                self.assertIn("rank-00001.safetensors: has XXH64", said)
                self.assertIn("resumes from the one before", said)
            later = run / f"undone-{step:06}" / "checkpoints" / "000006"
            self.assertTrue(later.is_dir(), said)
            self.expect_same(run, straight)
        for file in run.glob("checkpoints/*/state.json"):
            file.write_text("{")
        self.assertIn("no checkpoint of the run is whole", self.resume(run, code=USAGE).stderr)
        self.assertIn("--resume RUN", self.run_program(
            "train", "-c", self.config, "--resume-from", "previous", code=USAGE).stderr)

    def test_without_a_configuration(self):
        straight = self.straight("straight")
        run = self.cut(straight, 4, "cut")
        (run / "config.toml").unlink()
        self.assertIn("config.toml was missing", self.resume(run).stderr)
        self.assertRegex((run / "config.toml").read_text(), f"(?m)^ranks = 3 +# {run}/checkpoints$")
        short = self.cut(run, 4, "short")
        lines = (short / "config.toml").read_text().splitlines(keepends=True)
        kept = lines[:next(i for i, line in enumerate(lines) if line.startswith("[optimizer]"))]
        (short / "config.toml").write_text("".join(kept))
        error = self.error_of("train", "--resume", short)
        self.assertIn("config.toml: does not have optimizer.lr, which is 0.01", error)
        self.assertIn("delete it", error)
        (short / "config.toml").unlink()
        metrics = short / "metrics.jsonl"
        written = metrics.read_text()
        metrics.unlink()
        metrics.symlink_to(metrics)
        error = self.resume(short, code=FAILED).stderr
        self.assertIn("metrics.jsonl: Too many levels of symbolic links", error)
        self.assertNotIn("filesystem error", error)
        metrics.unlink()
        metrics.write_text(written)
        self.resume(short)
        self.expect_same(run, straight)
        self.assertTrue((run / "config.toml").is_file())


    # The number of the run is no wish: that of the processes takes its place.
    def test_without_a_configuration_as_other_processes(self):
        straight = self.straight("straight", "train.dtype=float64")
        run = self.cut(straight, 4, "cut")
        (run / "config.toml").unlink()
        error = self.run_program(
            "launch", "-n", 2, "--", "train", "--resume", run, "--ranks", 3, code=USAGE).stderr
        self.assertIn("3 ranks were requested", error)
        said = self.run_program("launch", "-n", 2, "--", "train", "--resume", run).stderr
        self.assertIn("parallel.ranks = 2 (was 3)", said)
        self.expect_same_losses(run, straight)


class AsyncSaveTest(DurableTest):
    # The bits are those of saves that training waits for, and what is kept is the same.
    def test_saves_the_same(self):
        more = ["checkpoint.every=1", "checkpoint.keep=2", "checkpoint.keep_every=3", "parallel.ranks=3"]
        straight = self.straight("straight", *more)
        asked = ["checkpoint.async_save=true", *more]
        run = self.straight("async", *asked)
        self.expect_same(run, straight)
        names = sorted(f.name for f in (straight / "checkpoints").iterdir())
        self.assertEqual(names, ["000003", "000006", "000007", "000008"])
        self.assertEqual(sorted(f.name for f in (run / "checkpoints").iterdir()), names)
        for name in names:
            for file in sorted((straight / "checkpoints" / name).glob("rank-*")):
                self.assertEqual((run / "checkpoints" / name / file.name).read_bytes(), file.read_bytes())
        cut = self.cut(run, 6, "cut")
        self.resume(cut)
        self.expect_same(cut, straight)
        two = self.cut(straight, 6, "two")
        self.run_program("launch", "-n", 3, "--", "train", "--resume", two, "--set", asked[0])
        self.expect_same(two, straight)
        events = json.loads((run / "trace.json").read_text())["traceEvents"]
        self.assertIn("checkpoint is copied", {event["name"] for event in events})

    # The copy is in the plan's memory, in what a rank takes, and within its budget.
    def test_the_copy_is_counted(self):
        peaks = {}
        for saves in ("false", "true"):
            run = self.straight(saves, "train.steps=3", "checkpoint.every=1", f"checkpoint.async_save={saves}",
                                "parallel.ranks=1", "parallel.memory_per_rank=64MiB")
            line = self.lines(run)[-1]
            self.assertEqual(line["peak_bytes"], line["predicted_peak_bytes"])
            peaks[saves] = line["peak_bytes"]
        written = sum(f.stat().st_size for f in (run / "checkpoints" / "000003").glob("rank-*"))
        self.assertLess(peaks["true"] - peaks["false"], written)
        self.assertGreater(peaks["true"] - peaks["false"], 0.8 * written)  # the rest are names
        # of an element 16 bytes without it, 28 with it, before anything is computed
        little = (peaks["true"] - peaks["false"]) * 27 // 12
        for saves, code in (("false", OK), ("true", FAILED)):
            done = self.run_program(
                "train", "-c", self.config, "--set", f"output.name=little_{saves}", "--set", "train.steps=1",
                "--set", f"checkpoint.async_save={saves}", "--ranks", 1, "--set",
                "data.max_tokens=40", "--set", f"parallel.memory_per_rank={little}", code=None)
            self.assertEqual(done.returncode, code, done.stderr)


class DiskTest(DurableTest):
    def limit(self, process, size):
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    # No file grows beyond a few bytes for a while: checkpoints, plans and metrics wait.
    def test_a_disk_that_is_full_for_a_while(self):
        self.expect_to_outlast_a_full_disk("false")

    def test_a_disk_that_is_full_while_training_continues(self):
        self.expect_to_outlast_a_full_disk("true")

    def expect_to_outlast_a_full_disk(self, async_save):
        process = self.begun(
            "train", "-c", self.config, "--set", "output.name=full", "--set", "train.steps=4000",
            "--set", "checkpoint.every=20", "--set", "checkpoint.failures=100000",
            "--set", "checkpoint.keep=2", "--set", "output.trace=false",
            "--set", f"checkpoint.async_save={async_save}")
        run = self.folder / "runs" / "full"
        self.await_steps(process, run, 45)
        self.limit(process, 100)
        said = []
        for line in process.stderr:
            said.append(line)
            if "of checkpoint.failures" in line:
                break
        self.limit(process, resource.RLIM_INFINITY)
        for line in process.stderr:
            said.append(line)
            if "could be written" in line:
                break
        process.send_signal(signal.SIGTERM)
        said += process.stderr.readlines()
        self.assertEqual(process.wait(timeout=60), 143, said)
        said = "".join(said)
        self.assertIn("cannot be written: File too large", said)
        self.assertIn("is complete", said)
        self.assertIn("kept in memory", said)
        self.assertIn("the data that was kept in memory is written", said)
        steps = [line["step"] for line in self.lines(run)]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))  # nothing is lost, nor half there
        plans = sorted(file.name for file in (run / "plans").iterdir())
        self.assertEqual(plans, [f"step-{step:05}.json" for step in steps])
        self.resume(run, "--set", f"train.steps={len(steps) + 2}", "--set", "data.order=shuffled")

    # There is room for each rank's file, and none for the model's.
    def test_a_model_that_cannot_be_saved_leaves_the_checkpoint(self):
        settings = ["train.steps=20", "checkpoint.every=0", "parallel.ranks=8", "output.trace=false"]
        straight = self.straight("straight", *settings)
        model = (straight / "model" / "model.safetensors").stat().st_size
        most = max(file.stat().st_size for file in straight.glob("checkpoints/000020/*"))
        self.assertGreater(model, 1.1 * most)
        process = self.begun("train", "-c", self.config, "--set", "output.name=kept",
                             *(word for setting in settings for word in ("--set", setting)))
        run = self.folder / "runs" / "kept"
        self.await_steps(process, run, 1)
        self.limit(process, (model + most) // 2)
        error = process.stderr.read()
        self.assertEqual(process.wait(timeout=60), FAILED, error)
        self.assertIn("the trained model could not be saved", error)
        self.assertIn("File too large", error)
        self.assertIn("The checkpoint of step 20 has its weights", error)
        self.assertFalse((run / "model").exists())
        self.resume(run)
        self.expect_same(run, straight)

    def test_without_any_checkpoint_the_run_ends(self):
        process = self.begun(
            "train", "-c", self.config, "--set", "output.name=gone", "--set", "train.steps=4000",
            "--set", "checkpoint.every=50", "--set", "output.trace=false")
        run = self.folder / "runs" / "gone"
        self.await_steps(process, run, 5)
        shutil.rmtree(run.rename(self.folder / "away"), ignore_errors=True)  # while the run writes
        error = process.stderr.read()
        self.assertEqual(process.wait(timeout=120), FAILED, error)
        self.assertIn("No such file or directory", error)
        self.assertIn("there is no complete checkpoint", error)
        self.assertNotIn("is the disk full", error)


class BadStepTest(DurableTest):
    def odd(self, policy, *settings, launch=()):
        """The folder of a run whose longest document, its last, is unlike all others."""
        (self.texts / "odd.txt").write_bytes(bytes(random.Random(1).choices(range(1, 10), k=2000)))
        name = policy + str(len(settings)) + "".join(map(str, launch))
        done = self.run_program(
            *launch, "train", "--json", "-c", self.config, "--set", f"output.name={name}",
            "--set", f"train.on_bad_step={policy}", "--set", "data.order=sorted",
            "--set", "train.steps=28", "--set", "train.tokens_per_step=200",
            *(word for setting in settings for word in ("--set", setting)), code=None)
        return self.folder / "runs" / name, done

    def test_spikes(self):
        spike = "train.loss_spike=1.3"
        run, done = self.odd("stop")
        self.assertEqual(done.returncode, OK, done.stderr)
        losses = self.losses(run)
        # once the others are learned
        bad = [line["step"] for line in self.lines(run) if line["tokens"] == 2000 and line["step"] > 12]
        self.assertEqual(len(bad), 2, losses)
        first = bad[0]
        self.assertGreater(losses[first - 1], 1.3 * sorted(losses[:first - 1])[(first - 1) // 2], losses)

        stopped, done = self.odd("stop", spike)
        self.assertEqual(done.returncode, FAILED)
        for words in (f"step {first}", "train.loss_spike = 1.3", "odd.txt", "bad_steps"):
            self.assertIn(words, done.stderr)
        self.assertEqual(self.losses(stopped), losses[:first - 1])
        self.assertTrue((stopped / "checkpoints" / f"{first - 1:06}").is_dir())

        skipped, done = self.odd("skip", spike)
        self.assertEqual(done.returncode, OK, done.stderr)
        lines = self.lines(skipped)
        self.assertEqual([line["step"] for line in lines if "skipped" in line], bad)
        self.assertIn("odd.txt\tbad", (skipped / "bad_steps" / f"step-{first:05}.txt").read_text())
        self.assertEqual(self.losses(skipped)[:first - 1], losses[:first - 1])

        # What a rollback comes to are the bits of the steps before, and none of the bad one.
        back, done = self.odd("rollback", spike)
        self.assertEqual(done.returncode, OK, done.stderr)
        self.assertIn("goes back to the newest checkpoint", done.stderr)
        self.assertEqual([line["loss"] for line in self.lines(back)],
                         [line["loss"] for line in self.lines(skipped)])
        self.assertEqual((back / "model" / "model.safetensors").read_bytes(),
                         (skipped / "model" / "model.safetensors").read_bytes())
        self.run_program("report", back)
        # and a run that is killed after one knows which step it left out
        cut = self.cut(back, max(int(f.name) for f in (back / "checkpoints").iterdir()
                                 if int(f.name) < 28), "cut")
        self.resume(cut)
        self.assertEqual([line["loss"] for line in self.lines(cut)],
                         [line["loss"] for line in self.lines(back)])

    def test_a_rollback_of_processes(self):
        threads, done = self.odd("rollback", "train.loss_spike=1.3", "parallel.ranks=3")
        self.assertEqual(done.returncode, OK, done.stderr)
        processes, done = self.odd(
            "rollback", "train.loss_spike=1.3", "parallel.ranks=3", launch=("launch", "-n", 3, "--"))
        self.assertEqual(done.returncode, OK, done.stderr)
        self.assertIn("goes back to the newest checkpoint", done.stderr)
        self.expect_same_losses(processes, threads)
        skipped = [[line["step"] for line in self.lines(run) if line.get("skipped")] for run in (processes, threads)]
        self.assertEqual(skipped[0], skipped[1])
        self.assertGreater(len(skipped[0]), 0)

    # Weights of the first step are so large that sums of float16 overflow in the forward pass of the others.
    def test_a_forward_that_overflows_in_float16(self):
        run, done = self.odd("skip", "train.dtype=float16", "optimizer.lr=30", "optimizer.max_grad_norm=0",
                             "optimizer.warmup_steps=0", "train.steps=20")
        self.assertEqual(done.returncode, FAILED)
        bad = [line for line in self.lines(run) if line.get("skipped")]
        self.assertGreater(len(bad), 5)
        for line in bad:
            said = next(one for one in done.stderr.splitlines() if one.startswith(f"step {line['step']}: the loss is"))
            listed = (run / "bad_steps" / f"step-{line['step']:05}.txt").read_text().splitlines()
            blamed = [one.split("\t")[0] for one in listed if one.endswith("\tbad")]
            self.assertEqual(len(listed), line["documents"], line)
            self.assertGreater(len(blamed), 0, listed)
            self.assertIn(blamed[0], said)

    # Those before the checkpoint stay counted once.
    def test_steps_without_a_label_before_one(self):
        none = {"tokens": [5] * 260, "labels": [-100] * 260}
        (self.texts / "none.jsonl").write_text(2 * (json.dumps(none) + "\n"))
        run, done = self.odd("rollback", "train.loss_spike=1.3", "train.steps=60")
        self.assertEqual(done.returncode, OK, done.stderr)
        self.assertIn("goes back to the newest checkpoint", done.stderr)
        without = [line for line in self.lines(run) if line["labels"] == 0 and not line.get("skipped")]
        self.assertGreater(len(without), 3)
        self.assertEqual(json.loads(done.stdout)["steps_without_label"], len(without))

    # The weights are as they were: nothing has to be gone back to.
    def test_a_bad_step_before_the_first_checkpoint(self):
        for settings in (["checkpoint.every=0"], ["checkpoint.every=0", "checkpoint.keep=0"]):
            back, done = self.odd("rollback", "train.loss_spike=1.3", *settings)
            self.assertEqual(done.returncode, OK, done.stderr)
            self.assertIn("no checkpoint to go back to", done.stderr)
            self.assertIn("so the step is skipped", done.stderr)
            skipped, done = self.odd("skip", "train.loss_spike=1.3", *settings)
            self.assertEqual(done.returncode, OK, done.stderr)
            self.assertEqual([line["loss"] for line in self.lines(back)], [line["loss"] for line in self.lines(skipped)])

    def test_where_the_weights_are(self):
        for name, settings, words in (
                ("model", ["checkpoint.keep=0"], "the weights before the step are in model/"),
                ("both", [], "are in model/ and the checkpoint of step "),
                ("checkpoint", ["output.model=false"], "the weights before the step are in the checkpoint of step "),
                ("none", ["output.model=false", "checkpoint.keep=0"], "the weights before the step are lost")):
            done = self.run_program(
                "train", "-c", self.config, "--set", f"output.name={name}", "--set", "optimizer.lr=1e30",
                "--set", "optimizer.max_grad_norm=0", *(word for one in settings for word in ("--set", one)),
                code=FAILED)
            self.assertIn(words, done.stderr)
            self.assertEqual((self.folder / "runs" / name / "model").exists(), "model/" in words)

    def test_numbers_that_are_none(self):
        for policy in ("skip", "rollback"):
            done = self.run_program(
                "train", "-c", self.config, "--set", f"output.name={policy}", "--set",
                f"train.on_bad_step={policy}", "--set", "optimizer.lr=1e30", "--set",
                "optimizer.max_grad_norm=0", "--set", "train.steps=40", "--set",
                "checkpoint.every=1", code=FAILED)
            self.assertIn("bad step 10 in a row", done.stderr)
            self.assertIn("texts/", done.stderr)  # the document
        # over processes, too
        done = self.run_program(
            "launch", "-n", 2, "--", "train", "-c", self.config, "--ranks", 2, "--set",
            "output.name=two", "--set", "train.on_bad_step=skip", "--set", "optimizer.lr=1e30",
            "--set", "optimizer.max_grad_norm=0", "--set", "train.steps=40", code=FAILED)
        self.assertIn("bad step 10 in a row", done.stderr)

    # A step that was good ruins the weights: all after it are bad, however often it is trained again.
    def test_weights_that_are_past_help(self):
        for policy in ("skip", "rollback"):
            run = self.folder / "runs" / policy
            self.run_program(
                "train", "-c", self.config, "--set", f"output.name={policy}", "--set", "train.steps=6",
                "--set", "checkpoint.every=3")
            done = self.run_program(
                "train", "--resume", run, "--set", "train.steps=60", "--set", "optimizer.lr=1e30",
                "--set", "optimizer.max_grad_norm=0", "--set", f"train.on_bad_step={policy}", code=FAILED)
            self.assertIn("bad step 10 in a row", done.stderr)
            self.assertNotIn("train.on_bad_step = skip or", done.stderr)  # that is set
            kept = {folder.name for folder in (run / "checkpoints").iterdir()}
            self.assertLessEqual({"000003", "000006"}, kept)

    def test_a_run_that_ends_in_bad_steps_keeps_the_last_good_checkpoint(self):
        run = self.folder / "runs" / "short"
        self.run_program("train", "-c", self.config, "--set", "output.name=short", "--set", "train.steps=6",
                         "--set", "checkpoint.every=3", "--set", "checkpoint.keep=1")
        self.run_program("train", "--resume", run, "--set", "train.steps=12", "--set", "optimizer.lr=1e30",
                         "--set", "optimizer.max_grad_norm=0", "--set", "train.on_bad_step=skip")
        self.assertEqual({folder.name for folder in (run / "checkpoints").iterdir()}, {"000006", "000012"})

    def test_skipped_steps_are_not_counted_as_trained(self):
        run, done = self.odd("skip", "train.loss_spike=1.3")
        summary = json.loads(done.stdout)
        lines = [line for line in self.lines(run) if not line.get("skipped")]
        self.assertLess(len(lines), 28)
        self.assertEqual(summary["tokens"], sum(line["tokens"] for line in lines))
        self.assertAlmostEqual(summary["seconds"], sum(line["seconds"] for line in lines), places=6)


class RestartTest(DurableTest):
    def ranks_of(self, launcher):
        children = pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
        return [int(child) for child in children.read_text().split()]

    def test_a_signal_saves(self):
        process = self.begun(
            "launch", "-n", 2, "--", "train", "-c", self.config, "--ranks", 2, "--set", "output.name=saved",
            "--set", "train.steps=100000", "--set", "checkpoint.every=0", "--set", "output.trace=false")
        run = self.folder / "runs" / "saved"
        self.await_steps(process, run, 3)
        process.send_signal(signal.SIGUSR1)
        while process.poll() is None and not any(
                f.name.isdigit() for f in run.glob("checkpoints/*")):
            time.sleep(0.01)
        done = len((run / "metrics.jsonl").read_text().splitlines())
        self.await_steps(process, run, done + 2)  # it goes on
        process.send_signal(signal.SIGTERM)
        error = process.stderr.read()
        self.assertEqual(process.wait(timeout=60), 143, error)
        self.assertGreaterEqual(len(list((run / "checkpoints").iterdir())), 2)

    # Milliseconds after a program was started: while it is loaded, as it begins, before its first step.
    EARLY = (0, 1, 2, 5, 10, 20, 50, 100)

    def begins_short(self, name, launched):
        return self.begun(
            *(("launch", "-n", 2, "--") if launched else ()), "train", "-c", self.config, "--ranks", 2, "--set",
            f"output.name={name}", "--set", "train.steps=3", "--set", "checkpoint.every=0", "--set",
            "checkpoint.keep=9", "--set", "output.trace=false")

    def is_held(self, pid, number):
        """Whether the signal waits, or is caught."""
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigBlk", "SigCgt"))]
        return any(mask >> number - 1 & 1 for mask in masks)

    def expect_saved_after_first(self, process, name):
        said = process.stderr.read()
        self.assertEqual(process.wait(timeout=60), OK, said)
        saved = {f.name for f in (self.folder / "runs" / name / "checkpoints").iterdir()}
        self.assertEqual(saved, {"000001", "000003"}, said)  # as it was wished, and at the end

    # Who wishes a checkpoint of a rank does not know whether train has begun there.
    def test_an_early_wish_to_save_a_rank(self):
        for delay in self.EARLY:
            with self.subTest(delay=delay):
                name = f"rank{delay}"
                process = self.begins_short(name, launched=True)
                while process.poll() is None and not self.ranks_of(process):
                    pass
                rank = self.ranks_of(process)[0]  # it is forked, and may not have become a rank yet
                time.sleep(delay / 1000)
                os.kill(rank, signal.SIGUSR1)
                self.expect_saved_after_first(process, name)

    # While the system loads a program that somebody else started, nobody holds its signals.
    def test_an_early_wish_to_save(self):
        for launched in (False, True):
            for delay in self.EARLY:
                with self.subTest(launched=launched, delay=delay):
                    name = f"run{launched}{delay}"
                    process = self.begins_short(name, launched)
                    time.sleep(delay / 1000)
                    while process.poll() is None and not self.is_held(process.pid, signal.SIGUSR1):
                        pass
                    self.assertIsNone(process.poll())
                    process.send_signal(signal.SIGUSR1)
                    self.expect_saved_after_first(process, name)

    def test_an_early_end(self):
        for launched in (False, True):
            for delay in self.EARLY:
                with self.subTest(launched=launched, delay=delay):
                    process = self.begins_short(f"end{launched}{delay}", launched)
                    time.sleep(delay / 1000)
                    process.send_signal(signal.SIGTERM)
                    said = process.stderr.read()
                    self.assertIn(process.wait(timeout=60), (-signal.SIGTERM, 128 + signal.SIGTERM), said)
                    left = [file for file in pathlib.Path("/proc").glob("[0-9]*/cmdline")
                            if str(self.config) in self.content_of(file)]
                    self.assertEqual(left, [])

    def content_of(self, file):
        try:
            return file.read_text(errors="replace")
        except OSError:  # its process is gone
            return ""

    # Of a rank before its first step, too, it is the end of the run, which does not begin again.
    def test_an_early_end_of_a_rank(self):
        process = self.begun(
            "launch", "-n", 2, "--restarts", 3, "--", "train", "-c", self.config, "--ranks", 2, "--auto-resume",
            "ended", "--set", "train.steps=3", "--timeout", 20)
        while process.poll() is None and len(self.ranks_of(process)) < 2:
            pass
        os.kill(self.ranks_of(process)[1], signal.SIGTERM)
        said = process.stderr.read()
        self.assertEqual(process.wait(timeout=60), 143, said)
        self.assertIn("rank 1 was ended by signal 15", said)
        self.assertNotIn("starting the command again", said)

    def endless(self, name, ranks=2):
        """A run of some processes, and its folder, which has steps but no checkpoint."""
        process = self.begun(
            "launch", "-n", ranks, "--restarts", 1, "--", "train", "-c", self.config, "--ranks", ranks,
            "--auto-resume", name, "--set", "train.steps=100000", "--set", "checkpoint.every=0",
            "--set", "output.trace=false")
        run = self.folder / "runs" / name
        self.await_steps(process, run, 3)
        return process, run

    def expect_saved(self, process, run, code=143):
        said = process.stderr.read()
        self.assertEqual(process.wait(timeout=60), code, said)
        self.assertNotIn("again", said)
        done = len(self.metrics(run))
        self.assertEqual([f.name for f in (run / "checkpoints").iterdir()], [f"{done:06}"], said)

    # Whoever is signalled, and however often at once: as the stop of a container or a job does it.
    def test_whom_a_signal_reaches(self):
        self.on_hangup(signal.SIG_DFL)
        for name, signals in {
                "launcher and ranks": lambda launcher, ranks: [(one, signal.SIGTERM) for one in (launcher, *ranks)],
                "ranks and launcher": lambda launcher, ranks: [(one, signal.SIGTERM) for one in (*ranks, launcher)],
                "rank 0": lambda launcher, ranks: [(ranks[0], signal.SIGTERM)],
                "rank 1": lambda launcher, ranks: [(ranks[1], signal.SIGTERM)],
                "twice": lambda launcher, ranks: [(launcher, signal.SIGTERM)] * 2,
                "a save is no end": lambda launcher, ranks: [
                    (launcher, signal.SIGTERM), (launcher, signal.SIGUSR1)],
                "terminal": lambda launcher, ranks: [(launcher, signal.SIGHUP)],
                "terminal of a rank": lambda launcher, ranks: [(ranks[1], signal.SIGHUP)],
                "keyboard": lambda launcher, ranks: [(ranks[1], signal.SIGINT)]}.items():
            with self.subTest(name):
                process, run = self.endless(name.replace(" ", "_"))
                for pid, number in signals(process.pid, self.ranks_of(process)):
                    os.kill(pid, number)
                self.expect_saved(process, run, 130 if name == "keyboard" else 143)

    def on_hangup(self, what):
        """Post: programs that are started do `what` on SIGHUP, whatever the tests were started with."""
        self.addCleanup(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, what))

    def test_nohup(self):
        self.on_hangup(signal.SIG_IGN)
        process, run = self.endless("nohup")
        for pid in (process.pid, *self.ranks_of(process)):
            os.kill(pid, signal.SIGHUP)
        self.await_steps(process, run, (run / "metrics.jsonl").read_text().count("\n") + 4)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        self.expect_saved(process, run)

    def test_the_launchers_of_all_nodes_end_alike(self):
        self.config.write_text(self.config.read_text().replace("ranks = 3\n", ""))
        run = self.folder / "runs" / "nodes"
        launchers = self.launchers("nodes", "3", steps=100000)
        self.await_steps(launchers[0], run, 3)
        launchers[1].send_signal(signal.SIGTERM)
        for said, code in self.all_end(launchers):
            self.assertEqual(code, 143, said)
            self.assertNotIn("again", said)
        self.assertTrue((run / "checkpoints" / f"{len(self.metrics(run)):06}").is_dir())

    # The step under way cannot end, as one rank is stopped.
    def test_a_second_signal_ends_it_unsaved(self):
        process, run = self.endless("second")
        zero, one = self.ranks_of(process)
        os.kill(one, signal.SIGSTOP)
        os.kill(zero, signal.SIGTERM)
        time.sleep(0.5)
        os.kill(zero, signal.SIGTERM)
        time.sleep(2)
        self.assertIn(zero, self.ranks_of(process))
        os.kill(zero, signal.SIGTERM)
        for line in process.stderr:
            if "ended by a second signal" in line:
                break
        process.send_signal(signal.SIGTERM)  # no restart
        os.kill(one, signal.SIGKILL)
        said = process.stderr.read()
        self.assertIn(process.wait(timeout=60), (FAILED, 137), said)  # whichever rank is seen to end first
        self.assertEqual(list(run.glob("checkpoints/*")), [])

    def test_a_reader_that_leaves(self):
        process, run = self.endless("unread")
        process.stderr.close()
        self.await_steps(process, run, 25)  # every tenth is told
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), 143)
        self.assertTrue((run / "checkpoints" / f"{len(self.metrics(run)):06}").is_dir())

    # Its last lines are lost, and nothing else: the code is that of the run, and it is not started again.
    def test_nobody_reads_the_summary(self):
        def unread(*arguments):
            read, write = os.pipe()
            os.close(read)
            process = subprocess.Popen(
                [PARADYSE, *map(str, arguments)], stdout=write, stderr=subprocess.PIPE, text=True)
            os.close(write)
            self.addCleanup(process.stderr.close)
            self.addCleanup(process.kill)
            return process

        for json_too in ([], ["--json"]):
            name = "unread" + "".join(json_too)
            run = self.folder / "runs" / name
            process = unread(
                "train", "-c", self.config, "--set", "train.steps=100000", "--set", f"output.name={name}",
                "--set", "output.trace=false", *json_too)
            self.await_steps(process, run, 3)
            process.send_signal(signal.SIGTERM)
            said = process.stderr.read()
            self.assertEqual(process.wait(timeout=60), 143, said)
            self.assertTrue((run / "checkpoints" / f"{len(self.metrics(run)):06}").is_dir())
            name += "launched"
            process = unread(
                "launch", "-n", 2, "--restarts", 2, "--", "train", "-c", self.config, "--ranks", 2,
                "--auto-resume", name, *json_too)
            said = process.stderr.read()
            self.assertEqual(process.wait(timeout=60), OK, said)
            self.assertNotIn("again", said)
            if json_too:
                self.assertIn(f"it is in {self.folder}/runs/{name}/summary.json", said)
            self.assertEqual(json.loads((run.parent / name / "summary.json").read_text())["steps"], 8)

    def test_a_rank_that_is_killed(self):
        straight = self.straight("straight", "train.steps=60")
        process = self.begun(
            "launch", "-n", 3, "--restarts", 2, "--", "train", "-c", self.config, "--set",
            "train.steps=60", "--auto-resume", "again")
        run = self.folder / "runs" / "again"
        for steps in (8, 30):
            self.await_steps(process, run, steps)
            os.kill(self.ranks_of(process)[1], signal.SIGKILL)
            for line in process.stderr:
                if "starting the command again" in line:
                    break
        error = process.stderr.read()
        self.assertEqual(process.wait(timeout=60), OK, error)
        self.expect_same(run, straight)

    def launchers(self, name, nodes, *options, steps=60):
        """A launcher for each of three nodes, with a rank each."""
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        return [self.begun(
            "launch", "-n", 1, "--nnodes", nodes, "--node-rank", node, "--rdzv-endpoint", f"127.0.0.1:{port}",
            "--restarts", 2, *options, "--", "train", "-c", self.config, "--set", f"train.steps={steps}",
            "--set", "train.dtype=float64", "--auto-resume", name, "--timeout", 20) for node in range(3)]

    def kill(self, launcher):
        """As a machine that is switched off: its ranks go with it."""
        launcher.kill()
        launcher.wait(timeout=60)

    def all_end(self, launchers, timeout=90):
        return [(one.communicate(timeout=timeout)[1], one.returncode) for one in launchers]

    # A node after the other, of which the others go on without, from the last checkpoint.
    def test_a_node_that_is_gone_for_good(self):
        self.config.write_text(self.config.read_text().replace("ranks = 3\n", ""))
        straight = self.straight("straight", "train.steps=60", "train.dtype=float64", "parallel.ranks=3")
        run = self.folder / "runs" / "fewer"
        zero, one, two = self.launchers("fewer", "1:3", "--join-timeout", 3)
        self.await_steps(zero, run, 8)
        self.kill(one)
        for line in zero.stderr:
            if "resumed " in line:
                break
        before = len(self.metrics(run))
        self.await_steps(zero, run, before + 6)
        self.kill(two)
        (said, code), = self.all_end([zero])
        self.assertEqual(code, OK, said)
        self.assertIn("node 2 did not come within --join-timeout (3 s) and is lost: 1 of 2 ranks are left", said)
        self.assertIn("starting the command again (restart 2 of 2) as 1 ranks", said)
        self.expect_same_losses(run, straight)

    def test_too_few_nodes_are_left(self):
        self.config.write_text(self.config.read_text().replace("ranks = 3\n", ""))
        run = self.folder / "runs" / "few"
        zero, one, two = self.launchers("few", "2:3", "--join-timeout", 2, steps=100000)
        self.await_steps(zero, run, 3)
        begin = time.monotonic()
        self.kill(one)
        self.kill(two)
        (said, code), = self.all_end([zero])
        self.assertNotEqual(code, OK, said)
        self.assertIn("nodes 1, 2 did not come within --join-timeout (2 s) and are lost: 1 of 3 ranks are left", said)
        self.assertIn("not started again: 1 of --nnodes 2:3 are left", said)
        self.assertLess(time.monotonic() - begin, 60)

    # It keeps the rendezvous: without it the others say so, in time.
    def test_node_0_is_gone(self):
        self.config.write_text(self.config.read_text().replace("ranks = 3\n", ""))
        run = self.folder / "runs" / "zero"
        zero, one, two = self.launchers("zero", "1:3", "--join-timeout", 3, steps=100000)
        self.await_steps(zero, run, 3)
        begin = time.monotonic()
        self.kill(zero)
        for said, code in self.all_end([one, two]):
            self.assertEqual(code, FAILED, said)
            self.assertRegex(said, "node 0, whose launcher keeps the rendezvous .* is gone or cannot be reached")
        self.assertLess(time.monotonic() - begin, 60)

    def test_what_is_not_started_again(self):
        error = self.run_program(
            "launch", "-n", 1, "--restarts", 1, "--", "train", "-c", self.config, code=USAGE).stderr
        self.assertIn("--auto-resume NAME", error)
        wrong = self.run_program(
            "launch", "-n", 2, "--restarts", 5, "--", "train", "-c", self.config, "--auto-resume", "x",
            "--set", "model.path=nowhere", code=USAGE)
        self.assertNotIn("again", wrong.stderr)
        train = ["--", "train", "-c", self.config, "--auto-resume", "x"]
        for nodes, options, words in (
                ("2:1", [], "MIN is more than MAX"), ("x:2", [], "is no number of machines"),
                ("0", [], "is no number of machines"), ("1:2", [], "give --restarts N with it"),
                ("1:2", ["--restarts", 1, "--join-timeout", 0], "--join-timeout: '0' is not accepted, a number of seconds above 0"),
                ("1:2", ["--restarts", 1], f"how many ranks there are (parallel.ranks, {self.config}:"),
                ("1:2", ["--restarts", 1, *train, "--ranks", 2], "how many ranks there are (--ranks)")):
            command = options if "--" in options else [*options, *train]
            self.assertIn(words, self.error_of(
                "launch", "-n", 1, "--nnodes", nodes, "--rdzv-endpoint", "127.0.0.1:29999", *command))

    def test_auto_resume(self):
        auto = ["train", "--json", "-c", self.config, "--auto-resume", "auto"]
        straight = self.straight("straight")
        run = self.folder / "runs" / "auto"
        run.mkdir()
        (run / "config.toml").write_text("")  # killed before its first checkpoint
        said = self.run_program(*auto, "--set", "train.steps=4").stderr
        self.assertIn("the run starts again", said)
        self.assertTrue((self.folder / "runs" / "auto-1" / "config.toml").exists())
        self.assertIn("after step 4 of 8", self.run_program(*auto).stderr)
        self.assertEqual(len(self.losses(run)), len(self.losses(straight)))
        self.assertIn("after step 8 of 8", self.run_program(*auto).stderr)

    def test_an_unset_variable_is_no_name(self):
        for option in ("--auto-resume", "--resume", "--replay", "--plan"):
            error = self.error_of("train", "-c", self.config, option, "")
            self.assertIn(option, error)
            self.assertIn("is empty", error)
        self.assertFalse((self.folder / "runs").exists())

    # A user's folder has a number as its name, too.
    def test_what_is_no_checkpoint_stays(self):
        run = self.cut(self.straight("straight"), 4, "cut")
        for name in ("1", "7", "000002"):
            (run / "checkpoints" / name).mkdir()
            (run / "checkpoints" / name / "thesis.txt").write_text("mine")
        self.resume(run, "--set", "checkpoint.keep=1")
        left = sorted(file.name for file in (run / "checkpoints").iterdir())
        self.assertEqual(len(list(run.rglob("thesis.txt"))), 3)
        self.assertIn("000002", left)
        self.assertNotIn("000004", left)  # a checkpoint, and an old one
        self.assertIn("000008", left)

    # As a run leaves it that is killed before its first file, or somebody who made it beforehand.
    def test_auto_resume_takes_an_empty_folder(self):
        runs = self.folder / "runs"
        mine = runs / "mine"
        mine.mkdir(parents=True)
        self.assertIn("exists", self.error_of("train", "-c", self.config, "--set", "output.name=mine"))
        before = mine.stat().st_ino
        self.run_program("train", "-c", self.config, "--auto-resume", "mine")
        self.assertEqual(mine.stat().st_ino, before)
        self.assertEqual(len(self.metrics(mine)), 8)
        self.assertFalse((runs / "mine-1").exists())
        (runs / "link").symlink_to(self.folder / "elsewhere")
        (self.folder / "elsewhere").mkdir()
        self.assertIn("exists", self.error_of("train", "-c", self.config, "--auto-resume", "link"))
        other = runs / "other"  # what is in it is somebody's
        other.mkdir()
        (other / "notes.txt").write_text("mine")
        self.assertIn("exists", self.error_of("train", "-c", self.config, "--auto-resume", "other"))
        self.assertEqual([file.name for file in other.iterdir()], ["notes.txt"])

    # The rank that keeps the rendezvous comes 12 s late.
    def test_a_late_rank_is_waited_for(self):
        late = 70 if LONG else 12
        port = random.randrange(20000, 30000)
        command = [PARADYSE, "train", "-c", str(self.config), "--ranks", "2", "--set", "train.steps=2",
                   "--timeout", "120", "--set", "output.name=late"]
        def start(rank):
            return subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": str(port)})
        one = start(1)
        time.sleep(late)
        zero = start(0)
        for process in (zero, one):
            error = process.communicate(timeout=120)[1]
            self.assertEqual(process.returncode, OK, error)

    # As where the folder of runs is not mounted on the second node.
    def test_a_rank_that_does_not_see_the_run(self):
        run = self.straight("seen", "parallel.ranks=2")
        other = self.folder / "other"
        (other / "runs" / "seen").mkdir(parents=True)
        shutil.copy(run / "config.toml", other / "runs" / "seen")
        for options, words in ((["-c", str(self.config), "--auto-resume", "seen"], "--auto-resume.*with checkpoints"),
                               (["--replay", "runs/seen", "--set", "output.name=again"], "--replay.*with plans")):
            port = random.randrange(20000, 30000)
            processes = [subprocess.Popen(
                [PARADYSE, "train", *options, "--ranks", "2", "--set", "output.folder=runs", "--timeout", "60"],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder,
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": str(port)}) for rank, folder in enumerate((self.folder, other))]
            said = [process.communicate(timeout=120)[1] for process in processes]
            self.assertEqual([process.returncode for process in processes], [USAGE, USAGE], said)
            self.assertRegex(said[0], words)


STAND_INS = {
    # Starts the ranks as SLURM does, hands SIGTERM on, and ends with the highest code.
    "srun": """#!/bin/bash
pids=()
for ((rank = 0; rank < SLURM_NTASKS; ++rank)); do
  SLURM_PROCID=$rank SLURM_STEP_NODELIST=127.0.0.1 "$@" &
  pids+=($!)
done
trap 'kill -TERM "${pids[@]}"' TERM
echo $$ > "$STAND_IN_FOLDER/srun.pid"
most=0
for pid in "${pids[@]}"; do
  while :; do
    wait "$pid"; code=$?
    kill -0 "$pid" 2>/dev/null || break
  done
  wait "$pid" 2>/dev/null; last=$?
  [ "$last" != 127 ] && code=$last
  ((code > most)) && most=$code
done
exit $most
""",
    "scontrol": """#!/bin/bash
echo "$@" >> "$STAND_IN_FOLDER/requeued"
"""}


class SlurmTest(DurableTest):
    def test_the_example_requeues_itself(self):
        bin_folder = self.folder / "bin"
        bin_folder.mkdir()
        for name, text in STAND_INS.items():
            (bin_folder / name).write_text(text)
            (bin_folder / name).chmod(0o755)
        (bin_folder / "paradyse").symlink_to(PARADYSE)
        self.config.write_text(self.config.read_text().replace("ranks = 3", "").replace(
            "steps = 8", "steps = 120").replace("every = 4", "every = 0"))
        run = self.folder / "runs" / "job-4711"

        def job(restarts, ranks):  # as sbatch would start it
            return subprocess.Popen(
                ["bash", str(EXAMPLE), str(self.config)], stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL, text=True,
                env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711",
                     "SLURM_NTASKS": str(ranks), "SLURM_RESTART_COUNT": str(restarts),
                     "STAND_IN_FOLDER": str(self.folder)})

        first = job(0, 3)
        self.await_steps(first, run, 5)
        os.kill(int((self.folder / "srun.pid").read_text()), signal.SIGTERM)  # --signal=TERM@300
        error = first.communicate(timeout=120)[1]
        self.assertEqual(first.returncode, 143, error)
        self.assertEqual((self.folder / "requeued").read_text(), "requeue 4711\n")
        done = len(self.metrics(run))
        self.assertLess(done, 120)
        second = job(1, 2)  # a node is gone
        error = second.communicate(timeout=120)[1]
        self.assertEqual(second.returncode, OK, error)
        self.assertIn(f"after step {done} of 120", error)
        self.assertEqual(len(self.metrics(run)), 120)
        self.assertEqual((self.folder / "requeued").read_text(), "requeue 4711\n")


class ExportTest(DurableTest):
    def test_of_a_run_and_a_checkpoint(self):
        for dtype in ("float32", "bfloat16"):
            run = self.straight(dtype, f"train.dtype={dtype}")
            out = self.folder / f"{dtype}_out"
            self.assertEqual(self.json_of("export", run, out)["step"], 8)
            for name in ("config.json", "model.safetensors"):
                self.assertEqual((out / name).read_bytes(), (run / "model" / name).read_bytes(), name)
        # other types are rounded from the masters of what was trained in bfloat16
        wide, narrow = self.folder / "wide", self.folder / "narrow"
        self.assertEqual(self.json_of("export", run, wide, "--dtype", "float32")["dtype"], "float32")
        masters, rounded = (read_tensors(folder / "model.safetensors") for folder in (wide, out))
        self.assertEqual(masters.keys(), rounded.keys())
        for name, (dtype, shape, values) in masters.items():
            self.assertEqual((dtype, shape), ("F32", rounded[name][1]))
            for master, near in zip(values, rounded[name][2], strict=True):
                self.assertLessEqual(abs(master - near), abs(master) / 256)
        self.assertTrue(any(masters[name][2] != rounded[name][2] for name in masters))
        other = self.straight("saved_wide", "train.dtype=bfloat16", "output.dtype=float32")
        self.assertEqual((wide / "model.safetensors").read_bytes(), (other / "model" / "model.safetensors").read_bytes())
        self.run_program("export", other, narrow, "--dtype", "bfloat16")
        self.assertEqual((narrow / "model.safetensors").read_bytes(), (out / "model.safetensors").read_bytes())
        self.assertIn("--dtype", self.error_of("export", run, self.folder / "none", "--dtype", "float8"))
        early = self.folder / "early"
        self.run_program("export", run / "checkpoints" / "000004", f"{early}/")
        self.assertNotEqual((early / "model.safetensors").read_bytes(),
                            (out / "model.safetensors").read_bytes())
        self.run_program("eval", "--model", early, "--data", self.texts, "--ranks", 1)
        for arguments, words in (
                ([run, out], "not an empty folder"), ([self.texts, early / "x"], "neither a checkpoint"),
                ([run / "checkpoints" / "000004", self.config], "not an empty folder")):
            self.assertIn(words, self.error_of("export", *arguments))
        shutil.copytree(run / "checkpoints" / "000004", self.folder / "a_copy")
        self.run_program("export", self.folder / "a_copy", self.folder / "of_copy")
        self.assertEqual((self.folder / "of_copy" / "model.safetensors").read_bytes(),
                         (early / "model.safetensors").read_bytes())
        (self.folder / "a_copy").rename(self.folder / "000009")
        error = self.error_of("export", self.folder / "000009", early / "x")
        self.assertIn("is the state of step 4, in a folder that is named for step 9", error)
        file = run / "checkpoints" / "000004" / "rank-00000.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
        self.assertIn("is damaged", self.error_of("export", run / "checkpoints" / "000004", early / "x"))
        moved = self.folder / "moved.toml"
        os.rename(self.folder / "llama.toml", moved)
        self.assertIn("--model", self.error_of("export", run, early / "x"))
        self.run_program("export", run, self.folder / "again", "--model", moved)


if __name__ == "__main__":
    unittest.main()
