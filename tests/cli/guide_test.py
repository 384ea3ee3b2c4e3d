"""The commands of docs/guide run, page by page in its order, in one folder."""
import os
import pathlib
import re
import shutil
import subprocess
import unittest

from support import PARADYSE, ProgramTest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide"
FILES = ["models/llama-70b.toml", "models/stdit_tiny.toml", "models/evoformer_tiny.toml",
         "clusters/64xH100.toml"]


def commands(page):
    return re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.S | re.M)


class GuideTest(ProgramTest):
    def test_every_command_of_every_page(self):
        pages = re.findall(r"^\d+\. \[.*\]\((\w+\.md)\)$", (GUIDE / "README.md").read_text(), re.M)
        self.assertEqual(sorted(pages + ["README.md"]), sorted(p.name for p in GUIDE.iterdir()))
        for file in FILES:
            shutil.copy(ROOT / "configs" / file, self.folder)
        path = f"{pathlib.Path(PARADYSE).resolve().parent}:{os.environ['PATH']}"
        for page in pages:
            for number, block in enumerate(commands(GUIDE / page)):
                with self.subTest(page=page, block=number):
                    done = subprocess.run(
                        ["bash", "-euo", "pipefail", "-c", block], cwd=self.folder, timeout=300,
                        env={**os.environ, "PATH": path}, capture_output=True, text=True)
                    self.assertEqual(done.returncode, 0, block + done.stdout + done.stderr)

    def test_pages_are_not_too_wide(self):
        for page in GUIDE.iterdir():
            for number, line in enumerate(page.read_text().splitlines(), 1):
                table = line.startswith("|")
                self.assertTrue(table or len(line) <= 118, f"{page.name}:{number}")


if __name__ == "__main__":
    unittest.main()
