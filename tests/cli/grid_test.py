"""Video and protein models from the command line: plan layout --out, plan check, grad."""

import json
import math
import os
import pathlib
import random
import unittest

from batches import CLUSTERS
from support import FAILED, GOLDEN, TINY_EVOFORMER, USAGE, ProgramTest, gradient_error, read_tensors, write_tensors

STDIT = """
model_type = "stdit"
depth = 2
hidden_size = 12
num_heads = 3
in_channels = 2
"""
ALIGNMENT = """# STOCKHOLM 1.0
one    ACDEFGH
two    AC-EFGH
three  ..DEFWW
four   ACDXFGK
five   YCDEF-H
//
"""


class GridTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.plan = self.folder / "plan.json"
        self.out = self.folder / "gradients.safetensors"
        self.video = self.write("stdit.toml", STDIT)
        self.protein = self.write("evoformer.toml", TINY_EVOFORMER)
        self.alignment = self.write("alignment.sto", ALIGNMENT)
        self.frames = self.folder / "frames.safetensors"
        draw = random.Random(1)
        self.write_frames([2, 2, 5, 4, 6], [draw.gauss(0, 1) for _ in range(2 * 2 * 5 * 4 * 6)])

    def write_frames(self, shape, numbers):
        write_tensors(self.frames, {"latents": (shape, numbers)})

    def layout(self, model, ranks, *more):
        sizes = (["--frames", 5, "--tokens", 6, "--batch", 2] if model == self.video
                 else ["--sequences", 5, "--residues", 7])
        return ["plan", "layout", "--model", model, *sizes, "--ranks", ranks, "--out", self.plan, *more]

    def grad(self, model, *more):
        data = self.alignment if model == self.protein else self.frames
        return ["grad", "--model", model, "--data", data, "--out", self.out, *more]

    def test_plans_play_alike_on_every_number_of_ranks(self):
        for model in (self.video, self.protein):
            expected = self.json_of(*self.grad(model))
            gradients = read_tensors(self.out)
            self.assertGreater(expected["loss"], 0)
            for ranks in (2, 3, 4):
                self.run_program(*self.layout(model, ranks))
                checked = self.json_of("plan", "check", self.plan, "--model", model)
                self.assertTrue(checked["ok"], checked)
                for more in (["--plan", self.plan], ["--ranks", ranks]):
                    answer = self.json_of(*self.grad(model, *more))
                    self.assertAlmostEqual(answer["loss"], expected["loss"], delta=1e-10 * expected["loss"])
                    self.assertLess(gradient_error(read_tensors(self.out), gradients), 1e-10)
                self.assertEqual(len(answer["ranks"]), ranks)
        self.assertIn("spatial_mlp", self.run_program("plan", "check", self.plan, "--model", self.protein,
                                                      "--explain").stdout.replace("msa_transition", "spatial_mlp"))

    def test_every_layout_is_right_on_this_machine(self):
        for model, ways in ((self.video, ["planned", "dsp", "ulysses", "ulysses-both", "ring", "megatron-sp",
                                          "megatron-lm"]),
                            (self.protein, ["planned", "dap"])):
            found = self.json_of("check", "--model", model, "--ranks", "1,3", "--dtype", "float64")
            self.assertTrue(found["ok"])
            self.assertEqual([row["strategy"] for row in found["rows"][::10]], ways)  # levels, ranks
            self.assertEqual(found["counts_differ"], [])
        self.assertIn("--strategy", self.error_of("check", "--model", self.video, "--strategy", "METP"))
        narrow = self.json_of("check", "--model", self.protein, "--ranks", "2", "--dtype", "bfloat16,float16")
        self.assertTrue(narrow["ok"])

    def test_text_is_attended_to(self):
        text = self.write("text.toml", STDIT + "caption_channels = 3\n")
        found = self.json_of("check", "--model", text, "--ranks", "1,3", "--dtype", "float64")
        self.assertTrue(found["ok"])
        self.assertEqual(found["counts_differ"], [])
        plan = self.json_of("plan", "layout", "--model", text, "--frames", 5, "--tokens", 6, "--text-tokens", 4,
                            "--batch", 2, "--ranks", 2, "--out", self.plan)
        self.assertIn("spatial_text", [part["part"] for part in plan["parts"]])
        self.assertTrue(self.json_of("plan", "check", self.plan, "--model", text)["ok"])
        self.assertIn("needed is 'text' [2, tokens, 3]", self.error_of(*self.grad(text)))
        draw = random.Random(2)
        latents = ([2, 2, 5, 4, 6], [draw.gauss(0, 1) for _ in range(2 * 2 * 5 * 4 * 6)])
        losses = []
        for words in ([draw.gauss(0, 1) for _ in range(24)], [0.0] * 24):
            write_tensors(self.frames, {"latents": latents, "text": ([2, 4, 3], words)})
            gradients = []
            for more in ([], ["--plan", self.plan], ["--ranks", 3]):
                losses.append(self.json_of(*self.grad(text, *more))["loss"])
                gradients.append(read_tensors(self.out))
                self.assertLess(gradient_error(gradients[-1], gradients[0]), 1e-10)
        self.assertAlmostEqual(losses[0], losses[2], delta=1e-10)
        self.assertGreater(abs(losses[0] - losses[3]), 1e-9)
        self.assertIn("no caption_channels", self.error_of(*self.grad(self.video)))
        self.assertIn("--text-tokens", self.error_of("plan", "layout", "--model", text, "--frames", 5, "--tokens", 6,
                                                     "--ranks", 2))
        self.assertIn("no caption_channels", self.error_of(
            "plan", "layout", "--model", self.video, "--frames", 5, "--tokens", 6, "--text-tokens", 3, "--ranks", 2))

    def test_texts_and_alignments_have_sizes_of_their_own(self):
        text = self.write("text.toml", STDIT + "caption_channels = 3\n")
        draw = random.Random(2)
        latents = ([2, 2, 5, 4, 6], [draw.gauss(0, 1) for _ in range(2 * 2 * 5 * 4 * 6)])
        words = [draw.gauss(0, 1) for _ in range(24)]

        def answer(model, *more):
            found = self.json_of(*self.grad(model, *more))
            return found["loss"], read_tensors(self.out)

        # what is masked is not there, whatever it is
        write_tensors(self.frames, {"latents": latents, "text": ([2, 4, 3], words), "text_mask": ([2, 4], [1] * 6 + [0] * 2)})
        loss, gradients = answer(text)
        write_tensors(self.frames, {"latents": latents, "text": ([2, 4, 3], words[:18] + [float("nan")] * 6),
                                    "text_mask": ([2, 4], [1] * 6 + [0] * 2)})
        for ranks in (1, 2, 3, 4):
            other, others = answer(text, "--ranks", ranks)
            self.assertAlmostEqual(other, loss, delta=1e-10)
            self.assertLess(gradient_error(others, gradients), 1e-10)
        write_tensors(self.frames, {"latents": latents, "text": ([2, 2, 3], words[:6] + words[12:18])})
        short, _ = answer(text)
        write_tensors(self.frames, {"latents": latents, "text": ([2, 4, 3], words), "text_mask": ([2, 4], [1, 1, 0, 0] * 2)})
        self.assertAlmostEqual(answer(text)[0], short, delta=1e-10)
        self.assertGreater(abs(short - loss), 1e-9)

        self.alignment.write_text(ALIGNMENT + "# STOCKHOLM 1.0\nsix ACD\nseven CDA\n//\n")
        loss, gradients = answer(self.protein)
        for ranks in (2, 3, 4):
            other, others = answer(self.protein, "--ranks", ranks)
            self.assertAlmostEqual(other, loss, delta=1e-10)
            self.assertLess(gradient_error(others, gradients), 1e-10)
        row, = self.json_of("bench", "step", "--model", self.protein, "--data", self.alignment, "--ranks", 2,
                            "--repeats", 1)["rows"]
        self.assertEqual(row["tokens"], 35 + 6)
        self.run_program(*self.layout(self.protein, 2))
        self.assertIn("samples of other sizes", self.error_of(*self.grad(self.protein, "--plan", self.plan)))

    def test_masked_residues_are_left_out(self):
        def answer(*more):
            return self.json_of(*self.grad(self.protein, *more))["loss"], read_tensors(self.out)

        def masked(letters, marks):
            rows = ALIGNMENT.replace("one    ACDEFGH", f"one    {letters}").replace("//", f"#=GC MM {marks}\n//")
            self.alignment.write_text(rows)

        masked("AXDEFGH", ".....m.")
        loss, gradients = answer()
        for ranks in (2, 3, 4):
            other, others = answer("--ranks", ranks)
            self.assertAlmostEqual(other, loss, delta=1e-10)
            self.assertLess(gradient_error(others, gradients), 1e-10)
        unknown, _ = answer("--set", "data.masked_residues=unknown")
        whole, _ = answer("--set", "data.masked_residues=none")
        self.assertEqual(len({loss, unknown, whole}), 3)
        masked("AXDEFGH", ".m...m.")
        self.assertEqual(answer()[0], unknown)
        masked("AXDEFWH", ".....m.")  # what is masked may be anything
        self.assertEqual(answer()[0], loss)
        masked("AXDEFGH", ".......")
        self.assertEqual(answer()[0], whole)
        self.assertIn("data.masked_residues", self.error_of(
            *self.grad(self.protein, "--set", "data.masked_residues=gaps")))

    def test_masked_letters_do_not_count(self):
        masked = self.write("masked.toml", TINY_EVOFORMER + "msa_mask = true\n")

        def answer(letters, *more):
            grad = ["grad", "--model", masked, "--data", self.alignment, "--out", self.out]
            return self.json_of(*grad, "--set", f"data.masked_letters={letters}", *more)["loss"], read_tensors(self.out)

        def write(three):
            self.alignment.write_text(ALIGNMENT.replace("..DEFWW", three).replace("//", "#=GR three MM ...m..m\n//"))

        write("..DEFWW")
        losses = {letters: answer(letters)[0] for letters in ("none", "marked", "ends")}
        self.assertEqual(len(set(losses.values())), 3)
        write("..DLFWK")  # what is masked may be anything
        self.assertEqual(answer("marked")[0], losses["marked"])
        self.assertNotEqual(answer("none")[0], losses["none"])
        loss, gradients = answer("ends")
        self.assertEqual(loss, losses["ends"])
        for ranks in (2, 3, 4):
            other, others = answer("ends", "--ranks", ranks)
            self.assertAlmostEqual(other, loss, delta=1e-10)
            self.assertLess(gradient_error(others, gradients), 1e-10)
        self.run_program("plan", "layout", "--model", masked, "--sequences", 5, "--residues", 7, "--ranks", 2, "--out",
                         self.plan)
        self.run_program("plan", "check", self.plan, "--model", masked)
        other, others = answer("ends", "--plan", self.plan)
        self.assertAlmostEqual(other, loss, delta=1e-10)
        self.assertLess(gradient_error(others, gradients), 1e-10)
        self.assertTrue(self.json_of("check", "--model", masked, "--ranks", 2)["ok"])
        self.assertIn("marks letters as masked", self.run_program(
            "grad", "--model", masked, "--data", self.alignment, "--out", self.out).stderr)
        # of a model that takes none they would count
        self.assertIn("msa_mask = true", self.error_of(*self.grad(self.protein, "--set", "data.masked_letters=ends")))
        self.assertIn("data.masked_letters", self.error_of(
            *self.grad(self.protein, "--set", "data.masked_letters=gaps")))
        self.assertIn("model.sha256", self.error_of(*self.grad(self.protein, "--plan", self.plan)))

    def test_plans_that_cannot_run_are_refused(self):
        def edited(model, edit):
            self.run_program(*self.layout(model, 2))
            plan = json.loads(self.plan.read_text())
            edit(plan, plan["micro_batches"][0]["groups"])
            self.plan.write_text(json.dumps(plan))
            checked = self.run_program("plan", "check", self.plan, "--model", model, code=FAILED).stdout
            self.assertIn("1 problem found", checked)
            self.error_of(*self.grad(model, "--plan", self.plan))
            return checked

        for model in (self.video, self.protein):
            self.assertIn("groups[0].shares: ", edited(model, lambda _, groups: groups[0].update(shares=[3, 1])))
        self.assertIn("of 7 residues", edited(self.protein, lambda plan, _: plan["dims"].update(i=9)))

    def test_columns_attend_globally(self):
        extra = self.write("extra.toml", TINY_EVOFORMER + "global_column_attention = true\nc_hidden_pair_att = 4\n")
        found = self.json_of("check", "--model", extra, "--ranks", "1,3", "--dtype", "float64,bfloat16")
        self.assertTrue(found["ok"])
        self.assertEqual(found["counts_differ"], [])
        plan = self.json_of("plan", "layout", "--model", "extra-msa", "--sequences", 512, "--residues", 256,
                            "--ranks", 8, "--out", self.plan)
        parts = {part["part"]: part["strategy"] for part in plan["parts"]}
        self.assertIn("global_column_attention", parts)
        self.assertLess(plan["elements_per_rank_forward"], plan["rivals"]["dap"]["elements_per_rank_forward"])
        self.assertTrue(self.json_of("plan", "check", self.plan, "--model", "extra-msa")["ok"])

    def test_extra_sequences_have_blocks_of_their_own(self):
        extra = self.write("extra.toml", TINY_EVOFORMER.replace('"evoformer"', '"openfold"') + """
no_extra_blocks = 1
c_e = 8
no_heads_extra = 2
c_hidden_extra = 4
c_hidden_opm_extra = 4
""")
        found = self.json_of("check", "--model", extra, "--ranks", "1,3", "--dtype", "float64")
        self.assertTrue(found["ok"])
        self.assertEqual(found["counts_differ"], [])
        sizes = ["--sequences", 2, "--residues", 7]
        layout = ["plan", "layout", "--model", extra, *sizes, "--ranks", 3, "--out", self.plan]
        self.assertIn("--extra-sequences", self.error_of(*layout))
        plan = self.json_of(*layout, "--extra-sequences", 3)
        self.assertEqual([plan["parts"][0]["part"], plan["parts"][9]["part"]], ["extra_row_attention", "row_attention"])
        self.assertTrue(self.json_of("plan", "check", self.plan, "--model", extra)["ok"])
        weights = GOLDEN / "grid_openfold_extra"  # none is zero, as many are to begin with
        self.json_of("plan", "layout", "--model", weights, *sizes, "--extra-sequences", 3, "--ranks", 3,
                     "--out", self.plan)
        grad = ["grad", "--model", weights, "--data", self.alignment, "--out", self.out,
                "--set", "data.sequences=2", "--set", "data.extra_sequences=4"]
        expected = self.json_of(*grad)
        gradients = read_tensors(self.out)
        self.assertGreater(max(map(abs, gradients["extra_msa_embedder.linear.bias"][2])), 1e-6)
        for more in (["--plan", self.plan], ["--ranks", 4]):
            answer = self.json_of(*grad, *more)
            self.assertAlmostEqual(answer["loss"], expected["loss"], delta=1e-10 * expected["loss"])
            self.assertLess(gradient_error(read_tensors(self.out), gradients), 1e-10)
        self.assertIn("does not apply", self.error_of(*self.layout(self.protein, 2, "--extra-sequences", 3)))

    def test_memory_decides_what_is_recomputed(self):
        for model in (self.video, self.protein):
            free = self.json_of(*self.grad(model, "--ranks", 2))
            gradients = read_tensors(self.out)
            peak = max(rank["peak_bytes"] for rank in free["ranks"])
            levels = lambda answer: {part["recompute"] for part in answer["parts"]}
            self.assertEqual(levels(free), {"none"})
            # as tight as a plan that makes everything again fits in
            least = self.json_of(*self.grad(model, "--ranks", 2, "--recompute", "full"))
            self.assertLess(gradient_error(read_tensors(self.out), gradients), 1e-10)
            self.assertEqual(levels(least), {"full"})
            tight = max(rank["peak_bytes"] for rank in least["ranks"])
            self.assertLess(tight, peak)
            held = self.json_of(*self.grad(model, "--ranks", 2, "--memory-per-rank", (tight + peak) // 2))
            self.assertNotEqual(levels(held), {"none"})
            self.assertLess(gradient_error(read_tensors(self.out), gradients), 1e-10)
            self.assertAlmostEqual(held["loss"], free["loss"], delta=1e-10)
            why = self.error_of(*self.grad(model, "--ranks", 2, "--memory-per-rank", "1KiB"), code=FAILED)
            self.assertIn("no plan fits", why)
            self.run_program(*self.layout(model, 2))
            self.assertIn("exclude each other", self.error_of(
                *self.grad(model, "--plan", self.plan, "--recompute", "full")))
            self.assertIn("--plan to say", self.error_of(*self.grad(model, "--attention", "UlyssesZ")))
            for option in (["--dropout-seed", 1], ["--attention-dropout", 0.1]):
                why = self.error_of(*self.grad(model, *option))
                self.assertIn("without dropout: leave it out", why)
                self.assertNotIn("--plan", why)

    def test_samples_without_a_label_are_told(self):
        one = self.write("one.a3m", ">a\nA\n")
        done = self.run_program("grad", "--model", self.protein, "--data", one, "--out", self.out)
        self.assertIn("so small that often no letter is to be predicted", done.stderr)
        self.assertIn("no label of the 1 samples counts", done.stderr)
        for _, _, values in read_tensors(self.out).values():
            self.assertEqual(set(map(abs, values)), {0})
        summary = self.json_of(
            "train", "--model", self.protein, "--data", one, "--ranks", 1, "--set", "train.steps=8",
            "--set", "train.tokens_per_step=1", "--set", f"output.folder={self.folder / 'runs'}")
        steps = [json.loads(line) for line in
                 (pathlib.Path(summary["folder"]) / "metrics.jsonl").read_text().splitlines()]
        without = [step for step in steps if step["labels"] == 0]
        self.assertEqual(summary["steps_without_label"], len(without))
        self.assertGreater(len(without), 0)
        for step in steps:
            self.assertEqual(step["loss"] is None, step["labels"] == 0)

    def test_what_lies_beside_data_is_left_out(self):
        folder = self.folder / "all"
        folder.mkdir()
        (folder / "a.sto").write_text(ALIGNMENT)
        alone = self.json_of(*self.grad(self.protein))["loss"]
        (folder / "README.md").write_text("# readme\n\nAlignments of one protein.\n")
        (folder / "notes.txt").write_text("")
        (folder / "clips.safetensors").write_bytes(self.frames.read_bytes())
        done = self.run_program("grad", "--model", self.protein, "--data", folder, "--out", self.out)
        self.assertIn("files left out: 2 no alignment (", done.stderr)
        self.assertIn("1 without sequences (notes.txt)", done.stderr)
        self.assertEqual(
            self.json_of("grad", "--model", self.protein, "--data", folder, "--out", self.out)["loss"], alone)
        done = self.run_program("grad", "--model", self.video, "--data", folder, "--out", self.out)
        self.assertIn("files left out: 3 no safetensors (", done.stderr)
        summary = self.json_of(
            "train", "--model", self.protein, "--data", folder, "--ranks", 1, "--set", "train.steps=1",
            "--set", "train.tokens_per_step=1", "--set", f"output.folder={self.folder / 'runs'}")
        self.assertEqual(summary["data"]["files_left_out"], {"no alignment": 2, "without sequences": 1})
        why = self.error_of("grad", "--model", self.video, "--data", self.alignment, "--out", self.out)
        self.assertIn("is an alignment (Stockholm), not safetensors", why)

    def test_steps_are_measured(self):
        for model, data, samples in ((self.video, self.frames, 2), (self.protein, self.alignment, 1)):
            step = ["bench", "step", "--model", model, "--data", data, "--ranks", 3, "--repeats", 2]
            found = self.json_of(*step)
            row, = found["rows"]
            self.assertEqual((row["name"], row["documents"]), ("planned layout", samples))
            self.assertGreater(row["tokens_per_s"], 0)
            self.assertGreater(row["model_flops"], 0)
            least = self.json_of(*step, "--recompute", "full")["rows"][0]
            self.assertLess(least["peak_bytes"], row["peak_bytes"])
            self.assertGreater(least["hardware_flops"], row["hardware_flops"])
            self.assertIn("planned layout", self.run_program(*step, "--breakdown").stdout)
            self.assertIn("no plan fits", self.error_of(*step, "--memory-per-rank", "1KiB"))
            self.assertIn("language models", self.error_of(*step, "--lengths", 64))
        self.assertIn("--data", self.error_of("bench", "step", "--model", self.video))

    def test_layouts_are_measured_in_turns(self):
        layout = ["plan", "layout", "--model", self.video, "--frames", 5, "--tokens", 6, "--batch", 2, "--ranks", 3]
        plans = [self.folder / f"{name}.json" for name in ("planned", "ring", "megatron-lm")]
        for plan in plans:
            self.run_program(*layout, "--layout", plan.stem, "--out", plan)
        planned, *rivals = rows = self.json_of(
            "bench", "step", "--model", self.video, *(word for plan in plans for word in ("--plan", plan)),
            "--data", self.frames, "--repeats", 2)["rows"]
        self.assertEqual([row["documents"] for row in rows], [2] * 4)
        for row in rows:
            self.assertEqual(len(row["seconds"]), 2)
            self.assertGreater(row["peak_bytes"], row["saved_bytes"])
        for row in rivals[:2]:
            self.assertGreaterEqual(row["all_bytes_sent"], planned["all_bytes_sent"])
        self.assertIn("planned, dsp", self.error_of(*layout, "--layout", "dap", "--out", plans[0]))
        self.assertIn("add --out", self.error_of(*layout, "--layout", "dsp"))
        self.assertIn("is for 3 ranks", self.error_of("bench", "step", "--model", self.video, "--plan", plans[0],
                                                      "--ranks", 2))

    def test_models_are_trained_and_evaluated(self):
        for model, data, rows in ((self.video, self.frames, 2 * 30), (self.protein, self.alignment, 35)):
            run = self.write("run.toml", f"""
[model]
path = "{model}"
[data]
path = "{data}"
[parallel]
ranks = 3
[train]
steps = 30
tokens_per_step = {rows}
[optimizer]
lr = 0.01
[output]
folder = "{self.folder}"
name = "{model.stem}"
""")
            summary = self.json_of("train", "-c", run, "--set", f"data.eval_path={data}")
            self.assertEqual(summary["steps"], 30)
            self.assertEqual(summary["tokens"], 30 * rows)
            self.assertLess(summary["last_loss"], summary["first_loss"])
            self.assertRegex(summary["best_static"]["strategy"], "^groups-of-")
            trained = self.folder / model.stem / "model"
            found = self.json_of("eval", "-c", run, "--model", trained)
            self.assertAlmostEqual(found["loss"], summary["eval_loss"], delta=1e-5)
            self.assertAlmostEqual(
                self.json_of("grad", "--model", trained, "--data", data, "--out", self.out)["loss"],
                summary["eval_loss"], delta=1e-4)

    # As large as in use, with few channels: clips of 8 to 64 frames, alignments of 100 to 600 residues.
    def test_samples_of_usual_sizes_run_in_groups(self):
        draw = random.Random(5)
        clips = self.folder / "clips"
        clips.mkdir()
        for number, frames in enumerate((8, 17, 33, 64)):
            shape = [1, 2, frames, 4, 2 + 2 * (number % 3)]
            write_tensors(clips / f"{number}.safetensors",
                          {"latents": (shape, [draw.gauss(0, 1) for _ in range(math.prod(shape))])})
        proteins = self.folder / "proteins"
        proteins.mkdir()
        residues = (100, 333, 600) if "PARADYSE_TEST_LONG" in os.environ else (100, 57, 31)
        for number, length in enumerate(residues):
            rows = ["".join(draw.choice("ACDEFGHIKLMNPQRSTVWY-") for _ in range(length)) for _ in range(2 + number)]
            (proteins / f"{number}.a3m").write_text("".join(f">{i}\nM{row}\n" for i, row in enumerate(rows)))
        for model, data in ((self.video, clips), (self.protein, proteins)):
            grad = ["grad", "--model", model, "--data", data, "--out", self.out]
            expected = self.json_of(*grad)
            gradients = read_tensors(self.out)
            for run in (["--ranks", 3], ["--ranks", 8], []):
                answer = self.json_of(*([] if run else ["launch", "-n", 4, "--"]), *grad, *run)
                self.assertAlmostEqual(answer["loss"], expected["loss"], delta=1e-10 * expected["loss"])
                self.assertLess(gradient_error(read_tensors(self.out), gradients), 1e-10)

    def test_samples_run_in_groups(self):
        draw = random.Random(3)
        clips = self.folder / "clips"
        clips.mkdir()
        for name, shape in (("long", [1, 2, 9, 4, 6]), ("short", [3, 2, 2, 2, 4])):
            write_tensors(clips / f"{name}.safetensors",
                          {"latents": (shape, [draw.gauss(0, 1) for _ in range(math.prod(shape))])})
        proteins = self.folder / "proteins"
        proteins.mkdir()
        (proteins / "a.sto").write_text(ALIGNMENT)
        (proteins / "b.a3m").write_text(">x\nACD\n>y\nAC-\n")
        (proteins / "c.a3m").write_text(">x\nWDEFGHIKLM\n>y\nWD-FGHIKLM\n")
        for model, data, rows in ((self.video, clips, 54 + 3 * 4), (self.protein, proteins, 35 + 6 + 20)):
            grad = ["grad", "--model", model, "--data", data, "--out", self.out]
            expected = self.json_of(*grad)
            gradients = read_tensors(self.out)
            for run in (["--ranks", 2], ["--ranks", 3], ["--ranks", 4], []):
                answer = self.json_of(*([] if run else ["launch", "-n", 4, "--"]), *grad, *run)
                self.assertAlmostEqual(answer["loss"], expected["loss"], delta=1e-10 * expected["loss"])
                self.assertLess(gradient_error(read_tensors(self.out), gradients), 1e-10)
            train = ["train", "--model", model, "--data", data, "--ranks", 4, "--set", "train.steps=2",
                     "--set", f"train.tokens_per_step={rows}", "--set", f"output.folder={self.folder}",
                     "--set", f"output.name={model.stem}", "--set", "parallel.batch_planner=groups",
                     "--set", "costs.file=none"]
            run = self.json_of(*train)["folder"]
            plan = pathlib.Path(run) / "plans" / "step-00001.json"
            groups = json.loads(plan.read_text())["micro_batches"][0]["groups"]
            self.assertGreater(len(groups), 1)
            self.assertTrue(self.json_of("plan", "check", plan, "--model", model)["ok"])
            simulated = self.json_of("simulate", "--plan", plan, "--model", model, "--cluster",
                                     CLUSTERS / "8xH100.toml", "--ranks", 4)
            self.assertGreater(simulated["seconds"], 0)
            # the same samples alone, on groups of each size
            sizes = json.loads((pathlib.Path(run) / "group_sizes.json").read_text())["sizes"]
            self.assertEqual([size["ranks"] for size in sizes], [1, 2, 3, 4])
            samples = [(one["tokens"], one["dims"]) for one in sizes[0]["by_length"]]
            self.assertEqual(samples[0], (4, {"frames": 2, "patches": 2}) if model == self.video
                             else (6, {"sequences": 2, "residues": 3, "i": 3, "j": 3}))
            for size in sizes:
                self.assertEqual([(one["tokens"], one["dims"]) for one in size["by_length"]], samples)
                for one in size["by_length"]:
                    self.assertTrue(one["fits"])
                    self.assertGreater(one["seconds"], 0)
            told = self.run_program("report", run, "--step", "1").stdout
            self.assertRegex(" ".join(told.split()), r"why: The sample of \d+ rows is on (one rank|a group of)")

    def test_parts_are_profiled(self):
        for model, data, rows in ((self.video, self.frames, 60), (self.protein, self.alignment, 35)):
            run = self.write("run.toml", f"""
[model]
path = "{model}"
[data]
path = "{data}"
[parallel]
ranks = 3
[train]
steps = 2
tokens_per_step = {rows}
[output]
folder = "{self.folder}"
name = "{model.stem}"
""")
            said = self.run_program("train", "-c", run).stderr
            self.assertIn("plans use a closed form", said)
            made = self.json_of("profile", "-c", run, "--seconds", 300)
            self.assertEqual(made["steps_without_time"], 0)
            layouts = 7 if model == self.video else 2  # at two levels, and one in groups of one; three sizes
            planned = 3  # of them, which are measured also with whole weights
            self.assertEqual(made["steps_measured"], (2 * layouts + 1 + planned) * 3)
            self.assertEqual(self.json_of("profile", "-c", run, "--seconds", 300), made)  # all is there
            fitted = self.json_of("fit", "--profile", made["file"])
            self.assertIn(fitted["best"], ("structured", "hybrid"))
            said = self.run_program("train", "-c", run, "--set", f"output.name={model.stem}2").stderr
            self.assertIn("plans use the structured model of measured costs", said)
            self.assertIn("--lengths is for language models", self.error_of("profile", "-c", run, "--lengths", 64))
            for key in ("parallel.attention=METP", "parallel.head_groups=2"):
                self.assertIn(key.split("=")[0] + " is for language models, but",
                              self.error_of("train", "-c", run, "--set", "output.name=refused", "--set", key))
            said = self.run_program("eval", "-c", run, "--set", "data.bytes=true", "--set", "data.max_tokens=9").stderr
            self.assertIn("data.bytes is for language models and does nothing for a model of type", said)
            self.assertIn("data.max_tokens is for language models and does nothing", said)
        self.assertIn("data.path", self.error_of("profile", "--model", self.video))

    def test_what_is_wrong_is_named(self):
        self.run_program(*self.layout(self.video, 2))
        plan = json.loads(self.plan.read_text())
        self.assertEqual(plan["model"]["name"], "stdit")
        self.assertIn("model.name", self.run_program(
            "plan", "check", self.plan, "--model", self.protein, code=FAILED).stdout)
        self.assertIn("--ranks is 3", self.error_of(*self.grad(self.video, "--plan", self.plan, "--ranks", 3)))
        self.assertIn("--attention", self.error_of(*self.grad(self.video, "--attention", "METP")))
        self.write_frames([1, 2, 5, 4, 6], [0.5] * (2 * 5 * 4 * 6))
        self.assertIn("samples of other sizes", self.error_of(*self.grad(self.video, "--plan", self.plan)))
        self.write_frames([1, 2, 5, 4, 5], [0.5] * (2 * 5 * 4 * 5))
        self.assertIn("patch_size 2", self.error_of(*self.grad(self.video)))
        self.write_frames([1, 2, 5, 4, 6], [float("nan")] * (2 * 5 * 4 * 6))
        self.assertIn("not finite", self.error_of(*self.grad(self.video)))
        self.assertIn("accepts no key", self.error_of(*self.grad(self.video, "--set", "data.sequences=3")))
        self.alignment.write_text(ALIGNMENT.replace("AC-EFGH", "AC-E7GH"))
        self.assertIn("alignment.sto:3: '7'", self.error_of(*self.grad(self.protein)))
        self.alignment.write_text(ALIGNMENT.replace("AC-EFGH", "AC-EFG"))
        self.assertIn("alignment.sto:3: the row of 'two'", self.error_of(*self.grad(self.protein)))
        # no machine has 129 TiB for the features of pairs
        self.alignment.write_text("# STOCKHOLM 1.0\none " + "ACDEFGHIKL" * 40000 + "\n//\n")
        # how many would do goes by the memory that is free, which is never the same twice
        self.assertIn("400000 residues", self.run_program(*self.grad(self.protein), code=USAGE).stderr)
        plan["programs"]["layout"][0]["parts"][0]["out"]["x"] = ["R"]
        self.plan.write_text(json.dumps(plan))
        self.assertIn("parts[0].out.x", self.run_program(
            "plan", "check", self.plan, "--model", self.video, code=FAILED).stdout)


if __name__ == "__main__":
    unittest.main()
