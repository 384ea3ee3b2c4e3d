"""mypy finds no fault with paradyse.torch; PyTorch itself has functions without types."""

import importlib.util
import os
import pathlib
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
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--allow-untyped-calls", "--cache-dir", cache,
                                   pathlib.Path(paradyse.__file__).parent / "torch"], capture_output=True, text=True,
                                  timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
