"""`pip install .` into a clean environment: a wheel without libtorch that is imported and plans."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WHEELS = ROOT / ".deps/python-3.11"
PLAN = """
import paradyse
model = paradyse.Model.from_folder({model!r})
cluster = paradyse.Cluster.from_file({cluster!r}, ranks=8)
plan = paradyse.plan_batch(model, [512, 8192, 300], cluster)
print(paradyse.__version__, len(plan.lengths), paradyse.__file__)
"""


class WheelTest(unittest.TestCase):
    def test_it_is_built_installed_and_imported(self):
        with tempfile.TemporaryDirectory(prefix="paradyse_wheel_") as name:
            folder = pathlib.Path(name)
            environment = {"CMAKE_BUILD_PARALLEL_LEVEL": "2", **os.environ, "PYTHONPATH": str(WHEELS)}
            # no network: what builds it is there
            subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
                            "--no-index", "--wheel-dir", folder, ROOT], check=True, env=environment)
            wheel, = folder.glob("paradyse-*.whl")
            files = zipfile.ZipFile(wheel).namelist()
            module, = (file for file in files if re.fullmatch(r"paradyse/_plan\..*\.so", file))
            for file in ("paradyse/__init__.py", "paradyse/_plan.pyi", "paradyse/py.typed", "paradyse/torch/steps.py",
                         "paradyse/data/cli.py"):
                self.assertIn(file, files)
            zipfile.ZipFile(wheel).extract(module, folder)
            linked = subprocess.run(["ldd", folder / module], capture_output=True, text=True, check=True).stdout
            self.assertNotRegex(linked, "torch|c10|highs|libpython")
            self.assertLess(wheel.stat().st_size, 8 << 20)
            subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
            python = folder / "venv/bin/python"
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
            site, = (folder / "venv/lib").glob("python*/site-packages")
            for part in ("numpy", "numpy.libs"):
                (site / part).symlink_to(WHEELS / part)
            code = PLAN.format(model=str(ROOT / "configs/models/llama-0.9b.toml"),
                               cluster=str(ROOT / "configs/clusters/8xH100.toml"))
            clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
            done = subprocess.run([python, "-c", code], cwd=folder, capture_output=True, text=True, env=clean)
            self.assertEqual(done.returncode, 0, done.stderr)
            version, documents, where = done.stdout.split()
            self.assertEqual(documents, "3")
            self.assertIn(f"VERSION {version} ", (ROOT / "CMakeLists.txt").read_text())
            self.assertTrue(where.startswith(str(folder / "venv")))
            (folder / "ids.jsonl").write_text('{"tokens": [1, 2, 3]}')
            command = [folder / "venv/bin/paradyse-data", "stats", "ids.jsonl"]  # NumPy suffices
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=clean)
            self.assertIn("1 document, 3 tokens, 2 labels", done.stdout, done.stderr)
            command[1:] = ["prepare", "--tokenizer", folder, "--input", "ids.jsonl", "--out", "out"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=clean)
            self.assertEqual(done.returncode, 2)
            self.assertIn("pip install transformers", done.stderr)


if __name__ == "__main__":
    unittest.main()
