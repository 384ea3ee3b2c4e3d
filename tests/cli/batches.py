"""What tests of planning batches share: a cluster, a model, lengths, and the command line."""

import pathlib
import random

from support import ProgramTest

CLUSTERS = pathlib.Path(__file__).resolve().parent.parent.parent / "configs" / "clusters"
A100 = CLUSTERS / "64xA100-40GB.toml"

# A billion parameters.
LLAMA = """
architectures = ["LlamaForCausalLM"]
model_type = "llama"
hidden_size = 2048
num_hidden_layers = 8
num_attention_heads = 16
num_key_value_heads = 8
intermediate_size = 5632
vocab_size = 32000
rms_norm_eps = 1e-5
tie_word_embeddings = false
"""


def lengths_of(count, seed, most=100_000):
    """Mostly short, few long."""
    draw = random.Random(seed)
    return [min(most, 1 + int(draw.lognormvariate(7, 1.66))) for _ in range(count)]


class BatchTest(ProgramTest):
    def lengths(self, lengths, name="lengths.txt"):
        return self.write(name, "".join(f"{n}\n" for n in lengths))

    def on_cluster(self, lengths, *arguments, ranks=8, model=LLAMA):
        return ["plan", "batch", "--model", self.write("model.toml", model), "--cluster", A100, "--ranks", ranks,
                "--lengths", self.lengths(lengths), *arguments]
