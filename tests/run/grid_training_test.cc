// Whole runs of video and protein models: the same losses and weights on any ranks and by any
// layout, within memory, stopped and resumed, from the weights that another run left.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/train.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/run/weights/safetensors.h"
#include "tests/support/folder.h"
#include "tests/support/grid_shapes.h"
#include "tests/support/models.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct Played {
  TrainSummary summary;
  std::vector<StepReport> steps;
};

class GridTraining : public testing::TestWithParam<const char*> {
 protected:
  GridTraining() {
    const bool video = of_video();
    const StditShape clips = test::small_stdit(2);
    const EvoformerShape letters = test::small_evoformer(2);
    EvoformerShape dropping = test::in_openfold(letters);
    dropping.msa_dropout = 0.15;
    dropping.pair_dropout = 0.25;
    EvoformerShape of_extra = test::with_extra_blocks(test::small_evoformer(1), 2);
    of_extra.msa_mask = masks();
    const Model shape = extra()      ? Model(of_extra)
                        : openfold() ? Model(dropping)
                        : !video     ? Model(letters)
                        : stdit3()   ? Model(small_stdit3())
                        : unlike()   ? Model(test::with_text(clips))
                                     : Model(clips);
    std::ofstream(folder_ / "model.toml") << toml_of(shape);
    if (video) {
      std::mt19937 random(3);
      test::Weights tensors = {{"latents", test::normal_numbers({5, 4, 3, 4, 6}, random)}};
      if (stdit3()) {
        tensors["text"] = test::normal_numbers({5, 4, 3}, random);
        tensors["fps"] = at::full({5}, 12.5);
      }
      if (unlike()) {
        tensors["text"] = test::normal_numbers({5, 4, 3}, random);
        tensors["text_mask"] = at::ones({5, 4}, at::kBool);
        tensors["text_mask"][1].narrow(0, 1, 3).fill_(false);
        tensors["text_mask"][4][0].fill_(false);
      }
      test::write_tensors(data(), tensors);
    } else if (unlike()) {
      std::ofstream(data()) << "# STOCKHOLM 1.0\na ACDEFGH\nb GHIKLAC\n//\n"
                               "# STOCKHOLM 1.0\na MNPQR\nb MN.QR\nc STVWY\n//\n"
                               "# STOCKHOLM 1.0\na AAA\nb CDC\nc DDX\nd -WW\ne KKK\n//\n";
    } else {
      std::ofstream(data()) << "# STOCKHOLM 1.0\na ACDEF\nb GHIKL\nc A-DEF\n//\n"
                               "# STOCKHOLM 1.0\na MNPQR\nb MN.QR\nc STVWY\n//\n"
                               "# STOCKHOLM 1.0\na AAAAA\nb CDCDC\nc DDDDX\n//\n";
    }
  }

  [[nodiscard]] static bool of_video() { return std::string(GetParam()).starts_with("stdit"); }
  [[nodiscard]] static bool openfold() { return std::string(GetParam()).starts_with("openfold"); }
  [[nodiscard]] static bool stdit3() { return std::string(GetParam()) == "stdit3"; }
  // Two sequences of each alignment are its MSA, the others extra ones.
  [[nodiscard]] static bool extra() { return std::string(GetParam()).ends_with("extra_unlike"); }
  // Letters at the ends of sequences do not count, nor a row in place of extra ones.
  [[nodiscard]] static bool masks() {
    return std::string(GetParam()).find("mask") != std::string::npos;
  }
  // Texts of several lengths; alignments of several sizes.
  [[nodiscard]] static bool unlike() { return std::string(GetParam()).ends_with("unlike"); }
  static StditShape small_stdit3() {
    StditShape shape = test::small_stdit3(2);
    shape.channels = 4;
    return shape;
  }
  [[nodiscard]] fs::path data() const { return folder_ / "data"; }
  [[nodiscard]] fs::path folder(const std::string& name) const { return folder_ / name; }

  static std::string toml_of(const Model& shape) {
    std::string text;
    const nlohmann::json config = nlohmann::json::parse(shape.config);
    for (const auto& [key, value] : config.items()) {
      text.append(key).append(" = ").append(value.dump()).append("\n");
    }
    return text;
  }

