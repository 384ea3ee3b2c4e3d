"""mypy finds no fault with paradyse.torch; PyTorch itself has functions without types."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import paradyse

LONG = bool(os.environ.get("PARADYSE_TEST_LONG"))

class TypesTest(unittest.TestCase):
    @unittest.skipUnless(LONG, "in make test-long")
    @unittest.skipUnless(importlib.util.find_spec("mypy"), "no mypy in this Python")
    def test_the_package(self):
        with tempfile.TemporaryDirectory() as folder:  # mypy takes what lies in site-packages for somebody else's
            shutil.copytree(pathlib.Path(paradyse.__file__).parent, pathlib.Path(folder) / "paradyse")
            done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--allow-untyped-calls", "--cache-dir",
                                   pathlib.Path(folder) / "cache", "paradyse/torch"], cwd=folder, capture_output=True,
                                  text=True, timeout=600, env={**os.environ, "PYTHONPATH": ""})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
