"""What the cases share: folders that go away, refusals by their words, and a tokenizer that needs no package."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import numpy as np
from paradyse.data.document import Document, Place
from paradyse.data.refusal import Refused


class FolderTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="paradyse_data_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def refused(self, words, call, *arguments, **named):
        """A call is refused, and the message has these words."""
        with self.assertRaises(Refused) as found:
            call(*arguments, **named)
        said = str(found.exception)
        for word in words if isinstance(words, (list, tuple)) else [words]:
            self.assertIn(str(word), said)
        return said

    def command(self, *arguments, code=0, **named):
        """What the command prints on standard output, or, where it fails, on standard error."""
        done = subprocess.run([sys.executable, "-m", "paradyse.data", *map(str, arguments)], cwd=self.folder,
                              capture_output=True, text=True, timeout=300, **named)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stderr if code else done.stdout


class Letters:
    """Stands for a tokenizer of bytes: id 0 is BOS, 1 EOS, 2 unknown, byte b is 3 + b; capitals ACGT are letters, too."""

    name, template, marks = "letters", None, False
    vocab_size, bos_id, unk_id, special_ids, special_tokens = 259, 0, 2, frozenset({0, 1}), ("<s>", "</s>")
    before, after = [0], []
    vocabulary = {"A": 68, "C": 70, "G": 74, "T": 87, "AC": 200, "GT": 201}

    def __init__(self, options=None):
        self.folder = pathlib.Path("letters")

    def end_id(self, asked):
        return None if asked == "none" else 1

    def texts(self, texts):
        return [[0, *(3 + byte for byte in text.encode())] for text in texts]

    def pieces(self, ids):
        return [("<s>", "</s>", "<unk>")[i] if i < 3 else chr(i - 3) for i in ids]


def document(ids, mask=None, line=1):
    return Document(np.asarray(ids, np.int64), None if mask is None else np.asarray(mask, np.uint8), Place(0, "in", line))


def raw_pair(prefix):
    """The ids of each document of a pair, by a few lines that share nothing with the package."""
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0" and index[9:17] == (1).to_bytes(8, "little")
    dtype = {1: "u1", 4: "<i4", 8: "<u2"}[index[17]]
    count, bounds = (int.from_bytes(index[at:at + 8], "little") for at in (18, 26))
    lengths = np.frombuffer(index, "<i4", count, 34)
    pointers = np.frombuffer(index, "<i8", count, 34 + 4 * count)
    documents = np.frombuffer(index, "<i8", bounds, 34 + 12 * count)
    assert bounds == count + 1 and documents.tolist() == list(range(count + 1))
    assert len(index) == 34 + 12 * count + 8 * bounds
    data = np.memmap(f"{prefix}.bin", "u1", "r")
    assert data.size == lengths.sum() * np.dtype(dtype).itemsize
    return [data[p:p + n * np.dtype(dtype).itemsize].view(dtype).tolist() for p, n in zip(pointers, lengths)]


def contents(folder):
    """Every file of a folder, but for what names the folder itself."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def plain(text):
    return re.sub(r"\s+", " ", text)
