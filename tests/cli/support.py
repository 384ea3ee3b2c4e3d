"""What tests of the program share: running it, and safetensors files read and written by hand."""

import array
import json
import math
import os
import pathlib
import struct
import tempfile
import unittest

import resident

PARADYSE = os.environ.get("PARADYSE", "build/release/paradyse")
PARADYSE_LAB = os.environ.get("PARADYSE_LAB", "build/release/paradyse-lab")
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
MODELS = ["hf_llama_gqa", "hf_llama_mqa_tied", "hf_llama_mha_wide", "hf_llama_bias_llama3",
          "hf_llama_linear", "hf_llama_yarn", "hf_llama_yarn_mscale", "hf_qwen2", "hf_qwen3", "hf_gpt2",
          "hf_opt", "hf_llama_labels", "hf_bert", "hf_mistral", "hf_bert_pretraining",
          "hf_olmo2", "hf_phi3", "hf_neox", "hf_neox_sequential", "hf_roberta", "hf_distilbert"]

OK, FAILED, USAGE, INTERNAL = 0, 1, 2, 70


# A small LLaMA over bytes.
TINY_LLAMA = """
architectures = ["LlamaForCausalLM"]
model_type = "llama"
hidden_size = 24
num_hidden_layers = {layers}
num_attention_heads = 3
num_key_value_heads = 1
intermediate_size = 40
vocab_size = 256
tie_word_embeddings = true
rms_norm_eps = 1e-5
"""
TINY_EVOFORMER = """
model_type = "evoformer"
no_blocks = 2
c_m = 8
c_z = 6
no_heads_msa = 2
no_heads_pair = 2
c_hidden = 3
c_hidden_opm = 2
c_hidden_mul = 4
transition_n = 2
"""


class ProgramTest(unittest.TestCase):
    """Runs the program in a folder of its own."""

    program = PARADYSE

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="paradyse_cli_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_program(self, *arguments, code=OK, timeout=300, **variables):
        """Post: the exit code is `code`, unless that is None.  `variables`: more environment."""
        command = [self.program, *map(str, arguments)]
        done = resident.run(command, timeout, **variables)
        if code is not None:
            self.assertEqual(
                done.returncode, code, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
        return done

    def json_of(self, *arguments, code=OK):
        """The one JSON document that the program prints with --json."""
        return json.loads(self.run_program(*arguments, "--json", code=code).stdout)

    def error_of(self, *arguments, code=USAGE):
        """The message of a run that fails, the same with and without --json."""
        plain = self.run_program(*arguments, code=code)
        self.assertEqual(plain.stdout, "")
        messages = [line for line in plain.stderr.splitlines() if "error: " in line]
        self.assertEqual(len(messages), 1, plain.stderr)
        prefix = "paradyse: error: "
        self.assertTrue(messages[0].startswith(prefix), messages[0])
        self.assertEqual(
            self.json_of(*arguments, code=code), {"error": messages[0][len(prefix):]})
        return messages[0]

    def write_run(self, layers, more):
        """A run over 40 texts of all lengths on 3 ranks: its configuration, `more` of it given."""
        self.write("model.toml", TINY_LLAMA.format(layers=layers))
        texts = self.folder / "texts"
        texts.mkdir()
        for i in range(40):
            line = f"the quick brown fox number {i % 7} jumps over the lazy dog\n"
            (texts / f"{i:03}.txt").write_text(line * (1 + i * i // 40))
        return self.write("run.toml", f"""
[model]
path = "{self.folder}/model.toml"
[data]
path = "{texts}"
min_tokens = 10
[parallel]
ranks = 3
{more}
[output]
folder = "{self.folder}/runs"
""")

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def write_documents(self, documents, name="data.jsonl"):
        return self.write(
            name, "".join(json.dumps({"tokens": tokens}) + "\n" for tokens in documents))


def write_tensors(path, tensors):
    """A safetensors file of {name: (shape, numbers)}, in float64."""
    header, data = {}, b""
    for name, (shape, numbers) in tensors.items():
        values = array.array("d", numbers).tobytes()
        header[name] = {"dtype": "F64", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_tensors(path):
    """{name: (dtype, shape, values)} of a safetensors file."""
    content = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    data = content[8 + length:]
    tensors = {}
    for name, stored in header.items():
        if name == "__metadata__":
            continue
        begin, end = stored["data_offsets"]
        values = array.array({"F64": "d", "F32": "f", "BF16": "f"}[stored["dtype"]])
        bits = data[begin:end]
        if stored["dtype"] == "BF16":  # the upper half of a float32
            wide = bytearray(2 * len(bits))
            wide[2::4], wide[3::4] = bits[::2], bits[1::2]
            bits = bytes(wide)
        values.frombytes(bits)
        assert len(values) == math.prod(stored["shape"]), name
        tensors[name] = (stored["dtype"], stored["shape"], values)
    return tensors


def gradient_error(actual, expected):
    """The worst of ||g - g*|| / max(||g*||, 1e-3 ||all g*||)."""
    def length(values):
        return math.sqrt(math.fsum(value * value for value in values))

    whole = math.sqrt(math.fsum(length(values) ** 2 for _, _, values in expected.values()))
    worst = 0.0
    for name, (_, shape, values) in expected.items():
        assert actual[name][1] == shape, name
        difference = length(a - e for a, e in zip(actual[name][2], values))
        worst = max(worst, difference / max(length(values), 1e-3 * whole))
    assert set(actual) == set(expected), set(actual) ^ set(expected)
    return worst


def uniform_plan(model, lengths, ranks, layers, strategy="UlyssesZ", mlp="gather"):
    """A plan in which all documents run in one group of all ranks."""
    return {
        "format": "paradyse-plan", "version": 1,
        "model": {"name": model, "sha256": "", "layers": layers},
        "cluster": {"name": "local", "sha256": "", "ranks": ranks},
        "weight_domain": ranks,
        "lengths": lengths,
        "programs": {"all": [{"layers": layers, "parts": [
            {"part": "attention", "strategy": strategy, "recompute": "none"},
            {"part": "mlp", "strategy": mlp, "recompute": "light"}]}]},
        "micro_batches": [{"groups": [{
            "ranks": list(range(ranks)), "documents": list(range(len(lengths))),
            "program": "all"}]}]}