  LoadedConfig config(const std::string& name, std::vector<std::string> settings) const {
    std::vector<std::string> all = {
        "model.path=" + (folder_ / "model.toml").string(),
        "data.path=" + data().string(),
        "output.folder=" + folder_.string(),
        "output.name=" + name,
        "train.steps=5",
        "train.tokens_per_step=" + std::string(of_video() ? "40" : "25"),  // samples of 18, of 15
        "train.dtype=float64",
        "costs.correct=false",  // else what steps took changes plans, and with them the last bits
        "checkpoint.minutes=0"};
    if (extra()) {
      all.insert(all.end(), {"data.sequences=2", "data.extra_sequences=2"});
    }
    if (masks()) {
      all.emplace_back("data.masked_letters=ends");
    }
    all.insert(all.end(), settings.begin(), settings.end());
    return load_config("", all);
  }

  static Played run(
      const LoadedConfig& config, const TrainFrom& from = {}, std::int64_t stop_after = 0) {
    Played run;
    std::atomic<bool> stop = false;
    TrainHooks hooks;
    hooks.stop = &stop;
    hooks.step = [&](const StepReport& report) {
      run.steps.push_back(report);
      stop = report.step == stop_after;
    };
    const std::shared_ptr<Backend> backend = local_backend();
    run.summary = train(config, hooks, *backend, from);
    return run;
  }
  Played run(const std::string& name, std::vector<std::string> settings = {}) const {
    return run(config(name, std::move(settings)));
  }

  static void expect_same(const Played& run, const Played& other, double tolerance = 1e-10) {
    ASSERT_EQ(run.steps.size(), other.steps.size());
    for (std::size_t step = 0; step < run.steps.size(); ++step) {
      EXPECT_NEAR(run.steps[step].loss, other.steps[step].loss, tolerance);
      EXPECT_NEAR(run.steps[step].gradient_norm, other.steps[step].gradient_norm, tolerance);
    }
  }

  static constexpr auto predicted = &StepReport::predicted_peak_bytes;
  test::Folder folder_;
};

TEST_P(GridTraining, IsTheSameOnAnyRanks) {
  const Played alone = run("alone", {"parallel.ranks=1"});
  ASSERT_EQ(alone.steps.size(), 5U);
  EXPECT_EQ(alone.steps.front().documents, of_video() || extra() ? 3 : 2);
  if (of_video() || !unlike()) {
    EXPECT_EQ(alone.steps.front().tokens, of_video() ? 54 : 30);
  }
  EXPECT_NE(alone.steps[0].loss, alone.steps[1].loss);
  const SafetensorsReader weights(folder("alone") / "model");
  for (const int ranks : {2, 3, 4}) {
    const std::string name = "on" + std::to_string(ranks);
    const Played same = run(name, {"parallel.ranks=" + std::to_string(ranks)});
    expect_same(same, alone);
    const SafetensorsReader others(folder(name) / "model");
    ASSERT_EQ(others.tensors().size(), weights.tensors().size());
    for (const auto& [tensor, stored] : weights.tensors()) {
      const at::Tensor difference = weights.view(tensor) - others.view(tensor);
      EXPECT_LT(difference.abs().max().item<double>(), 1e-9) << tensor;
    }
  }
}

// Beside groups of the one size that is best, which changes nothing of the run.
TEST_P(GridTraining, IsComparedWithGroupsOfOneSize) {
  const Played plain = run("plain", {"parallel.ranks=3"});
  const Played compared = run("compared", {"parallel.ranks=3", "train.compare=2"});
  expect_same(compared, plain, 0);
  for (const StepReport& report : compared.steps) {
    ASSERT_EQ(report.compared.has_value(), report.step % 2 == 0) << report.step;
    if (report.compared) {
      EXPECT_THAT(report.compared->strategy, testing::StartsWith("groups-of-"));
      EXPECT_GT(report.compared->seconds, 0);
      EXPECT_GT(report.compared->predicted_seconds, 0);
    }
  }
  ASSERT_TRUE(plain.summary.best_static);
  EXPECT_EQ(plain.summary.best_static->batches, 5);
  EXPECT_GE(plain.summary.best_static->ratio(), 1 - 1e-9);
}

