"""The code of docs/guide/from_pytorch.md runs, block after block, on two ranks."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]


class DocsTest(unittest.TestCase):
    def test_the_guide(self):
        code = "".join(re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/guide/from_pytorch.md").read_text(),
                                  re.S | re.M))
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "guide.py"
            script.write_text(code)
            done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                                   "2", script], cwd=folder, capture_output=True, text=True, timeout=300,
                                  env={**os.environ, "OMP_NUM_THREADS": "1"})
            self.assertEqual(done.returncode, 0, done.stderr[-4000:])
            self.assertTrue((pathlib.Path(folder) / "costs.json").exists())
        self.assertRegex(done.stdout, r"paradyse.torch.check: loss differs by \d\.\de-\d+, gradients by at most \d\.\de-0[67]")
        self.assertRegex(done.stdout, r"paradyse.torch: \d+ steps, predicted .* measured .* imbalance")


if __name__ == "__main__":
    unittest.main()
