"""The wheel and PyTorch, Transformers and TRL from PyPI in a clean environment: all cases of tests/python/torch and data,
and adapters against PEFT.

Skipped, with a line that says so, where PyPI is out of reach.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import data_test
import skips
from torch_test import CASES, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
WHEELS = ROOT / ".deps/python-3.11"
PACKAGES = ["torch>=2.7", "transformers", "numpy", "accelerate", "datasets", "trl", "peft", "torchtitan", "mypy",
            "jinja2", "pyarrow", "zstandard", "megatron-core"]
ADAPTERS = ["FamiliesTest.test_adapters_of_peft", "FamiliesTest.test_trained_adapters_go_back_to_peft"]


class TorchLongTest(unittest.TestCase):
    def test_in_a_clean_environment(self):
        with tempfile.TemporaryDirectory(prefix="paradyse_torch_") as name:
            folder = pathlib.Path(name)
            subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
            python = folder / "venv/bin/python"
            clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
            done = subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], capture_output=True, text=True,
                                  timeout=3000, env=clean)
            if done.returncode:
                said = done.stderr.strip().splitlines()[-1]
                print(f"skipped: paradyse.torch is not tested with packages from PyPI: {said}")
                self.skipTest(said)
            subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
                            "--no-index", "--wheel-dir", folder, ROOT], check=True, timeout=3000,
                           env={"CMAKE_BUILD_PARALLEL_LEVEL": "2", **os.environ, "PYTHONPATH": str(WHEELS)})
            wheel, = folder.glob("paradyse-*.whl")
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel], check=True,
                           timeout=600, env=clean)
            for case in [*CASES, *data_test.CASES]:
                with self.subTest(case.stem):
                    said, code = run(case, python, package="", PARADYSE_TEST_LONG="1")
                    self.assertEqual(code, 0, said)
            few = {key: value for key, value in os.environ.items() if key != "PARADYSE_TEST_LONG"}  # a seed, some ways
            done = subprocess.run([sys.executable, ROOT / "tests/cli/families_test.py", *ADAPTERS], capture_output=True,
                                  text=True, timeout=1800, env={**few, "PARADYSE_TORCH_PYTHON": str(python)})
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertNotIn("skipped", done.stdout)


if __name__ == "__main__":
    skips.main()
