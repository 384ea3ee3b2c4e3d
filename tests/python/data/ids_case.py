"""paradyse-data encode and decode: the ids and texts of transformers, also through `paradyse generate`."""

import contextlib
import importlib.util
import io
import json
import os
import random
import shutil
import subprocess
import sys
import unittest

import made
import numpy
import transformers
from paradyse.data.cli import main
from paradyse.data.container import PairWriter
from support import FolderTest

PROGRAM = os.environ.get("PARADYSE", "")


class IdsTest(FolderTest):
    def tokenizer(self, name, tokenizer):
        tokenizer.save_pretrained(self.folder / name)
        return transformers.AutoTokenizer.from_pretrained(self.folder / name)

    def kinds(self):
        for name, own in (("bpe", made.byte_bpe()), ("bpe_bos", made.byte_bpe(bos="<s>")), ("word_piece", made.word_piece()),
                          ("unigram", made.unigram())):
            yield name, self.tokenizer(name, own)

    def said(self, command, name, *arguments):
        """What the command prints, in this process."""
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.chdir(self.folder):
            self.assertEqual(main([command, "--tokenizer", name, *arguments]), 0)
        return said.getvalue()

    def test_decode_is_that_of_transformers(self):
        for name, theirs in self.kinds():
            draw = random.Random(3)
            lists = [theirs(text)["input_ids"] for text in made.SCRIPTS.values()]
            lists += [[draw.randrange(len(theirs)) for _ in range(draw.randrange(1, 50))] for _ in range(100)] + [[]]
            self.write("ids.txt", "".join(" ".join(map(str, ids)) + "\n" for ids in lists))
            self.write("ids.jsonl", "".join(json.dumps({"tokens": ids}) + "\n" for ids in lists))
            self.write("ids.json", "\n".join(json.dumps(ids, indent=2) for ids in lists))
            for skip in (False, True):
                wanted = [theirs.decode(ids, skip_special_tokens=skip) for ids in lists]
                for file in ("ids.txt", "ids.jsonl", "ids.json"):
                    said = self.said("decode", name, "--json", file, *["--skip-special-tokens"] * skip)
                    self.assertEqual([json.loads(line)["text"] for line in said.splitlines()], wanted, name)
                    plain = self.said("decode", name, file, *["--skip-special-tokens"] * skip)
                    self.assertEqual(plain, "".join(text + "\n" for text in wanted), name)

    def test_encode_is_that_of_transformers(self):
        for name, theirs in self.kinds():
            for text in ["hello", "", "two\nlines\n", *list(made.SCRIPTS.values())[::5]]:
                self.write("x.txt", text)
                for how, wanted in (([], theirs(text)["input_ids"]),
                                    (["--no-special-tokens"], theirs(text, add_special_tokens=False)["input_ids"])):
                    self.assertEqual(self.said("encode", name, "x.txt", *how), " ".join(map(str, wanted)) + "\n")
                    self.assertEqual(self.said("encode", name, "--text", text, *how), " ".join(map(str, wanted)) + "\n")
                    self.assertEqual(json.loads(self.said("encode", name, "x.txt", "--json", *how)), {"tokens": wanted})

    def test_what_is_refused(self):
        theirs = self.tokenizer("t", made.byte_bpe())
        for content, words in (
                ("1 2\n3 x4\n", "ids.txt:2: 'x4' is no id"), ("1 -2\n", "ids.txt:1: '-2' is no id"), ("1.5", "'1.5'"),
                ("1" * 5000, "is no id"), ("[1]\n\n[2]\n{", "ids.txt:4: is not JSON"),
                (f"1 {len(theirs)}\n", f"ids.txt:1: id 1 is {len(theirs)}, for which the tokenizer"),
                ('{"tokens": [1]}\n{"text": "a"}\n', "ids.txt:2: has no list of ids"),
                ("[1, true]", "has no list of ids"), ("[1, 2.0]", "has no list of ids"), ('{"tokens": 3}', "has no list"),
                ("[1, -2]", "has no list of ids"), ("[1", "ids.txt:1: is not JSON"), ("[" * 100_000, "is not JSON"),
                (b"1 \xff\xfe1\x00", "ids.txt: is not UTF-8 (byte 0xff at 2); convert it: iconv")):
            self.write("ids.txt", content)
            with self.subTest(words), contextlib.redirect_stderr(io.StringIO()) as said, contextlib.chdir(self.folder):
                self.assertEqual(main(["decode", "--tokenizer", "t", "ids.txt"]), 2)
            self.assertIn(words, said.getvalue())
        self.assertIn("none: cannot be read: No such file", self.command("decode", "--tokenizer", "t", "none", code=2))
        self.assertIn("t: is a folder", self.command("decode", "--tokenizer", "t", "t", code=2))
        self.assertIn("give one of them", self.command("encode", "--tokenizer", "t", "--text", "a", "ids.txt", code=2))

    def test_inspect_refuses_ids_that_the_tokenizer_does_not_have(self):
        theirs = self.tokenizer("t", made.byte_bpe())
        for dtype, one in (("<i8", 2**63 - 1), ("<i4", -1), ("<i4", len(theirs))):
            writer = PairWriter(self.folder / "ids", numpy.dtype(dtype).name)
            writer.add(numpy.array([1, 2, one]))
            writer.finish()
            with self.subTest(one):
                self.assertIn(f"has the id {one}, which is not one of a vocabulary of {len(theirs)} ids", self.command(
                    "inspect", "ids.bin", "--tokenizer", "t", code=2))
                self.assertIn("1 token more: --from 2", self.command(
                    "inspect", "ids.bin", "--tokenizer", "t", "--count", 2))
                self.assertIn(f" {one}", self.command("inspect", "ids.bin"))

    # Bytes that are not UTF-8, which Python keeps in the words of a command line and in names of files.
    def test_what_is_no_text(self):
        self.tokenizer("t", made.byte_bpe())
        self.write("rows.jsonl", '{"text": "hello"}\n')
        prepare = ["prepare", "--tokenizer", "t", "--input", "rows.jsonl", "--out", "out"]
        wrong = os.fsdecode(b"h\xc3\xa9 \xfft")
        for arguments, words in (
                (["encode", "--tokenizer", "t", "--text", wrong], "--text: is not UTF-8 (byte 0xff at 4); convert it"),
                (["encode", "--tokenizer", wrong, "--text", "a"], "h\u00e9 \\xfft: is not a folder"),
                ([*prepare, "--text-key", wrong], "--text-key: is not UTF-8 (byte 0xff at 4)"),
                ([*prepare, "--messages-key", wrong], "--messages-key: is not UTF-8 (byte 0xff at 4)"),
                ([*prepare, "--end-id", wrong], "--end-id: is not UTF-8 (byte 0xff at 4)"),
                ([*prepare, "--template-args", f'{{"a": "{wrong}"}}'], '{"a": "h\u00e9 \\xfft"} is not UTF-8'),
                ([*prepare, "--template-args", '{"a": "\\udc80"}'], "has half of a surrogate pair"),
                ([*prepare, "--chat-template", "template"], "template: is not UTF-8 (byte 0xff at 2); convert it")):
            self.write("template", b"{{\xff}}")
            with self.subTest(words):
                self.assertIn(words, self.command(*arguments, code=2))
        for command, content in (("encode", b"a\xff"), ("decode", b"1\xff")):
            self.assertIn("standard input: is not UTF-8 (byte 0xff at 1); convert it", self.said_of_bytes(command, content))
        shutil.copytree(self.folder / "t", self.folder / wrong)
        self.assertIn("h\u00e9 \\xfft: has a name that is not UTF-8", self.command(
            "encode", "--tokenizer", wrong, "--text", "a", code=2))
        # names of folders that are written may be any, and are said on any standard output
        strict, out = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}, os.fsdecode(b"o\xff")
        self.assertIn("o\\xff: 1 document", self.command(*prepare[:-1], out, env=strict))
        self.assertIn("o\\xff", self.command("stats", out, "--svg", "x.svg", env=strict))
        self.assertIn("o\\xff: 1 document", (self.folder / "x.svg").read_text())
        self.assertIn("standard output: takes ascii", self.command(
            "decode", "--tokenizer", "t", input=self.command("encode", "--tokenizer", "t", "--text", "h\u00e9"), code=2,
            env={**os.environ, "PYTHONIOENCODING": "ascii:strict"}))

    def said_of_bytes(self, command, content):
        done = subprocess.run([sys.executable, "-m", "paradyse.data", command, "--tokenizer", "t"], cwd=self.folder,
                              input=content, capture_output=True, timeout=300)
        self.assertEqual(done.returncode, 2)
        return done.stderr.decode()

    @unittest.skipUnless(PROGRAM and importlib.util.find_spec("torch"), "no PARADYSE, or no torch in this Python")
    def test_generate_writes_on_as_transformers_does(self):
        import torch
        theirs = self.tokenizer("m", made.byte_bpe(bos="<s>", lines=True))
        torch.manual_seed(1)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=64,
            vocab_size=len(theirs), max_position_embeddings=128, bos_token_id=theirs.bos_token_id,
            eos_token_id=theirs.eos_token_id, initializer_range=0.5))
        model.save_pretrained(self.folder / "m")
        prompt = "hello, what is"
        ids = theirs(prompt, return_tensors="pt")["input_ids"]
        wanted = theirs.decode(model.generate(ids, do_sample=False, max_new_tokens=20)[0, ids.shape[1]:])
        given = self.command("encode", "--tokenizer", "m", input=prompt).split()
        for how in ([], ["--json"]):
            written = subprocess.run([PROGRAM, "generate", "--model", "m", "--temperature", "0", "--max-new-tokens", "20",
                                      *how, "--tokens", *given], cwd=self.folder, check=True, capture_output=True,
                                     text=True).stdout
            self.assertEqual(self.command("decode", "--tokenizer", "m", input=written), wanted + "\n")


if __name__ == "__main__":
    unittest.main()
