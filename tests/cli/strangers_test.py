"""What strangers made is at worst refused, and nothing that a user has is overwritten."""
import gzip
import hashlib
import itertools
import json
import os
import random
import re
import resource
import shutil
import socket
import unittest

from resume_test import ResumeTest as Runs
from support import GOLDEN, OK, TINY_EVOFORMER, TINY_LLAMA, USAGE, ProgramTest, uniform_plan

FAILED = 1
MEMORY = 3 << 30  # bytes: what refuses a file takes far less
SECONDS = 60
LONG = "PARADYSE_TEST_LONG" in os.environ
CLUSTER = GOLDEN.parents[1] / "configs" / "clusters" / "8xH100.toml"


def some(all_of_them, count):
    """All of them in long tests, else so many, drawn, and the draw."""
    all_of_them = list(all_of_them)
    seed = random.randrange(2**32)
    return (all_of_them if LONG else random.Random(seed).sample(all_of_them, count)), seed


def setUpModule():
    # Of memory that a process writes to; its children have the same.
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def terabyte(at):
    at.touch()
    os.truncate(at, 1 << 40)


def bound_socket(at):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(at))


# What may be there in place of a file.
STRANGERS = {
    "pipe": os.mkfifo, "folder": os.mkdir, "device": lambda at: at.symlink_to("/dev/zero"),
    "loop": lambda at: at.symlink_to(at.name), "terabyte": terabyte, "socket": bound_socket,
    "brackets": lambda at: at.write_text("[" * 1_000_000)}


def remove(at):
    if at.is_dir() and not at.is_symlink():
        shutil.rmtree(at)
    elif at.is_symlink() or at.exists():
        at.unlink()


def put_stranger(what, at):
    remove(at)
    STRANGERS[what](at)


