"""paradyse.torch.dcp: others' distributed checkpoints come in, and torch.distributed.checkpoint reads ours."""

import collections
import contextlib
import copy
import hashlib
import io
import json
import os
import pathlib
import pickle
import random
import shutil
import subprocess
import tempfile
import time
import unittest
import zipfile

import torch
import torch.distributed.checkpoint as dcp
import transformers
from paradyse._plan import file_xxh64
from paradyse.data.refusal import Refused
from paradyse.torch.checksums import Number
from paradyse.torch.dcp import from_dcp, main, to_dcp
from paradyse.torch.dcp_reader import Reader
from ranks import LONG, llama, on_ranks, wrapped
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict, get_state_dict, set_state_dict)

try:  # of another's code, where there is one
    import xxhash
except ImportError:
    xxhash = None

PROGRAM = os.environ.get("PARADYSE")


def loss_of(model, ids):
    return model(input_ids=ids, labels=ids).loss


def trained_elsewhere(rank, folder, how, flat):
    """A rank of a PyTorch loop: two AdamW steps, and its checkpoint."""
    model = wrapped(llama(dtype=torch.float32), how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.arange(12)[None] % 64
    for _ in range(2):
        loss_of(model, ids).backward()
        optimizer.step()
        optimizer.zero_grad()
    weights, state = get_state_dict(model, optimizer)
    dcp.save(weights if flat else {"model": weights, "optimizer": state, "step": 2}, checkpoint_id=folder)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return {name: tensor.numpy() for name, tensor in whole.items()} if rank == 0 else None


def gpt2():
    torch.manual_seed(1)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_embd=12, n_head=3, n_layer=2, vocab_size=67, n_positions=64, attn_pdrop=0.0, resid_pdrop=0.0,
        embd_pdrop=0.0)).double()


MADE = {"llama": lambda: llama(3, 1), "gpt2": gpt2}
ADAMW = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8}  # the run's, whose learning rate is constant
LENGTHS = [30, 2, 41, 11]


def of_length(n):
    return [(7 * i + n) % 64 for i in range(n)]


def goes_on(rank, folder, name, how, steps):
    """Two AdamW steps in float64, a checkpoint, and so many more: their losses, and the weights after them."""
    model = wrapped(MADE[name](), how)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  **ADAMW)
    losses = []
    for step in range(2 + steps):
        if step == 2:
            weights, state = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
        total = 0.0
        for n in LENGTHS:
            ids = torch.tensor([of_length(n)])
            logits = model(input_ids=ids).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum") / sum(n - 1 for n in LENGTHS)
            loss.backward()
            total += float(loss.detach())
        losses.append(total)
        optimizer.step()
        optimizer.zero_grad()
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return (losses[2:], {name: tensor.numpy() for name, tensor in whole.items()}) if rank == 0 else None


class DcpTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="paradyse_dcp_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def paradyse(self, *arguments):
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def refusal(self, *arguments):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(main([str(argument) for argument in arguments]), 2, said.getvalue())
        return said.getvalue()

    def test_others_checkpoints_come_in(self):
        like = self.folder / "like"
        llama(dtype=torch.float32).save_pretrained(like)
        (like / "tokenizer_config.json").write_text("{}")
        for ranks, how, flat in [(1, "plain", True), (3, "fsdp2", False)] + ([(2, "ddp", False), (4, "fsdp2", True)]
                                                                             if LONG else []):
            with self.subTest(ranks=ranks, how=how, flat=flat):
                there, out = self.folder / f"dcp{ranks}", self.folder / f"model{ranks}"
                expected = on_ranks(ranks, trained_elsewhere, str(there), how, flat)[0]
                expected = {name: torch.from_numpy(array) for name, array in expected.items()}
                said = from_dcp(there, out, like=like, shard_bytes=4096)
                found = {}
                for file in out.glob("*.safetensors"):
                    found.update(load_file(file))
                self.assertGreater(len(list(out.glob("*.safetensors"))), 1)
                self.assertEqual(sorted(found), sorted(expected))
                for name, tensor in expected.items():
                    self.assertTrue(torch.equal(found[name], tensor), name)
                self.assertTrue((out / "tokenizer_config.json").is_file())
                if not flat:
                    self.assertRegex("\n".join(said), r"left out of .*optimizer \(\d+ entries\), step \(1 entry\)")
                # the program takes it, and finds the loss that transformers finds
                data = self.folder / "data.jsonl"
                ids = [(7 * i) % 64 for i in range(20)]
                data.write_text(json.dumps({"tokens": ids}) + "\n")
                model = transformers.LlamaForCausalLM.from_pretrained(out).double()
                loss = float(loss_of(model, torch.tensor([ids])).detach())
                if PROGRAM:
                    mine = json.loads(self.paradyse("eval", "--json", "--model", out, "--data", data, "--ranks", 2))
                    self.assertAlmostEqual(mine["loss"], loss, delta=2e-6 * loss)

    def test_a_model_is_read_by_torch(self):
        source = self.folder / "model"
        model = llama(dtype=torch.bfloat16)
        model.save_pretrained(source, max_shard_size="10KB")
        self.assertGreater(len(list(source.glob("*.safetensors"))), 1)
        for prefix, wrap in (("model", lambda state: {"model": state}), ("", lambda state: state)):
            out = self.folder / f"dcp_{prefix}"
            to_dcp(source, out, prefix)
            read = {name: torch.empty_like(tensor) for name, tensor in model.state_dict().items()}
            dcp.load(wrap(read), checkpoint_id=out)
            for name, tensor in model.state_dict().items():
                self.assertTrue(torch.equal(read[name], tensor), name)
            # and back
            again = self.folder / f"again_{prefix}"
            self.assertEqual(main(["from", str(out), str(again)]), 0)
            found = load_file(again / "model.safetensors")
            self.assertEqual(sorted(found), sorted(model.state_dict()))
            for name, tensor in model.state_dict().items():
                self.assertTrue(torch.equal(found[name], tensor), name)

    def test_a_tensor_in_two_files(self):
        source = self.folder / "model"
        source.mkdir()
        (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "1.st", "b": "2.st"}}))
        save_file({"a": torch.ones(2)}, source / "1.st")
        for other in (torch.zeros(2), torch.ones(3), torch.ones(2).double()):
            save_file({"a": other, "b": torch.ones(1)}, source / "2.st")
            self.assertRegex(self.refusal("to", source, self.folder / "new"), "2.st.*'a'.*other values")
        save_file({"a": torch.ones(2), "b": torch.ones(1)}, source / "2.st")
        self.assertEqual(main(["to", str(source), str(self.folder / "new")]), 0)

    # Weights and moments that ranks hold in pieces, rows and columns of odd sizes: PyTorch goes on from them.
    @unittest.skipUnless(PROGRAM, "PARADYSE names the program")
    def test_a_runs_checkpoint_is_read_by_torch(self):
        self.folder.joinpath("data.jsonl").write_text("".join(
            json.dumps({"tokens": [(7 * i + d) % 64 for i in range(n)]}) + "\n"
            for d, n in enumerate([30, 2, 41, 11])))
        cases = {"llama": transformers.LlamaConfig(
                     hidden_size=12, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=2,
                     intermediate_size=20, vocab_size=67, max_position_embeddings=64),
                 "gpt2": transformers.GPT2Config(n_embd=12, n_head=3, n_layer=1, vocab_size=67, n_positions=64,
                                                 attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)}
        for name, config in cases.items():
            with self.subTest(name):
                torch.manual_seed(1)
                model = transformers.AutoModelForCausalLM.from_config(config)
                source = self.folder / f"{name}_model"
                model.save_pretrained(source)
                self.paradyse("train", "--json", "--model", source, "--data", self.folder / "data.jsonl", "--ranks", 3,
                              *(word for setting in (
                                  "train.steps=5", "train.tokens_per_step=40", "optimizer.lr=1e-2",
                                  f"output.folder={self.folder}/runs", f"output.name={name}", "costs.file=none",
                                  "output.trace=false") for word in ("--set", setting)))
                run = self.folder / "runs" / name
                out = self.folder / f"{name}_dcp"
                self.assertIn("exp_avg_sq", "\n".join(to_dcp(run / "checkpoints" / "000005", out)))
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
                loss_of(model, torch.arange(8)[None]).backward()
                optimizer.step()
                weights, state = get_state_dict(model, optimizer)
                stored = dcp.FileSystemReader(out).read_metadata().state_dict_metadata
                tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
                wanted = {f"model.{key}" for key in weights} - {f"model.{key}" for key in tied}
                wanted |= {f"optimizer.state.{key}.{what}" for key, of_key in state["state"].items() for what in of_key}
                self.assertEqual(set(stored), wanted)
                read = {"model": {key: tensor for key, tensor in weights.items() if key not in tied},
                        "optimizer": {"state": state["state"]}}
                dcp.load(read, checkpoint_id=out)
                set_state_dict(model, optimizer, model_state_dict=read["model"], optim_state_dict=state,
                               options=StateDictOptions(strict=False))
                now = get_optimizer_state_dict(model, optimizer)["state"]
                parameters = dict(model.named_parameters())
                trained = load_file(run / "model" / "model.safetensors")
                self.assertEqual(set(trained), set(parameters))
                for key, tensor in trained.items():
                    self.assertTrue(torch.equal(parameters[key], tensor), key)
                    self.assertEqual(float(now[key]["step"]), 5.0)
                self.expect_moments(run / "checkpoints" / "000005", now)

    def train(self, run, **options):
        """A run in float64 on all documents in each step; its losses, and its weights."""
        settings = {"train.dtype": "float64", "train.tokens_per_step": sum(LENGTHS), "optimizer.lr": ADAMW["lr"],
                    "optimizer.beta2": ADAMW["betas"][1], "optimizer.warmup_steps": 0, "optimizer.min_lr_ratio": 1,
                    "optimizer.max_grad_norm": 0, "output.folder": run.parent, "output.name": run.name,
                    "costs.file": "none", "output.trace": "false", "data.path": self.folder / "data.jsonl", **options}
        self.paradyse("train", "--json", *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")))
        return self.trained(run)

    def trained(self, run):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines], load_file(run / "model" / "model.safetensors")

    def expect_same(self, found, wanted):
        for mine, theirs in zip(found[0], wanted[0], strict=True):
            self.assertAlmostEqual(mine, theirs, delta=1e-10 * theirs)
        for name, tensor in found[1].items():
            self.assertEqual(tensor.dtype, torch.float64)
            torch.testing.assert_close(tensor, torch.from_numpy(wanted[1][name]), rtol=1e-10, atol=1e-10, msg=name)

    # A run goes on with the moments of PyTorch's AdamW: the same losses and weights as AdamW going on.
    @unittest.skipUnless(PROGRAM, "PARADYSE names the program")
    def test_a_run_goes_on_with_the_moments_of_pytorch(self):
        (self.folder / "data.jsonl").write_text("".join(json.dumps({"tokens": of_length(n)}) + "\n" for n in LENGTHS))
        for name, ranks, how in [("llama", 3, "fsdp2"), ("gpt2", 1, "plain")] + [("llama", 2, "ddp")] * LONG:
            there, out, like = (self.folder / f"{name}{ranks}_{what}" for what in ("dcp", "model", "like"))
            wanted = on_ranks(ranks, goes_on, str(there), name, how, 3)[0]
            MADE[name]().save_pretrained(like)
            said = from_dcp(there, out, like=like, shard_bytes=4096, optimizer=True)
            self.assertIn("after 2 steps of AdamW", said[1])
            self.assertGreater(len(list((out / "optimizer" / "exp_avg_sq").glob("*.safetensors"))), 1)
            begins = {"model.path": out, "optimizer.path": out / "optimizer", "train.steps": 3}
            for of in (1, 2, 3, 4) if LONG else (1, 3):
                with self.subTest(name, ranks=ranks, of=of):
                    run = self.folder / "runs" / f"{name}{ranks}_{of}"
                    self.expect_same(self.train(run, **begins, **{"parallel.ranks": of}), wanted)
            with self.subTest(name, of="processes that go on from ranks with offloaded state"):
                run = self.folder / "runs" / f"{name}{ranks}_resumed"
                self.train(run, **{**begins, "train.steps": 1}, **{"parallel.ranks": 2, "optimizer.offload": "true"})
                self.paradyse("launch", "-n", 3, "--", "train", "--json", "--resume", run, "--set", "train.steps=3",
                              "--backend", "gloo")
                self.expect_same(self.trained(run), wanted)
            with self.subTest(name, of="a run without moments, which is another"):
                run = self.folder / "runs" / f"{name}{ranks}_anew"
                losses, _ = self.train(run, **{**begins, "optimizer.path": "", "parallel.ranks": 1})
                self.assertAlmostEqual(losses[0], wanted[0][0], delta=1e-10 * losses[0])
                self.assertGreater(abs(losses[2] - wanted[0][2]), 1e-4)

    # What the program refuses of a folder of moments, or beside one.
    @unittest.skipUnless(PROGRAM, "PARADYSE names the program")
    def test_moments_that_do_not_fit_a_run(self):
        (self.folder / "data.jsonl").write_text(json.dumps({"tokens": of_length(9)}) + "\n")
        model = MADE["llama"]()
        model.save_pretrained(self.folder / "model")
        moments, path = {name: torch.ones_like(p) for name, p in model.named_parameters()}, self.folder / "optimizer"

        def refused(words, *settings, exp_avg=moments, steps="2", other="2", optimizer="AdamW"):
            for what, tensors, count in (("exp_avg", exp_avg, steps), ("exp_avg_sq", moments, other)):
                (path / what).mkdir(parents=True, exist_ok=True)
                save_file(tensors, path / what / "model.safetensors",
                          metadata={"format": "pt", "optimizer": optimizer, "steps": count})
            done = subprocess.run(
                [PROGRAM, "train", "--model", self.folder / "model", "--data", self.folder / "data.jsonl", "--ranks",
                 "2", *(word for one in (f"optimizer.path={path}", f"output.folder={self.folder}", "train.steps=1",
                                         *settings) for word in ("--set", one))],
                capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertRegex(done.stderr, f"optimizer.path.*{words}")

        norm = "model.layers.1.input_layernorm.weight"
        refused(norm, exp_avg={name: tensor for name, tensor in moments.items() if name != norm})
        refused(norm, exp_avg={**moments, norm: torch.ones(3)})
        refused("is of the optimizer .?Adafactor", optimizer="Adafactor")
        refused("exp_avg is of 2 steps, but exp_avg_sq of 3", other="3")
        for steps in ("0", "2.5", "many"):
            refused("does not say of how many steps", steps=steps, other=steps)
        refused("the weights are random", "model.random_weights=true")
        refused("moments of adapters are not read", "lora.r=2")
        (path / "exp_avg_sq" / "model.safetensors").rename(path / "moved")
        self.assertIn("exp_avg_sq", subprocess.run(
            [PROGRAM, "train", "--model", self.folder / "model", "--data", self.folder / "data.jsonl", "--set",
             f"optimizer.path={path}"], capture_output=True, text=True, timeout=300).stderr)

    # Optimizer state that is not AdamW's, or not of one number of steps: refused, and nothing is written.
    def test_states_that_are_not_taken(self):
        there, out = self.folder / "dcp", self.folder / "out"
        whole = {"exp_avg": torch.ones(2, 3), "exp_avg_sq": torch.ones(2, 3), "step": torch.tensor(2.0)}
        other = {**whole, "step": torch.tensor(3.0)}
        cases = [({"a": whole, "b": other}, "has 2 steps of a, but 3 of b"), ({}, "optimizer.state is not in it"),
                 ({"a": {"momentum_buffer": torch.ones(2, 3)}}, "of a has momentum_buffer, but that of AdamW"),
                 ({"a": {**whole, "max_exp_avg_sq": torch.ones(2, 3)}}, "max_exp_avg_sq"),
                 ({"a": {name: tensor for name, tensor in whole.items() if name != "exp_avg_sq"}}, "has exp_avg, step"),
                 ({"a": {**whole, "step": 2}}, "has exp_avg, exp_avg_sq, but"), ({"c": whole}, "is of c, which is none"),
                 ({"a": {**whole, "exp_avg": torch.ones(6)}}, r"exp_avg of a in the shape \[6\], but the weight has \[2, 3\]"),
                 ({"a": {**whole, "step": torch.tensor(1.5)}}, "has 1.5 steps of a"),
                 ({"a": {**whole, "step": torch.tensor(float("nan"))}}, "has nan steps of a")]
        for number, (state, words) in enumerate(cases):
            with self.subTest(words):
                folder = self.folder / f"dcp{number}"
                weights = {"a": torch.ones(2, 3), "b": torch.ones(2, 3)}
                dcp.save({"model": weights, "optimizer": {"state": state, "param_groups": []}}, checkpoint_id=folder)
                self.assertRegex(self.refusal("from", folder, out, "--optimizer"), words)
                self.assertFalse(out.exists())
        dcp.save({"model": {"a": torch.ones(2, 3)}, "optim": {"state": {"a": whole}}}, checkpoint_id=there)
        self.assertEqual(main(["from", str(there), str(out), "--optimizer"]), 0)
        for what in ("exp_avg", "exp_avg_sq"):
            with safe_open(out / "optimizer" / what / "model.safetensors", framework="pt") as tensors:
                self.assertEqual(tensors.metadata(), {"format": "pt", "optimizer": "AdamW", "steps": "2"})
                self.assertTrue(torch.equal(tensors.get_tensor("a"), whole[what]))

    def expect_moments(self, checkpoint, states):
        """Post: each row that a rank's file has is where it belongs."""
        seen = 0
        for file in sorted(checkpoint.glob("rank-*")):
            with safe_open(file, framework="pt") as tensors:
                for key, text in tensors.metadata().items():
                    if not key.endswith("]"):
                        continue
                    name, said = key[:key.rindex("[")], json.loads(text)
                    for what in ("exp_avg", "exp_avg_sq"):
                        whole = states[name][what]
                        self.assertEqual(list(whole.shape), said["shape"])
                        rows = (whole.t() if said["transposed"] else whole)[slice(*said["rows"])]
                        self.assertTrue(torch.equal(rows, tensors.get_tensor(f"{what}:{key}")), key)
                        self.assertGreater(float(whole.abs().sum()), 0, key)
                        seen += 1
        self.assertGreater(seen, 20)

    # The pickle of a stranger runs nothing, and no file beside the folder is read.
    def test_a_strangers_folder(self):
        there, out = self.folder / "dcp", self.folder / "out"
        dcp.save({"model": {"w": torch.ones(3)}}, checkpoint_id=there)
        good = (there / ".metadata").read_bytes()
        described = dcp.FileSystemReader(there).read_metadata()

        class Runs:
            def __reduce__(self):
                return os.system, (f"touch {out}",)

        hole = pickle.loads(good)
        hole.state_dict_metadata["model.w"].chunks.clear()
        vast = pickle.loads(good)
        vast.state_dict_metadata["model.w"].size = torch.Size([2**40, 2**40, 0])
        outside = pickle.loads(good)
        for info in outside.storage_data.values():
            info.relative_path = "../dcp/__0_0.distcp"
        for content, words in ((pickle.dumps(Runs()), "system, which describes no tensor"),
                               (pickle.dumps(hole), "does not say of all elements of model.w"),
                               (pickle.dumps(outside), "which is no file of this folder"),
                               (pickle.dumps({"a": 1}), "cannot be read"), (good[:40], "cannot be read"),
                               (b"version https://git-lfs.github.com/spec/v1\n", "it is no pickle"),
                               (pickle.dumps(vast), "is larger than any memory"), (b"", "cannot be read")):
            (there / ".metadata").write_bytes(content)
            self.assertIn(words, self.refusal("from", there, out))
            self.assertFalse(out.exists())
        (there / ".metadata").unlink()
        self.assertIn("was not written to its end", self.refusal("from", there, out))
        (there / ".metadata").write_bytes(good)
        self.assertIn("has no tensor below 'x'", self.refusal("from", there, out, "--prefix", "x"))
        out.mkdir()
        self.assertIn("nothing is overwritten", self.refusal("from", there, out))
        out.rmdir()
        data = there / next(iter(described.storage_data.values())).relative_path
        whole = data.read_bytes()
        data.write_bytes(whole[:100])
        self.assertIn("cannot be read", self.refusal("from", there, out))
        self.assertFalse(out.exists())
        data.write_bytes(whole)
        self.assertEqual(main(["from", str(there), str(out)]), 0)
        self.assertTrue(torch.equal(load_file(out / "model.safetensors")["w"], torch.ones(3)))
        self.assertEqual([f.name for f in self.folder.iterdir() if "partial" in f.name], [])
        for folder, words in ((self.folder / "none", "is not there"), (self.folder, "has neither")):
            self.assertIn(words, self.refusal("to", folder, self.folder / "new"))
        save_file({"w": torch.ones(2)}, self.folder / "model.safetensors")
        (self.folder / "state.json").write_text("{")
        self.assertIn("is not the state of a checkpoint", self.refusal("to", self.folder, self.folder / "new"))

    def strangers(self):
        """A folder that is sound, and what its .metadata says."""
        there = self.folder / "dcp"
        state = {"w": torch.arange(12.0).reshape(4, 3), "b": torch.ones(3), "e": torch.zeros(0, 3)}
        dcp.save({"model": state, "step": 3}, checkpoint_id=there)
        return there, pickle.loads((there / ".metadata").read_bytes())

    def expect_refused(self, there, words):
        out, begin = self.folder / "out", time.monotonic()
        said = self.refusal("from", there, out)
        self.assertRegex(said, words)
        self.assertTrue(said.strip().isprintable(), said)
        self.assertFalse(out.exists())
        self.assertLess(time.monotonic() - begin, 20)

    # What .metadata says is checked before memory is taken for it, or a file is opened.
    def test_descriptions_that_are_none(self):
        there, sound = self.strangers()
        key = next(index for index in sound.storage_data if index.fqn == "model.w")

        def refused(words, change):
            said = copy.deepcopy(sound)
            change(said)
            (there / ".metadata").write_bytes(pickle.dumps(said))
            with self.subTest(words):
                self.expect_refused(there, words)

        def entry(name="model.w", **changes):
            return lambda said: vars(said.state_dict_metadata[name]).update(changes)

        def chunks(*boxes):
            return entry(chunks=[dcp.metadata.ChunkStorageMetadata(*box) for box in boxes])

        def info(**changes):
            return lambda said: vars(said.storage_data[key]).update(changes)

        def renamed(name):
            def rename(said):
                said.state_dict_metadata[name] = said.state_dict_metadata.pop("model.b")
                said.planner_data[name] = ("model", name)
                for index in list(said.storage_data):
                    if index.fqn == "model.b":
                        said.storage_data[dcp.metadata.MetadataIndex(name, index.offset)] = said.storage_data.pop(index)
            return rename

        for size in ((float("nan"), 3), (4.0, 3), (-4, -3), (True, 3), (2**70, 3), "43", None, (1,) * 65):
            refused("a shape or an offset is none", entry(size=size))
        hole = "does not say of all elements of model.w"
        refused("is larger than any memory", entry(size=(2**61, 2**61)))
        for size in ((2**40, 3), (5, 3)):
            refused(hole, entry(size=size))
        # It is as large as that, but there are not as many bytes.
        refused(hole, lambda said: (entry(size=(2**40, 3))(said), chunks(((0, 0), (2**40, 3)))(said)))
        refused(hole, chunks())
        refused(hole, chunks(((0, 0), (2, 3))))
        refused("more chunks than", entry(chunks=sound.state_dict_metadata["model.w"].chunks * 100))
        refused("outside of a tensor", chunks(((1, 0), (4, 3))))
        refused("outside of a tensor", chunks(((0,), (4,))))
        refused("a shape or an offset", chunks(((0, 0), (4.0, 3))))
        refused("TensorProperties", entry(properties=None))
        for dtype, words in ((torch.quint8, "model.w in torch.quint8, which is not read"), (3, "has no dtype")):
            refused(words, lambda said: vars(said.state_dict_metadata["model.w"].properties).update(dtype=dtype))
        for path in ("../dcp/__0_0.distcp", "/etc/passwd", "a/b", "", "..", ".", None, 3, "../" * 200):
            refused("no file of this folder", info(relative_path=path))
        for path in ("none", "x\0y", "x" * 400):
            refused("cannot be read", info(relative_path=path))
        refused("a shape or an offset", info(offset=-1))
        refused("a shape or an offset", info(length=2.5))
        refused("the file is not whole", info(offset=2**40))
        refused("the file is not whole|same place", info(length=2**40))
        refused("same place", info(offset=sound.storage_data[key].offset + 1))
        refused("compressed", info(transform_descriptors=["zstd"]))
        refused("but not what", lambda said: said.state_dict_metadata.pop("model.w"))
        for name in ("a\x1b[2J", "a\nb", "\ud800", "", "n" * 2000):
            refused("is no name of a tensor", renamed(name))
        refused("__metadata__", renamed("__metadata__"))
        refused("is no name of a tensor", lambda said: said.planner_data.update({"model.w": ("model", "w\x1b[2J")}))
        refused("the path to model.w is none", lambda said: said.planner_data.update({"model.w": ("w",) * 100}))
        refused("the path to model.w is none", lambda said: said.planner_data.update({"model.w": (1.5,)}))
        refused("cannot be read", lambda said: vars(said).update(planner_data=[1]))
        refused("cannot be read", lambda said: vars(said).update(storage_data=None))
        refused("cannot be read", lambda said: vars(said).update(state_dict_metadata=[]))

    # Two chunks of as many elements as the tensor has, of which two are in both and two in none.
    def test_chunks_that_overlap(self):
        there, said = self.strangers()
        tensor = said.state_dict_metadata["model.w"]
        tensor.size = torch.Size((8, 3))
        tensor.chunks = [dcp.metadata.ChunkStorageMetadata(torch.Size((row, 0)), torch.Size((4, 3))) for row in (0, 3)]
        place = next(info for index, info in said.storage_data.items() if index.fqn == "model.w")
        data = there / place.relative_path
        again = copy.copy(place)
        again.offset = data.stat().st_size
        whole = data.read_bytes()
        data.write_bytes(whole + whole[place.offset:place.offset + place.length])
        said.storage_data[dcp.metadata.MetadataIndex("model.w", torch.Size((3, 0)))] = again
        (there / ".metadata").write_bytes(pickle.dumps(said))
        self.expect_refused(there, "does not say of all elements of model.w")
        # columns, too
        tensor.size = torch.Size((4, 6))
        for column, words in ((2, "does not say of all"), (3, None)):
            tensor.chunks = [dcp.metadata.ChunkStorageMetadata(torch.Size((0, c)), torch.Size((4, 3)))
                             for c in (0, column)]
            said.storage_data = {index: info for index, info in said.storage_data.items() if info is not again}
            said.storage_data[dcp.metadata.MetadataIndex("model.w", torch.Size((0, column)))] = again
            (there / ".metadata").write_bytes(pickle.dumps(said))
            if words:
                self.expect_refused(there, words)
            else:
                self.assertEqual(main(["from", str(there), str(self.folder / "out")]), 0)
                w = torch.arange(12.0).reshape(4, 3)
                read = load_file(self.folder / "out" / "model.safetensors")["w"]
                self.assertTrue(torch.equal(read, torch.cat((w, w), 1)))

    # What a pickle can do without any name that is not allowed.
    def test_pickles_that_describe_nothing(self):
        there, _ = self.strangers()
        metadata = b"\x80\x04ctorch.distributed.checkpoint.metadata\nMetadata\n"
        doubled = b")" + b"2\x86" * 60
        memoized = b")q\x00" + b"".join(bytes((ord("h"), i, 0x86, ord("q"), i + 1)) for i in range(60))
        for name, content in {
                "a class is changed": metadata + b"N}\x8c\x07versionNs\x86b.",
                "a class is called without arguments": metadata + b"NR.",
                "a tuple of a tuple twice, and so on, is a key": b"\x80\x04}" + doubled + b"Ns.",
                "the same without DUP": b"\x80\x04}" + memoized + b"Ns.",
                "a tuple in a tuple a million times is a key": b"\x80\x04})" + b"\x85" * 1_000_000 + b"Ns.",
                "a list in a list a million times": b"\x80\x04" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
                "a memo of four billion entries": b"\x80\x04Nr\xff\xff\xff\xff.",
                "a text of exabytes": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x0f.",
                "bytes of gigabytes": b"\x80\x04B\xff\xff\xff\x7f.",
                "a frame of exabytes": b"\x80\x04\x95" + b"\xff" * 7 + b"\x0f.",
                "a number of two gigabytes": b"\x80\x04\x8b\xff\xff\xff\x7f.",
                "a set": b"\x80\x04\x8f(K\x01\x90.",
                "an extension": b"\x80\x04\x82\x01.",
                "a class of protocol 0": b"(ios\nsystem\n.",
                "a name that clears the screen": b"\x80\x04c\x1b[2J\nx\n.",
                "a module of torch": b"\x80\x04ctorch\n_inductor\n.",
                "a name with dots": b"\x80\x04\x8c\x05torch\x8c\x0dSize.__init__\x93.",
                "nothing": b"\x80\x04.", "no end": b"\x80\x04N", "text": b"#!/bin/sh\n"}.items():
            (there / ".metadata").write_bytes(content)
            with self.subTest(name):
                self.expect_refused(there, "cannot be read: ")

    # No pipe is waited for, and what is no file is none.
    def test_files_that_are_none(self):
        there, said = self.strangers()
        data = there / next(iter(said.storage_data.values())).relative_path
        whole = data.read_bytes()

        def spoil(words, change, file=data):
            content = file.read_bytes()
            file.unlink()
            change(file)
            with self.subTest(words, file=file.name):
                self.expect_refused(there, words)
            file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink(missing_ok=True)
            file.write_bytes(content)

        for file, none in ((data, "it is no file"), (there / ".metadata", "has no .metadata")):
            spoil(none, os.mkfifo, file)
            spoil(none, os.mkdir, file)
            spoil("cannot be read|has no .metadata", lambda file: file.symlink_to(file.name), file)
            spoil("cannot be read|has no .metadata", lambda file: file.symlink_to("none"), file)
        spoil("a .metadata of up to", lambda file: (file.touch(), os.truncate(file, 2**40)), there / ".metadata")
        spoil("cannot be read", lambda file: None)
        for bytes_left in (0, 1, 100, len(whole) - 1):
            spoil("the file is not whole", lambda file: file.write_bytes(whole[:bytes_left]))
        elsewhere = self.folder / "blob"  # as huggingface_hub keeps them
        data.rename(elsewhere)
        data.symlink_to("../blob")
        self.assertEqual(main(["from", str(there), str(self.folder / "out")]), 0)

    # In the place of what torch.save wrote of a tensor.
    def test_tensors_that_are_none(self):
        there, said = self.strangers()
        key = next(index for index in said.storage_data if index.fqn == "model.w")
        info = said.storage_data[key]
        data = there / info.relative_path
        whole = data.read_bytes()

        def refused(content, words):
            info.offset, info.length = len(whole), len(content)
            data.write_bytes(whole + content)
            (there / ".metadata").write_bytes(pickle.dumps(said))
            with self.subTest(words):
                self.expect_refused(there, words)

        def saved(what):
            stream = io.BytesIO()
            torch.save(what, stream)
            return stream.getvalue()

        def archive(pickled=None, bytes_=bytes(48), how=zipfile.ZIP_STORED):
            """Of a tensor of 4 x 3, with another data.pkl or other bytes."""
            stream = io.BytesIO()
            with (zipfile.ZipFile(io.BytesIO(saved(torch.zeros(4, 3)))) as sound,
                  zipfile.ZipFile(stream, "w", how) as made):
                for name in sound.namelist():
                    content = sound.read(name)
                    if name.endswith("data.pkl") and pickled is not None:
                        content = pickled(content) if callable(pickled) else pickled
                    made.writestr(name, bytes_ if name.endswith("data/0") else content)
            return stream.getvalue()

        class Runs:
            def __reduce__(self):
                return os.system, (f"touch {there.parent / 'out'}",)

        refused(saved(torch.ones(4, 3, dtype=torch.float64)), "has torch.float64 of .*says torch.float32")
        refused(saved(torch.ones(3, 4)), r"has torch.float32 of \(3, 4\)")
        refused(saved([torch.ones(4, 3)] * 2), "it is no tensor")
        refused(saved(torch.nn.Linear(3, 4)), "which describes no tensor")
        refused(saved(Runs()), "system, which describes no tensor")
        refused(saved(torch.ones(4, 3).to_sparse()), "which describes no tensor")
        refused(bytes(400), "cannot be read")
        refused(saved(torch.ones(4, 3))[:-9], "cannot be read")
        refused(archive(how=zipfile.ZIP_DEFLATED, bytes_=bytes(10_000_000)), "compressed")
        refused(archive(bytes_=bytes(44)), "fewer bytes than elements")
        refused(archive(pickle.dumps(Runs())), "system, which describes no tensor")
        refused(archive(lambda content: content.replace(b"FloatStorage", b"UntypedStorage")), "describes no tensor")
        refused(archive(lambda content: content.replace(b"K\x04K\x03", b"K\xffK\x03", 1)), "fewer bytes|has torch")
        refused(archive(b"\x80\x02" + b"]" * 100_000 + b"."), "not where it is said")
        refused(archive(b"\x80\x02}ctorch\nFloatStorage\n" + b"N\x86" * 40 + b"Ns."), "cannot be read")
        big = archive(bytes_=bytes(400))
        refused(big.replace((400).to_bytes(4, "little"), (2**32 - 2).to_bytes(4, "little")), "compressed, or longer")
        self.assertEqual(len(big), info.length)
        info.offset, info.length = len(whole), len(archive())  # and made so it is one
        data.write_bytes(whole + archive())
        (there / ".metadata").write_bytes(pickle.dumps(said))
        self.assertEqual(main(["from", str(there), str(self.folder / "out")]), 0)

    # Any byte of any file may be another: all is read or refused.
    def test_other_bytes(self):
        there, said = self.strangers()
        files = [there / ".metadata", there / next(iter(said.storage_data.values())).relative_path]
        chosen, outcomes = random.Random(3), collections.Counter()
        for file in files:
            whole = file.read_bytes()
            for number in range(4000 if LONG else 400):
                content = bytearray(whole)
                for _ in range(chosen.choice((1, 1, 2, 5))):
                    content[chosen.randrange(len(content))] = chosen.choice((0, 255, chosen.randrange(256)))
                if number % 8 == 0:
                    del content[chosen.randrange(len(content)):]
                file.write_bytes(content)
                try:
                    reader = Reader(there)
                    outcomes["read"] += len(reader.tensors(list(reader.names()))) >= 0
                except Refused:
                    outcomes["refused"] += 1
            file.write_bytes(whole)
        self.assertGreater(outcomes["read"], 10)
        self.assertGreater(outcomes["refused"], 10)

    def checkpoint(self, folder, ranks=2, seed=1, pieces=None, **state):
        """A checkpoint in the form of src/run/train/checkpoint_state.cc: two weights, in rows of each rank."""
        folder.mkdir()
        torch.manual_seed(seed)
        files = []
        for rank in range(ranks):
            tensors, said = {}, {}
            for name, rows in (("a", 5), ("b", 4)):
                begin, end = rows * rank // ranks, rows * (rank + 1) // ranks
                said[f"{name}[{begin}:{end}]"] = json.dumps({"shape": [rows, 3], "rows": [begin, end], "transposed": False})
                tensors |= {f"{what}:{name}[{begin}:{end}]": torch.randn(end - begin, 3)
                            for what in ("master", "exp_avg", "exp_avg_sq")}
            file = folder / f"rank-{rank:05}.safetensors"
            save_file(tensors, file, metadata=pieces or said)
            files.append({"name": file.name, "bytes": file.stat().st_size, "xxh64": file_xxh64(str(file))})
        # 1e15 is a number that Python writes in other digits
        text = json.dumps({"format": "paradyse-checkpoint", "version": 1, "weight_domain": ranks, "files": files,
                           "machine": {"flops": 0.25, "name": "\u00e9\n"}, "optimizer": {"name": "AdamW", "steps": 8},
                           **state}, sort_keys=True, separators=(",", ":"), ensure_ascii=False).replace("0.25", "1e+15")
        digest = hashlib.sha256(text.encode()).hexdigest()
        (folder / "state.json").write_text(json.dumps(
            {**json.loads(text, parse_float=Number), "sha256": digest}, indent=2).replace("1000000000000000.0", "1e+15"))

    def test_xxh64_is_that_of_the_specification(self):
        for content, wanted in ((b"", "ef46db3751d8e999"), (b"a", "d24ec4f1a98c6e5b"), (b"abc", "44bc2cf5ad770999"),
                                (bytes(range(101)), None), (bytes(7) * 300_001, None)):
            file = self.folder / "content"
            file.write_bytes(content)
            found = file_xxh64(str(file))
            if wanted is not None:
                self.assertEqual(found, wanted)
            if xxhash is not None:
                self.assertEqual(found, xxhash.xxh64(content).hexdigest())

    # A run's checkpoint that is not as it was written: refused, and nothing is written.
    def test_damaged_checkpoints(self):
        whole, other, out = (self.folder / name for name in ("whole", "other", "out"))
        self.checkpoint(whole)
        self.checkpoint(other, seed=2)
        self.assertEqual(main(["to", str(whole), str(out)]), 0)
        shutil.rmtree(out)

        def spoil(words, change):
            there = self.folder / "spoilt"
            shutil.copytree(whole, there)
            change(there)
            with self.subTest(words):
                self.assertRegex(self.refusal("to", there, out), words)
                self.assertFalse(out.exists())
            shutil.rmtree(there)

        def flip(there):
            file = there / "rank-00001.safetensors"
            content = bytearray(file.read_bytes())
            content[-9] ^= 64
            file.write_bytes(content)

        def state(change):
            def spoilt(there):
                found = json.loads((there / "state.json").read_text(), parse_float=Number)
                change(found)
                (there / "state.json").write_text(json.dumps(found).replace("1000000000000000.0", "1e+15"))
            return spoilt

        name = "rank-00001.safetensors"
        spoil(f"{name}: has XXH64 .*, but was written with", flip)
        spoil(f"{name}: has XXH64", lambda there: shutil.copyfile(other / name, there / name))
        spoil(f"{name}: has XXH64", lambda there: shutil.copyfile(whole / "rank-00000.safetensors", there / name)
              if (whole / "rank-00000.safetensors").stat().st_size == (whole / name).stat().st_size else flip(there))
        spoil(f"{name}: has .* bytes, but was written with", lambda there: os.truncate(there / name, 100))
        spoil(f"{name}: is no file", lambda there: (there / name).unlink())
        content = "state.json: does not have the content that it was written with"
        spoil(content, state(lambda found: found["optimizer"].update(steps=9)))
        spoil(content, state(lambda found: found.update(files=[])))
        spoil(content, state(lambda found: found.pop("sha256")))
        spoil("has XXH64", lambda there: shutil.copyfile(other / "state.json", there / "state.json"))
        spoil("has format version 2, but this reads 1", state(lambda found: found.update(version=2)))
        spoil("not the state of a checkpoint", state(lambda found: found.update(format="another")))
        for text, words in (("[" * 100_000, "nested too deeply"), ("[]", "not an object"), ("{}", "not the state"),
                            ('{"format": "paradyse-checkpoint", "version": 1, "sha256": "", "a": ' + "[" * 900 + "]" * 900
                             + "}", "state.json"), ("\xff", "state.json"), ("", "cannot be read")):
            spoil(words, lambda there: (there / "state.json").write_text(text, "latin-1"))
        row = {"shape": [5, 3], "rows": [0, 5], "transposed": False}
        for number, (given, words) in enumerate((
                ({"files": []}, "lists 0 files of 2 ranks"), ({"weight_domain": 3}, "lists 2 files of 3 ranks"),
                ({"weight_domain": "2"}, "ranks"), ({"optimizer": {"steps": "x"}}, "'x' steps"), ({"optimizer": []}, "state"),
                ({"files": [{"name": 1}]}, "state of a checkpoint"), ({"files": [{}]}, "state of a checkpoint"),
                ({"files": [{"name": "..", "bytes": 1, "xxh64": ""}] * 2}, "lists 2 files"),
                ({"ranks": 1, "pieces": {"a[0:5]": json.dumps({**row, "rows": [0, 6]})}}, "rows of 'a.*that no weight has"),
                ({"ranks": 1, "pieces": {"a[0:5]": "{"}}, "cannot be read"),
                ({"ranks": 1, "pieces": {"a[0:5]": "[" * 10_000}}, "cannot be read"),
                ({"ranks": 1, "pieces": {"a[0:4]": json.dumps({**row, "rows": [0, 4]})}}, "no file has row 4 of a"),
                ({"ranks": 1, "pieces": {"format": "x"}}, "has no weight"),
                ({"ranks": 1, "pieces": {"c[0:5]": json.dumps(row)}}, "master:c"))):
            there = self.folder / f"given{number}"
            self.checkpoint(there, **given)
            with self.subTest(given):
                self.assertRegex(self.refusal("to", there, out), words)
                self.assertFalse(out.exists())


if __name__ == "__main__":
    unittest.main()
