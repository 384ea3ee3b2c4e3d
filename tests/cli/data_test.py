"""Token files, blends, epochs and held-out documents in runs; eval --per-document and generate."""
import array
import json
import os
import pathlib
import random
import struct
import unittest

from support import FAILED, TINY_LLAMA, USAGE, ProgramTest, read_tensors, write_tensors


def write_pair(prefix, documents, type="H", code=8):
    """Megatron-core's PREFIX.bin and .idx, a sequence a document."""
    width, begins, at = array.array(type).itemsize, [], 0
    for document in documents:
        begins.append(at)
        at += width * len(document)
    count = len(documents)
    pathlib.Path(f"{prefix}.bin").write_bytes(
        b"".join(array.array(type, document).tobytes() for document in documents))
    pathlib.Path(f"{prefix}.idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, count, count + 1)
        + struct.pack(f"<{count}i", *map(len, documents)) + struct.pack(f"<{count}q", *begins)
        + struct.pack(f"<{count + 1}q", *range(count + 1)))


class DataTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.write("model.toml", TINY_LLAMA.format(layers=1))
        # each of a length of its own, by which plans show which document was drawn
        self.a = [[(3 * n + i) % 256 for i in range(10 + 4 * n)] for n in range(12)]
        self.b = [[(5 * n + i) % 256 for i in range(11 + 4 * n)] for n in range(8)]
        write_pair(self.folder / "a", self.a)
        write_pair(self.folder / "b", self.b, "i", 4)
        self.config = self.write("run.toml", f"""
[model]
path = "{self.folder}/model.toml"
[data]
path = ["{self.folder}/a", "{self.folder}/b.bin"]
weights = [1, 3]
[train]
tokens_per_step = 150
epochs = 3
[costs]
correct = false
[optimizer]
lr = 1e-2
[output]
folder = "{self.folder}/runs"
trace = false
""")

    def train(self, name, *settings, launch=None):
        """The folder of a run by the configuration."""
        command = ["train", "-c", self.config, "--set", f"output.name={name}"]
        for setting in settings:
            command += ["--set", setting]
        if launch:
            command = ["launch", "-n", launch, "--", *command]
        self.run_program(*command)
        return self.folder / "runs" / name

    def drawn(self, run):
        """The lengths of the documents of each step."""
        plans = sorted((run / "plans").glob("*.json"))
        return [json.loads(plan.read_text())["lengths"] for plan in plans]

    def losses(self, run):
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        return [(line["step"], line["loss"], line["gradient_norm"]) for line in lines]

    def test_the_order_is_a_function_of_seed_and_documents(self):
        first = self.drawn(self.train("first", "parallel.ranks=1"))
        documents = [length for step in first for length in step]
        self.assertEqual(len(documents), 3 * 20)  # three epochs
        shares = [sum(n for n in documents if n % 2 == odd) for odd in (0, 1)]
        self.assertAlmostEqual(shares[1] / sum(shares), 0.75, delta=0.05)
        for step in first[:-1]:
            self.assertGreaterEqual(sum(step), 150)
            self.assertLess(sum(step) - step[-1], 150)
        for name, *settings in (
                ("two", "parallel.ranks=2"), ("three", "parallel.ranks=3"),
                ("four", "parallel.ranks=4", "parallel.batch_planner=whole-or-split"),
                ("static", "parallel.ranks=2", "parallel.attention=MegatronTS")):
            self.assertEqual(self.drawn(self.train(name, *settings)), first, name)
        self.assertEqual(self.drawn(self.train("gloo", launch=3)), first)
        self.assertNotEqual(self.drawn(self.train("seed", "parallel.ranks=1", "data.seed=2")), first)
        # by steps, a beginning of it
        short = self.drawn(self.train("short", "train.epochs=0", "train.steps=3", "parallel.ranks=1"))
        self.assertEqual(short, first[:3])

    def test_a_run_goes_on_in_the_second_epoch_of_a_blend(self):
        more = ["parallel.ranks=2", "data.held_out=4", "checkpoint.every=1", "checkpoint.keep=1000"]
        whole = self.train("whole", *more, "train.eval_every=2")
        steps = len(self.losses(whole))
        state = json.loads((whole / "checkpoints" / f"{steps // 2 + 1:06}" / "state.json").read_text())
        self.assertEqual(state["data"]["epoch"], 1)
        cut = self.train("cut", *more, "train.epochs=0", f"train.steps={steps // 2 + 1}",
                         "optimizer.min_lr_ratio=1")
        self.run_program("train", "--resume", cut, "--set", "train.epochs=3", "--set", "train.steps=0")
        self.assertEqual(self.drawn(cut), self.drawn(whole))
        # and to the same bits, from a checkpoint of the whole run
        for path in (whole / "checkpoints").iterdir():
            if int(path.name) > steps // 2 + 1:
                for file in path.iterdir():
                    file.unlink()
                path.rmdir()
        before = self.losses(whole)
        self.run_program("train", "--resume", whole)
        self.assertEqual(self.losses(whole), before)
        for key, value in (("data.weights", "[1, 2]"), ("data.held_out", "5")):
            self.assertIn(f"{key} is", self.error_of("train", "--resume", whole, "--set", f"{key}={value}"))
        self.assertIn("the run has done", self.error_of("train", "--resume", whole, "--set", "train.epochs=1"))

    def test_evaluation_changes_nothing_of_training(self):
        without = self.train("without", "data.weights=[]", "parallel.ranks=2", "data.held_out=0.2", "train.epochs=2")
        often = self.train("often", "data.weights=[]", "parallel.ranks=2", "data.held_out=0.2", "train.epochs=2",
                           "train.eval_every=2", "output.tensorboard=true")
        self.assertEqual(self.losses(often), self.losses(without))
        self.assertEqual((often / "model/model.safetensors").read_bytes(),
                         (without / "model/model.safetensors").read_bytes())
        lines = [json.loads(line) for line in (often / "metrics.jsonl").read_text().splitlines()]
        evaluated = {line["step"]: line["eval_loss"] for line in lines if "eval_loss" in line}
        self.assertEqual(list(evaluated), list(range(2, len(lines) + 1, 2)))
        summary = json.loads((often / "summary.json").read_text())
        self.assertEqual({one["step"]: one["loss"] for one in summary["evaluations"]}, evaluated)
        last = json.loads((without / "summary.json").read_text())["eval_loss"]
        self.assertAlmostEqual(summary["eval_loss"], last, places=6)
        held, trained = summary["eval_data"]["documents"], summary["data"]["documents"]
        self.assertEqual((held > 0, held + trained), (True, 20))
        again = self.json_of("eval", "-c", self.config, "--model", often / "model", "--ranks", 2,
                             "--set", "data.held_out=0.2")
        self.assertEqual(again["documents"], held)
        self.assertAlmostEqual(again["loss"], last, places=5)
        # no document is on both sides
        seen = {length for step in self.drawn(often) for length in step}
        self.assertEqual(len(seen), trained)
        events = b"".join(path.read_bytes() for path in often.glob("events.out.tfevents.*"))
        at_the_end = len(lines) % 2  # unless the last step was evaluated
        self.assertEqual(events.count(b"eval/loss"), len(evaluated) + at_the_end)

    def test_documents_losses_add_up_to_the_whole(self):
        data = [self.folder / "a.bin", self.folder / "b.idx"]
        command = ["eval", "--model", self.folder / "model.toml", "--data", *data, "--ranks", 2]
        whole = self.json_of(*command)
        one_by_one = self.json_of(*command, "--per-document")
        self.assertEqual(one_by_one["loss"], whole["loss"])
        documents = one_by_one["per_document"]
        self.assertEqual([one["tokens"] for one in documents], [*map(len, self.a + self.b)])
        self.assertEqual(sum(one["labels"] for one in documents), whole["predicted_tokens"])
        mean = sum(one["loss"] * one["labels"] for one in documents) / whole["predicted_tokens"]
        self.assertAlmostEqual(mean, whole["loss"], places=9)
        self.assertIn("b.bin, document 7", documents[-1]["name"])
        lines = self.run_program(*command, "--per-document").stdout.splitlines()
        self.assertEqual([json.loads(line) for line in lines[:-1]], documents)

    def test_labels_beside_tokens_are_those_of_lines(self):
        labels = [[int(i % 3 != 0) for i in range(len(one))] for one in self.a]
        write_pair(self.folder / "a.labels", labels, "B", 1)
        lines = self.write("same.jsonl", "".join(
            json.dumps({"tokens": one, "labels": [t if k else -100 for t, k in zip(one, counts)]}) + "\n"
            for one, counts in zip(self.a, labels)))
        ids, masks = self.folder / "a.bin", self.folder / "a.labels.bin"
        found = [self.json_of("eval", "--model", self.folder / "model.toml", "--data", *data, "--ranks", 3)
                 for data in ([ids], [lines], [masks], [ids, masks])]  # the last: what a shell makes of *.bin
        for one in found[1:]:
            self.assertEqual((one["loss"], one["predicted_tokens"]), (found[0]["loss"], found[0]["predicted_tokens"]))

    def test_generates(self):
        model = self.train("short", "train.epochs=1", "parallel.ranks=1") / "model"
        command = ["generate", "--model", model, "--max-new-tokens", 6]
        greedy = self.json_of(*command, "--tokens", 10, 11, 12, "--temperature", 0)
        self.assertEqual(greedy["prompt_tokens"], [10, 11, 12])
        self.assertEqual(len(greedy["tokens"]), 6)
        for narrow in (["--top-k", 1], ["--top-p", 0]):
            self.assertEqual(
                self.json_of(*command, "--tokens", 10, 11, 12, *narrow)["tokens"], greedy["tokens"])
        shown = self.run_program(*command, "--tokens", 10, 11, 12, "--temperature", 0).stdout
        self.assertEqual([*map(int, shown.split())], greedy["tokens"])
        drawn = [self.json_of(*command, "--prompt", "ab", "--seed", seed) for seed in (1, 1, 2)]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0]["tokens"], drawn[2]["tokens"])
        self.assertTrue(self.run_program(*command, "--prompt", "ab").stdout.startswith("ab"))
        self.assertIn("exactly one of --prompt TEXT and --tokens IDS", self.error_of(*command))
        self.assertIn("300 is no id", self.error_of(*command, "--tokens", 300))
        (model / "tokenizer.json").write_text("{}")
        self.assertIn("give the ids of the prompt with --tokens", self.error_of(*command, "--prompt", "ab"))
        self.assertEqual(
            self.json_of(*command, "--tokens", 10, 11, 12, "--temperature", 0)["tokens"], greedy["tokens"])

    def test_generates_by_all_tokens_that_the_model_has_positions_for(self):
        golden = pathlib.Path(__file__).resolve().parents[1] / "golden"
        draw = random.Random(1)
        # weights of some size, by which the first of many tokens matter
        model = self.folder / "llama"
        model.mkdir()
        (model / "config.json").write_text((golden / "hf_llama_gqa/config.json").read_text())
        write_tensors(model / "model.safetensors", {
            name: (shape, [draw.gauss(0, 0.6) if len(shape) > 1 else value for value in values])
            for name, (_, shape, values) in read_tensors(golden / "hf_llama_gqa/model.safetensors").items()})
        ids = [draw.randrange(37) for _ in range(650)]
        other = [(token + 1) % 37 for token in ids[:100]] + ids[100:]
        # a sampled token of many: a little other logits are seen
        command = ["generate", "--model", model, "--max-new-tokens", 12, "--seed", 3, "--tokens"]
        self.assertNotEqual(self.json_of(*command, *ids)["tokens"], self.json_of(*command, *other)["tokens"])
        # 41 learned positions
        command = ["generate", "--model", golden / "hf_gpt2", "--temperature", 0, "--max-new-tokens", 2, "--tokens"]
        ids = [draw.randrange(23) for _ in range(45)]
        cut = self.run_program(*command, *ids)
        self.assertEqual(cut.stderr.count("note: the model has 41 positions: for the last token it saw the last 41 of 46"), 1)
        first = self.run_program(*command[:-3], "--max-new-tokens", 1, "--tokens", *ids[-41:])
        self.assertEqual(first.stdout.split()[0], cut.stdout.split()[0])
        self.assertNotIn("positions", first.stderr)

    def test_says_what_is_wrong(self):
        def error(*settings, code=USAGE):
            more = [part for setting in settings for part in ("--set", setting)]
            return self.error_of("train", "-c", self.config, *more, code=code)
        self.assertIn("a run takes one of them", error("train.steps=5"))
        self.assertIn("nothing would be trained", error("train.epochs=0", "train.steps=0"))
        self.assertIn("1 numbers for the 2 entries", error("data.weights=[1]"))
        self.assertIn("a list of numbers above 0", error("data.weights=[1, 0]"))
        self.assertIn("a list of numbers above 0", error("data.weights=3"))
        self.assertIn("a whole number of documents", error("data.held_out=1.5"))
        self.assertIn("holds out all of 20 documents", error("data.held_out=20"))
        self.assertIn("leave the other out", error("data.held_out=2", f"data.eval_path={self.folder}/a"))
        self.assertIn("nothing is held out", error("train.eval_every=2"))
        os.truncate(self.folder / "a.bin", 100)
        self.assertIn("a.bin has 100 bytes", error())
        self.a[3][5] = 999
        write_pair(self.folder / "a", self.a)
        self.assertIn("a.bin, document 3: token 5 is 999", error(code=FAILED))


if __name__ == "__main__":
    unittest.main()
