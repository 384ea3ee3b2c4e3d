#include "src/run/train/resume.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/plan/config/fields.h"
#include "src/run/train/dataset.h"
#include "src/run/train/training_plans.h"
#include "tests/support/folder.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

LoadedConfig config(std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"train.steps=10", "data.order=curriculum"});
  return load_config("", settings);
}

// A checkpoint after 5 steps of a run with this configuration.
Resumed after_five(const LoadedConfig& run) {
  Resumed from;
  from.checkpoint = "runs/x/checkpoints/000005";
  from.state.step = 5;
  from.state.ranks = 4;
  for (const ConfigEntry& entry : run.entries) {
    from.state.configuration.emplace(entry.key, entry.value);
  }
  return from;
}

TEST(Resume, TakesTheSameRunAndNamesWhatChanged) {
  const Resumed from = after_five(config({}));
  EXPECT_THAT(expect_same_run(config({}), from), IsEmpty());
  EXPECT_THAT(
      expect_same_run(
          config({"optimizer.lr=0.5", "parallel.memory_per_rank=1GiB", "parallel.ranks=3"}), from),
      ElementsAre(
          "parallel.ranks = 3 (was 4)",
          "parallel.memory_per_rank = '1GiB' (was '0')",
          "optimizer.lr = 0.5 (was 0.001)"));
}

TEST(Resume, RefusesWhatWouldBeAnotherRun) {
  const Resumed from = after_five(config({}));
  for (const std::string setting :
       {"model.seed=2",
        "model.dropout=0.5",
        "model.attention_dropout=0.5",
        "data.min_tokens=3",
        "data.max_tokens=30",
        "data.too_long=skip",
        "data.order=sorted",
        "data.curriculum_share=0.5",
        "data.seed=2",
        "train.tokens_per_step=5",
        "train.dtype=bfloat16",
        "optimizer.path=moments",
        "output.name=other"}) {
    const std::string key = setting.substr(0, setting.find('='));
    EXPECT_THAT(
        test::refusal([&] { expect_same_run(config({setting}), from); }),
        AllOf(HasSubstr(key), HasSubstr("--set"), HasSubstr("runs/x/model")))
        << setting;
  }
  EXPECT_THAT(
      test::refusal([&] { expect_same_run(config({"train.steps=4"}), from); }),
      AllOf(HasSubstr("train.steps is 4"), HasSubstr("has done 5")));
  // sorted for ten steps
  EXPECT_THAT(
      test::refusal([&] { expect_same_run(config({"train.steps=11"}), from); }),
      HasSubstr("curriculum"));
  const Resumed shuffled = after_five(config({"data.order=shuffled"}));
  EXPECT_THAT(
      expect_same_run(config({"data.order=shuffled", "train.steps=11"}), shuffled),
      ElementsAre("train.steps = 11 (was 10)"));
}

// What resuming refuses is what the help does not list: of each section, or of each of its keys.
TEST(Resume, TheHelpListsWhatMayChange) {
  const Resumed from = after_five(config({"train.steps=10", "data.order=shuffled"}));
  const std::string said = ", " + changeable_keys() + ",";
  int fixed = 0;
  for (const ConfigKey& key : config_keys()) {
    if (key.key == "train.steps") {
      continue;  // its value counts
    }
    LoadedConfig now = config({"train.steps=10", "data.order=shuffled"});
    ConfigEntry& entry = *std::ranges::find(now.entries, key.key, &ConfigEntry::key);
    entry.value += "x";
    entry.origin = "--set";
    const bool refused = !test::refusal([&] { expect_same_run(now, from); }).empty();
    fixed += refused ? 1 : 0;
    const std::size_t dot = key.key.find('.');
    const std::string section = ", " + key.key.substr(0, dot);
    const std::size_t but = said.find(section + " (but not ");
    const std::string kept =
        but == std::string::npos ? "" : said.substr(but, said.find(')', but) - but);
    const bool whole = said.find(section + ",") != std::string::npos || !kept.empty();
    const bool named = said.find(", " + key.key + ",") != std::string::npos;
    const std::string name = " " + key.key.substr(dot + 1);
    const bool left_out = (kept + ",").find(name + ",") != std::string::npos;
    EXPECT_EQ(refused, !(named || (whole && !left_out))) << key.key << said;
  }
  EXPECT_GT(fixed, 20);
}

// A run is where it is: its folder may have moved, and what it began with need not be there any
// more.
TEST(Resume, TakesARunThatWasMoved) {
  const test::Folder folder;
  const fs::path run = folder / "moved/new";
  fs::create_directories(run / "checkpoints/000005");
  Resumed from = after_five(config({"output.folder=/was/there", "output.name=old"}));
  from.checkpoint = run / "checkpoints/000005";
  const std::string here = "output.folder=" + (folder / "moved").string();
  EXPECT_THAT(
      expect_same_run(config({here, "output.name=new"}), from),
      ElementsAre(
          AllOf(HasSubstr("output.folder = "), HasSubstr("was '/was/there'")),
          "output.name = 'new' (was 'old')"));
  EXPECT_THAT(expect_same_run(config({here, "output.name=''"}), from), testing::SizeIs(2));
  EXPECT_THAT(
      test::refusal([&] { expect_same_run(config({here, "output.name=other"}), from); }),
      HasSubstr("output.folder"));
  EXPECT_THAT(
      test::refusal([&] {
        expect_same_run(config({"output.folder=/was/there", "output.name=other"}), from);
      }),
      HasSubstr("output.name"));
}

