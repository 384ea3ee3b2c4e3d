"""paradyse.data: the cases of tests/python/data.

Those of containers, files, limits, letters, shards, figures and conversions need NumPy alone and always run.  Those in
PACKAGES need transformers and its kin: of this Python, or of the one that PARADYSE_TORCH_PYTHON names.  Without them
they are skipped, with a line that says so.
"""

import os
import pathlib
import subprocess
import sys
import unittest

import paradyse

CASES = sorted((pathlib.Path(__file__).resolve().parent / "data").glob("*_case.py"))
PACKAGES = {"text_case": "transformers, tokenizers", "ids_case": "transformers, tokenizers",
            "chat_case": "transformers, tokenizers, jinja2",
            "rows_case": "pyarrow, zstandard", "megatron_case": "megatron.core.datasets.indexed_dataset"}
PYTHON = os.environ.get("PARADYSE_TORCH_PYTHON", sys.executable)
DEADLINE = 600  # seconds of a file of cases


def run(case, python):
    """What a file of cases printed, and its exit code."""
    paths = [str(pathlib.Path(paradyse.__file__).parents[1])]
    if python == sys.executable:
        paths.append(os.environ.get("PYTHONPATH", ""))  # NumPy
    done = subprocess.run([python, case], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"})
    return done.stdout, done.returncode


def missing(packages):
    found = subprocess.run([PYTHON, "-c", f"import numpy, {packages}"], capture_output=True, text=True,
                           env={**os.environ, "PYTHONPATH": ""})
    return found.stderr.strip().splitlines()[-1] if found.returncode else ""


class DataTest(unittest.TestCase):
    def passes(self, case, python):
        said, code = run(case, python)
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"Ran [1-9]\d* test")

    def test_cases_with_numpy_alone(self):
        plain = [case for case in CASES if case.stem not in PACKAGES]
        self.assertGreaterEqual(len(plain), 6)
        for case in plain:
            with self.subTest(case.stem):
                self.passes(case, sys.executable)

    def test_cases_with_packages(self):
        self.assertLessEqual(set(PACKAGES), {case.stem for case in CASES})
        skipped = []
        for stem, packages in PACKAGES.items():
            why = missing(packages)
            if why:
                print(f"skipped: {stem} of paradyse.data is not tested: {PYTHON}: {why} (PARADYSE_TORCH_PYTHON names "
                      "another)")
                skipped.append(why)
                continue
            with self.subTest(stem):
                self.passes(next(case for case in CASES if case.stem == stem), PYTHON)
        if len(skipped) == len(PACKAGES):
            self.skipTest(skipped[0])


if __name__ == "__main__":
    unittest.main()
