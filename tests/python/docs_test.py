"""The Python of the documents runs, block after block of a page, in the folder of the guide."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import paradyse

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = paradyse.Model.from_folder(str(ROOT / "configs/models/llama-70b.toml"))
CLUSTER = paradyse.Cluster.from_file(str(ROOT / "configs/clusters/64xH100.toml"), ranks=32)
FILES = ["models/llama-70b.toml", "models/stdit_tiny.toml", "clusters/64xH100.toml"]


class DocsTest(unittest.TestCase):
    def test_every_block_of_python(self):
        for page in ("docs/guide/cluster.md", "docs/reference/python.md", "docs/reference/plan_file.md"):
            code = "".join(re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.S | re.M))
            with self.subTest(page), tempfile.TemporaryDirectory(prefix="paradyse_docs_") as folder:
                for file in FILES:
                    shutil.copy(ROOT / "configs" / file, folder)
                plan = paradyse.plan_batch(MODEL, [512, 8192, 300, 16000], CLUSTER)
                plan.write(pathlib.Path(folder) / "plan.json")
                done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True,
                                      text=True)
                self.assertEqual(done.returncode, 0, code + done.stderr)
                self.assertIn("import ", code)
                if page.endswith("plan_file.md"):
                    self.assertEqual(done.stdout.strip(), plan.hash)


if __name__ == "__main__":
    unittest.main()