// Moments of another program are read when a run begins.  The command of a restart names them
// again.
TEST(Resume, RefusesMomentsOfAnotherProgram) {
  const test::Folder folder;
  const std::string here = "optimizer.path=" + folder.string();
  const auto why = [&](const Resumed& from, const LoadedConfig& now, bool again) {
    return test::refusal([&] { expect_same_run(now, from, again); });
  };
  const auto refused = AllOf(HasSubstr("optimizer.path is "), HasSubstr("only a new run begins"));
  const Resumed from = after_five(config({"optimizer.path=/was/there"}));
  for (const std::string setting :
       {here.c_str(), "optimizer.path=/was/there", "optimizer.path=''"}) {
    EXPECT_THAT(why(from, config({setting}), false), refused) << setting;
  }
  EXPECT_THAT(why(from, config({here}), true), refused);
  EXPECT_EQ(why(from, config({"optimizer.path=/was/there"}), true), "");
  EXPECT_THAT(
      expect_same_run(config({"optimizer.path=there"}), from, true),
      ElementsAre("optimizer.path = 'there' (was '/was/there')"));
  EXPECT_THAT(expect_same_run(config({}), from, true), testing::SizeIs(1));
  LoadedConfig by_its_file = config({"optimizer.path=/was/there"});
  std::ranges::find(by_its_file.entries, "optimizer.path", &ConfigEntry::key)->origin =
      "runs/x/config.toml:7";
  EXPECT_EQ(why(from, by_its_file, false), "");
  const Resumed without = after_five(config({}));
  for (const bool again : {false, true}) {
    EXPECT_THAT(why(without, config({"optimizer.path=/was/there"}), again), refused);
  }
}

// What was learned is of its ranks, costs and memory; how fast ranks are is of the ranks alone.
TEST(Resume, KeepsWhatIsStillTrueOfWhatWasLearned) {
  const BatchPlanner::Learned learned = {
      .ratios = {{{{"attention", "METP"}, 4, 7}, {2}}},
      .machine = 1.5,
      .caps = {{12, 1000}},
      .speeds = RankSpeeds::Ratios(4, {1, 2}),
      .slow_since = {0, 3, 0, 0}};
  Resumed from = after_five(config({}));
  from.state.learned = learned;
  const auto kept = [&](const std::vector<std::string>& settings) {
    return still_true(from.state, config(settings), PlanningNumbers{});
  };
  EXPECT_EQ(kept({}), learned);
  BatchPlanner::Learned without = learned;
  without.caps.clear();
  EXPECT_EQ(kept({"parallel.memory_per_rank=1GiB"}), without);
  without = learned;
  without.ratios.clear();
  without.machine = 1;
  EXPECT_EQ(kept({"costs.correct=false"}), without);
  for (const std::string elsewhere : {"parallel.ranks=3", "parallel.device=cuda"}) {
    EXPECT_EQ(kept({elsewhere}), BatchPlanner::Learned{}) << elsewhere;
  }
  from.state.costs = "others";
  EXPECT_EQ(
      kept({}),
      (BatchPlanner::Learned{.speeds = learned.speeds, .slow_since = learned.slow_since}));
}

TEST(Resume, APositionTellsDocumentsAndOrderApart) {
  const Corpus corpus({{1, 2}, {3}, {4, 5, 6}});
  const std::vector<std::vector<std::int64_t>> steps = {{2, 0}, {1, 0}, {2}};
  const auto at = [&](const Corpus& documents, const auto& order, std::int64_t step) {
    const Dataset data(documents);
    return data_position(data.size(), data.fingerprint(), order, step);
  };
  Resumed from;
  from.state.data = at(corpus, steps, 2);
  EXPECT_EQ(from.state.data.draws, 4);
  EXPECT_EQ(from.state.data.epoch, 1);
  EXPECT_EQ(from.state.data.next, 2);
  EXPECT_EQ(at(corpus, steps, 3).next, -1);
  const auto why = [&](const DataPosition& now) {
    return test::refusal([&] { expect_same_data(now, "texts", from); });
  };
  EXPECT_EQ(why(at(corpus, steps, 2)), "");
  for (const std::vector<Tokens>& others :
       {std::vector<Tokens>{{1, 2}, {3}, {4, 5, 7}}, {{1}, {2, 3}, {4, 5, 6}}, {{1, 2}, {3}}}) {
    EXPECT_THAT(
        why(at(Corpus(others), steps, 2)), HasSubstr("data.path: texts has other documents"));
  }
  const Corpus labelled({{1, 2}, {3}, {4, 5, 6}}, {{1, 2}, {3}, {4, 5, 6}});
  EXPECT_THAT(why(at(labelled, steps, 2)), HasSubstr("other documents"));
  const std::vector<std::vector<std::int64_t>> cut_elsewhere = {{2}, {0, 1, 0}, {2}};
  EXPECT_THAT(why(at(corpus, cut_elsewhere, 2)), HasSubstr("another order"));
}

}  // namespace
}  // namespace paradyse
