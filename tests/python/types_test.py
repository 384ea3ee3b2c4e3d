"""The package's types: mypy finds no fault with a user's code, nor with the package, and finds a mistake."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import paradyse

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = pathlib.Path(paradyse.__file__).resolve().parent


class TypesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="paradyse_types_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def mypy(self, *files):
        # paradyse.torch is for a Python that has PyTorch: tests/python/torch/types_case.py
        done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--exclude", "/paradyse/torch/", "--cache-dir", self.folder / "cache", *files],
                              cwd=self.folder, capture_output=True, text=True,
                              env={**os.environ, "MYPYPATH": str(PACKAGE.parent)})
        return done.returncode, done.stdout + done.stderr

    def test_a_users_code_and_the_package(self):
        wrong = self.folder / "wrong.py"
        wrong.write_text((HERE / "typed_sample.py").read_text() + "\nseconds_of('model', [1.5], None)\n")
        code, said = self.mypy(PACKAGE, HERE / "typed_sample.py")
        self.assertEqual(code, 0, said)
        code, said = self.mypy(wrong)
        self.assertEqual((code, said.count("error: ")), (1, 3), said)

    def test_the_package_says_that_it_has_types(self):
        self.assertTrue((PACKAGE / "py.typed").exists())
        stub = (PACKAGE / "_plan.pyi").read_text()
        for name in paradyse.__all__:
            if name != "__version__":
                self.assertRegex(stub, rf"(?m)^(class|def) {name}\b")


if __name__ == "__main__":
    unittest.main()
