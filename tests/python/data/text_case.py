"""Text of many scripts, emoji and random bytes has the ids of transformers; special tokens are there once."""

import contextlib
import hashlib
import io
import json
import os
import random
import unittest

import made
import transformers
from paradyse.data.cli import main
from paradyse.data.folder import Prepared
from paradyse.data.maker import Options
from paradyse.data.prepare import prepare
from support import FolderTest, contents

LONG = bool(os.environ.get("PARADYSE_TEST_LONG"))


class TextTest(FolderTest):
    def tokenizer(self, name, tokenizer):
        tokenizer.save_pretrained(self.folder / name)
        return transformers.AutoTokenizer.from_pretrained(self.folder / name)

    def prepared(self, name, texts, **options):
        """ids of each document, and what was said."""
        content = texts if isinstance(texts, str) else "".join(json.dumps({"text": text}) + "\n" for text in texts)
        path = self.write("x.jsonl", content)
        out = self.folder / f"out{len(list(self.folder.iterdir()))}"
        self.said = "\n".join(prepare(Options(str(self.folder / name), (str(path),), **options), out))
        self.head = Prepared(out).head
        return [one.ids.tolist() for one in Prepared(out)]

    def test_ids_are_those_of_transformers(self):
        random_ones = [made.random_text(seed) for seed in range(2000 if LONG else 300)]
        draw = random.Random(9)
        mixed = [" ".join(draw.choices(list(made.SCRIPTS.values()), k=5)) for _ in range(50)]
        texts = [text for text in [*made.SCRIPTS.values(), *mixed, *random_ones, "x " * 20000] if text]
        for name, own in (("bpe", made.byte_bpe()), ("bpe_bos", made.byte_bpe(bos="<s>")), ("word_piece", made.word_piece()),
                          ("unigram", made.unigram())):
            theirs = self.tokenizer(name, own)
            end = [] if theirs.eos_token_id is None else [theirs.eos_token_id]
            expected = [theirs(text)["input_ids"] for text in texts]
            bare = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
            found = self.prepared(name, texts)
            with self.subTest(name):
                self.assertEqual(found, [ids + end for ids, own_ids in zip(expected, bare) if own_ids])
                self.assertEqual(self.head["vocab_size"], len(theirs))

    def test_the_tokenizer_is_named_by_its_tokenizer_json(self):
        """As the program names it: SHA-256 of the file, whatever lies beside it."""
        self.tokenizer("named", made.byte_bpe())
        self.prepared("named", ["a text"])
        expected = hashlib.sha256((self.folder / "named" / "tokenizer.json").read_bytes()).hexdigest()
        self.assertEqual(self.head["tokenizer"]["sha256"], expected)

    def test_no_special_token_twice(self):
        theirs = self.tokenizer("t", made.byte_bpe(bos="<s>", end="</s>"))
        bos, end = theirs.bos_token_id, theirs.eos_token_id
        found = self.prepared("t", ["<s>hello", "hello</s>", "<s><s>hello</s>"])
        hello = theirs("hello", add_special_tokens=False)["input_ids"]
        self.assertEqual(found, [[bos, *hello, end]] * 3)
        self.assertIn("a BOS token before that of the document itself, which is left out: 2 documents", self.said)
        self.assertIn("texts with the text of special tokens, which became those tokens: 3 texts", self.said)
        self.assertEqual(self.prepared("t", ["hello"], end_id="none"), [[bos, *hello]])
        self.assertEqual(self.prepared("t", ["hello"], end_id="5"), [[bos, *hello, 5]])
        for wrong in ("x", "600", "-1"):
            self.refused("--end-id", self.prepared, "t", ["hello"], end_id=wrong)

    def test_end_ids_of_configurations(self):
        self.tokenizer("t", made.word_piece())
        self.assertIsNone(self.prepared("t", ["hello"]) and self.head["end_id"])
        self.write("t/config.json", '{"eos_token_id": [7, 8]}')
        self.assertEqual(self.prepared("t", ["hello"])[0][-1], 7)
        self.write("t/generation_config.json", '{"eos_token_id": 9}')
        self.assertEqual((self.prepared("t", ["hello"])[0][-1], self.head["end_id"]), (9, 9))

    def test_empty_and_unknown_text_is_told(self):
        self.tokenizer("t", made.word_piece())
        found = self.prepared("t", ["", "hello", " \n", "hello \U00012345"])
        self.assertEqual(len(found), 2)
        self.assertIn("left out: empty texts: 2 texts; first", self.said)
        self.assertIn("text that the tokenizer does not know became [UNK]: 1 token; first", self.said)

    def test_long_texts_are_not_cut_by_the_tokenizer(self):
        own = made.byte_bpe()
        own.model_max_length, own.truncation_side = 16, "right"
        own.backend_tokenizer.enable_truncation(16)
        own.backend_tokenizer.enable_padding(length=64)
        self.tokenizer("t", own)
        text = "hello world " * 100
        plain = self.tokenizer("p", made.byte_bpe())
        self.assertEqual(self.prepared("t", [text, "a"])[0], plain(text)["input_ids"] + [plain.eos_token_id])
        ids, = self.prepared("t", [text], max_tokens=10)
        self.assertEqual(ids, plain(text)["input_ids"][:10])
        self.assertIn("cut to 10 tokens, which loses: 1 document", self.said)

    def test_processes_do_not_change_a_byte(self):
        self.tokenizer("t", made.unigram())
        self.write("in/a.jsonl", "".join(json.dumps({"text": made.random_text(seed)}) + "\n" for seed in range(200)))
        for seed in range(5):
            self.write(f"in/t{seed}.txt", made.random_text(seed))
        options = Options(str(self.folder / "t"), (str(self.folder / "in"),), shard_bytes=20000)
        prepare(options, self.folder / "one")
        prepare(options, self.folder / "two", 2)
        self.assertGreater(len(Prepared(self.folder / "one").shards), 3)
        self.assertEqual(contents(self.folder / "one"), contents(self.folder / "two"))
        # another tokenizer in the same folder is another question
        self.tokenizer("t", made.byte_bpe())
        self.refused("a tokenizer with other files", prepare, options, self.folder / "one")

    def test_letters_of_a_tokenizer(self):
        own = made.words(["<unk>", "<cls>", "<eos>", *"ACGT", *(a + b for a in "ACGT" for b in "ACGT")], unk_token="<unk>",
                         cls_token="<cls>", eos_token="<eos>")
        own.backend_tokenizer.post_processor = made.processors.TemplateProcessing(
            single="<cls> $A <eos>", special_tokens=[("<cls>", 1), ("<eos>", 2)])
        theirs = self.tokenizer("dna", own)
        self.write("g.fa", ">g\nACGTN\n")
        for letters, expected in ((1, theirs("A C G T N")["input_ids"]), (2, theirs("AC GT")["input_ids"])):
            out = self.folder / f"out{letters}"
            prepare(Options(str(self.folder / "dna"), (str(self.folder / "g.fa"),), letters=letters), out)
            self.assertEqual([one.ids.tolist() for one in Prepared(out)], [expected])

    def test_the_command(self):
        self.tokenizer("t", made.byte_bpe(bos="<s>"))
        self.write("in/a.txt", "hello, what is this?")
        said = self.command("prepare", "--tokenizer", "t", "--input", "in", "--out", "out", "--max-tokens", 8)
        self.assertIn("out: 1 document, 8 tokens, 7 labels in 1 shard from 1 file", said)
        self.assertIn("cut to 8 tokens", said)
        shown = self.command("inspect", "out")
        self.assertIn("<s>", shown)
        self.assertIn("* ", shown)
        self.assertIn("--max-tokens 8, now 9", self.command("prepare", "--tokenizer", "t", "--input", "in", "--out", "out",
                                                            "--max-tokens", 9, code=2))
        self.tokenizer("other", made.byte_bpe())
        self.assertIn("another tokenizer", self.command("inspect", "out", "--tokenizer", "other", code=2))
        with contextlib.redirect_stderr(io.StringIO()) as said_to:
            for tokenizer in ("t", "none", "in"):
                self.assertEqual(main(["prepare", "--tokenizer", str(self.folder / tokenizer), "--input", "none", "--out",
                                       "o"]), 2)
        for words in ("none: is not there", "is not a folder", "no tokenizer that transformers can load"):
            self.assertIn(words, said_to.getvalue())


if __name__ == "__main__":
    unittest.main()
