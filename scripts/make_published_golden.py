"""Makes what OpenFold's and Open-Sora 1.2's own modules say of themselves, below tests/golden.

    python3 -m venv /tmp/peer
    /tmp/peer/bin/pip install torch numpy scipy einops timm rotary-embedding-torch safetensors
    git clone https://github.com/aqlaboratory/openfold /tmp/openfold
    git clone -b v1.2.0 https://github.com/hpcaitech/Open-Sora /tmp/opensora
    /tmp/peer/bin/python scripts/make_published_golden.py --openfold /tmp/openfold --open-sora /tmp/opensora

names_*.txt: every weight of the published sizes, with one block: its name, its shape, and the mean and the standard
deviation of the numbers that it begins with.  grid_*: a tiny model with random weights as a folder, samples, and the
loss and every gradient in float64, in the form of make_grid_golden.py.

Both modules round to float32 inside (Open-Sora in norms, softmax and its last line); here "float32" is float64 for
them.  What they import beside is replaced by stand-ins: packages whose __init__ imports everything, kernels for GPUs,
Hugging Face's base classes.
"""

import argparse
import importlib
import json
import math
import sys
import types
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from golden_json import json_text
from safetensors.torch import save_file

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"


class Wide:
    """torch, but that its float32 is float64."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def stand_in(name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


def has_anything(module):
    module.__getattr__ = Anything().__getattr__


def bare_packages(root, names):
    """Packages without what their __init__ does."""
    for name in names:
        stand_in(name, __path__=[str(root / name.replace(".", "/"))])


class Anything:
    """Takes every call and attribute, and does nothing."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


def import_openfold(root):
    bare_packages(root, ["openfold", "openfold.model", "openfold.utils", "openfold.utils.kernel"])
    core = lambda q, k, v, *biases: torch.softmax(q @ k.mT + sum(b for b in biases if b is not None), -1) @ v
    stand_in("openfold.utils.kernel.attention_core", attention_core=core)
    for name in ("all_atom_multimer", "feats", "loss"):
        has_anything(stand_in("openfold.utils." + name))
    sys.modules["openfold.utils"].all_atom_multimer = Anything()
    sys.modules["openfold.utils"].geometry = Anything()
    has_anything(stand_in("openfold.model.template"))
    return types.SimpleNamespace(
        evoformer=importlib.import_module("openfold.model.evoformer"),
        embedders=importlib.import_module("openfold.model.embedders"),
        heads=importlib.import_module("openfold.model.heads"),
    )


