"""paradyse.torch.dcp: others' distributed checkpoints come in, and torch.distributed.checkpoint reads ours."""

import contextlib
import io
import json
import os
import pathlib
import pickle
import subprocess
import tempfile
import unittest

import torch
import torch.distributed.checkpoint as dcp
import transformers
from paradyse.torch.dcp import from_dcp, main, to_dcp
from ranks import LONG, llama, on_ranks, wrapped
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict, get_state_dict, set_state_dict)

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
        outside = pickle.loads(good)
        for info in outside.storage_data.values():
            info.relative_path = "../dcp/__0_0.distcp"
        for content, words in ((pickle.dumps(Runs()), "system, which describes no tensor"),
                               (pickle.dumps(hole), "does not say of all elements of model.w"),
                               (pickle.dumps(outside), "which is no file of this folder"),
                               (pickle.dumps({"a": 1}), "cannot be read"), (good[:40], "cannot be read"),
                               (b"", "cannot be read")):
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


if __name__ == "__main__":
    unittest.main()
