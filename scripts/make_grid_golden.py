"""Makes tests/golden/grid_*: tiny video and protein models, and what plain PyTorch says of them.

    python3 -m venv /tmp/peer
    /tmp/peer/bin/pip install torch==2.11.0 safetensors numpy
    /tmp/peer/bin/python scripts/make_grid_golden.py            # writes below tests/golden

The judge is written here from the publications with torch.nn modules and their autograd, in float64: ST-DiT after
Open-Sora (Zheng et al. 2024; adaLN-zero of Peebles and Xie 2023), the Evoformer after algorithms 6 to 15 and 19 of
AlphaFold 2's supplement (Jumper et al. 2021). It shares no line with the C++ reference and takes other ways where
there are any: torch's own attention, products where the reference has einsum, loops where it has broadcasts.
"""

import argparse
import json
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from golden_json import json_text
from safetensors.torch import save_file

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"


def attend(q, k, v, heads, key_heads, bias=None):
    """[batch, queries, heads D] of queries, [batch, keys, key_heads D] of keys and values."""
    split = lambda x, count: x.reshape(x.shape[0], x.shape[1], count, -1).transpose(1, 2)
    k, v = (split(x, key_heads).repeat_interleave(heads // key_heads, 1) for x in (k, v))
    mask = None if bias is None else bias.unsqueeze(0).expand(q.shape[0], -1, -1, -1)
    o = F.scaled_dot_product_attention(split(q, heads), k, v, attn_mask=mask)
    return o.transpose(1, 2).flatten(2)


# ST-DiT ------------------------------------------------------------------------------------------


class Condition(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.modulate = nn.Parameter(torch.empty(2 * hidden))
        self.gate = nn.Parameter(torch.empty(hidden))


class Projections(nn.Module):
    def __init__(self, hidden, keys):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(hidden, hidden), nn.Linear(hidden, keys), nn.Linear(hidden, keys)
        self.proj = nn.Linear(hidden, hidden)


class Mlp(nn.Module):
    def __init__(self, hidden, wide):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(hidden, wide), nn.Linear(wide, hidden)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class VideoBlock(nn.Module):
    def __init__(self, c, temporal):
        super().__init__()
        H = c["hidden_size"]
        self.c, self.temporal = c, temporal
        self.attn = Projections(H, H // c["num_heads"] * c["num_key_value_heads"])
        self.mlp = Mlp(H, c["mlp_hidden_size"])
        self.scale_shift_table = nn.ModuleDict({"attn": Condition(H), "mlp": Condition(H)})
        if c.get("caption_channels"):
            self.cross_attn = Projections(H, H)

    def conditioned(self, x, six, which, branch):
        table = self.scale_shift_table[which]
        shift, scale = [a + b for a, b in zip(six[:2], table.modulate.chunk(2))]
        xn = F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift
        return x + (six[2] + table.gate) * branch(xn)

    def along(self, xn):
        frames, patches, H = xn.shape
        lines = xn.transpose(0, 1) if self.temporal else xn
        o = attend(self.attn.q(lines), self.attn.k(lines), self.attn.v(lines),
                   self.c["num_heads"], self.c["num_key_value_heads"])
        return self.attn.proj(o.transpose(0, 1) if self.temporal else o)

    def forward(self, x, six, y):
        x = self.conditioned(x, six[:3], "attn", self.along)
        if y is not None:
            rows = x.flatten(0, 1).unsqueeze(0)
            a, heads = self.cross_attn, self.c["num_heads"]
            x = x + a.proj(attend(a.q(rows), a.k(y[None]), a.v(y[None]), heads, heads)).view_as(x)
        return self.conditioned(x, six[3:], "mlp", self.mlp)


class Named(nn.Module):
    """A module whose children have these names."""

    def __init__(self, **children):
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)


class Stdit(nn.Module):
    def __init__(self, c):
        super().__init__()
        H, self.c = c["hidden_size"], c
        values = c["in_channels"] * c["patch_size"] ** 2
        self.x_embedder = Named(proj=nn.Linear(values + 48, H))
        self.t_embedder = Named(mlp=nn.Sequential(nn.Linear(256, H), nn.SiLU(), nn.Linear(H, H)))
        self.t_block = nn.Sequential(nn.SiLU(), nn.Linear(H, 8 * H))
        if c.get("caption_channels"):
            self.y_embedder = Named(proj=nn.Linear(c["caption_channels"], H))
        self.blocks = nn.ModuleList(
            Named(spatial=VideoBlock(c, False), temporal=VideoBlock(c, True)) for _ in range(c["depth"]))
        self.final_layer = Named(linear=nn.Linear(H, values))
        self.final_layer.scale_shift_table = nn.Parameter(torch.empty(2 * H))

    def forward(self, sample):
        """The sum of squared differences."""
        x = self.x_embedder.proj(sample["patches"])  # [frames, patches, H]
        parts = self.t_block(self.t_embedder.mlp(sample["time"])).chunk(8)
        y = self.y_embedder.proj(sample["text"]) if "text" in sample else None
        for block in self.blocks:
            x = block.temporal(block.spatial(x, parts[:6], y), parts[:6], y)
        shift, scale = [a + b for a, b in zip(parts[6:], self.final_layer.scale_shift_table.chunk(2))]
        x = F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift
        return F.mse_loss(self.final_layer.linear(x), sample["velocity"], reduction="sum")

    def scored(self, sample):
        return sample["velocity"].numel()


# Evoformer ---------------------------------------------------------------------------------------


class Gated(nn.Module):
    def __init__(self, width, heads, head):
        super().__init__()
        self.heads = heads
        self.linear_q, self.linear_k, self.linear_v = (
            nn.Linear(width, heads * head, bias=False) for _ in range(3))
        self.linear_g, self.linear_o = nn.Linear(width, heads * head), nn.Linear(heads * head, width)

    def forward(self, x, bias=None):
        o = attend(self.linear_q(x), self.linear_k(x), self.linear_v(x), self.heads, self.heads, bias)
        return self.linear_o(torch.sigmoid(self.linear_g(x)) * o)


class GlobalGated(nn.Module):
    """Algorithm 19, column by column: one query a head, of the column's mean; heads share keys and values."""

    def __init__(self, width, heads, head):
        super().__init__()
        self.heads = heads
        self.linear_q = nn.Linear(width, heads * head, bias=False)
        self.linear_k, self.linear_v = (nn.Linear(width, head, bias=False) for _ in range(2))
        self.linear_g, self.linear_o = nn.Linear(width, heads * head), nn.Linear(heads * head, width)

    def forward(self, x):  # [sequences, residues, width]
        columns = []
        for column in x.unbind(1):
            q = self.linear_q(column).mean(0).view(self.heads, -1)  # the mean of queries, as published
            k, v = self.linear_k(column), self.linear_v(column)
            o = torch.softmax(q @ k.t() / k.shape[1] ** 0.5, -1) @ v  # [heads, head]
            columns.append(self.linear_o(torch.sigmoid(self.linear_g(column)) * o.flatten()))
        return torch.stack(columns, 1)


class Transition(nn.Module):
    def __init__(self, width, factor):
        super().__init__()
        self.layer_norm = nn.LayerNorm(width)
        self.linear_1, self.linear_2 = nn.Linear(width, factor * width), nn.Linear(factor * width, width)

    def forward(self, x):
        return x + self.linear_2(F.relu(self.linear_1(self.layer_norm(x))))


class OuterProductMean(nn.Module):
    def __init__(self, c_m, c_z, C):
        super().__init__()
        self.layer_norm = nn.LayerNorm(c_m)
        self.linear_1, self.linear_2 = nn.Linear(c_m, C), nn.Linear(c_m, C)
        self.linear_out = nn.Linear(C * C, c_z)

    def forward(self, m, z):
        mn = self.layer_norm(m)
        a, b = self.linear_1(mn), self.linear_2(mn)
        rows = []
        for i in range(m.shape[1]):
            pairs = a[:, i, None, :, None] * b[:, :, None, :]  # [s, j, C, C]
            rows.append(pairs.sum(0).flatten(1))
        # AlphaFold 2 and OpenFold divide the product with its bias, by S + epsilon
        return z + self.linear_out(torch.stack(rows)) / (m.shape[0] + 1e-3)


class Triangle(nn.Module):
    def __init__(self, c_z, C, incoming):
        super().__init__()
        self.incoming = incoming
        self.layer_norm_in, self.layer_norm_out = nn.LayerNorm(c_z), nn.LayerNorm(C)
        for name in ("linear_a_p", "linear_a_g", "linear_b_p", "linear_b_g"):
            setattr(self, name, nn.Linear(c_z, C))
        self.linear_g, self.linear_z = nn.Linear(c_z, c_z), nn.Linear(C, c_z)

    def forward(self, z):
        zn = self.layer_norm_in(z)
        a = torch.sigmoid(self.linear_a_g(zn)) * self.linear_a_p(zn)
        b = torch.sigmoid(self.linear_b_g(zn)) * self.linear_b_p(zn)
        a, b = a.permute(2, 0, 1), b.permute(2, 0, 1)  # of each channel a matrix
        o = a.transpose(1, 2) @ b if self.incoming else a @ b.transpose(1, 2)
        y = self.linear_z(self.layer_norm_out(o.permute(1, 2, 0)))
        return z + torch.sigmoid(self.linear_g(zn)) * y


class TriangleAttention(nn.Module):
    def __init__(self, c_z, heads, head, ending):
        super().__init__()
        self.ending = ending
        self.layer_norm, self.linear = nn.LayerNorm(c_z), nn.Linear(c_z, heads, bias=False)
        self.mha = Gated(c_z, heads, head)

    def forward(self, z):
        x = z.transpose(0, 1) if self.ending else z
        xn = self.layer_norm(x)
        y = self.mha(xn, self.linear(xn).permute(2, 0, 1))
        return z + (y.transpose(0, 1) if self.ending else y)


class EvoformerBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        c_m, c_z, head, n = c["c_m"], c["c_z"], c["c_hidden"], c["transition_n"]
        pair_head = c.get("c_hidden_pair_att", head)
        self.multimer, self.over_all = c["is_multimer"], c.get("global_column_attention", False)
        self.msa_att_row = Named(
            layer_norm_m=nn.LayerNorm(c_m), layer_norm_z=nn.LayerNorm(c_z),
            linear_z=nn.Linear(c_z, c["no_heads_msa"], bias=False), mha=Gated(c_m, c["no_heads_msa"], head))
        if self.over_all:
            self.msa_att_col = Named(
                layer_norm_m=nn.LayerNorm(c_m), global_attention=GlobalGated(c_m, c["no_heads_msa"], head))
        else:
            self.msa_att_col = Named(
                _msa_att=Named(layer_norm_m=nn.LayerNorm(c_m), mha=Gated(c_m, c["no_heads_msa"], head)))
        C = c["c_hidden_mul"]
        self.core = Named(
            msa_transition=Transition(c_m, n),
            outer_product_mean=OuterProductMean(c_m, c_z, c["c_hidden_opm"]),
            tri_mul_out=Triangle(c_z, C, False), tri_mul_in=Triangle(c_z, C, True),
            tri_att_start=TriangleAttention(c_z, c["no_heads_pair"], pair_head, False),
            tri_att_end=TriangleAttention(c_z, c["no_heads_pair"], pair_head, True),
            pair_transition=Transition(c_z, n))

    def forward(self, m, z):
        core = self.core
        if self.multimer:
            z = core.outer_product_mean(m, z)
        row = self.msa_att_row
        bias = row.linear_z(row.layer_norm_z(z)).permute(2, 0, 1)
        m = m + row.mha(row.layer_norm_m(m), bias)
        if self.over_all:
            m = m + self.msa_att_col.global_attention(self.msa_att_col.layer_norm_m(m))
        else:
            column = self.msa_att_col._msa_att
            m = m + column.mha(column.layer_norm_m(m).transpose(0, 1)).transpose(0, 1)
        m = core.msa_transition(m)
        if not self.multimer:
            z = core.outer_product_mean(m, z)
        for part in (core.tri_mul_out, core.tri_mul_in, core.tri_att_start, core.tri_att_end,
                     core.pair_transition):
            z = part(z)
        return m, z


class Evoformer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_embedder = Named(linear_m=nn.Linear(48, c["c_m"]), linear_z=nn.Linear(111, c["c_z"]))
        self.blocks = nn.ModuleList(EvoformerBlock(c) for _ in range(c["no_blocks"]))
        self.masked_msa_head = Named(linear=nn.Linear(c["c_m"], 23))

    def forward(self, sample):
        """The sum of cross-entropies of letters that have a label."""
        m = self.input_embedder.linear_m(sample["msa"])
        z = self.input_embedder.linear_z(sample["pair"])
        for block in self.blocks:
            m, z = block(m, z)
        logits = self.masked_msa_head.linear(m).flatten(0, 1)
        return F.cross_entropy(logits, sample["labels"], ignore_index=-1, reduction="sum")

    def scored(self, sample):
        return int((sample["labels"] >= 0).sum())


# -------------------------------------------------------------------------------------------------

VIDEO = {"model_type": "stdit", "depth": 2, "hidden_size": 8, "num_heads": 4, "num_key_value_heads": 2,
         "mlp_hidden_size": 12, "in_channels": 2, "patch_size": 2}
PROTEIN = {"model_type": "evoformer", "no_blocks": 2, "c_m": 6, "c_z": 5, "no_heads_msa": 3, "no_heads_pair": 2,
           "c_hidden": 2, "c_hidden_opm": 2, "c_hidden_mul": 3, "transition_n": 2, "is_multimer": False}
MODELS = {
    "grid_stdit": (VIDEO, {"frames": 5, "patches": 3}, 2),
    "grid_stdit_text": (VIDEO | {"caption_channels": 3}, {"frames": 3, "patches": 4, "text": 5}, 2),
    "grid_evoformer": (PROTEIN, {"sequences": 5, "residues": 4}, 1),
    "grid_multimer": (PROTEIN | {"is_multimer": True}, {"sequences": 3, "residues": 7}, 1),
    "grid_extra_msa": (PROTEIN | {"global_column_attention": True, "c_hidden_pair_att": 3},
                       {"sequences": 6, "residues": 3}, 1)}


def sample_of(config, dims):
    if config["model_type"] == "evoformer":
        s, r = dims["sequences"], dims["residues"]
        labels = torch.randint(0, 23, (s * r,))
        labels[torch.rand(s * r) < 0.6] = -1
        labels[0] = 7
        return {"msa": torch.randn(s, r, 48), "pair": torch.randn(r, r, 111), "labels": labels}
    values = config["in_channels"] * config["patch_size"] ** 2
    sample = {"time": torch.randn(256), "patches": torch.randn(dims["frames"], dims["patches"], values + 48),
              "velocity": torch.randn(dims["frames"], dims["patches"], values)}
    if "text" in dims:
        sample["text"] = torch.randn(dims["text"], config["caption_channels"])
    return sample


def make(name, folder, seed):
    config, dims, count = MODELS[name]
    torch.manual_seed(seed)
    model = (Stdit if config["model_type"] == "stdit" else Evoformer)(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    samples = [sample_of(config, dims) for _ in range(count)]
    sums = [model(sample) for sample in samples]
    scored = sum(model.scored(sample) for sample in samples)
    loss = sum(sums) / scored
    loss.backward()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tensors = lambda values: {name: tensor.detach().contiguous() for name, tensor in values}
    save_file(tensors(model.named_parameters()), folder / "model.safetensors")
    save_file(tensors((f"{i}.{key}", value) for i, sample in enumerate(samples) for key, value in sample.items()),
              folder / "samples.safetensors")
    # What nobody reads has no gradient: the last block's pair parts.
    save_file(tensors((n, torch.zeros_like(p) if p.grad is None else p.grad) for n, p in model.named_parameters()),
              folder / "expected_gradients.safetensors")
    expected = {"loss": loss.item(), "sums": [one.item() for one in sums], "scored": scored, "dims": dims,
                "seed": seed, "torch": torch.__version__}
    (folder / "expected.json").write_text(json_text(expected))
    print(name, expected["loss"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=GOLDEN)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help=", ".join(MODELS))
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    for name in arguments.models:
        make(name, arguments.out / name, arguments.seed)


if __name__ == "__main__":
    main()