class OpenFold(nn.Module):
    """What stands between an alignment's features and logits of its letters."""

    def __init__(self, openfold, c):
        super().__init__()
        self.input_embedder = openfold.embedders.InputEmbedder(22, 49, c["c_z"], c["c_m"], 32)
        common = dict(
            c_z=c["c_z"], c_hidden_opm=c["c_hidden_opm"], c_hidden_mul=c["c_hidden_mul"],
            c_hidden_pair_att=c["c_hidden_pair_att"], no_heads_msa=c["no_heads_msa"],
            no_heads_pair=c["no_heads_pair"], transition_n=c["transition_n"], msa_dropout=0.15, pair_dropout=0.25,
            opm_first=c["is_multimer"], fuse_projection_weights=False, inf=1e9, eps=1e-10)
        stack = openfold.evoformer.EvoformerStack(
            c_m=c["c_m"], c_hidden_msa_att=c["c_hidden"], c_s=c.get("c_s", 3), no_blocks=c["no_blocks"],
            no_column_attention=False, blocks_per_ckpt=None, **common)
        if "c_s" not in c:
            del stack.linear  # the single representation, which no loss here depends on
        self.evoformer = stack
        if c.get("no_extra_blocks"):
            # Means over a column are of all its rows that count: what is added to their number, 1e-8, is nothing here
            # but where that is 0.
            common.update(no_heads_msa=c["no_heads_extra"], c_hidden_opm=c["c_hidden_opm_extra"], eps=1e-300)
            self.extra_msa_embedder = openfold.embedders.ExtraMSAEmbedder(25, c["c_e"])
            self.extra_msa_stack = openfold.evoformer.ExtraMSAStack(
                c_m=c["c_e"], c_hidden_msa_att=c["c_hidden_extra"], no_blocks=c["no_extra_blocks"], ckpt=False,
                **common)
        self.aux_heads = nn.Module()
        self.aux_heads.masked_msa = openfold.heads.MaskedMSAHead(c["c_m"], 23)

    def forward(self, target, index, msa, msa_mask=None, pair_mask=None, extra=None, extra_mask=None):
        m, z = self.input_embedder(target, index, msa)
        msa_mask = torch.ones(m.shape[:-1]).to(m) if msa_mask is None else msa_mask
        pair_mask = torch.ones(z.shape[:-1]).to(z) if pair_mask is None else pair_mask
        if extra is not None:
            e = self.extra_msa_embedder(extra)
            extra_mask = torch.ones(e.shape[:-1]).to(e) if extra_mask is None else extra_mask
            for block in self.extra_msa_stack.blocks:
                e, z = block(e, z, extra_mask, pair_mask, _mask_trans=False)
        for block in self.evoformer.blocks:
            m, z = block(m, z, msa_mask, pair_mask, _mask_trans=False)
        return self.aux_heads.masked_msa(m)


def import_open_sora(root):
    bare_packages(root, ["opensora", "opensora.models", "opensora.models.layers", "opensora.models.stdit",
                         "opensora.acceleration", "opensora.utils"])

    class Config:
        def __init__(self, **kwargs):
            self.__dict__.update(kwargs)

    class Pretrained(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config

    stand_in("transformers", PretrainedConfig=Config, PreTrainedModel=Pretrained)
    stand_in("opensora.registry", MODELS=types.SimpleNamespace(register_module=lambda *_: lambda x: x))
    stand_in("opensora.acceleration.checkpoint", auto_grad_checkpoint=lambda block, *args: block(*args))
    has_anything(stand_in("opensora.acceleration.communications"))
    has_anything(stand_in("opensora.acceleration.parallel_states"))
    stand_in("opensora.utils.ckpt_utils", load_checkpoint=None)

    class Mask:
        @staticmethod
        def from_seqlens(queries, keys):
            return queries, keys

    def attend(q, k, v, p, attn_bias):
        """[1, rows, heads, D]; only a sample's rows see each other."""
        out = []
        for one in zip(*(t.split(n, 1) for t, n in ((q, attn_bias[0]), (k, attn_bias[1]), (v, attn_bias[1])))):
            out.append(F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in one)).transpose(1, 2))
        return torch.cat(out, 1)

    fmha = types.SimpleNamespace(BlockDiagonalMask=Mask)
    ops = stand_in("xformers.ops", memory_efficient_attention=attend, fmha=fmha)
    stand_in("xformers", ops=ops)
    layers = importlib.import_module("timm.layers")
    stand_in("timm.models.layers", DropPath=layers.DropPath)
    blocks = importlib.import_module("opensora.models.layers.blocks")
    stdit3 = importlib.import_module("opensora.models.stdit.stdit3")
    blocks.torch = stdit3.torch = Wide()
    return stdit3


def write_names(path, model, left_out=()):
    lines = ["# name, shape, and mean and standard deviation of what it begins with"]
    for name, weight in model.named_parameters():
        if name in left_out:
            continue
        numbers = weight.detach().double()
        shape = ",".join(str(n) for n in weight.shape)
        lines.append(f"{name} {shape} {numbers.mean():.3g} {numbers.std(unbiased=False):.4g}")
    path.write_text("\n".join(lines) + "\n")


