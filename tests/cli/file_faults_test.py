"""Training whose disk says no: whichever call that changes a file fails, writes a part or is the last, the
newest checkpoint is whole and the run goes on from it to the losses of one that was not disturbed."""
import json
import os
import random
import shutil
import signal
import subprocess
import unittest

import resident
from durable_test import DurableTest
from support import FAILED, OK, PARADYSE, USAGE

LONG = "PARADYSE_TEST_LONG" in os.environ
FAULTS = os.environ["PARADYSE_FILE_FAULTS"]
HOWS = ("fail", "short", "full", "end")
REASONS = {"ENOSPC": "No space left on device", "EIO": "Input/output error", "EDQUOT": "Disk quota exceeded"}
COMPLETE = r"is complete|no complete checkpoint|The checkpoint of step \d+ has its weights"
# A checkpoint in the middle and one at the end, a model and a report: each kind of call, and no step more.
SETTINGS = ("train.steps=4", "checkpoint.every=2", "checkpoint.keep=1", "parallel.ranks=2",
            "output.trace=false", "output.tensorboard=true")


class FaultTest(DurableTest):
    def setUp(self):
        super().setUp()
        text = self.config.read_text()
        for setting in SETTINGS:
            key, value = setting.split("=")
            section, name = key.split(".")
            lines = [line for line in text.splitlines() if not line.startswith(f"{name} = ")]
            lines.insert(lines.index(f"[{section}]") + 1, f"{name} = {value}")
            text = "\n".join(lines) + "\n"
        self.config.write_text(text)

    def expect_whole(self, run, message):
        """Post: what is named like a checkpoint has all of its files."""
        for folder in (run / "checkpoints").glob("[0-9]*"):
            if folder.name.isdigit():
                state = json.loads((folder / "state.json").read_text())
                self.assertEqual(len(state["files"]), state["weight_domain"], message)
                for file in state["files"]:
                    self.assertEqual((folder / file["name"]).stat().st_size, file["bytes"], message)

    def expect_said(self, run, reason, stderr, message):
        """Post: the error names the file, the reason and, once there is a run, what checkpoint is complete."""
        said, = (line for line in stderr.splitlines() if "error: " in line)
        self.assertIn(reason, said, message)
        self.assertIn(str(run if run.exists() else run.parent), said, message)
        self.assertNotIn("filesystem error", said, message)
        if run.exists():
            self.assertRegex(said, COMPLETE, message)

    def expect_to_go_on(self, run, straight, message):
        self.expect_whole(run, message)
        said = self.run_program("train", "-c", self.config, "--auto-resume", run.name, code=None)
        self.assertEqual(said.returncode, OK, f"{message}: {said.stderr}")
        self.assertNotIn("damaged", said.stderr, message)
        # where nothing was to resume, what the first one left has been put aside or is the run
        self.assertEqual(self.metrics(run), self.metrics(straight), message)
        self.assertEqual((run / "model" / "model.safetensors").read_bytes(),
                         (straight / "model" / "model.safetensors").read_bytes(), message)


