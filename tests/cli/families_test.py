"""Every text family of random sizes against Hugging Face transformers: loss and all gradients in float64, on 1
to 4 ranks, and the way of a trained model back to transformers.

It needs PyTorch and transformers: of this Python, or of the one that PARADYSE_TORCH_PYTHON names.  Without them it
is skipped, with a line that says so; tests/golden/hf_* hold their numbers for grad_test.py.
"""

import itertools
import json
import os
import pathlib
import subprocess
import sys
import unittest

import skips
from support import ProgramTest, gradient_error, read_tensors

PYTHON = os.environ.get("PARADYSE_TORCH_PYTHON", sys.executable)
FAMILIES = pathlib.Path(__file__).resolve().parent / "families.py"
WAYS = ["MegatronTS", "UlyssesZ", "DataZ", "MegatronCZ", "USP", "AllGatherKV", "ColossalZ", "METP"]
SEEDS = [1, 2, 3] if "PARADYSE_TEST_LONG" in os.environ else [1]


def judge(*arguments):
    done = subprocess.run([PYTHON, FAMILIES, *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}, timeout=600)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout


class FamiliesTest(ProgramTest):
    def setUp(self):
        super().setUp()
        found = subprocess.run([PYTHON, "-c", "import numpy, safetensors, torch, transformers"],
                               capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
        if found.returncode:
            missing = found.stderr.strip().splitlines()[-1]
            print(f"skipped: families are not held against transformers: {PYTHON}: {missing} "
                  "(PARADYSE_TORCH_PYTHON names another)")
            self.skipTest(missing)

    def folders(self, seed):
        made = self.folder / str(seed)
        judge("make", made, seed)
        found = sorted(made.iterdir())
        self.assertGreaterEqual(len(found), 9)
        return found

    def adapted(self, seed):
        """PEFT folders of random settings and factors beside the families' own."""
        found = subprocess.run([PYTHON, "-c", "import peft"], capture_output=True, text=True,
                               env={**os.environ, "PYTHONPATH": ""})
        if found.returncode:
            print(f"skipped: adapters are not held against PEFT: {PYTHON} has no peft")
            self.skipTest("no peft")
        self.folders(seed)
        judge("adapt", self.folder / str(seed), seed)
        return sorted((self.folder / str(seed)).glob("peft_*"))

    def test_losses_and_gradients(self):
        for seed in SEEDS:
            for number, (folder, way, ranks) in enumerate(
                    itertools.product(self.folders(seed), WAYS, [1, 2, 3, 4])):
                if number % 5 != seed % 5 and "PARADYSE_TEST_LONG" not in os.environ:
                    continue
                with self.subTest(folder=folder.name, seed=seed, way=way, ranks=ranks):
                    out = self.folder / "gradients.safetensors"
                    answer = self.json_of(
                        "grad", "--model", folder, "--data", folder / "documents.jsonl", "--out", out,
                        "--attention", way, "--ranks", ranks)
                    loss = json.loads((folder / "expected.json").read_text())["loss"]
                    self.assertAlmostEqual(answer["loss"], loss, 9)
                    error = gradient_error(
                        read_tensors(out), read_tensors(folder / "expected_gradients.safetensors"))
                    self.assertLess(error, 1e-9)

    def trained(self, name, model, data, *settings):
        """The model folder of a run of two steps."""
        settings = ["train.steps=2", "train.tokens_per_step=40", "data.min_tokens=1", "optimizer.lr=0.01",
                    f"output.folder={self.folder}", f"output.name={name}", *settings]
        self.run_program("train", "--model", model, "--data", data, "--ranks", 2,
                         *itertools.chain(*(("--set", one) for one in settings)))
        return self.folder / name / "model"

    def test_a_trained_model_goes_back(self):
        for folder in self.folders(4):
            with self.subTest(folder=folder.name):
                data = folder / "documents.jsonl"
                saved = self.trained("run-" + folder.name, folder, data)
                # An untied head of BERT and RoBERTa has its bias twice in files, of which one is used.
                tensors = set(read_tensors(folder / "model.safetensors")) ^ set(read_tensors(saved / "model.safetensors"))
                self.assertLessEqual(tensors, {"lm_head.bias", "cls.predictions.bias"})
                mine = self.json_of("eval", "--model", saved, "--data", data)
                self.assertAlmostEqual(mine["loss"], json.loads(judge("loss", saved, data)), 5)
                self.assertNotAlmostEqual(
                    mine["loss"], json.loads((folder / "expected.json").read_text())["loss"], 5)


    def test_adapters_of_peft(self):
        for seed in SEEDS:
            for number, (folder, way, ranks) in enumerate(itertools.product(self.adapted(seed), WAYS, [1, 2, 3, 4])):
                if number % 7 != seed % 7 and "PARADYSE_TEST_LONG" not in os.environ:
                    continue
                with self.subTest(folder=folder.name, seed=seed, way=way, ranks=ranks):
                    out = self.folder / "gradients.safetensors"
                    data = folder.parent / folder.name.replace("peft_", "hf_") / "documents.jsonl"
                    answer = self.json_of("grad", "--model", folder, "--data", data, "--out", out,
                                          "--attention", way, "--ranks", ranks)
                    expected = json.loads((folder / "expected.json").read_text())
                    self.assertAlmostEqual(answer["loss"], expected["loss"], 9)
                    theirs = read_tensors(folder / "expected_gradients.safetensors")
                    named = {name.removeprefix("base_model.model.").replace(".base_layer.", "."): tensor
                             for name, tensor in theirs.items()}
                    self.assertLess(gradient_error(read_tensors(out), named), 1e-9)

    def test_trained_adapters_go_back_to_peft(self):
        for folder in self.adapted(4):
            base = folder.parent / folder.name.replace("peft_", "hf_")
            with self.subTest(folder=folder.name):
                data = base / "documents.jsonl"
                name = "run-" + folder.name
                saved = self.trained(name, base, data, "train.dtype=float64", f"lora.path={folder}")
                self.run_program("export", self.folder / name, self.folder / (name + "-merged"), "--merge")
                theirs = json.loads(judge("adapted", saved, data))
                self.assertEqual(
                    sorted(theirs["trained"]), sorted(read_tensors(folder / "expected_gradients.safetensors")))
                for model in (saved, self.folder / (name + "-merged")):
                    mine = self.json_of("grad", "--model", model, "--data", data, "--out", self.folder / "g.safetensors")
                    self.assertAlmostEqual(mine["loss"], theirs["loss"], 9)
                self.assertAlmostEqual(
                    json.loads(judge("loss", self.folder / (name + "-merged"), data)), theirs["loss"], 9)
                self.assertNotAlmostEqual(
                    theirs["loss"], json.loads((folder / "expected.json").read_text())["loss"], 5)


if __name__ == "__main__":
    skips.main()
