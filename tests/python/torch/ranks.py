"""What the tests of paradyse.torch share: real Gloo ranks with a deadline, small models, plans drawn at random,
and one process that runs each document by itself through the model as Hugging Face has it."""

import copy
import datetime
import json
import multiprocessing
import os
import queue
import random
import tempfile
import time
import traceback
import warnings

import paradyse
import paradyse.torch as pt
import torch
import torch.distributed as dist
import transformers

LONG = bool(os.environ.get("PARADYSE_TEST_LONG"))
LENGTHS = [1, 2, 3, 5, 7, 11, 13, 29]
IGNORED = -100
warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)


def _rank(function, rank, ranks, store, deadline, results, arguments):
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks,
                                timeout=datetime.timedelta(seconds=deadline))
        results.put((rank, function(rank, *arguments), None))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
        results.close()
        results.join_thread()
        os._exit(1)


def on_ranks(ranks, function, *arguments, deadline=120):
    """[rank] what function(rank, *arguments) returns in processes of one Gloo group; a failure of any is raised."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    found, errors = {}, []
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=_rank, args=(function, rank, ranks, os.path.join(folder, "store"),
                                                         deadline, results, arguments)) for rank in range(ranks)]
        for process in processes:
            process.start()
        try:
            end = time.monotonic() + deadline
            while len(found) < ranks and not errors:
                try:
                    rank, found_there, error = results.get(timeout=0.5)
                    found[rank] = found_there
                    errors += [f"rank {rank}: {error}"] if error else []
                except queue.Empty:
                    errors += [f"rank {rank} ended by signal {-process.exitcode}" for rank, process in
                               enumerate(processes) if rank not in found and (process.exitcode or 0) < 0]
                    if time.monotonic() > end:
                        errors.append(f"no answer of ranks {sorted(set(range(ranks)) - set(found))} in {deadline} s")
            for process in processes:
                process.join(0 if errors else deadline)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                    process.join()
    if errors:
        raise AssertionError("\n".join(errors))
    return [found[rank] for rank in range(ranks)]


def llama(heads=4, keys=2, dtype=torch.float64, layers=2, **more):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=heads * 4, num_attention_heads=heads, num_key_value_heads=keys, num_hidden_layers=layers,
        intermediate_size=24, vocab_size=64, max_position_embeddings=256, attn_implementation="sdpa", **more)
    model = transformers.LlamaForCausalLM(config).to(dtype)
    exact(model)
    return model


def exact(model):
    """Hugging Face has cosines and norms in float32, also of a float64 model: here they are as the model is."""
    rotary = model.model.rotary_emb
    wide = torch.arange(0, model.config.head_dim, 2).double() / model.config.head_dim
    frequencies = 1 / model.config.rope_parameters["rope_theta"] ** wide
    table = torch.arange(256)[:, None].double() * torch.cat([frequencies, frequencies])
    rotary.forward = lambda x, position_ids: (table[position_ids].cos().to(x.dtype), table[position_ids].sin().to(x.dtype))
    for norm in model.modules():
        if isinstance(norm, transformers.models.llama.modeling_llama.LlamaRMSNorm):
            norm.__class__ = ExactNorm


class ExactNorm(transformers.models.llama.modeling_llama.LlamaRMSNorm):
    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def documents(lengths, seed=1, without=()):
    """Of each length ids and labels; `without`: documents that have no label."""
    draw = random.Random(seed)
    found = []
    for d, n in enumerate(lengths):
        ids = [draw.randrange(64) for _ in range(n)]
        labels = [IGNORED if d in without or draw.random() < 0.2 else i for i in ids]
        found.append({"input_ids": ids, "labels": labels})
    return found


def random_plan(ranks, lengths, seed, idle=False):
    """Groups of any sizes on any ranks, some without documents, some whose layers are made again."""
    draw = random.Random(seed)
    layers = 2
    program = {again: [{"layers": layers, **({"recompute": "layer"} if again else {}), "parts": [
        {"part": "attention", "strategy": "{}", "recompute": "none"},
        {"part": "mlp", "strategy": "gather", "recompute": "none"}]}] for again in (False, True)}
    programs, micro_batches = {}, []
    order = draw.sample(range(len(lengths)), len(lengths))
    while order or not micro_batches:
        free = draw.sample(range(ranks), ranks)
        groups = []
        while free:
            size = 1 if not order or idle else draw.randint(1, len(free))
            members, free = sorted(free[:size]), free[size:]
            mine = order[:draw.randint(0, 3)]
            mine = mine if size > 1 or not idle or draw.random() < 0.5 else []
            order = [d for d in order if d not in mine]
            again = draw.random() < 0.5
            name = f"{'one' if size == 1 else 'several'}{', again' if again else ''}"
            text = json.dumps(program[again]).replace("{}", "DataZ" if size == 1 else "UlyssesZ")
            programs[name] = json.loads(text)
            if mine or size == 1:
                groups.append({"ranks": members, "documents": sorted(mine), "program": name})
            else:
                one = name.replace("several", "one")
                programs[one] = json.loads(json.dumps(program[again]).replace("{}", "DataZ"))
                groups += [{"ranks": [r], "documents": [], "program": one} for r in members]
        micro_batches.append({"groups": sorted(groups, key=lambda group: group["ranks"][0])})
    plan = paradyse.Plan.from_json(json.dumps({
        "format": "paradyse-plan", "version": 1, "model": {"name": "torch", "sha256": "", "layers": layers},
        "cluster": {"name": "", "sha256": "", "ranks": ranks}, "weight_domain": ranks, "lengths": list(lengths),
        "programs": programs, "micro_batches": micro_batches, "reshard_after_forward": ranks == 1,
        "reshard_after_backward": ranks == 1}))
    assert paradyse.check(plan) == [], paradyse.check(plan)
    return plan


def planner(model, ranks=None, **more):
    costs = pt.Costs(token=1e-3, square=1e-5, document=1e-3, recompute=1.3, parameters=1000, token_bytes=1000,
                     token_bytes_again=500)
    return pt.Planner(model.config, costs=costs, memory=more.pop("memory", "1GiB"), ranks=ranks, deadline=60, **more)


def planner_for(model, how, **more):
    """Of a model that wrapped(model, how) wraps."""
    sharded = {"fsdp2": {"weights": "fsdp2"}, "hsdp": {"weights": "hsdp", "node": 2}}
    return planner(model, **sharded.get(how, {}), **more)


def _averages(rank):
    try:
        planner(llama(), weights="fsdp2")
    except ValueError as error:
        assert "multiplies gradients by 2" in str(error), error
        return False
    return True


def hows():
    """What models are wrapped by: without FSDP2 where this PyTorch's Gloo does not average, which Planner refuses."""
    return ("plain", "ddp", "fsdp2") if on_ranks(2, _averages)[0] else ("plain", "ddp")


