// The judge of plans of the FlexSP publication: figures by hand, and each rule violated once.
#include "src/plan/published/flexsp_check.h"

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace paradyse {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

FlexspSetting setting() { return {.model = flexsp_model("flexsp-7b")}; }

// What a document of s tokens takes of the 7B model, in seconds: the coefficients of the
// publication written out.
double t(double s, double d, double v) {
  return (5.128e-6 * s * s + 0.1839576 * s + 16.0 * 32 * 4096 * s / 1048576 / v) / d / 1000;
}
constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kB1 = 0.62936;

std::vector<int> ranks_from(int first, int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

LayerRuns runs(const std::string& attention, Recompute level = Recompute::none) {
  return {{.layers = 32, .choice = text_layer(attention, "gather", level, level)}};
}

// Two micro-batches: 32 + 16 + 8 ranks, two alone and six idle; then all on one document.
Plan plan() {
  Plan p;
  p.model_name = "flexsp-7b";
  p.layers = 32;
  p.cluster_name = "a100-40gb-8x8";
  p.ranks = p.weight_domain = 64;
  p.lengths = {150'000, 90'000, 40'000, 6'000, 5'000, 1'000, 190'000};
  p.programs = {{"some", runs("UlyssesZ")}, {"one", runs("DataZ")}};
  PlanMicroBatch first;
  first.groups = {
      {.ranks = ranks_from(0, 32), .documents = {0}, .program = "some"},
      {.ranks = ranks_from(32, 16), .documents = {1}, .program = "some"},
      {.ranks = ranks_from(48, 8), .documents = {2}, .program = "some"},
      {.ranks = {56}, .documents = {3}, .program = "one"},
      {.ranks = {57}, .documents = {4, 5}, .program = "one"}};
  for (int rank = 58; rank < 64; ++rank) {
    first.groups.push_back({.ranks = {rank}, .documents = {}, .program = "one"});
  }
  first.groups[0].predicted.seconds = t(150'000, 32, 5.94);
  first.groups[1].predicted.seconds = t(90'000, 16, 10.33);
  first.groups[2].predicted.seconds = t(40'000, 8, 96.5);
  first.groups[3].predicted.seconds = t(6'000, 1, kInfinite);
  first.groups[4].predicted.seconds = t(5'000, 1, kInfinite) + t(1'000, 1, kInfinite);
  first.groups[5].predicted.seconds = 0;
  first.predicted.seconds = kB1 + t(150'000, 32, 5.94);
  PlanMicroBatch second;
  second.groups = {{.ranks = ranks_from(0, 64), .documents = {6}, .program = "some"}};
  second.groups[0].predicted.seconds = t(190'000, 64, 4.87);
  second.predicted.seconds = kB1 + t(190'000, 64, 4.87);
  p.micro_batches = {first, second};
  p.predicted.seconds = *first.predicted.seconds + *second.predicted.seconds;
  p.predicted.lower_bound_seconds = 0.97 * *p.predicted.seconds;
  return p;
}

std::vector<std::string> all_problems(const Plan& p, const FlexspSetting& s = setting()) {
  std::vector<std::string> found = problems(p);
  for (const auto& more : {flexsp_space_problems(p), flexsp_preset_problems(p, s)}) {
    found.insert(found.end(), more.begin(), more.end());
  }
  return found;
}

TEST(FlexspCheck, AcceptsWhatIsSound) {
  EXPECT_THAT(all_problems(plan()), IsEmpty());
  Plan silent = plan();
  silent.predicted = {};
  for (PlanMicroBatch& micro_batch : silent.micro_batches) {
    micro_batch.predicted = {};
    for (PlanGroup& group : micro_batch.groups) {
      group.predicted = {};
    }
  }
  EXPECT_THAT(all_problems(silent), IsEmpty());
}

// Capacity of the reference: 6,449 tokens a GPU of the 7B model at 192K; less at 384K.
TEST(FlexspCheck, CountsTokensAgainstTheRoomOfTheReference) {
  Plan p = plan();
  const auto with = [&](std::int64_t tokens) {
    p.lengths[3] = tokens;
    p.micro_batches[0].groups[3].predicted = {};
    return all_problems(p);
  };
  EXPECT_THAT(with(6449), IsEmpty());
  EXPECT_THAT(
      with(6450),
      ElementsAre(AllOf(
          StartsWith("micro_batches[0].groups[3]: 6450 tokens"),
          HasSubstr("a group of 1 rank has room for 6449"))));
  FlexspSetting longer = setting();
  longer.context = 384'000;
  p.lengths[3] = 6449;
  EXPECT_THAT(
      flexsp_preset_problems(p, longer),
      ElementsAre(
          HasSubstr("has room for 6407")));  // floor((30720 - 16 * 1024 * 7.85 / 64) / 4.4804)
  FlexspSetting more = setting();
  more.memory_mb = 40 * 1024;
  p.lengths[3] = 8735;
  EXPECT_THAT(flexsp_preset_problems(p, more), IsEmpty());
  p.lengths[3] = 8736;
  EXPECT_THAT(flexsp_preset_problems(p, more).size(), 1U);
  // States leave nothing: everything is too much.
  Plan few = plan();
  few.ranks = few.weight_domain = 2;
  few.lengths = {10};
  few.micro_batches = {
      {.groups = {{.ranks = {0, 1}, .documents = {0}, .program = "some"}}, .predicted = {}}};
  few.predicted = {};
  FlexspSetting two = setting();
  two.ranks = 2;
  EXPECT_THAT(all_problems(few, two), ElementsAre(HasSubstr("a group of 2 ranks has room for 0")));
}

struct Rule {
  std::string what;
  std::function<void(Plan&)> spoil;
  std::string starts;
  std::string says;
};

TEST(FlexspCheck, NamesEachViolation) {
  const std::vector<Rule> rules = {
      {"three ranks",
       [](Plan& p) {
         auto& groups = p.micro_batches[0].groups;
         groups[3].ranks = {56, 57, 58};
         groups[3].program = "some";
         groups[4].ranks = {59};
         groups.erase(groups.begin() + 5, groups.begin() + 7);
         p.micro_batches[0].groups[3].predicted = {};
       },
       "micro_batches[0].groups[3].ranks: 3 ranks",
       "1, 2, 4, 8"},
      {"unaligned",
       [](Plan& p) {
         auto& groups = p.micro_batches[0].groups;
         groups[3].ranks = {57, 58};
         groups[3].program = "some";
         groups[3].predicted = {};
         groups[4].ranks = {56};
         groups.erase(groups.begin() + 5);
       },
       "micro_batches[0].groups[3].ranks: a group of 2 begins at rank 57",
       "a multiple of 2"},
      {"scattered",
       [](Plan& p) {
         auto& groups = p.micro_batches[0].groups;
         groups[3].ranks = {56, 63};
         groups[3].program = "some";
         groups[3].predicted = {};
         groups.pop_back();
       },
       "micro_batches[0].groups[3].ranks[1]: rank 63 stands after rank 56",
       "follow one another"},
      {"a ring",
       [](Plan& p) {
         p.programs["ring"] = runs("MegatronCZ");
         p.micro_batches[0].groups[1].program = "ring";
       },
       "programs.ring[0].parts[0].strategy: 'MegatronCZ' on 16 ranks",
       "has UlyssesZ (micro_batches[0].groups[1])"},
      {"UlyssesZ on one rank",
       [](Plan& p) { p.micro_batches[0].groups[4].program = "some"; },
       "programs.some[0].parts[0].strategy: 'UlyssesZ' on 1 rank",
       "has DataZ (micro_batches[0].groups[4])"},
      {"recomputes",
       [](Plan& p) {
         p.programs["again"] = runs("UlyssesZ", Recompute::full);
         p.micro_batches[0].groups[1].program = "again";
       },
       "programs.again[0].parts[0].recompute: 'full'",
       "recomputes nothing"},
      {"offloads",
       [](Plan& p) {
         p.programs["away"] = runs("UlyssesZ");
         part_of(p.programs["away"][0].choice, "mlp").offload = true;
         p.micro_batches[0].groups[1].program = "away";
       },
       "programs.away[0].parts[1]: ",
       "no offload"},
      {"shares",
       [](Plan& p) { p.micro_batches[0].groups[2].shares = std::vector<double>(8, 1.0); },
       "micro_batches[0].groups[2].shares: ",
       "evenly"},
      {"mesh",
       [](Plan& p) { p.micro_batches[0].groups[2].mesh = {2, 4}; },
       "micro_batches[0].groups[2].mesh: ",
       "one axis"},
      {"weight domain of a half",
       [](Plan& p) {
         p.weight_domain = 32;
         p.micro_batches.pop_back();
         p.lengths.pop_back();
         p.predicted = {};
       },
       "weight_domain: 32 of 64 ranks",
       "over all"},
      {"another model",
       [](Plan& p) { p.model_name = "flexsp-13b"; },
       "model.name: the plan is for 'flexsp-13b'",
       "the preset is 'flexsp-7b'"},
      {"a fingerprint",
       [](Plan& p) { p.model_sha256 = "abc"; },
       "model.sha256: 'abc'",
       "leave it empty"},
      {"another cluster",
       [](Plan& p) { p.cluster_name = "64xH100"; },
       "cluster.name: the plan is for '64xH100'",
       "'a100-40gb-8x8'"},
      {"a cluster's fingerprint",
       [](Plan& p) { p.cluster_sha256 = "abc"; },
       "cluster.sha256: 'abc'",
       "leave it empty"},
      {"too long a document",
       [](Plan& p) {
         p.lengths[6] = 192'001;
         p.micro_batches[1].predicted = {};
         p.micro_batches[1].groups[0].predicted = {};
         p.predicted = {};
       },
       "lengths[6]: 192001 tokens",
       "from 1 to the context's 192000"},
      {"an empty document",
       [](Plan& p) {
         p.lengths[5] = 0;
         p.micro_batches[0].groups[4].predicted = {};
       },
       "lengths[5]: 0 tokens",
       "from 1 to"},
      {"a group's seconds",
       [](Plan& p) { *p.micro_batches[0].groups[2].predicted.seconds *= 1 + 3e-6; },
       "micro_batches[0].groups[2].predicted.seconds: ",
       "the published formula gives "},
      {"an idle rank's seconds",
       [](Plan& p) { p.micro_batches[0].groups[5].predicted.seconds = 1e-9; },
       "micro_batches[0].groups[5].predicted.seconds: ",
       "gives 0"},
      {"seconds that are no number",
       [](Plan& p) { p.micro_batches[0].groups[2].predicted.seconds = std::nan(""); },
       "micro_batches[0].groups[2].predicted.seconds: nan",
       "the published formula gives "},
      {"a micro-batch without b1",
       [](Plan& p) { *p.micro_batches[1].predicted.seconds -= kB1; },
       "micro_batches[1].predicted.seconds: ",
       "the published formula gives "},
      {"the plan's seconds",
       [](Plan& p) { *p.predicted.seconds *= 1 - 3e-6; },
       "predicted.seconds: ",
       "the published formula gives "},
      {"a bound that is none",
       [](Plan& p) { p.predicted.lower_bound_seconds = 1.01 * *p.predicted.seconds; },
       "predicted.lower_bound_seconds: ",
       "the bound is none"}};
  for (const Rule& rule : rules) {
    Plan p = plan();
    rule.spoil(p);
    EXPECT_THAT(all_problems(p), ElementsAre(AllOf(StartsWith(rule.starts), HasSubstr(rule.says))))
        << rule.what;
  }
  // a rank or layer too many offends the plan's own rules as well
  Plan p = plan();
  p.layers = 33;
  EXPECT_THAT(
      flexsp_preset_problems(p, setting()),
      ElementsAre(HasSubstr("model.layers: 33, the preset flexsp-7b has 32")));
  FlexspSetting many = setting();
  many.ranks = 128;
  p = plan();
  p.predicted = {};
  EXPECT_THAT(
      flexsp_preset_problems(p, many),
      ElementsAre(
          AllOf(StartsWith("cluster.ranks: the plan is for 64 ranks"), HasSubstr("--ranks 64"))));
}

// What is not there is problems()' to tell; nothing here trips over it.
TEST(FlexspCheck, LooksAtUnsoundPlans) {
  Plan p = plan();
  p.micro_batches[0].groups[0].documents = {-1, 99};
  p.micro_batches[0].groups[1].program = "nothing";
  p.micro_batches[0].groups[2].ranks = {};
  p.micro_batches[0].groups[3].ranks = {-7};
  p.weight_domain = 0;
  EXPECT_FALSE(all_problems(p).empty());
  EXPECT_FALSE(all_problems(Plan{}).empty());
  FlexspSetting none = setting();
  none.ranks = 0;
  EXPECT_THROW(flexsp_preset_problems(plan(), none), std::invalid_argument);
}

// The other two presets at other numbers of ranks: rooms worked out by hand.
TEST(FlexspCheck, KnowsAllPresets) {
  const auto room = [](const char* name, int ranks, std::int64_t context) {
    Plan p;
    p.model_name = name;
    p.layers = flexsp_model(name)->layers;
    p.cluster_name = kFlexspCluster;
    p.ranks = p.weight_domain = ranks;
    p.lengths = {context};
    p.programs = {{"some", {{.layers = p.layers, .choice = text_layer("DataZ", "gather")}}}};
    p.micro_batches = {
        {.groups = {{.ranks = {0}, .documents = {0}, .program = "some"}}, .predicted = {}}};
    const auto found = flexsp_preset_problems(
        p, {.model = flexsp_model(name), .ranks = ranks, .context = context});
    return found.empty() ? std::string() : found.front();
  };
  EXPECT_THAT(room("flexsp-13b", 64, 192'000), HasSubstr("room for 6483:"));  // 27362.304 / 4.2204
  EXPECT_THAT(room("flexsp-13b", 128, 384'000), HasSubstr("room for 6853:"));
  EXPECT_THAT(room("flexsp-30b", 64, 192'000), HasSubstr("room for 6627:"));  // 22649.6 / 3.4174
  EXPECT_THAT(room("flexsp-30b", 64, 384'000), HasSubstr("room for 6538:"));
}

}  // namespace
}  // namespace paradyse