// Video in fewer samples a micro-batch, then made again; alignments run one by one anyway.
TEST_P(GridTraining, StaysWithinMemory) {
  const Played free = run("free", {"parallel.ranks=2"});
  const std::int64_t most = free.summary.peak_bytes;
  EXPECT_LE(most, std::ranges::max(free.steps, {}, predicted).predicted_peak_bytes);
  std::int64_t least = most;
  for (const double share : {0.9, 0.8, 0.7, 0.6}) {
    const auto budget = static_cast<std::int64_t>(share * static_cast<double>(most));
    const std::string name = "within" + std::to_string(budget);
    try {
      const Played tight =
          run(name, {"parallel.ranks=2", "parallel.memory_per_rank=" + std::to_string(budget)});
      expect_same(tight, free);
      EXPECT_LE(tight.summary.peak_bytes, budget);
      EXPECT_EQ(tight.steps.front().retries, 0);
      least = tight.summary.peak_bytes;
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("no plan fits: one sample needs"));
    }
  }
  EXPECT_LT(least, most);
}

// The optimizer's moments wait in host memory, then what is saved, too: the same for less.
TEST_P(GridTraining, LeavesMomentsOnTheHost) {
  const Played here = run("here", {"parallel.ranks=2"});
  const Played host = run("host", {"parallel.ranks=2", "optimizer.offload=true"});
  expect_same(host, here, 0);
  EXPECT_LT(host.summary.peak_bytes, here.summary.peak_bytes);
  EXPECT_LE(
      host.summary.peak_bytes, std::ranges::max(host.steps, {}, predicted).predicted_peak_bytes);
  // a checkpoint does not say where they were
  const std::vector<std::string> settings = {"parallel.ranks=2", "checkpoint.every=1"};
  EXPECT_TRUE(run(config("moved", settings), {}, 2).summary.interrupted);
  std::vector<std::string> moved = settings;
  moved.emplace_back("optimizer.offload=true");
  const Played rest = run(config("moved", moved), {.resume = folder("moved")});
  ASSERT_EQ(rest.steps.size(), 3U);
  for (std::size_t step = 0; step < 3; ++step) {
    EXPECT_EQ(rest.steps[step].loss, here.steps[step + 2].loss);
  }
  const std::int64_t budget = host.summary.peak_bytes - host.summary.peak_bytes / 5;
  const std::vector<std::string> tight = {
      "parallel.ranks=2",
      "optimizer.offload=true",
      "parallel.offload=true",
      "parallel.memory_per_rank=" + std::to_string(budget)};
  const Played both = run("both", tight);
  expect_same(both, here);
  EXPECT_LE(both.summary.peak_bytes, budget);
  EXPECT_EQ(both.steps.front().retries, 0);
}

// Weights and moments are cut anew; samples, noise and masks stay the same.
TEST_P(GridTraining, GoesOnOnOtherRanks) {
  const std::vector<std::string> settings = {"parallel.ranks=3", "checkpoint.every=1"};
  const Played straight = run("straight", settings);
  EXPECT_TRUE(run(config("stopped", settings), {}, 2).summary.interrupted);
  std::int64_t done = 2;
  for (const char* ranks : {"parallel.ranks=2", "parallel.ranks=4", "parallel.ranks=1"}) {
    const Played rest = run(
        config("stopped", {ranks, "checkpoint.every=1"}), {.resume = folder("stopped")}, done + 1);
    ASSERT_EQ(rest.steps.size(), 1U);
    EXPECT_NEAR(
        rest.steps.front().loss, straight.steps[static_cast<std::size_t>(done)].loss, 1e-10);
    ++done;
  }
}

TEST_P(GridTraining, GoesOnAsIfItHadNotStopped) {
  const std::vector<std::string> settings = {"parallel.ranks=3", "checkpoint.every=1"};
  const Played straight = run("straight", settings);
  const LoadedConfig stopped = config("stopped", settings);
  EXPECT_TRUE(run(stopped, {}, 2).summary.interrupted);
  const Played rest = run(stopped, {.resume = folder("stopped")});
  ASSERT_EQ(rest.steps.size(), 3U);
  for (std::size_t step = 0; step < 3; ++step) {
    EXPECT_EQ(rest.steps[step].loss, straight.steps[step + 2].loss);  // to the bit
  }
  // By the plans of another run, and by one plan for all steps.
  const Played replayed =
      run(config("replayed", {"parallel.ranks=3"}), {.replay = folder("straight")});
  expect_same(replayed, straight, 0);
  const auto given = [&] {
    return run(
        config("given", {"parallel.ranks=3"}),
        {.plan = folder("straight") / "plans" / "step-00001.json"});
  };
  if (!unlike() || extra()) {  // a step takes all alignments
    expect_same(given(), straight, 0);
    return;
  }
  EXPECT_THAT(test::refusal([&] { given(); }), HasSubstr("is for samples of other sizes"));
}