def truth(model, items):
    """Mean loss and gradients by name, each document by itself, without a line of paradyse.torch."""
    model = copy.deepcopy(model).double()
    model.set_attn_implementation("sdpa")
    labels = sum(sum(label != IGNORED for label in item["labels"][1:]) for item in items)
    total = 0.0
    for item in items:
        ids = torch.tensor([item["input_ids"]])
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        wanted = torch.tensor(item["labels"][1:], dtype=torch.long)
        loss = torch.nn.functional.cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="sum")
        (loss / max(1, labels)).backward()
        total += float(loss.detach())
    return total / max(1, labels), {name: torch.zeros_like(p) if p.grad is None else p.grad
                                    for name, p in model.named_parameters()}


def wrapped(model, how, **policy):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    if how == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if how in ("fsdp2", "hsdp"):
        ranks = dist.get_world_size()
        mesh = init_device_mesh("cpu", (ranks,)) if how == "fsdp2" else init_device_mesh(
            "cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh, **policy)
        return fully_shard(model, mesh=mesh, **policy)
    return model


def played(model, step, items):
    """Mean loss and gradients by name after a step."""
    total = torch.zeros(())
    for mb in step.micro_batches(items):
        with pt.accumulate(model, mb):
            loss = pt.loss_sum(model(**mb.inputs), mb.labels)
            (loss * step.scale).backward()
        total = total + loss.detach()
    grads = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        grads[name.removeprefix("module.")] = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
    return step.mean(total), grads


def worst(found, wanted):
    """The largest relative difference of a gradient, by its norm, with a floor of 1e-6 of the whole gradient's."""
    floor = 1e-6 * torch.stack([g.double().norm() for g in wanted.values()]).norm()
    assert found.keys() == wanted.keys()
    return max(float((found[name].double() - wanted[name].double()).norm() / max(wanted[name].double().norm(), floor))
               if floor > 0 else float(found[name].abs().max()) for name in wanted)
