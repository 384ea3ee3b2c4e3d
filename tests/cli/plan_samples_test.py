"""paradyse plan batch of samples of video and protein models, and plan check and simulate of its plans."""

import gzip
import json
import subprocess
import unittest

from batches import A100, LLAMA, BatchTest
from support import PARADYSE, TINY_EVOFORMER

STDIT = """
model_type = "stdit"
depth = 2
hidden_size = 256
num_heads = 8
in_channels = 4
patch_size = 2
"""
CLIPS = [(16, 1024), (4, 256), (4, 256), (1, 64), (32, 256), (4, 256)]


class PlanSamplesTest(BatchTest):
    def clips(self, clips=CLIPS):
        return self.write("clips.txt", "".join(f"frames={f} patches={p}\n" for f, p in clips))

    def of_samples(self, samples, *arguments, ranks=8, model=STDIT):
        return ["plan", "batch", "--model", self.write("model.toml", model), "--cluster", A100, "--ranks", ranks,
                "--samples", samples, *arguments]

    def test_clips_and_alignments_on_clusters(self):
        out = self.folder / "plan.json"
        alignments = self.write("alignments.txt", "sequences=32 residues=120\n\nresidues=24, sequences=5\n"
                                "sequences=5 residues=24\n")
        for model, samples, count in ((STDIT, self.clips(), 6), (TINY_EVOFORMER, alignments, 3)):
            for space in ("flexsp", "full"):
                for ranks in (4, 16):
                    made = self.of_samples(samples, "--space", space, "--memory", "2GiB", "--out", out, ranks=ranks,
                                           model=model)
                    found = self.json_of(*made, "--compare", "--explain")
                    self.assertEqual((found["ranks"], found["space"], found["samples"]), (ranks, space, count))
                    self.assertNotIn("documents", found)
                    self.assertIn("samples in larger groups", found["explanation"])
                    self.assertNotIn("document", found["explanation"])
                    for rival in found["rivals"]:
                        self.assertGreaterEqual(rival["seconds"], found["seconds"] * (1 - 1e-9), rival)
                    plan = json.loads(out.read_text())
                    self.assertEqual(sorted(document for micro in plan["micro_batches"] for group in micro["groups"]
                                            for document in group["documents"]), list(range(count)))
                    described = ["--model", self.folder / "model.toml", "--cluster", A100, "--ranks", ranks]
                    checked = self.json_of("plan", "check", out, *described, "--memory-per-rank", "2GiB")
                    self.assertTrue(checked["ok"], checked)
                    played = self.json_of("simulate", *described, "--memory", "2GiB", "--plan", out, "--additive")
                    self.assertTrue(played["fits"])
                    self.assertAlmostEqual(played["seconds"], found["simulated_seconds"], places=9)
                    self.assertAlmostEqual(played["additive"]["seconds"], found["seconds"],
                                           delta=1e-6 * found["seconds"])
        self.assertEqual([plan["source"], plan["lengths"]], [[1, 3, 4], [3840, 120, 120]])
        said = self.run_program(*self.of_samples(self.clips(), "--compare", "--explain")).stdout
        self.assertIn(" s for 6 samples on 8 ranks,", said)
        self.assertRegex(said, r"\d groups? of \d ranks?: \d samples?, computing")

    def test_the_first_samples_packed_or_from_standard_input(self):
        made = self.of_samples(self.clips(), "--batch", 4)
        plain = self.json_of(*made)
        self.assertEqual(plain["samples"], 4)
        self.assertEqual(self.json_of(*self.of_samples(self.clips(CLIPS[:4])))["hash"], plain["hash"])
        text = self.clips().read_bytes()
        for sent in (text, gzip.compress(text), text.replace(b" ", b",\t").replace(b"\n", b"\r\n")):
            command = [PARADYSE, *map(str, made), "--json"]
            command[command.index("--samples") + 1] = "-"
            done = subprocess.run(command, input=sent, capture_output=True)
            self.assertEqual(json.loads(done.stdout)["hash"], plain["hash"], done.stderr)

    def test_group_sizes(self):
        out = self.folder / "plan.json"
        self.json_of(*self.of_samples(self.clips(), "--group-sizes", "2,4", "--out", out))
        sizes = {len(group["ranks"]) for micro in json.loads(out.read_text())["micro_batches"]
                 for group in micro["groups"] if group["documents"]}
        self.assertLessEqual(sizes, {2, 4})
        self.assertIn("accepted: 1, 2, 4, 8", self.error_of(*self.of_samples(self.clips(), "--group-sizes", "3")))

    def test_samples_without_room_are_named(self):
        made = self.of_samples(self.clips([(4, 256), (64, 16_384)]), "--memory", "300MiB", ranks=8)
        said = self.error_of(*made)
        self.assertIn("no plan: sample 1 (frames 64, patches 16384) finds no room: it needs", said)
        for option in ("--ranks", "--memory"):  # what is advised does
            advised = list(made)
            advised[advised.index(option) + 1] = said.split(option + " ")[1].split()[0].strip("),")
            self.run_program(*advised)

    def test_bad_lines_are_named(self):
        for text, said in (
                ("", "no sample in it; expected frames=N patches=N"),
                ("frames=1 patches=2\nframes=1\n", "line 2: 'frames=1' does not say patches; expected frames=N"),
                ("frames=1 patchs=2\n",
                 "'patchs=2': samples of this model have no such size (did you mean 'patches'?)"),
                ("frames=1 patches=2 text=3\n", "'text=3': samples of this model have no such size"),
                ("\nframes=0 patches=2\n", "line 2: 'frames=0': a size is a whole number from 1 to 16777216"),
                ("frames=1 patches=-2\n", "'patches=-2': a size is"),
                ("frames=1.5 patches=2\n", "'frames=1.5': a size"),
                ("frames=1 patches=99999999999999999999\n", "a size is a whole number"),
                ("frames=16777216 patches=16777216\n", "too large: "),
                ("frames=1 patches=2 frames=1\n", "'frames=1': frames stands there twice"),
                ("frames 1 patches 2\n", "'frames' is not NAME=SIZE"), ("frames=1 patches=2\0\n", "NUL byte")):
            message = self.error_of(*self.of_samples(self.write("bad.txt", text)))
            self.assertIn("bad.txt", message)
            self.assertIn(said, message)
        for text, said in (("sequences=4 residues=8 i=8\n", "'i=8': samples of this model have no such size"),
                           ("sequences=4\n", "does not say residues; expected sequences=N residues=N")):
            self.assertIn(said, self.error_of(*self.of_samples(self.write("bad.txt", text), model=TINY_EVOFORMER)))
        self.assertIn("nowhere.txt: is not there; give a file", self.error_of(*self.of_samples("nowhere.txt")))

    def test_inputs_of_other_models(self):
        lengths = self.lengths([5])
        made = self.of_samples(self.clips())
        self.assertIn("--lengths and --samples: give one of them", self.error_of(*made, "--lengths", lengths))
        self.assertIn("give the lengths of its documents with --lengths FILE",
                      self.error_of(*self.of_samples(self.clips(), model=LLAMA)))
        said = self.error_of(*self.of_samples(self.clips())[:-2])
        self.assertIn("--samples FILE is missing", said)
        self.assertIn("frames=N patches=N", said)
        made = self.of_samples(self.clips())
        made[made.index("--samples"):] = ["--lengths", lengths]
        self.assertIn("--lengths is for language models", self.error_of(*made))
        for option in (["--context", 5], ["--stream"]):
            self.assertIn(f"{option[0]} applies to documents (--lengths), not to samples",
                          self.error_of(*self.of_samples(self.clips(), *option)))
        self.assertIn("--lengths FILE is missing", self.error_of(
            "plan", "batch", "--model", self.write("llama.toml", LLAMA), "--cluster", A100))


if __name__ == "__main__":
    unittest.main()
