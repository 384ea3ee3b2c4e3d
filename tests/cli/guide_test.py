"""The commands and the Python of docs/guide run, page by page in its order, in one folder."""
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from support import PARADYSE, ProgramTest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide"
LICENSES = pathlib.Path("/usr/share/common-licenses")
FILES = ["models/llama-8b.toml", "models/llama-70b.toml", "models/stdit_tiny.toml", "models/evoformer_tiny.toml",
         "clusters/64xH100.toml"]


# Of Python that uses what commands left, without paradyse, whose blocks docs_test.py and docs_case.py run.
PYTHON = os.environ.get("PARADYSE_TORCH_PYTHON", sys.executable)


def blocks(page):
    """Language and text of each block that runs."""
    text = page.read_text()
    languages = "sh" if "import paradyse" in text else "sh|python"
    return re.findall(rf"^```({languages})\n(.*?)^```$", text, re.S | re.M)


def missing(packages):
    """Why this Python cannot import them; empty: it can."""
    found = subprocess.run([PYTHON, "-c", f"import {packages}"], capture_output=True, text=True,
                           env={**os.environ, "PYTHONPATH": ""})
    return found.stderr.strip().splitlines()[-1] if found.returncode else ""


class GuideTest(ProgramTest):
    def licenses(self):
        """As the pages' corpus, short and long, but cut: the longest text is split, others are a page.

        Attention takes most of the time of the pages' commands, by the square of the lengths.
        """
        folder = self.folder / "licenses"
        folder.mkdir()
        longest = max(sorted(LICENSES.iterdir()), key=lambda path: path.stat().st_size)
        for path in LICENSES.iterdir():
            (folder / path.name).write_bytes(path.read_bytes()[:6000 if path == longest else 2000])
        return folder, longest.stat().st_size

    def test_every_command_of_every_page(self):
        pages = re.findall(r"^\d+\. \[.*\]\((\w+\.md)\)$", (GUIDE / "README.md").read_text(), re.M)
        self.assertEqual(sorted(pages + ["README.md"]), sorted(p.name for p in GUIDE.iterdir()))
        for file in FILES:
            shutil.copy(ROOT / "configs" / file, self.folder)
        licenses, longest = self.licenses()
        # the same commands on less
        less = {f"{LICENSES}/": f"{licenses}/", "costs.profile_seconds=60": "costs.profile_seconds=15"}
        replaced = collections.Counter()
        pythons = 0
        path = f"{pathlib.Path(PARADYSE).resolve().parent}:{os.environ['PATH']}"
        for page in pages:
            for number, (language, block) in enumerate(blocks(GUIDE / page)):
                for written, shorter in less.items():
                    replaced[written] += block.count(written)
                    block = block.replace(written, shorter)
                command, more = ["bash", "-euo", "pipefail", "-c", block], {"PATH": path}
                if language == "python":
                    command, more = [PYTHON, "-c", block], {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
                    pythons += 1
                    if why := missing(", ".join(re.findall(r"^import (.*)$", block, re.M))):
                        print(f"skipped: the Python of {page} is not run: {PYTHON}: {why} (PARADYSE_TORCH_PYTHON names "
                              "another)")
                        continue
                with self.subTest(page=page, block=number):
                    done = subprocess.run(command, cwd=self.folder, timeout=300, env={**os.environ, **more},
                                          capture_output=True, text=True)
                    self.assertEqual(done.returncode, 0, block + done.stdout + done.stderr)
        self.assertEqual(set(replaced.values()), {1})
        self.assertEqual(pythons, 2)  # of your_model.md and lora.md
        # the memory of the pages' run suffices for the whole texts
        self.assertIn('memory_per_rank = "64MiB"', (self.folder / "run.toml").read_text())
        self.assertTrue(self.json_of("plan", "layers", "--model", self.folder / "llama.toml", "--length",
                                     longest, "--ranks", 2, "--capacity", "64MiB")["feasible"])

    def test_pages_are_not_too_wide(self):
        for page in GUIDE.iterdir():
            for number, line in enumerate(page.read_text().splitlines(), 1):
                table = line.startswith("|")
                self.assertTrue(table or len(line) <= 118, f"{page.name}:{number}")


if __name__ == "__main__":
    unittest.main()