TEST_P(GridTraining, BeginsFromSavedWeightsAndEvaluates) {
  const std::vector<std::string> settings = {
      "parallel.ranks=2", "data.eval_path=" + data().string()};
  const Played first = run("first", settings);
  ASSERT_TRUE(std::isfinite(first.summary.eval_loss));
  const std::shared_ptr<Backend> backend = local_backend();
  for (const int ranks : {1, 3}) {
    const EvalResult found = evaluate(
        config(
            "unused",
            {"model.path=" + (folder("first") / "model").string(),
             "parallel.ranks=" + std::to_string(ranks)}),
        *backend);
    EXPECT_NEAR(found.loss, first.summary.eval_loss, 1e-10);
    EXPECT_EQ(found.documents, of_video() ? 5 : 3);
  }
  const Played next =
      run("next", {"parallel.ranks=2", "model.path=" + (folder("first") / "model").string()});
  EXPECT_LT(next.summary.first_loss, first.summary.first_loss);
}

TEST_P(GridTraining, LeavesFramesOfSampledClips) {
  const auto pictures = [&](const std::string& name) {
    std::map<std::string, std::string> found;
    if (fs::exists(folder(name) / "samples")) {
      for (const fs::directory_entry& entry : fs::directory_iterator(folder(name) / "samples")) {
        std::ifstream file(entry.path(), std::ios::binary);
        found[entry.path().filename().string()] =
            std::string(std::istreambuf_iterator<char>(file), {});
      }
    }
    return found;
  };
  run("one", {"parallel.ranks=1", "output.clips=2"});
  const auto one = pictures("one");
  ASSERT_EQ(one.size(), of_video() ? 6U : 0U);
  for (const auto& [name, bytes] : one) {
    EXPECT_TRUE(bytes.starts_with("\x89PNG")) << name;
  }
  run("three", {"parallel.ranks=3", "output.clips=2"});
  EXPECT_EQ(pictures("three"), one);
  run("none", {"parallel.ranks=1", "output.clips=0"});
  EXPECT_TRUE(pictures("none").empty());
}

// Weights are rounded, and so is what is computed of them; the masters that are trained are not.
TEST_P(GridTraining, IsNearlyTheSameInNarrowTypes) {
  std::vector<std::string> settings;
  if (stdit3()) {
    // Adam moves weights that begin with zero by as much for gradients that a narrow type rounds to
    // nothing as for others: so here weights are what a run left, and stay.
    run("begun", {"optimizer.lr=0.05"});
    settings = {"model.path=" + (folder("begun") / "model").string(), "optimizer.lr=0"};
  }
  const Played wide = run("wide", settings);
  for (const std::string dtype : {"bfloat16", "float16"}) {
    std::vector<std::string> of_narrow = settings;
    of_narrow.insert(of_narrow.end(), {"train.dtype=" + dtype, "parallel.ranks=2"});
    const Played narrow = run(dtype, of_narrow);
    ASSERT_EQ(narrow.steps.size(), wide.steps.size());
    const double rounding = dtype == "bfloat16" ? 0x1p-8 : 0x1p-11;
    for (std::size_t step = 0; step < wide.steps.size(); ++step) {
      EXPECT_NEAR(narrow.steps[step].loss, wide.steps[step].loss, rounding * wide.steps[step].loss);
      if (openfold() && step == 0) {  // the head begins with zeros: the loss is that of no guess
        EXPECT_NEAR(narrow.steps[step].loss, std::log(23), 1e-6);
        continue;
      }
      EXPECT_NE(narrow.steps[step].loss, wide.steps[step].loss);
    }
  }
}

TEST_P(GridTraining, RefusesWhatIsOfLanguageModels) {
  const auto refusal = [&](const std::string& setting) {
    return test::refusal<std::exception>([&] { run("refused", {setting}); });
  };
  EXPECT_THAT(refusal("parallel.attention=UlyssesZ"), HasSubstr("parallel.attention"));
  EXPECT_THAT(refusal("model.dropout=0.1"), HasSubstr("model.dropout"));
  EXPECT_FALSE(fs::exists(folder("refused")));
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    GridTraining,
    testing::Values(
        "stdit",
        "stdit_unlike",
        "stdit3",
        "evoformer",
        "evoformer_unlike",
        "openfold",
        "openfold_extra_unlike",
        "openfold_masks_extra_unlike"),
    [](const auto& which) { return std::string(which.param); });

}  // namespace
}  // namespace paradyse
