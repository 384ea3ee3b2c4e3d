"""paradyse grad against what Hugging Face transformers computes (tests/golden), and its errors."""

import itertools
import json
import math
import os
import pathlib
import shutil
import unittest

from support import (
    FAILED, GOLDEN, MODELS, TINY_LLAMA, ProgramTest, gradient_error, read_tensors, uniform_plan)

VERBS = {"MegatronTS": "hold", "UlyssesZ": "gather", "DataZ": "gather", "MegatronCZ": "gather",
         "AllGatherKV": "gather", "ColossalZ": "gather", "METP": "pass"}
LEVELS = ["none", "light", "attention-output", "full"]


def golden_documents(name):
    lines = (GOLDEN / name / "documents.jsonl").read_text().splitlines()
    return [json.loads(line)["tokens"] for line in lines]


class GradTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "grads.safetensors"

    def arguments(self, name, *more):
        folder = GOLDEN / name
        return ["grad", "--model", folder, "--data", folder / "documents.jsonl",
                "--out", self.out, *more]

    def expect_golden(self, name, *more, tolerance=1e-9):
        """Loss, documents and every gradient are those of the golden file."""
        answer = self.json_of(*self.arguments(name, *more))
        expected = json.loads((GOLDEN / name / "expected.json").read_text())
        self.assertEqual(list(answer), ["loss", "tokens", "documents", "ranks", "parts", "data", "model"])
        self.assertLessEqual(
            abs(answer["loss"] - expected["loss"]), tolerance * abs(expected["loss"]))
        counts = [document["count"] for document in expected["documents"]]
        self.assertEqual([document["count"] for document in answer["documents"]], counts)
        self.assertEqual(answer["tokens"], sum(counts))
        for got, wanted in zip(answer["documents"], expected["documents"]):
            self.assertEqual(list(got), ["sum", "count"])
            self.assertLessEqual(
                abs(got["sum"] - wanted["sum"]), tolerance * max(1, abs(wanted["sum"])))
        for rank in answer["ranks"]:
            self.assertEqual(
                list(rank), ["bytes_sent", "messages", "saved_bytes", "peak_bytes"])
        error = gradient_error(
            read_tensors(self.out),
            read_tensors(GOLDEN / name / "expected_gradients.safetensors"))
        self.assertLessEqual(error, tolerance)
        return answer

    def test_every_strategy_on_every_number_of_ranks(self):
        table = itertools.product(MODELS, VERBS.items(), [1, 2, 3, 4])
        for number, (name, (strategy, verb), ranks) in enumerate(table):
            if number % 5 and "PARADYSE_TEST_LONG" not in os.environ:
                continue  # 5 divides neither of the columns: each pair of them is met
            with self.subTest(model=name, strategy=strategy, ranks=ranks):
                answer = self.expect_golden(name, "--attention", strategy, "--ranks", ranks)
                self.assertEqual(len(answer["ranks"]), ranks)
                layers = json.loads((GOLDEN / name / "config.json").read_text())
                layers = layers.get("num_hidden_layers") or layers.get("n_layer") or layers["n_layers"]
                self.assertEqual(
                    answer["parts"],
                    [{"layer": layer, "part": part, "strategy": runs, "recompute": "none"}
                     for layer in range(layers)
                     for part, runs in [("attention", strategy), ("mlp", verb)]])
                if ranks == 1:
                    self.assertEqual(answer["ranks"][0]["bytes_sent"], 0)
                else:
                    self.assertTrue(all(rank["bytes_sent"] > 0 for rank in answer["ranks"]))

    def test_dropout_only_when_asked_for(self):
        plain = self.expect_golden("hf_bert")["loss"]  # whose configuration has dropout 0.1
        folder = GOLDEN / "hf_bert"
        evaluated = self.json_of(
            "eval", "--model", folder, "--data", folder / "documents.jsonl", "--ranks", 2)
        self.assertAlmostEqual(evaluated["loss"], plain, 5)
        for options, said in [
                (["--attention-dropout", 0.5], "without --dropout-seed"),
                (["--dropout-seed", 1, "--attention-dropout", 1], "from 0 to below 1")]:
            self.assertIn(said, self.error_of(*self.arguments("hf_bert", *options)))
        def loss(seed, ranks, *more):
            return self.json_of(*self.arguments(
                "hf_bert", "--dropout-seed", seed, "--ranks", ranks, *more))["loss"]
        one = loss(1, 1)
        self.assertNotAlmostEqual(one, plain, 3)
        self.assertNotAlmostEqual(one, loss(2, 1), 3)
        self.assertNotAlmostEqual(one, loss(1, 1, "--attention-dropout", 0), 3)
        # the same elements, whoever holds them and however often they are computed
        self.assertAlmostEqual(one, loss(1, 3, "--attention", "MegatronTS", "--recompute", "full"), 10)
        self.assertAlmostEqual(one, loss(1, 2, "--attention", "UlyssesZ", "--recompute", "light"), 10)

    def test_dropout_of_transformers_in_the_same_places(self):
        """Masks are drawn alike here and in the golden files, under every strategy."""
        table = itertools.product(
            ["hf_gpt2_dropout", "hf_bert_dropout", "hf_mistral_dropout"], VERBS, [1, 2, 3, 4])
        for number, (name, strategy, ranks) in enumerate(table):
            if number % 5 and "PARADYSE_TEST_LONG" not in os.environ:
                continue
            with self.subTest(model=name, strategy=strategy, ranks=ranks):
                seed = json.loads((GOLDEN / name / "expected.json").read_text())["dropout_seed"]
                self.expect_golden(
                    name, "--dropout-seed", seed, "--attention", strategy, "--ranks", ranks,
                    "--recompute", LEVELS[number % 4])

    def test_a_roberta_gives_padding_no_position(self):
        data = self.write("data.jsonl", json.dumps({"tokens": [5, 1, 3], "labels": [-100, 2, 4]}) + "\n")
        for ranks in (1, 2):
            error = self.error_of("grad", "--model", GOLDEN / "hf_roberta", "--data", data, "--out", self.out,
                                  "--ranks", ranks)
            self.assertIn("the token 1", error)
            self.assertIn("pad_token_id", error)
        self.assertFalse(self.out.exists())

    def test_a_masked_model_needs_labels(self):
        data = self.write_documents([[1, 2, 3]])
        error = self.error_of("grad", "--model", GOLDEN / "hf_bert", "--data", data, "--out", self.out)
        self.assertIn("labels", error)
        self.assertIn("data.jsonl:1", error)
        data = self.write("more.jsonl", json.dumps({"tokens": [1, 2], "labels": [3]}) + "\n")
        self.assertIn("2 tokens and 1 labels", self.error_of(
            "grad", "--model", GOLDEN / "hf_bert", "--data", data, "--out", self.out))

    def test_labels_of_a_causal_model(self):
        def grad(*lines):
            data = self.write("data.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
            return self.json_of("grad", "--model", GOLDEN / "hf_llama_gqa", "--data", data,
                                "--out", self.out, "--ranks", 2)

        tokens = [3, 1, 4, 1, 5, 9, 2, 6]
        plain = grad({"tokens": tokens}, {"tokens": tokens})
        self.assertEqual(grad({"tokens": tokens}, {"tokens": tokens, "labels": tokens}), plain)
        # the first label is not used; the others are of the tokens before them
        masked = grad({"tokens": tokens}, {"tokens": tokens, "labels": [7, -100, -100, 1, 5, -100, 2, 6]})
        self.assertEqual([one["count"] for one in masked["documents"]], [7, 4])
        self.assertEqual(masked["tokens"], 11)
        self.assertAlmostEqual(masked["documents"][0]["sum"], plain["documents"][0]["sum"], 12)
        self.assertLess(masked["documents"][1]["sum"], plain["documents"][1]["sum"])
        self.assertAlmostEqual(
            masked["loss"], sum(one["sum"] for one in masked["documents"]) / 11, 12)
        other = grad({"tokens": tokens, "labels": [-100] * 7 + [7]}, {"tokens": [1, 2], "labels": [2, -100]})
        self.assertEqual([one["count"] for one in other["documents"]], [1, 0])
        none = grad({"tokens": tokens, "labels": [3] + [-100] * 7})
        self.assertEqual((none["loss"], none["tokens"]), (0, 0))
        for _, _, values in read_tensors(self.out).values():
            self.assertFalse(any(values))

    def test_a_document_beyond_the_learned_positions(self):
        data = self.write_documents([[1] * 41, [1] * 42])
        command = ["--model", GOLDEN / "hf_gpt2", "--data", data]
        done = self.run_program("grad", *command, "--out", self.out, "--json")
        self.assertIn("cut 1 document to 41 tokens: 1 token and 1 label left out", done.stderr)
        cut = json.loads(done.stdout)
        self.assertEqual([one["count"] for one in cut["documents"]], [40, 40])
        self.assertEqual((cut["data"]["cut"], cut["data"]["cut_tokens"]), (1, 1))
        evaluated = self.json_of("eval", *command)
        self.assertEqual(evaluated["predicted_tokens"], cut["tokens"])
        self.assertEqual(evaluated["data"], cut["data"])
        refuse = ["--set", "data.too_long=refuse"]
        error = self.error_of("grad", *command, *refuse, "--out", self.out)
        self.assertIn("data.jsonl:2", error)
        self.assertIn("42 tokens, more than the 41", error)

    # Rotated positions go on beyond max_position_embeddings (64 here), in eval as in grad.
    def test_documents_are_the_same_for_eval_and_grad(self):
        data = self.write_documents([[1, 2, 3] * 30, [4, 5], list(range(30))])
        folder = self.folder / "data"
        folder.mkdir()
        shard = data.rename(folder / "shard.jsonl")
        (folder / "README.md").write_text("left out")
        (folder / "text.txt").write_text("a" * 5)
        for more, predicted, told in [
                ([shard], 119, "1 document is longer than max_position_embeddings, 64"),
                ([shard, "--set", "data.max_tokens=20", "--set", "data.too_long=split"], 119, "split 2"),
                ([shard, "--set", "data.max_tokens=20"], 39, "80 tokens and 80 labels left out"),
                ([shard, shard, "--set", "data.max_tokens=20", "--set", "data.too_long=skip"], 1,
                 "skipped 2 documents longer than 20 tokens (120 tokens); files left out: 1 read already")]:
            command = ["--model", GOLDEN / "hf_llama_gqa", "--data", *more]
            answers = []
            for verb, out in (("grad", ["--out", self.out]), ("eval", [])):
                done = self.run_program(verb, *command, *out, "--json")
                self.assertIn(told, done.stderr)
                answers.append(json.loads(done.stdout))
            grad, evaluated = answers
            self.assertEqual((grad["tokens"], evaluated["predicted_tokens"]), (predicted, predicted))
            self.assertAlmostEqual(grad["loss"], evaluated["loss"], 4)
            self.assertEqual(grad["data"], evaluated["data"])
        command = ["--model", GOLDEN / "hf_llama_gqa", "--data", folder]
        self.assertIn("vocabulary has 37 ids", self.error_of("grad", *command, "--out", self.out))
        error = self.error_of("grad", *command, "--out", self.out, "--set", "data.seed=1")
        self.assertIn("data.too_long", error)

    def test_text_for_a_model_with_a_tokenizer(self):
        model = self.copied_model()
        (model / "tokenizer.json").write_text("{}")
        (model / "generation_config.json").write_text('{"eos_token_id": 300}')
        text = self.write("a.txt", "text")
        for verb, out in (("grad", ["--out", self.out]), ("eval", [])):
            error = self.error_of(verb, "--model", model, "--data", text, *out)
            self.assertIn("tokenizer.json", error)
            self.assertIn("--bytes", error)
        # --bytes insists; then the text ends with the tokenizer's id, which must be one of the model's
        toml = self.write("model.toml", TINY_LLAMA.format(layers=1))
        trained = self.json_of("train", "--model", toml, "--data", text, "--ranks", 1,
                               "--set", "train.steps=1", "--set", "train.tokens_per_step=4",
                               "--set", f"output.folder={self.folder}/runs")
        saved = pathlib.Path(trained["folder"]) / "model"
        self.assertEqual(trained["data"]["texts"], 1)
        self.assertIsNone(trained["data"]["end_id"])
        (saved / "vocab.txt").write_text("")
        (saved / "generation_config.json").write_text('{"eos_token_id": 300}')
        command = ["eval", "--model", saved, "--data", text, "--bytes"]
        self.assertIn("data.end_id is auto (300)", self.error_of(*command))
        self.assertEqual(self.json_of(*command, "--set", "data.end_id=none")["predicted_tokens"], 3)
        ended = self.json_of(*command, "--set", "data.end_id=0")
        self.assertEqual((ended["predicted_tokens"], ended["data"]["end_id"]), (4, 0))

    def test_mixed_parts_and_recompute_levels(self):
        saved = []
        for level in LEVELS:
            answer = self.expect_golden(
                "hf_llama_gqa", "--attention", "UlyssesZ", "--mlp", "MegatronTS", "--ranks", 3,
                "--recompute", level)
            self.assertEqual(answer["parts"][0]["recompute"], level)
            self.assertEqual(answer["parts"][1]["strategy"], "hold")
            saved.append(max(rank["saved_bytes"] for rank in answer["ranks"]))
        self.assertEqual(saved, sorted(saved, reverse=True))
        self.assertGreater(saved[0], saved[-1])

    def test_narrower_numbers(self):
        self.expect_golden("hf_llama_gqa", "--dtype", "float32", "--ranks", 2, tolerance=2e-5)
        self.assertEqual({dtype for dtype, _, _ in read_tensors(self.out).values()}, {"F32"})
        self.run_program(*self.arguments("hf_llama_gqa", "--dtype", "bfloat16", "--ranks", 2))
        tensors = read_tensors(self.out)
        self.assertEqual({dtype for dtype, _, _ in tensors.values()}, {"F32"})
        expected = read_tensors(GOLDEN / "hf_llama_gqa" / "expected_gradients.safetensors")
        self.assertLess(gradient_error(tensors, expected), 0.1)

    def test_more_ranks_than_documents_with_data_parallelism(self):
        data = self.write_documents([[1, 2, 3]])
        arguments = ["grad", "--model", GOLDEN / MODELS[0], "--data", data, "--out", self.out]
        alone = self.json_of(*arguments)
        spread = self.json_of(*arguments, "--attention", "DataZ", "--ranks", 4)
        self.assertAlmostEqual(alone["loss"], spread["loss"], delta=1e-12)
        self.assertEqual([rank["saved_bytes"] > 0 for rank in spread["ranks"]].count(True), 1)

    def test_documents_without_predicted_tokens(self):
        for documents in ([[], [5], []], [[]], [[3]]):
            for strategy in VERBS:
                for ranks in (1, 3):
                    data = self.write_documents(documents)
                    answer = self.json_of(
                        "grad", "--model", GOLDEN / MODELS[0], "--data", data, "--out", self.out,
                        "--attention", strategy, "--ranks", ranks)
                    self.assertEqual((answer["loss"], answer["tokens"]), (0, 0))
                    self.assertEqual(
                        answer["documents"], [{"sum": 0, "count": 0}] * len(documents))
                    for _, _, values in read_tensors(self.out).values():
                        self.assertFalse(any(values))

    def test_empty_documents_among_others_change_nothing(self):
        documents = golden_documents("hf_llama_gqa")
        data = self.write_documents([[], *documents, []])
        for strategy in VERBS:
            answer = self.json_of(
                "grad", "--model", GOLDEN / "hf_llama_gqa", "--data", data, "--out", self.out,
                "--attention", strategy, "--ranks", 3)
            self.assertEqual(len(answer["documents"]), len(documents) + 2)
            error = gradient_error(
                read_tensors(self.out),
                read_tensors(GOLDEN / "hf_llama_gqa" / "expected_gradients.safetensors"))
            self.assertLessEqual(error, 1e-9)

    def test_a_plan_of_several_programs(self):
        documents = golden_documents("hf_llama_gqa")
        plan = uniform_plan("llama", [len(d) for d in documents], 2, 2)
        plan["programs"]["alone"] = json.loads(json.dumps(plan["programs"]["all"]))
        plan["programs"]["alone"][0]["parts"][0]["strategy"] = "DataZ"
        plan["micro_batches"] = [
            {"groups": [{"ranks": [0, 1], "documents": [0, 2], "program": "all"}]},
            {"groups": [{"ranks": [0], "documents": [1, 3], "program": "alone"},
                        {"ranks": [1], "documents": [4], "program": "alone"}]}]
        path = self.write("plan.json", json.dumps(plan))
        answer = self.expect_golden("hf_llama_gqa", "--plan", path)
        self.assertEqual(len(answer["ranks"]), 2)
        self.assertEqual(len(answer["parts"]), 2 * 2 * 2)
        self.assertEqual({part["program"] for part in answer["parts"]}, {"all", "alone"})
        self.assertIn({"layer": 1, "part": "mlp", "strategy": "gather", "recompute": "light",
                       "program": "alone"}, answer["parts"])

        self.assertIn("--ranks is 3", self.error_of(
            *self.arguments("hf_llama_gqa", "--plan", path, "--ranks", 3)))
        for option, value in [("--attention", "UlyssesZ"), ("--mlp", "hold"),
                              ("--recompute", "none")]:
            message = self.error_of(*self.arguments("hf_llama_gqa", "--plan", path, option, value))
            self.assertIn(f"--plan and {option}", message)
        data = self.write_documents(documents[1:])
        self.assertIn("document 0", self.error_of(
            "grad", "--model", GOLDEN / "hf_llama_gqa", "--data", data, "--plan", path,
            "--out", self.out))
        self.assertIn("layers", self.error_of(
            "grad", "--model", GOLDEN / "hf_llama_mha_wide", "--out", self.out, "--plan", path,
            "--data", self.write_documents([[1] * len(d) for d in documents])))

    def test_a_plan_with_shares(self):
        documents = golden_documents("hf_llama_gqa")
        even = uniform_plan("llama", [len(d) for d in documents], 3, 2, "MegatronCZ")
        path = self.write("even.json", json.dumps(even))
        evenly = self.expect_golden("hf_llama_gqa", "--plan", path)
        even["micro_batches"][0]["groups"][0]["shares"] = [1, 6, 2.5]
        path = self.write("shares.json", json.dumps(even))
        answer = self.expect_golden("hf_llama_gqa", "--plan", path)
        saved = [rank["saved_bytes"] for rank in answer["ranks"]]
        self.assertTrue(saved[0] < saved[2] < saved[1], saved)
        self.assertGreater(saved[1], max(rank["saved_bytes"] for rank in evenly["ranks"]))
        explained = self.run_program(
            "plan", "check", path, "--model", GOLDEN / "hf_llama_gqa", "--explain").stdout
        self.assertIn("(ranks 0 1 2 by shares 1 6 2.5; documents", explained)
        peaks = [rank["peak_bytes"] for rank in answer["ranks"]]
        for shares, message in [([1, 2], "2 for a group of 3 ranks"), ([1, 0, 1], "shares[1]: 0")]:
            even["micro_batches"][0]["groups"][0]["shares"] = shares
            path = self.write("bad.json", json.dumps(even))
            self.assertIn(message, self.error_of(*self.arguments("hf_llama_gqa", "--plan", path)))
            found = self.json_of("plan", "check", path, code=FAILED)
            self.assertIn(message, found["problems"][0])
        self.assertGreater(peaks[1], max(peaks[0], peaks[2]))

    def test_a_folder_without_weights_has_random_ones_if_asked(self):
        for name in ("config.json", "documents.jsonl"):
            shutil.copy(GOLDEN / MODELS[0] / name, self.folder / name)
        data = ["--model", self.folder, "--data", self.folder / "documents.jsonl"]
        refused = self.error_of("grad", *data, "--out", self.out)
        self.assertIn("has no weights that can be read", refused)
        self.assertIn("--random-weights", refused)
        losses = set()
        for ranks in (1, 3):
            done = self.run_program(
                "grad", *data, "--random-weights", "--out", self.out, "--ranks", ranks, "--json")
            self.assertIn("weights are random (seed 1)", done.stderr)
            self.assertTrue(json.loads(done.stdout)["model"]["random"])
            losses.add(round(json.loads(done.stdout)["loss"], 10))
        self.assertEqual(len(losses), 1)
        self.assertAlmostEqual(losses.pop(), math.log(37), delta=0.1)

    def test_the_file_is_replaced_only_when_all_is_done(self):
        self.json_of(*self.arguments("hf_llama_gqa"))
        before = self.out.read_bytes()
        self.error_of(*self.arguments("hf_llama_gqa", "--attention", "Ulysses"))
        self.error_of(
            *self.arguments("hf_llama_gqa", "--memory-per-rank", "64KiB"), code=FAILED)
        self.assertEqual(self.out.read_bytes(), before)
        self.assertEqual(os.listdir(self.folder), [self.out.name])
        self.expect_golden("hf_llama_gqa")

    # --- errors ----------------------------------------------------------------------------------

    def test_names_that_are_not_known(self):
        for option, value, near in [
                ("--attention", "Ulysses", "'UlyssesZ'"), ("--mlp", "tensor_parallel", "'tensor-parallel'"),
                ("--recompute", "attention_output", "'attention-output'"),
                ("--dtype", "float8", "float")]:
            message = self.error_of(*self.arguments("hf_llama_gqa", option, value))
            self.assertIn(f"'{value}'", message)
            self.assertIn(near, message)

    def test_numbers_out_of_range(self):
        for ranks in (-1, 100000):
            self.assertIn("--ranks", self.error_of(
                *self.arguments("hf_llama_gqa", "--ranks", ranks)))
        for option, seconds in [("--timeout", "0"), ("--deadline", "-1"), ("--timeout", "nan")]:
            self.assertIn("--timeout", self.error_of(
                *self.arguments("hf_llama_gqa", option, seconds)))
        self.assertIn("--timeout", self.error_of(
            *self.arguments("hf_llama_gqa", "--timeout", 5, "--deadline", 5)))
        self.assertIn("512MiB", self.error_of(
            *self.arguments("hf_llama_gqa", "--memory-per-rank", "many")))

    def test_a_verb_that_does_not_fit_the_group(self):
        message = self.error_of(
            *self.arguments("hf_llama_gqa", "--attention", "DataZ", "--mlp", "pass", "--ranks", 2))
        self.assertIn("streams weights", message)
        self.assertIn("gathers", message)
        # groups of one rank, alike, hold what is all of the weights
        self.expect_golden("hf_llama_gqa", "--attention", "DataZ", "--mlp", "hold", "--ranks", 2)

    def test_memory_that_does_not_suffice(self):
        for memory in ("1KiB", "100KiB", "250KiB"):
            message = self.error_of(
                *self.arguments("hf_llama_gqa", "--ranks", 2, "--memory-per-rank", memory),
                code=FAILED)
            self.assertIn("rank", message)
            self.assertIn("KiB", message)
            self.assertFalse(self.out.exists())
        peak = max(rank["peak_bytes"] for rank in self.expect_golden(
            "hf_llama_gqa", "--ranks", 2)["ranks"])
        self.expect_golden("hf_llama_gqa", "--ranks", 2, "--memory-per-rank", math.ceil(peak * 1.02))

    def test_files_that_are_not_there(self):
        here = self.folder / "nowhere"
        for arguments in (["--model", here, "--data", GOLDEN / MODELS[0] / "documents.jsonl"],
                          ["--model", GOLDEN / MODELS[0], "--data", here]):
            self.assertIn("nowhere", self.error_of("grad", *arguments, "--out", self.out))
        self.assertIn("nowhere", self.error_of(*self.arguments(MODELS[0], "--plan", here)))
        arguments = self.arguments(MODELS[0])
        arguments[arguments.index(self.out)] = here / "grads.safetensors"
        self.assertIn("nowhere", self.error_of(*arguments))

    def test_data_that_is_none(self):
        for text, said in [
                ("{\"tokens\": [1, 2\n", ":1: is not JSON"),
                ("{\"tokens\": [1]}\n[1, 2]\n", ":2:"),
                ("{\"tokens\": [1, 37]}\n", "token 1 is 37"),
                ("{\"tokens\": [-1]}\n", "token 0 is -1"),
                ("{\"tokens\": [1.5]}\n", "token 0 is 1.5"),
                ("{\"tokens\": \"abc\"}\n", "a list of ids"),
                ("{\"token\": [1]}\n", "tokens"),
                ("", "no document")]:
            data = self.write("bad.jsonl", text)
            message = self.error_of(
                "grad", "--model", GOLDEN / MODELS[0], "--data", data, "--out", self.out)
            self.assertIn("bad.jsonl", message)
            self.assertIn(said, message)

    def copied_model(self):
        folder = self.folder / "model"
        shutil.copytree(GOLDEN / "hf_llama_gqa", folder)
        return folder

    def model_error(self, folder):
        return self.error_of(
            "grad", "--model", folder, "--data", folder / "documents.jsonl", "--ranks", 2,
            "--out", self.out)

    def test_weights_that_are_cut_off_or_not_a_model(self):
        folder = self.copied_model()
        weights = folder / "model.safetensors"
        whole = weights.read_bytes()
        for content in (whole[:len(whole) // 2], whole[:-1], whole[:5], b"", b"\xff" * 64):
            weights.write_bytes(content)
            self.assertIn("model.safetensors", self.model_error(folder))
        weights.write_bytes(whole.replace(b"layers.0.mlp.up_proj", b"layers.7.mlp.up_proj"))
        self.assertIn("up_proj", self.model_error(folder))

    def test_configurations_that_are_not_understood(self):
        folder = self.copied_model()
        config = folder / "config.json"
        whole = json.loads(config.read_text())
        for key, value, said in [
                ("hiden_size", 3, "hidden_size"), ("attention_bias", 3, "attention_bias"),
                ("vocab_size", 99, "[37, 24]"), ("num_key_value_heads", 4, "divisor")]:
            config.write_text(json.dumps({**whole, key: value}))
            self.assertIn(said, self.model_error(folder))
        config.write_text("{")
        self.assertIn("not JSON", self.model_error(folder))

    def test_weights_that_are_not_finite(self):
        folder = self.copied_model()
        weights = folder / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-4:] = b"\x00\x00\xc0\x7f"  # NaN
        weights.write_bytes(content)
        for strategy in VERBS:
            message = self.error_of(
                "grad", "--model", folder, "--data", folder / "documents.jsonl", "--ranks", 2,
                "--attention", strategy, "--out", self.out, code=FAILED)
            self.assertIn("nan", message)
            self.assertFalse(self.out.exists())

    def test_inputs_are_not_overwritten(self):
        folder = self.copied_model()
        self.out = folder / "model.safetensors"
        self.assertIn("is not gradients of paradyse", self.model_error(folder))
        self.assertEqual(
            self.out.read_bytes(), (GOLDEN / "hf_llama_gqa" / "model.safetensors").read_bytes())


if __name__ == "__main__":
    unittest.main()