class FileCallsTest(FaultTest):
    def setUp(self):
        super().setUp()
        self.program_with_faults = resident.Resident(PARADYSE, [FAULTS])
        self.addCleanup(self.program_with_faults.end)
        (self.folder / "runs").mkdir(exist_ok=True)  # else the first run has other calls than those after it

    def with_faults(self, *words, **variables):
        return self.program_with_faults.run([PARADYSE, *words], 120, {
            **os.environ, "PARADYSE_FAULT_FOLDER": str(self.folder / "runs"), **variables})

    def train(self, name, saves="false", settings=(), **variables):
        words = ["train", "-c", str(self.config)]
        for setting in (f"output.name={name}", f"checkpoint.async_save={saves}", *settings):
            words += ["--set", setting]
        return self.with_faults(*words, **variables)

    def test_a_folder_that_cannot_be_locked(self):
        said = self.train("unlocked", PARADYSE_FAULT_LOCKS="none")
        self.assertEqual(said.returncode, OK, said.stderr)
        self.assertRegex(said.stderr, "runs/unlocked cannot be locked .No locks available.: take care")
        said = self.train("locked")
        self.assertNotIn("cannot be locked", said.stderr)

    def test_each_call_that_changes_a_file(self):
        log = self.folder / "calls"
        done = self.train("straight", PARADYSE_FAULT_LOG=str(log))
        self.assertEqual(done.returncode, OK, done.stderr)
        straight = self.folder / "runs" / "straight"
        calls = [" ".join(line.split()[1:]) for line in log.read_text().splitlines()]
        self.assertGreater(len(calls), 60)
        self.assertGreaterEqual(
            {call.split()[0] for call in calls}, {"open", "write", "fsync", "rename", "mkdir", "close"}, "the library sees none of these")
        seed = random.randrange(2**32)
        draw = random.Random(seed)
        every = [(at, how) for at in range(1, len(calls) + 1) for how in HOWS]
        chosen = every if LONG else draw.sample(every, 12)
        for at, how in chosen:
            saves = draw.choice(("false", "true"))  # on another thread calls come in another order
            error = draw.choice(tuple(REASONS))
            message = f"call {at} ({calls[at - 1]}) of {len(calls)}: {how}, {error}, async {saves}, seed {seed}"
            with self.subTest(message):
                name = f"{how}{at}"
                run = self.folder / "runs" / name
                done = self.train(
                    name, saves, PARADYSE_FAULT=how, PARADYSE_FAULT_AT=str(at), PARADYSE_FAULT_ERROR=error)
                self.assertIn(done.returncode, (OK, FAILED, USAGE, -signal.SIGKILL), f"{message}: {done.stderr}")
                if done.returncode != OK and how != "end":
                    self.expect_said(run, REASONS[error], done.stderr, message)
                self.expect_to_go_on(run, straight, message)

    def test_going_back(self):
        (self.texts / "odd.txt").write_text("\t" * 2000)  # a step of it is bad
        settings = ("train.on_bad_step=rollback", "train.loss_spike=1.3", "data.order=sorted", "train.steps=20",
                    "train.tokens_per_step=200", "output.model=false", "checkpoint.keep=2")
        log = self.folder / "calls"
        done = self.train("straight", settings=settings, PARADYSE_FAULT_LOG=str(log))
        self.assertIn("results of later steps were moved to", done.stderr)
        straight = self.folder / "runs" / "straight"
        calls = [line.split(" ", 2)[1:] for line in log.read_text().splitlines()]
        undone = [(call, file.removeprefix(f"{straight}/")) for call, file in calls if "/undone-" in file and "/plans" in file]
        for call, file in dict(undone).items():
            for error, reason in REASONS.items():
                done = self.train(error, settings=settings, PARADYSE_FAULT="fail", PARADYSE_FAULT_AT="1",
                                  PARADYSE_FAULT_CALL=call, PARADYSE_FAULT_FILE=file, PARADYSE_FAULT_ERROR=error)
                run = self.folder / "runs" / error
                self.assertEqual(done.returncode, FAILED, done.stderr)
                self.expect_said(run, reason, done.stderr, file)
                self.assertIn("undone-", done.stderr)
                shutil.rmtree(run)
        # which documents a bad step had is told later, and a run goes on without
        done = self.train("untold", settings=settings, PARADYSE_FAULT="fail", PARADYSE_FAULT_AT="1",
                          PARADYSE_FAULT_CALL="mkdir", PARADYSE_FAULT_FILE="bad_steps")
        self.assertEqual(done.returncode, OK, done.stderr)
        self.assertIn("bad_steps: cannot be made: No space left on device; it was tried again", done.stderr)
        untold = self.folder / "runs" / "untold"
        self.expect_same_losses(untold, straight)
        self.assertEqual(*(sorted(file.name for file in (run / "bad_steps").iterdir()) for run in (untold, straight)))

    def test_the_first_checkpoint_and_the_last_are_tried_again(self):
        straight = self.folder / "runs" / "straight"
        self.assertEqual(self.train("straight").returncode, OK)
        of_step = {step: {"PARADYSE_FAULT_CALL": "fsync", "PARADYSE_FAULT_FILE": f"checkpoints/{step:06}."} for step in (2, 4)}
        for step, words in ((2, ["there is no complete checkpoint. Training continues",
                                 "failure 1 of checkpoint.failures = 3", "the checkpoint of step 4 could be written"]),
                            (4, ["it is the last one, so it is tried again in 1 s"])):
            for error, reason in REASONS.items():
                with self.subTest(step, error=error):
                    name = f"{error}{step}"
                    done = self.train(name, PARADYSE_FAULT="fail", PARADYSE_FAULT_AT="1", PARADYSE_FAULT_ERROR=error,
                                      **of_step[step])
                    self.assertEqual(done.returncode, OK, done.stderr)
                    for word in (f"the checkpoint of step {step} could not be written: ", reason, *words):
                        self.assertIn(word, done.stderr)
                    self.expect_same_losses(self.folder / "runs" / name, straight, name)
        # from here on the disk is full: it is tried as often as checkpoint.failures says, or three times
        done = self.train("full", PARADYSE_FAULT="full", PARADYSE_FAULT_AT="1", **of_step[4])
        self.assertEqual(done.returncode, FAILED)
        self.assertEqual(done.stderr.count("it is tried again in"), 2, done.stderr)
        self.assertRegex(done.stderr, "step 4 could not be written: .*000002 is complete. Repair the folder")

    def test_a_run_whose_checkpoints_cannot_be_listed(self):
        self.assertEqual(self.train("straight", settings=("checkpoint.keep=2",)).returncode, OK)
        run = self.cut(self.folder / "runs" / "straight", 2, "part")
        files = {file.relative_to(run): file.read_bytes() for file in run.rglob("*") if file.is_file()}
        for words in (("--resume", str(run)), ("-c", str(self.config), "--auto-resume", "part")):
            done = self.with_faults("train", *words, PARADYSE_FAULT="fail", PARADYSE_FAULT_AT="1", PARADYSE_FAULT_READS="1",
                                    PARADYSE_FAULT_FILE="/checkpoints", PARADYSE_FAULT_ERROR="EIO")
            self.assertEqual(done.returncode, FAILED, done.stderr)
            self.assertIn(f"{run}/checkpoints: cannot be read: Input/output error", done.stderr)
            self.assertEqual(files, {file.relative_to(run): file.read_bytes() for file in run.rglob("*") if file.is_file()})
            self.assertEqual({"part", "straight"}, {file.name for file in run.parent.iterdir() if file.is_dir()})
        self.expect_to_go_on(run, self.folder / "runs" / "straight", "after it can be read")

    def test_each_call_that_reads_a_file_of_a_resumed_run(self):
        self.assertEqual(self.train("straight", settings=("checkpoint.keep=2",)).returncode, OK)
        straight = self.folder / "runs" / "straight"
        part = self.cut(straight, 2, "part")
        resumed = lambda run, **variables: self.with_faults("train", "--resume", str(run), PARADYSE_FAULT_READS="1", **variables)
        log = self.folder / "reads"
        self.assertEqual(resumed(shutil.copytree(part, part.with_name("logged")), PARADYSE_FAULT_LOG=str(log)).returncode, OK)
        calls = [" ".join(line.split()[1:]) for line in log.read_text().splitlines()]
        self.assertGreaterEqual({call.split()[0] for call in calls}, {"open", "read"}, "the library sees none of these")
        seed = random.randrange(2**32)
        every = [(at, how) for at in range(1, len(calls) + 1) for how in ("fail", "short")]
        for at, how in every if LONG else random.Random(seed).sample(every, 12):
            message = f"call {at} ({calls[at - 1]}) of {len(calls)}: {how}, seed {seed}"
            with self.subTest(message):
                run = shutil.copytree(part, part.with_name(f"{how}{at}"))
                done = resumed(run, PARADYSE_FAULT=how, PARADYSE_FAULT_AT=str(at), PARADYSE_FAULT_ERROR="EIO")
                self.assertIn(done.returncode, (OK, FAILED, USAGE) if how == "fail" else (OK,), f"{message}: {done.stderr}")
                if done.returncode != OK:
                    said, = (line for line in done.stderr.splitlines() if "error: " in line)
                    self.assertIn("Input/output error", said, message)
                    self.assertIn(str(run), said, message)
                    self.assertNotIn("filesystem error", said, message)
                self.expect_to_go_on(run, straight, message)

    def test_data_that_cannot_be_read_is_not_left_out(self):
        for name in ("a", "b"):
            (self.texts / name).mkdir()
            (self.texts / name / "text.txt").write_text("the quick brown fox " * 40)
        (self.texts / "b" / "data.json").write_text("{}")
        for pattern, file, call in (("*/*.txt", "/b", "open"), ("", "/b/data.json", "read")):
            path = self.texts / pattern
            done = self.train("other", settings=(f"data.path={path}",), PARADYSE_FAULT="fail", PARADYSE_FAULT_CALL=call,
                              PARADYSE_FAULT_AT="1", PARADYSE_FAULT_READS="1", PARADYSE_FAULT_ERROR="EIO",
                              PARADYSE_FAULT_FOLDER=str(self.texts), PARADYSE_FAULT_FILE=file)
            self.assertNotEqual(done.returncode, OK, (pattern, file))
            self.assertIn(f"{self.texts}{file}: cannot be read: Input/output error", done.stderr)

    def test_a_page_that_cannot_be_written(self):
        self.assertEqual(self.train("straight").returncode, OK)
        run = self.folder / "runs" / "straight"
        done = self.with_faults("report", str(run), PARADYSE_FAULT="fail", PARADYSE_FAULT_CALL="fsync",
                                PARADYSE_FAULT_AT="1", PARADYSE_FAULT_FILE=str(run))
        self.assertEqual(done.returncode, FAILED, done.stderr)
        self.assertIn("No space left on device", done.stderr)

    def test_a_file_whose_begin_cannot_be_read_is_kept(self):
        self.assertEqual(self.train("straight").returncode, OK)
        page = self.folder / "runs" / "page.html"
        page.write_text("somebody's")
        done = self.with_faults("report", str(self.folder / "runs" / "straight"), "--out", str(page), PARADYSE_FAULT="fail",
                                PARADYSE_FAULT_CALL="read", PARADYSE_FAULT_AT="1", PARADYSE_FAULT_READS="1",
                                PARADYSE_FAULT_FILE="page.html", PARADYSE_FAULT_ERROR="EIO")
        self.assertNotEqual(done.returncode, OK)
        self.assertIn("exists and cannot be read, so it is not replaced: Input/output error", done.stderr)
        self.assertEqual(page.read_text(), "somebody's")


