"""What attach() takes and what it refuses by name; what attention refuses later."""

import contextlib
import importlib.util
import io
import math
import types
import unittest

import paradyse.torch as pt
import torch
import transformers
from paradyse.torch.steps import recompute_layers
from ranks import LENGTHS, documents, llama, on_ranks, planner, played, random_plan, truth, worst
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

SMALL = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 24,
         "vocab_size": 64, "max_position_embeddings": 256}
GROUPED = {**SMALL, "num_key_value_heads": 2}
TAKEN = {
    "Llama": GROUPED, "Qwen2": GROUPED, "Qwen3": {**GROUPED, "head_dim": 16}, "Mistral": {**GROUPED, "sliding_window": None},
    "Olmo2": {**GROUPED, "pad_token_id": 0}, "Phi3": {**GROUPED, "pad_token_id": 0}, "Cohere": GROUPED,
    "GPTNeoX": SMALL, "GPT2": {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 64, "attn_pdrop": 0.0,
                               "resid_pdrop": 0.0, "embd_pdrop": 0.0, "n_positions": 256},
    "Granite": GROUPED,
}
REFUSED = {
    "Bloom": ({"hidden_size": 32, "n_head": 4, "n_layer": 2, "vocab_size": 64}, "attention implementation is 'eager'"),
    "Mamba": ({"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}, "attention implementation is|0 of its 2 layers"),
    "Mistral": ({**GROUPED, "sliding_window": 8}, "a sliding window"),
    "Gemma2": ({**GROUPED, "head_dim": 8}, "attention implementation is 'eager'"),
    "GptOss": ({**GROUPED, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}, "attention implementation is|sinks|window"),
    "Llama": ({**GROUPED, "attention_dropout": 0.1}, "dropout 0.1"),
    "GPT2": ({"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 64}, "dropout 0.1"),
}
NO_DROPOUT = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
LONGROPE = {"rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
OTHERWISE = [  # what Transformers computes otherwise than plans do: model, configuration, its options, words
    ("LlamaForCausalLM", "Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0}},
     "rope_type 'dynamic'"),
    ("Phi3ForCausalLM", "Phi3", {"pad_token_id": 0, "rope_parameters": LONGROPE,
                                 "original_max_position_embeddings": 8}, "rope_type 'longrope'"),
    ("Llama4ForCausalLM", "Llama4Text", {**EXPERTS, "intermediate_size_mlp": 24, "head_dim": 8, "attention_chunk_size": 8192,
                                         "attn_temperature_tuning": False}, "layer_types has chunked_attention"),
    ("Llama4ForCausalLM", "Llama4Text", {**EXPERTS, "intermediate_size_mlp": 24, "head_dim": 8, "no_rope_layers": [0, 0]},
     "attn_temperature_tuning"),
    ("PhimoeForCausalLM", "Phimoe", {**EXPERTS, "sliding_window": 200}, "a sliding window"),
    ("RobertaForCausalLM", "Roberta", {**NO_DROPOUT, "is_decoder": True}, "positions are not 0, 1, 2"),
    ("CamembertForCausalLM", "Camembert", {**NO_DROPOUT, "is_decoder": True}, "positions are not 0, 1, 2"),
    ("BertForMaskedLM", "Bert", NO_DROPOUT, "not causal"), ("BertLMHeadModel", "Bert", NO_DROPOUT, "not causal"),
    ("LlamaForCausalLM", "Llama", {"is_causal": False}, "is_causal is False"),
    ("OPTForCausalLM", "OPT", {"ffn_dim": 24, "word_embed_proj_dim": 32, "layerdrop": 0.1}, "layerdrop 0.1 leaves out"),
    ("LlamaForSequenceClassification", "Llama", {"pad_token_id": 0}, r"logits \[1, 2\] for 64 tokens"),
    ("LlamaForTokenClassification", "Llama", {}, r"logits \[1, 64, 2\] for 64 tokens"),
    ("LlamaForQuestionAnswering", "Llama", {}, "no logits for 64 tokens"), ("LlamaModel", "Llama", {}, "no logits for 64"),
]


def made(name, options):
    torch.manual_seed(2)
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")(config).double()


def families(rank, names):
    found = {}
    for name in names:
        model = made(name, TAKEN[name])
        items = documents(LENGTHS, 3)
        _, grads = truth(model, items)
        pt.attach(model)
        model.train()
        step = pt.Step(random_plan(3, LENGTHS, 5), range(len(LENGTHS)), planner(model))
        found[name] = worst(played(model, step, items)[1], grads)
    return found


def lora(rank):
    import peft
    model = peft.get_peft_model(llama(4, 2), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # is zero at first
                parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) / parameter.numel() - 0.5)
    model.double()
    items = documents(LENGTHS, 3)
    _, grads = truth(model, items)
    pt.attach(model)
    model.train()
    step = pt.Step(random_plan(3, LENGTHS, 5), range(len(LENGTHS)), planner(model))
    mine = played(model, step, items)[1]
    assert all(grad is None for name, grad in mine.items() if "lora" not in name)
    return worst(*({name: grad for name, grad in found.items() if "lora" in name} for found in (mine, grads)))


class AttachTest(unittest.TestCase):
    def test_families_have_the_gradients_of_one_process(self):
        for found in on_ranks(3, families, sorted(TAKEN)):
            for name, difference in found.items():
                with self.subTest(name):  # Hugging Face's angles, and some norms, are float32
                    self.assertLess(difference, 1e-5)

    @unittest.skipUnless(importlib.util.find_spec("peft"), "no peft in this Python")
    def test_lora_factors_have_the_whole_gradient(self):
        for difference in on_ranks(3, lora):
            self.assertLess(difference, 1e-9)

    def test_models_that_would_train_wrong_are_refused_by_name(self):
        for name, (options, cause) in REFUSED.items():
            model = made(name, options)
            with self.subTest(name), self.assertRaisesRegex(ValueError, f"(?s){name}.*({cause})"):
                pt.attach(model)

    def test_models_that_transformers_computes_otherwise_are_refused(self):
        for kind, config, options, words in OTHERWISE:
            torch.manual_seed(2)
            model = getattr(transformers, kind)(getattr(transformers, f"{config}Config")(**{**SMALL, **options}))
            with self.subTest(kind, words=words):
                with self.assertRaisesRegex(ValueError, f"{kind} is not supported: .*{words}"):
                    pt.attach(model)
                self.assertEqual(model.config._attn_implementation, "sdpa")  # as it came
                self.assertFalse(model._forward_pre_hooks)
                self.assertTrue(model.training)

    def test_layers_that_do_not_hand_the_documents_on(self):
        for name, options in (("StableLm", {"num_key_value_heads": 4}), ("Nemotron", {"num_key_value_heads": 4})):
            with self.subTest(name), self.assertRaisesRegex(
                    ValueError, f"{name}ForCausalLM is not supported: its layers do not hand the arguments of a call on"):
                pt.attach(made(name, {**SMALL, **options}))

    def test_experts_in_float64(self):
        model = made("Mixtral", {**GROUPED, "num_local_experts": 4, "sliding_window": None})
        if getattr(model.config, "_experts_implementation", None) != "grouped_mm":
            self.skipTest("these transformers have no grouped products of experts")
        with self.assertRaisesRegex(ValueError, "MixtralForCausalLM is not supported: its forward fails: .*set_experts_"):
            pt.attach(model)
        model.set_experts_implementation("eager")
        pt.attach(model)
        for dtype, limit in ((torch.float64, 1e-5), (torch.float32, 1e-4)):
            model = made("Mixtral", {**GROUPED, "num_local_experts": 4, "sliding_window": None}).to(dtype)
            if dtype == torch.float64:
                model.set_experts_implementation("eager")
            pt.attach(model)
            before = model.config._experts_implementation
            with contextlib.redirect_stdout(io.StringIO()):
                found = pt.check(model, documents([29, 5, 13]), planner(model, ranks=1))
            self.assertLess(found.gradient, limit)
            self.assertEqual(model.config._experts_implementation, before)  # the copy's alone is another

    def test_a_rope_type_that_only_the_model_says(self):
        model = llama()
        model.model.rotary_emb.rope_type = "dynamic"
        with self.assertRaisesRegex(ValueError, "rope_type 'dynamic'"):
            pt.attach(model)

    def test_windows_that_no_layer_uses_are_taken(self):
        for name, options in (("Qwen2", {"use_sliding_window": False, "sliding_window": 8}),
                              ("Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}),
                              ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}})):
            with self.subTest(name, options=options):
                pt.attach(made(name, {**GROUPED, **options}))

    def test_what_is_no_model_of_transformers(self):
        for model in (torch.nn.Linear(2, 2), None):
            with self.assertRaisesRegex(ValueError, "no configuration of a Hugging Face model"):
                pt.attach(model)

    def test_attached_again_it_expects_no_mask_once(self):
        model = llama()
        for _ in range(3):
            pt.attach(model)
            self.assertEqual(len(model._forward_pre_hooks), 1)
            model.set_attn_implementation("sdpa")  # to evaluate

    def test_tokens_that_meet_outside_attention_are_seen(self):
        model = llama()
        mlp = model.model.layers[0].mlp
        plain = mlp.forward
        mlp.forward = lambda x: plain(x) + x.mean(1, keepdim=True)
        with self.assertRaisesRegex(ValueError, "logits of a document change"):
            pt.attach(model)

    def test_the_name_has_no_mask_among_transformers_masks(self):
        pt.attach(llama())
        self.assertNotIn("paradyse", ALL_MASK_ATTENTION_FUNCTIONS)

    def test_calls_that_attention_refuses(self):
        model = llama(dtype=torch.float32)
        pt.attach(model)
        exchange = pt.Exchange([3, 2])
        ids = torch.tensor([[1, 2, 3, 4, 5]])
        for inputs, words in (
                ({"input_ids": ids}, "got no paradyse="),
                ({"input_ids": ids[:, :4], "paradyse": exchange}, "expected is one row of the 5 tokens"),
                ({"input_ids": torch.cat([ids, ids]), "paradyse": exchange}, "one row"),
                ({"input_ids": ids, "paradyse": exchange, "attention_mask": torch.zeros(1, 1, 5, 5)}, "attention mask"),
                ({"input_ids": ids, "paradyse": exchange, "softcap": 3.0}, "soft cap"),
                ({"input_ids": ids, "paradyse": exchange, "labels": ids}, "are shifted already.*loss_sum"),
                ({"input_ids": ids, "paradyse": exchange, "s_aux": torch.zeros(4)}, "sinks")):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                model(**inputs)
        two = {"input_ids": ids, "attention_mask": torch.ones(1, 5, dtype=torch.long), "paradyse": exchange}
        with self.assertRaisesRegex(ValueError, "attention mask"):
            model(**two)

    def test_an_auxiliary_loss_is_not_dropped(self):
        logits = torch.zeros(1, 3, 4)
        output = types.SimpleNamespace(logits=logits, aux_loss=torch.tensor(0.5))
        with self.assertRaisesRegex(ValueError, "auxiliary loss .* output_router_logits=False"):
            pt.loss_sum(output, torch.tensor([[0, 1, 2]]))
        output.aux_loss = None
        self.assertAlmostEqual(float(pt.loss_sum(output, torch.tensor([[0, 1, 2]]))), 3 * math.log(4), places=5)

    def test_recomputation_leaves_what_needs_gradients(self):
        model = llama(dtype=torch.float32)
        for parameter in model.get_input_embeddings().parameters():
            parameter.requires_grad = False
        recompute_layers(model, True)
        self.assertFalse(model.get_input_embeddings()(torch.tensor([1])).requires_grad)

    def test_its_own_attention_for_evaluation(self):
        model = llama()
        ids = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])
        mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
        with torch.no_grad():
            wanted = model.eval()(input_ids=ids, attention_mask=mask).logits
            pt.attach(model)
            with pt.own_attention(model):
                self.assertTrue(torch.equal(model(input_ids=ids, attention_mask=mask).logits, wanted))
            with self.assertRaisesRegex(ValueError, "do it in `with own_attention.model.:`"):
                model(input_ids=ids[:1])

    def test_a_step_whose_attention_does_not_go_by_the_plan_is_refused(self):
        items = documents([5, 3])
        for attached in (False, True):
            model = llama()
            one = planner(model, ranks=1)
            if attached:
                pt.attach(model)
            with self.subTest(attached), self.assertRaisesRegex(ValueError, "attended without the documents .* mixed"):
                with pt.own_attention(model):
                    pt.Step(one.plan([5, 3]), range(2), one).play(model, items)
        pt.Step(one.plan([5, 3]), range(2), one).play(model, items)

    def test_another_attention_is_refused(self):
        model = llama()
        model.set_attn_implementation("eager")
        with self.assertRaisesRegex(ValueError, "LlamaForCausalLM is not supported: its attention implementation is 'eager'"):
            pt.attach(model)


if __name__ == "__main__":
    unittest.main()
