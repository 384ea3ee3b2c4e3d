"""paradyse.torch over real Gloo ranks: the cases of tests/python/torch, few of many.

They need PyTorch and transformers: of this Python, or of the one that PARADYSE_TORCH_PYTHON names.  Without them
they are skipped, with a line that says so.
"""

import os
import pathlib
import subprocess
import sys
import unittest

import paradyse
import skips

CASES = sorted((pathlib.Path(__file__).resolve().parent / "torch").glob("*_case.py"))
PYTHON = os.environ.get("PARADYSE_TORCH_PYTHON", sys.executable)
DEADLINE = 900  # seconds of a file of cases


def run(case, python=PYTHON, package=None, **environment):
    """What a file of cases printed, and its exit code."""
    package = pathlib.Path(paradyse.__file__).parents[1] if package is None else package
    done = subprocess.run([python, case], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=DEADLINE * (4 if environment else 1),
                          env={**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1", **environment})
    for line in done.stdout.splitlines():
        if line.startswith("skipped: "):
            print(line)
    return done.stdout, done.returncode


class TorchTest(unittest.TestCase):
    def setUp(self):
        found = subprocess.run([PYTHON, "-c", "import numpy, torch, transformers; print(torch.__version__)"],
                               capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
        if found.returncode:
            missing = found.stderr.strip().splitlines()[-1]
            print(f"skipped: paradyse.torch is not tested: {PYTHON}: {missing} (PARADYSE_TORCH_PYTHON names another)")
            self.skipTest(missing)
        if tuple(map(int, found.stdout.split(".")[:2])) < (2, 7):
            print(f"skipped: paradyse.torch is not tested: PyTorch {found.stdout.strip()} is older than 2.7")
            self.skipTest("PyTorch is older than 2.7")

    def test_cases(self):
        self.assertGreaterEqual(len(CASES), 4)
        for case in CASES:
            with self.subTest(case.stem):
                said, code = run(case)
                self.assertEqual(code, 0, said)
                self.assertRegex(said, r"Ran [1-9]\d* test")


if __name__ == "__main__":
    skips.main()