def randomise(model, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            around = 1.0 if name.endswith("norm.weight") or "layer_norm" in name and name.endswith("weight") else 0.0
            weight.copy_(around + 0.3 * torch.randn(weight.shape, dtype=torch.float64))


def write_golden(name, config, model, samples, sums, scored, weights):
    loss = sum(sums) / scored
    loss.backward()
    folder = GOLDEN / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    own = {n: p for n, p in model.named_parameters() if n in weights}
    save_file({n: p.detach().contiguous() for n, p in own.items()}, folder / "model.safetensors")
    grads = {n: torch.zeros_like(p) if p.grad is None else p.grad.contiguous() for n, p in own.items()}
    save_file(grads, folder / "expected_gradients.safetensors")
    save_file({f"{i}.{n}": t.contiguous() for i, sample in enumerate(samples) for n, t in sample.items()},
              folder / "samples.safetensors")
    (folder / "expected.json").write_text(
        json_text({"loss": loss.item(), "sums": [s.item() for s in sums], "scored": scored}))


SMALL_OPENFOLD = {
    "model_type": "openfold", "no_blocks": 2, "c_m": 6, "c_z": 5, "no_heads_msa": 3, "no_heads_pair": 2, "c_hidden": 2,
    "c_hidden_pair_att": 3, "c_hidden_opm": 2, "c_hidden_mul": 3, "transition_n": 2, "is_multimer": False}


# Two blocks for extra sequences, so that what the first makes of them is read; a trunk of one.
SMALL_EXTRA = SMALL_OPENFOLD | {
    "no_blocks": 1, "no_extra_blocks": 2, "c_e": 4, "no_heads_extra": 2, "c_hidden_extra": 3, "c_hidden_opm_extra": 3}


def openfold_golden(openfold):
    published = dict(c_m=256, c_z=128, c_s=384, no_heads_msa=8, no_heads_pair=4, c_hidden=32, c_hidden_opm=32,
                     c_hidden_mul=128, c_hidden_pair_att=32, transition_n=4, no_blocks=1, is_multimer=False,
                     no_extra_blocks=1, c_e=64, no_heads_extra=8, c_hidden_extra=8, c_hidden_opm_extra=32)
    torch.manual_seed(1)
    write_names(GOLDEN / "names_openfold.txt", OpenFold(openfold, published))
    small_openfold_golden(openfold, "grid_openfold", SMALL_OPENFOLD, seed=5)
    small_openfold_golden(openfold, "grid_openfold_extra", SMALL_EXTRA, seed=8)


def small_openfold_golden(openfold, name, config, seed):
    model = OpenFold(openfold, config).double().eval()
    randomise(model, seed)
    samples, sums, scored = [], [], 0
    for sequences, residues in ((3, 4), (2, 5)):
        target = F.one_hot(torch.randint(1, 22, (residues,)), 22).double()
        index = torch.arange(residues)
        msa = torch.randn(sequences, residues, 49, dtype=torch.float64)
        labels = torch.where(torch.rand(sequences, residues) < 0.5, torch.randint(0, 23, (sequences, residues)), -1)
        labels[0, 0] = 7
        extra = torch.randn(2 * sequences, residues, 25, dtype=torch.float64) if "c_e" in config else None
        logits = model(target, index.double(), msa, extra=extra)
        sums.append(F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum"))
        scored += int((labels >= 0).sum())
        of_pair = lambda dim: target.unsqueeze(dim).expand(residues, residues, 22)
        places = F.one_hot((index[:, None] - index[None]).clamp(-32, 32) + 32, 65).double()
        samples.append({
            "msa": torch.cat([target.unsqueeze(0).expand(sequences, -1, -1), msa], -1),
            "pair": torch.cat([of_pair(1), of_pair(0), places], -1),
            "labels": labels.flatten().to(torch.int32)} | ({} if extra is None else {"extra_msa": extra}))
    write_golden(name, config, model, samples, sums, scored, dict(model.named_parameters()))


def masked_openfold_golden(openfold):
    """Residues and sequences that are masked; what is stored of a sample is all the rest."""
    model = OpenFold(openfold, SMALL_OPENFOLD).double().eval()
    randomise(model, 7)
    samples, sums, scored = [], [], 0
    for sequences, residues, without_sequences, without in ((4, 7, [2], [1, 4, 5]), (3, 6, [], [0, 3])):
        target = F.one_hot(torch.randint(1, 22, (residues,)), 22).double()
        index = torch.arange(residues)
        msa = torch.randn(sequences, residues, 49, dtype=torch.float64)
        labels = torch.where(torch.rand(sequences, residues) < 0.5, torch.randint(0, 23, (sequences, residues)), -1)
        labels[0, 2] = 7
        of_sequences = torch.tensor([s not in without_sequences for s in range(sequences)])
        of_residues = torch.tensor([r not in without for r in range(residues)])
        there = of_sequences[:, None] & of_residues
        labels = torch.where(there, labels, -1)
        logits = model(target, index.double(), msa, there.double(), (of_residues[:, None] & of_residues).double())
        sums.append(F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum"))
        scored += int((labels >= 0).sum())
        target, index = target[of_residues], index[of_residues]
        msa, labels = msa[of_sequences][:, of_residues], labels[of_sequences][:, of_residues]
        left = len(index)
        of_pair = lambda dim: target.unsqueeze(dim).expand(left, left, 22)
        places = F.one_hot((index[:, None] - index[None]).clamp(-32, 32) + 32, 65).double()
        samples.append({
            "msa": torch.cat([target.unsqueeze(0).expand(len(msa), -1, -1), msa], -1),
            "pair": torch.cat([of_pair(1), of_pair(0), places], -1),
            "labels": labels.flatten().to(torch.int32)})
    write_golden("grid_openfold_masked", SMALL_OPENFOLD, model, samples, sums, scored, dict(model.named_parameters()))


def letters_openfold_golden(openfold):
    """Letters that are masked, one by one and all of a sequence or of a residue; extra rows that are all padding."""
    config = SMALL_EXTRA | {"msa_mask": True}
    model = OpenFold(openfold, config).double().eval()
    randomise(model, 9)
    samples, sums, scored = [], [], 0
    for sequences, residues, extras in ((4, 6, 5), (3, 5, 4), (2, 4, 1)):
        target = F.one_hot(torch.randint(1, 22, (residues,)), 22).double()
        index = torch.arange(residues)
        msa = torch.randn(sequences, residues, 49, dtype=torch.float64)
        extra = torch.randn(extras, residues, 25, dtype=torch.float64)
        msa_mask = (torch.rand(sequences, residues) < 0.65).double()
        extra_mask = (torch.rand(extras, residues) < 0.65).double()
        msa_mask[0, 1] = 1
        if sequences == 4:
            msa_mask[2] = 0
            msa_mask[:, 4] = 0
        if extras == 4:
            extra_mask[1:3] = 0
            extra_mask[:, 3] = 0
        if extras == 1:
            extra_mask[:] = 0
        labels = torch.where(torch.rand(sequences, residues) < 0.5, torch.randint(0, 23, (sequences, residues)), -1)
        labels[0, 1] = 7
        labels = torch.where(msa_mask > 0, labels, -1)
        logits = model(target, index.double(), msa, msa_mask, extra=extra, extra_mask=extra_mask)
        sums.append(F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum"))
        scored += int((labels >= 0).sum())
        of_pair = lambda dim: target.unsqueeze(dim).expand(residues, residues, 22)
        places = F.one_hot((index[:, None] - index[None]).clamp(-32, 32) + 32, 65).double()
        samples.append({
            "msa": torch.cat([target.unsqueeze(0).expand(sequences, -1, -1), msa], -1),
            "msa_mask": msa_mask.unsqueeze(-1), "extra_msa": extra, "extra_msa_mask": extra_mask.unsqueeze(-1),
            "pair": torch.cat([of_pair(1), of_pair(0), places], -1),
            "labels": labels.flatten().to(torch.int32)})
    write_golden("grid_openfold_letters", config, model, samples, sums, scored, dict(model.named_parameters()))


def open_sora_golden(stdit3):
    left_out = ("rope.freqs",)
    torch.manual_seed(1)
    write_names(GOLDEN / "names_stdit3.txt", stdit3.STDiT3(stdit3.STDiT3Config(depth=1)), left_out)
    config = {"model_type": "STDiT3", "depth": 2, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 1.5,
              "in_channels": 2, "patch_size": [1, 2, 2], "caption_channels": 3, "input_sq_size": 32,
              "class_dropout_prob": 0.0}
    of_program = {k: v for k, v in config.items() if k != "model_type"}
    model = stdit3.STDiT3(stdit3.STDiT3Config(**of_program)).double().eval()
    randomise(model, 6)
    D = config["hidden_size"] // config["num_heads"]
    with torch.no_grad():
        exact = torch.tensor([10000.0 ** (-2 * i / D) for i in range(D // 2)], dtype=torch.float64)
        model.rope.freqs.copy_(exact)
    seen = {}
    keep = lambda name: lambda module, args, out: seen.__setitem__(name, (args, out))
    model.final_layer.register_forward_hook(keep("last"))
    model.pos_embed.register_forward_hook(keep("places"))
    model.t_embedder.mlp.register_forward_hook(keep("time"))
    model.fps_embedder.mlp.register_forward_hook(keep("fps"))
    samples, sums, scored = [], [], 0
    for frames, height, width, tokens, timestep, fps in ((3, 4, 6, 4, 437.5, 24.0), (5, 2, 4, 2, 911.25, 8.0)):
        clip = torch.randn(1, 2, frames, height, width, dtype=torch.float64)
        velocity = torch.randn(1, 2, frames, height, width, dtype=torch.float64)
        text = torch.randn(1, 1, tokens, 3, dtype=torch.float64)
        of_one = lambda x: torch.tensor([x], dtype=torch.float64)
        model(clip, of_one(timestep), text, fps=of_one(fps), height=of_one(8.0 * height), width=of_one(8.0 * width))
        down, across = height // 2, width // 2
        y = model.unpatchify(seen["last"][1], frames, down, across, frames, height, width)
        sums.append((y.chunk(2, 1)[0] - velocity).square().sum())
        scored += velocity.numel()
        blocks = lambda x: x[0].reshape(2, frames, down, 2, across, 2).permute(1, 2, 4, 0, 3, 5)  # [.., C, p, p]
        places = seen["places"][1].expand(frames, -1, -1)
        wanted = blocks(velocity).movedim(3, 5)  # channels last, and nothing for their variances
        wanted = torch.cat([wanted, torch.full_like(wanted, math.nan)], -1)
        samples.append({
            "patches": torch.cat([blocks(clip).reshape(frames, down * across, -1), places.detach()], -1),
            "velocity": wanted.reshape(frames, down * across, -1),
            "time": seen["time"][0][0][0].detach(), "fps": seen["fps"][0][0][0].detach(),
            "text": text[0, 0]})
    own = {n: p for n, p in model.named_parameters() if n not in left_out}
    write_golden("grid_stdit3", config, model, samples, sums, scored, own)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--openfold", type=Path, required=True)
    parser.add_argument("--open-sora", type=Path, help="without it, only OpenFold's")
    args = parser.parse_args()
    openfold = import_openfold(args.openfold)
    openfold_golden(openfold)
    masked_openfold_golden(openfold)
    letters_openfold_golden(openfold)
    if args.open_sora:
        open_sora_golden(import_open_sora(args.open_sora))


if __name__ == "__main__":
    main()