class KillsTest(FaultTest):
    # Over four processes, at any moment: until the run is through.
    def test_at_any_moment(self):
        kills = 50 if LONG else 1
        settings = ["train.dtype=float64", "parallel.ranks=4", "train.steps=40", "checkpoint.every=3",
                    "checkpoint.keep=2", "checkpoint.async_save=true"]
        straight = self.straight("straight", *settings)
        seed = random.randrange(2**32)
        draw = random.Random(seed)
        more = [word for setting in settings for word in ("--set", setting)]
        killed = attempts = 0
        while killed < kills:
            attempts += 1
            name = f"killed{attempts}"
            run = self.folder / "runs" / name
            command = [PARADYSE, "launch", "-n", "4", "--", "train", "-c", str(self.config),
                       "--auto-resume", name, *more]
            message = f"run {attempts}, seed {seed}"
            for longest in (6.0, 3.0, None):
                process = subprocess.Popen(
                    command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                    start_new_session=True)
                try:
                    said = process.communicate(timeout=longest and draw.uniform(0.3, longest))[1]
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    said = process.communicate(timeout=60)[1]
                    killed += 1
                    self.expect_whole(run, message)
                    continue
                self.assertEqual(process.returncode, OK, f"{message}: {said}")
                self.assertNotIn("damaged", said, message)
            self.expect_same_losses(run, straight, message)


if __name__ == "__main__":
    unittest.main()