class StrangersTest(ProgramTest):
    def expect_refused(self, *arguments, words=()):
        """Post: a message of one kind, that says where, soon and in little memory."""
        done = self.run_program(*arguments, code=None, timeout=SECONDS)
        said = " ".join(map(str, arguments)) + "\n" + done.stderr
        self.assertIn(done.returncode, (FAILED, USAGE), said)
        errors = [line for line in done.stderr.splitlines() if "error: " in line]
        self.assertEqual(len(errors), 1, said)
        self.assertNotIn("this machine is out of memory", done.stderr)
        self.assertNotIn("error: internal", errors[0])
        self.assertNotIn("\x1b", done.stdout + done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        return done.stderr


class InputsTest(StrangersTest):
    def test_what_is_no_file(self):
        model = self.write("model.toml", TINY_LLAMA.format(layers=2))
        data = self.write_documents([[1, 2, 3], [4, 5]])
        folder = self.folder / "model"
        shutil.copytree(GOLDEN / "hf_llama_gqa", folder)
        sharded = self.folder / "sharded"
        sharded.mkdir()
        shutil.copy(folder / "config.json", sharded)
        grid = self.write("evoformer.toml", TINY_EVOFORMER)
        video = GOLDEN / "grid_stdit"
        at = self.folder / "given.json"
        lines = self.folder / "given.jsonl"
        readers = {
            at: [("plan", "check", at), ("simulate", "--plan", at, "--cluster", CLUSTER, "--model", model),
                 ("plan", "batch", "--model", model, "--lengths", at, "--cluster", CLUSTER),
                 ("train", "-c", at), ("report", at), ("fit", "--profile", at, "--out", "x"),
                 ("simulate", "--model", model, "--length", 8, "--cluster", at),
                 ("eval", "--model", grid, "--data", at, "--ranks", 1),
                 ("train", "--model", model, "--data", data, "--plan", at)],
            lines: [("eval", "--model", model, "--data", lines, "--ranks", 1)],
            folder / "config.json": [("eval", "--model", folder, "--data", data, "--ranks", 1)],
            folder / "model.safetensors": [("eval", "--model", folder, "--data", data, "--ranks", 1)],
            sharded / "model.safetensors.index.json": [
                ("eval", "--model", sharded, "--data", data, "--ranks", 1)],
            self.folder / "clips.safetensors": [
                ("eval", "--model", video, "--data", self.folder / "clips.safetensors", "--ranks", 1)]}
        whole = {file: file.read_bytes() for file in readers if file.is_file()}
        cases, seed = some(
            [(file, what, command) for file, commands in readers.items() for command in commands
             for what in STRANGERS], 24)
        for file, what, command in cases:
            with self.subTest(what, command=command[:2], file=file.name, seed=seed):
                put_stranger(what, file)
                self.expect_refused(*command)
            remove(file)
            if file in whole:
                file.write_bytes(whole[file])

    def test_packed_lists(self):
        """A megabyte that unpacks to a gigabyte takes no more memory than a batch needs."""
        model = self.write("model.toml", TINY_LLAMA.format(layers=2))
        packed = self.folder / "lengths.gz"
        batch = ("plan", "batch", "--model", model, "--cluster", CLUSTER, "--lengths", packed)
        packed.write_bytes(513 * gzip.compress(b"9\n" * (1 << 20)))
        found = self.json_of(*batch, "--batch", 3)
        self.assertEqual((found["documents"], found["dropped"]), (3, 0))
        self.expect_refused(*batch, "--context", 8, words=["lengths.gz: unpacks to more than 1 GiB"])
        self.expect_refused(*batch, "--batch", (1 << 20) + 1, words=["--batch"])
        said = "lengths.gz, line 1: has more than 16777216 bytes"
        for line, more in ((b"9", ()), (b" ", ()), (b"9,", ("--stream",))):
            packed.write_bytes(gzip.compress(line * (1 << 27)))
            self.expect_refused(*batch, *more, words=[said])
        packed.write_bytes(gzip.compress(b"9," * ((1 << 20) + 1)))
        said = self.run_program(*batch, "--stream", code=FAILED, timeout=SECONDS).stdout
        self.assertIn("lengths.gz, line 1: has more than 1048576 lengths", said)

    def test_sizes(self):
        lengths = self.write("lengths", "8\n")
        data = self.write_documents([[1, 2, 3], [4, 5]])
        keys = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads")
        sizes = (2**31, 2**63 - 1, 2**64, -1, 0, 1e308)
        for key in keys:
            for size in (2**31 - 1, *some(sizes, 1)[0]):
                config = json.loads((GOLDEN / "hf_llama_gqa" / "config.json").read_text())
                config[key] = size
                folder = self.folder / "model"
                folder.mkdir(exist_ok=True)
                (folder / "config.json").write_text(json.dumps(config))
                for command in (
                        ("eval", "--model", folder, "--random-weights", "--data", data, "--ranks", 1),
                        ("plan", "batch", "--model", folder, "--lengths", lengths, "--cluster", CLUSTER)):
                    with self.subTest(key, size=size, command=command[0]):
                        self.expect_refused(*command)

    def test_sizes_of_samples(self):
        """Each size of a video or protein model, as large as it may be and larger: planned or refused, soon."""
        samples = self.write("samples", "")
        for model, sample in (("stdit_tiny", "frames=5 patches=70"), ("stdit_text_tiny", "frames=5 patches=70 text=4"),
                              ("extra-msa", "sequences=4 residues=8"), ("evoformer_tiny", "sequences=4 residues=8")):
            text = (CLUSTER.parents[1] / "models" / f"{model}.toml").read_text()
            keys = re.findall(r"(?m)^(\w+) = \d+\b", text)
            self.assertGreaterEqual(len(keys), 5, text)
            samples.write_text(sample + "\n")
            deep = next(key for key in keys if key in ("depth", "no_blocks"))
            cases, seed = some(itertools.product(keys, (2**31 - 1, 2**20, 16384, 0)), 3)
            for key, size in ((deep, 2049), (deep, 2048), *cases):
                path = self.write("m.toml", re.sub(rf"(?m)^{key} = .*$", f"{key} = {size}", text))
                command = ("plan", "batch", "--model", path, "--samples", samples, "--cluster", CLUSTER)
                with self.subTest(model, key=key, size=size, seed=seed):
                    done = self.run_program(*command, code=None, timeout=SECONDS)
                    self.assertIn(done.returncode, (OK, FAILED, USAGE), done.stderr)
                    self.assertNotIn("this machine is out of memory", done.stderr)
                    self.assertNotIn("error: internal", done.stderr)
                    if key == deep:
                        self.assertEqual(done.returncode == OK, 1 <= size <= 2048, done.stderr)

    def test_sizes_of_plans(self):
        model = self.write("model.toml", TINY_LLAMA.format(layers=2))
        data = self.write_documents([[1, 2, 3], [4, 5]])
        path = self.folder / "plan.json"
        for size in (2**31 - 1, 2**62, -1):
            for edit in (
                    lambda p: p["cluster"].update(ranks=size), lambda p: p["model"].update(layers=size),
                    lambda p: p.update(weight_domain=size), lambda p: p.update(lengths=[size, 3]),
                    lambda p: p["programs"]["all"][0].update(layers=size),
                    lambda p: p["micro_batches"][0]["groups"][0].update(ranks=[size, 1])):
                plan = uniform_plan("model", [3, 2], 2, 2)
                edit(plan)
                path.write_text(json.dumps(plan))
                with self.subTest(plan):
                    self.expect_refused("grad", "--model", model, "--random-weights", "--data", data,
                                        "--plan", path, "--out", self.folder / "g")
                    self.expect_refused(
                        "simulate", "--plan", path, "--model", model, "--cluster", CLUSTER)

    def test_names_are_printed_as_they_are_spelled(self):
        model = self.write("model.toml", TINY_LLAMA.format(layers=2))
        odd = "a\x1b[2J\x07b\r"
        (self.folder / odd).mkdir()
        self.expect_refused("eval", "--model", self.folder / odd, "--data", "x", words=["\\x1b[2J\\x07b\\x0d"])
        cluster = CLUSTER.read_text().replace('name = "', 'name = "\\u001b[2J', 1)
        said = self.run_program(
            "simulate", "--model", model, "--length", 512, "--cluster", self.write("c.toml", cluster))
        self.assertNotIn("\x1b", said.stdout + said.stderr)
        plan = json.loads(json.dumps(uniform_plan("llama", [3, 2], 3, 2)).replace('"all"', json.dumps("all" + odd)))
        for edit in (lambda p: None, lambda p: p.update(lengths=[3, 2, 1]), lambda p: p["micro_batches"].clear()):
            edit(plan)
            path = self.write("plan.json", json.dumps(plan))
            said = self.run_program("plan", "check", path, "--model", model, "--explain", code=None)
            self.assertIn(said.returncode, (OK, FAILED, USAGE), said.stderr)
            self.assertNotIn("\x1b", said.stdout + said.stderr)
            self.assertNotIn("\x07", said.stdout + said.stderr)


class OutputsTest(StrangersTest):
    """Each option that names a file or folder to write, over what a user has there."""

    def setUp(self):
        super().setUp()
        self.model = self.write("model.toml", TINY_LLAMA.format(layers=2))
        self.data = self.write_documents([[1, 2, 3], [4, 5]])

    def commands(self, out):
        batch = ("--model", self.model, "--lengths", self.write("lengths", "64\n"), "--cluster", CLUSTER)
        simulated = ("simulate", "--model", self.model, "--length", 64, "--cluster", CLUSTER)
        grad = ("grad", "--model", self.model, "--random-weights", "--data", self.data, "--ranks", 1)
        return [("plan", "batch", *batch, "--out", out), (*simulated, "--trace", out),
                (*simulated, "--save-plan", out), (*grad, "--out", out)]

    def test_a_users_file_stays(self):
        notes = self.folder / "notes"
        for content in (
                b"my notes\n", b'{"traceEvents-not": 1}', bytes(range(256)),
                b'{"traceEvents": [], "displayTimeUnit": "ms"}', b'{"displayTimeUnit":"ms","traceEvents":[\n]}\n',
                b'My notes: "format": "paradyse-plan" is the mark, and "gradients of paradyse"\n',
                b'{"mine": {"format": "paradyse-plan"}}'):
            for command in self.commands(notes):
                notes.write_bytes(content)
                before = sorted(self.folder.iterdir())
                with self.subTest(command[0], option=command[-2]):
                    self.expect_refused(*command, words=["is not replaced"])
                    self.assertEqual(notes.read_bytes(), content)
                    self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_two_files_of_one_name(self):
        simulated = ("simulate", "--model", self.model, "--length", 64, "--cluster", CLUSTER)
        out = self.folder / "out"
        self.expect_refused(
            *simulated, "--trace", out, "--save-plan", f"{self.folder}/./out", words=["name the same file"])
        self.assertFalse(out.exists())
        self.run_program(*simulated, "--trace", out, "--save-plan", self.folder / "plan")
        for _ in range(2):  # ours, also with other blanks
            plan = json.loads((self.folder / "plan").read_text())
            self.run_program(*simulated, "--trace", out, "--save-plan", self.folder / "plan")
            (self.folder / "plan").write_text(json.dumps(plan, indent=4))

    def test_partial_files_of_a_user_stay(self):
        for command in self.commands(self.folder / "out"):
            mine = {name: "a download" for name in ("out.partial", "out.1.partial", ".paradyse-1.partial")}
            for name, text in mine.items():
                (self.folder / name).write_text(text)
            before = {file.name for file in self.folder.iterdir()}
            self.run_program(*command)
            self.assertEqual({name: (self.folder / name).read_text() for name in mine}, mine, command)
            # and none of the program's own is left
            self.assertEqual({file.name for file in self.folder.iterdir()} - before, {"out"}, command)
            (self.folder / "out").unlink()

    def test_what_was_written_is_replaced_whole_and_a_link_stays_one(self):
        for command in self.commands(self.folder / "link"):
            (self.folder / "link").symlink_to("target")
            self.run_program(*command)
            first = (self.folder / "target").read_bytes()
            self.assertTrue((self.folder / "link").is_symlink(), command)
            self.assertGreater(len(first), 20)
            self.run_program(*command)
            self.assertTrue((self.folder / "link").is_symlink(), command)
            (self.folder / "target").write_text("a user's")
            self.expect_refused(*command)
            (self.folder / "link").unlink()
            (self.folder / "target").unlink()

    def test_devices_stay_devices(self):
        device = self.folder / "null"
        try:
            os.mknod(device, 0o666 | 0o020000, os.makedev(1, 3))
        except PermissionError:
            self.skipTest("devices cannot be made here")
        for command in self.commands(device):
            done = self.run_program(*command, code=None)
            self.assertIn(done.returncode, (OK, USAGE), done.stderr)
            self.assertTrue(device.is_char_device(), command)

    def test_the_folder_of_a_run(self):
        run = self.write_run(2, "[train]\nsteps = 1\n")
        outside = self.folder / "outside"
        for name in ("../outside", "..", ".", "a/b", str(outside), "runs/../../outside"):
            for how in (("--set", f"output.name={name}"), ("--auto-resume", name)):
                with self.subTest(name, how=how[0]):
                    self.expect_refused("train", "-c", run, *how, words=["output.name"])
        outside.mkdir()
        (outside / "config.toml").write_text("[train]\n")  # as of a run that was killed at once
        self.expect_refused("train", "-c", run, "--auto-resume", "../outside", words=["output.name"])
        self.assertEqual((outside / "config.toml").read_text(), "[train]\n")
        mine = self.folder / "runs" / "mine"
        mine.mkdir(parents=True)
        (mine / "notes").write_text("my notes")
        self.expect_refused("train", "-c", run, "--set", "output.name=mine", words=["exists already"])
        self.assertEqual([f.name for f in mine.iterdir()], ["notes"])


def sealed(state):
    """The text of a state with the digest that its content has now."""
    state = {key: value for key, value in state.items() if key != "sha256"}
    text = json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return json.dumps({**state, "sha256": hashlib.sha256(text.encode()).hexdigest()})


class CheckpointsTest(Runs, StrangersTest):
    def test_manifests(self):
        straight = self.straight("straight", "parallel.ranks=2", "checkpoint.every=2", "train.steps=4")
        whole = json.loads((straight / "checkpoints" / "000004" / "state.json").read_text())
        self.assertEqual(json.loads(sealed(whole)), whole)  # else the digest below is not the program's
        other = "../000002/rank-00000.safetensors"
        outside = str(straight / "checkpoints" / "000002" / "rank-00000.safetensors")

        def files(change):
            return lambda state: state.update(files=change(state["files"]))

        edits = {
            "none": files(lambda all: []), "too few": files(lambda all: all[:1]),
            "too few, and it says so": lambda state: state.update(files=state["files"][:1], weight_domain=1),
            "too many": files(lambda all: all + all), "twice": files(lambda all: [all[0], all[0]]),
            "above": files(lambda all: [{**all[0], "name": other}, all[1]]),
            "elsewhere": files(lambda all: [{**all[0], "name": outside}, all[1]]),
            "negative": files(lambda all: [{**all[0], "bytes": -1}, all[1]]),
            "ranks": lambda state: state.update(ranks=2**31 - 1, weight_domain=2**31 - 1),
            "no ranks": lambda state: state.update(ranks=0, weight_domain=0),
            "step": lambda state: state.update(step=2**62),
            "steps": lambda state: state["optimizer"].update(steps=-1),
            "numbers": lambda state: state.update(tokens=1e300),
            "dtype": lambda state: state.update(dtype="x\x1b[2J"),
            "learned": lambda state: state["learned"].update(ratios=[{"strategy": "x"}]),
            "configuration": lambda state: state.update(configuration={"train.steps": 8})}
        for what, edit in edits.items():
            state = json.loads(json.dumps(whole))
            edit(state)
            with self.subTest(what):
                run = self.cut(straight, 4, "cut")
                (run / "checkpoints" / "000004" / "state.json").write_text(sealed(state))
                before = {f: f.read_bytes() for f in straight.rglob("*") if f.is_file()}
                done = self.run_program("train", "--resume", run, code=None, timeout=SECONDS)
                # the one before takes its place, or, of what is no state of this program, none
                if done.returncode == OK:
                    self.assertIn("resumes from the one before", done.stderr)
                else:
                    self.assertIn("damaged", done.stderr)
                self.assertNotIn("error: internal", done.stderr)
                self.assertNotIn("\x1b[2J", done.stderr)
                self.assertEqual({f: f.read_bytes() for f in before}, before)
                shutil.rmtree(run)

    def test_what_is_no_file(self):
        straight = self.straight("straight", "parallel.ranks=2", "checkpoint.every=2", "train.steps=4")
        names = ("checkpoints/000004/state.json", "checkpoints/000004/rank-00001.safetensors", "metrics.jsonl",
                 "config.toml", "plans/step-00001.json", "summary.json", "group_sizes.json")
        run = self.folder / "runs" / "cut"
        commands = (("train", "--resume", run), ("report", run), ("export", run, self.folder / "exported"),
                    ("train", "--replay", run, "--set", "train.steps=1"))
        cases, seed = some(itertools.product(names, STRANGERS, commands), 14)
        for name, what, command in cases:
            with self.subTest(name, what=what, command=command[:2], seed=seed):
                self.cut(straight, 4, "cut")
                put_stranger(what, run / name)
                done = self.run_program(*command, code=None, timeout=SECONDS)
                self.assertIn(done.returncode, (OK, FAILED, USAGE), done.stderr)
                self.assertNotIn("this machine is out of memory", done.stderr)
                self.assertNotIn("error: internal", done.stderr)
            shutil.rmtree(run)
            shutil.rmtree(self.folder / "exported", ignore_errors=True)


if __name__ == "__main__":
    unittest.main()
