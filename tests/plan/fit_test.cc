// Both cost models on machines whose truth is known, their errors, and the costs file.
#include "src/plan/profile/fit.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "src/plan/model/text/text_shape.h"
#include "src/plan/profile/held_out.h"
#include "src/plan/profile/hybrid.h"
#include "src/plan/search/layers/group_costs.h"
#include "tests/plan/pretend_machine.h"
#include "tests/support/folder.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

const std::vector<std::int64_t> kLengths = {64, 128, 256, 512, 1024, 2048, 4096};

// The errors of what has no noise, by `model`, over what is measured at these lengths.
struct Errors {
  double mean = 0;
  double worst = 0;
};

Errors errors_at(
    const TimeModel& model,
    PretendMachine machine,
    const std::vector<std::int64_t>& lengths,
    const TextShape& shape = pretend_model(),
    const std::vector<PretendGroup>& groups = pretend_groups()) {
  machine.noise = 0;
  const Profile truth = pretend_profile(machine, lengths, shape, groups);
  Errors errors;
  for (const PartProbe& probe : truth.parts) {
    const double predicted = model.seconds(question_of(probe)).total();
    const double error = std::abs(predicted / total_seconds(probe) - 1);
    errors.mean += error / static_cast<double>(truth.parts.size());
    errors.worst = std::max(errors.worst, error);
  }
  return errors;
}

// As a profile has them: what gathers weights also without.
std::vector<PretendGroup> gathering_or_not() {
  std::vector<PretendGroup> groups = pretend_groups();
  groups.push_back({"UlyssesZ", "gather", Recompute::none, 4, /*whole=*/true});
  groups.push_back({"UlyssesZ", "gather", Recompute::none, 2, /*whole=*/true});
  groups.push_back({"DataZ", "gather", Recompute::none, 1, /*whole=*/true});
  return groups;
}

// The row of all parts.
HeldOutError total(const Costs& costs, const std::string& model, bool beyond) {
  for (const HeldOutError& error : costs.errors) {
    if (error.model == model && error.part.empty() && error.ranks == 0 && error.beyond == beyond) {
      return error;
    }
  }
  ADD_FAILURE() << "no total of " << model;
  return {};
}

const Costs& exact_costs() {
  static const Costs costs = fit(pretend_profile({}, kLengths));
  return costs;
}

const Costs& noisy_costs() {
  static const Costs costs = fit(pretend_profile({.noise = 0.03}, kLengths));
  return costs;
}

// --- the structured model ------------------------------------------------------------------------

TEST(Structured, IsExactWithoutNoise) {
  const Costs& costs = exact_costs();
  EXPECT_LT(errors_at(*costs.structured, {}, kLengths).worst, 0.002);
  EXPECT_LT(total(costs, "structured", false).worst, 0.005);
  EXPECT_LT(total(costs, "structured", true).worst, 0.02);
  EXPECT_EQ(costs.best, "structured");
}

TEST(Structured, FindsTheMachineBehindNoise) {
  const PretendMachine machine{.noise = 0.03};
  const Costs& costs = noisy_costs();
  EXPECT_LT(errors_at(*costs.structured, machine, kLengths).mean, 0.02);
  EXPECT_LT(total(costs, "structured", false).mean, 0.04);
  EXPECT_LT(total(costs, "structured", true).mean, 0.06);
}

TEST(Structured, GoesOnToFourTimesTheLongestLength) {
  EXPECT_LT(errors_at(*exact_costs().structured, {}, {8192, 16384}).worst, 0.01);
  const Errors errors = errors_at(*noisy_costs().structured, {}, {8192, 16384});
  EXPECT_LT(errors.mean, 0.04);
  EXPECT_LT(errors.worst, 0.12);
}

// What is computed is known from processor seconds, however long ranks wait for one another: on a
// machine whose wall seconds are noise by a fifth, work without any sending is found, and the whole
// is predicted better.
TEST(Structured, KnowsWhatIsComputedFromProcessorSeconds) {
  const auto model = [](const PretendMachine& machine) {
    const Profile profile = pretend_profile(machine, kLengths, pretend_model(), gathering_or_not());
    const Pull least{.strategy = 1e-8, .one_for_all_phases = true};
    return fit_structured(profile.parts, prior_rates(profile), least);
  };
  for (const double worked : {0.0, 0.3, 1.0}) {
    EXPECT_LT(errors_at(*model({.worked = worked}), {}, kLengths).worst, 0.005) << worked;
  }
  // Mean error of what sends nothing and waits for nothing.
  const auto error_of_work = [](const Structured& fitted) {
    const auto of_work = [](Rates rates, const Amounts& amounts) {
      for (std::size_t waiting = Amounts::sent_bytes; waiting <= Amounts::weight_collectives;
           ++waiting) {
        rates.values[waiting] = 0;
      }
      rates.values[Rates::kPhase] = 0;
      return rates.seconds(amounts);
    };
    double error = 0;
    const std::vector<PartProbe> probes = pretend_profile({}, {512, 2048}).parts;
    for (const PartProbe& probe : probes) {
      double exact = 0;
      double predicted = 0;
      for (std::size_t i = 0; i < kPartPhases; ++i) {
        const Amounts& amounts = probe.work.phases[i];
        exact += of_work(PretendMachine{}.rates, amounts);
        predicted += of_work(fitted.rates_for(probe.part, probe.strategy).rates[i], amounts);
      }
      error += std::abs(predicted / exact - 1) / static_cast<double>(probes.size());
    }
    return error;
  };
  double of_walls = 0;
  double of_both = 0;
  double with = 0;
  double without = 0;
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    const PretendMachine noisy{.noise = 0.2, .seed = seed};
    PretendMachine measured = noisy;
    measured.worked = 0.3;
    const auto from_walls = model(noisy);
    const auto from_both = model(measured);
    of_walls += error_of_work(*from_walls);
    of_both += error_of_work(*from_both);
    without += errors_at(*from_walls, noisy, kLengths).mean;
    with += errors_at(*from_both, noisy, kLengths).mean;
  }
  EXPECT_LT(of_both, of_walls / 1.5);
  EXPECT_LT(with, without);
}

// Adjoints that take longer than their counts say: a vector of rates for each phase.
TEST(Structured, PhasesMayDiffer) {
  const PretendMachine machine{.backward = 1.7};
  const Costs costs = fit(pretend_profile(machine, kLengths, pretend_model(), gathering_or_not()));
  EXPECT_LT(errors_at(*costs.structured, machine, kLengths).worst, 0.005);
}

// Weights travel over a link that is a hundred times slower than that of groups: micro-batches with
// whole weights tell what is computed, and what a group sends, from gathers.
TEST(Structured, TellsComputingFromGathers) {
  PretendMachine machine;
  machine.rates.values[Amounts::weight_bytes] *= 100;
  machine.rates.values[Amounts::weight_collectives] *= 100;
  const std::vector<PretendGroup> groups = gathering_or_not();
  const Costs costs = fit(pretend_profile(machine, kLengths, pretend_model(), groups));
  const std::vector<std::int64_t> between = {96, 700, 3000};
  const Errors errors = errors_at(*costs.structured, machine, between, pretend_model(), groups);
  EXPECT_LT(errors.worst, 0.01);
  for (const auto& [key, fitted] :
       std::dynamic_pointer_cast<const HybridModel>(costs.hybrid)->fits) {
    EXPECT_NE(key.ranks, 2) << "was measured with weights whole alone";
  }
}

// Rates are the machine's, so they hold for another width of the model, and for a strategy that was
// never profiled.
TEST(Structured, IsGoodForOtherShapesAndStrategies) {
  EXPECT_LT(errors_at(*exact_costs().structured, {}, kLengths, pretend_model(128)).mean, 0.1);
  EXPECT_LT(errors_at(*noisy_costs().structured, {}, kLengths, pretend_model(128)).mean, 0.15);
  const std::vector<PretendGroup> other = {{"MegatronCZ", "gather"}};
  EXPECT_LT(errors_at(*exact_costs().structured, {}, kLengths, pretend_model(), other).mean, 0.1);
  const std::vector<PretendGroup> pair = {{"UlyssesZ", "gather", Recompute::none, 2}};
  EXPECT_LT(errors_at(*exact_costs().structured, {}, kLengths, pretend_model(), pair).mean, 0.1);
}

// Bytes that a call touches beyond what a cache keeps have a price of their own: seconds are then
// no line in the length, and a length four times as long as all that was measured costs what it
// does.
TEST(Structured, KnowsThatCachesEnd) {
  PretendMachine machine;
  machine.rates.values[Rates::kSpilled] = 6e-10;
  const TextShape wide = pretend_model(512);
  const Costs costs = fit(pretend_profile(machine, kLengths, wide));
  EXPECT_LT(errors_at(*costs.structured, machine, kLengths, wide).worst, 0.01);
  EXPECT_LT(errors_at(*costs.structured, machine, {16384}, wide).worst, 0.01);
  EXPECT_LT(total(costs, "structured", true).mean, 0.05);
}

// Calls excepted where they spill: the same bytes in more calls are touched in smaller pieces,
// which stay in the cache.
// Where a few probes spill a little, what they have by chance is not the price of all that longer
// documents spill.
TEST(Structured, AFewSpilledBytesSayLittle) {
  const TextShape shape = pretend_model(128);
  for (const std::uint32_t seed : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U}) {
    const Profile profile = pretend_profile({.noise = 0.2, .seed = seed}, {64, 256, 512}, shape);
    const auto model = fit_structured(profile.parts, prior_rates(profile));
    EXPECT_LT(errors_at(*model, {}, {8192}, shape).mean, 0.5) << seed;
  }
}

TEST(Structured, RisesStrictlyWithEveryAmount) {
  std::mt19937 random(1);
  for (const Costs* costs : {&exact_costs(), &noisy_costs()}) {
    for (const PartProbe& probe : pretend_profile({}, kLengths).parts) {
      PartQuestion question = question_of(probe);
      if (random() % 4 == 0) {
        question.strategy = "never profiled";
      }
      const double before = costs->structured->seconds(question).total();
      for (std::size_t phase = 0; phase < kPartPhases; ++phase) {
        for (std::size_t i = 0; i < Amounts::kCount; ++i) {
          PartQuestion more = question;
          const Amounts& now = question.work.phases[phase];
          const bool calls = std::string(Amounts::kNames[i]) == "calls";
          if (calls && now.values[2] > Rates::kCachedBytes * now.values[3]) {
            continue;
          }
          double& amount = more.work.phases[phase].values[i];
          amount = amount * 1.5 + 1e3;
          EXPECT_GT(costs->structured->seconds(more).total(), before)
              << probe.strategy << " " << phase << " " << Amounts::kNames[i];
        }
      }
    }
  }
}

// What sizes of groups take beyond their counts is theirs: on this machine a collective of four
// costs three times what one of two does, which no rate a collective can say of both.  A size that
// was not measured lies between; errors stand in the table by size.
TEST(Structured, KnowsGroupsOfEverySize) {
  const std::vector<PretendGroup> groups = {
      {"UlyssesZ", "gather", Recompute::none, 2},
      {"UlyssesZ", "gather", Recompute::none, 4},
      {"AllGatherKV", "gather", Recompute::none, 4},
      {"DataZ", "gather", Recompute::none, 1},
      {"UlyssesZ", "gather", Recompute::none, 2, /*whole=*/true},
      {"UlyssesZ", "gather", Recompute::none, 4, /*whole=*/true},
      {"DataZ", "gather", Recompute::none, 1, /*whole=*/true}};
  const auto really = [](const PartProbe& probe, std::size_t phase) {
    PretendMachine machine;
    machine.rates.values[5] *= probe.ranks == 4 ? 3 : 1;
    return machine.seconds(probe, phase);
  };
  Profile profile = pretend_profile({}, kLengths, pretend_model(), groups);
  for (PartProbe& probe : profile.parts) {
    for (std::size_t i = 0; i < kPartPhases; ++i) {
      probe.seconds[i].median = really(probe, i);
    }
  }
  const Costs costs = fit(profile);
  const Profile others = pretend_profile({}, {96, 700, 3000}, pretend_model(), groups);
  for (const PartProbe& probe : others.parts) {
    double seconds = 0;
    for (std::size_t i = 0; i < kPartPhases; ++i) {
      seconds += really(probe, i);
    }
    EXPECT_NEAR(costs.structured->seconds(question_of(probe)).total() / seconds, 1, 0.01)
        << probe.part << " " << probe.strategy << " " << probe.ranks << " " << probe.length;
  }
  std::map<int, HeldOutError> by_size;
  for (const HeldOutError& error : costs.errors) {
    if (error.model == "structured" && error.ranks > 0 && error.part.empty() && !error.beyond) {
      by_size[error.ranks] = error;
      EXPECT_LT(error.mean, 0.02) << error.ranks;
    }
  }
  ASSERT_EQ(by_size.size(), 3U);
  EXPECT_EQ(by_size[1].probes, 2 * 5 * 3);
  EXPECT_EQ(by_size[2].probes, 2 * 5 * 3);
  EXPECT_EQ(by_size[4].probes, 5 * 3 + 5 * 4);  // one "gather" and one "rest" of both strategies

  // Three ranks lie between two and four, on a line over the logarithm; of eight the rates of all
  // sizes answer.
  for (const PartProbe& probe : others.parts) {
    PartQuestion question = question_of(probe);
    const auto of = [&](int ranks) {
      question.ranks = ranks;
      return costs.structured->seconds(question).total();
    };
    if (probe.strategy == "UlyssesZ") {
      EXPECT_GT(of(4), of(2));
      EXPECT_NEAR(of(3), std::lerp(of(2), of(4), std::log2(1.5)), 1e-12);
      const auto& all =
          dynamic_cast<const Structured&>(*costs.structured).rates_for(probe.part, probe.strategy);
      double seconds = 0;
      for (std::size_t i = 0; i < kPartPhases; ++i) {
        seconds += all.rates[i].seconds(probe.work.phases[i]);
      }
      EXPECT_DOUBLE_EQ(of(8), seconds);
    }
  }
  // So layer costs are there for groups of any size.
  PlanningTask task;
  task.model = pretend_model();
  task.ranks = 4;
  task.machine.cores = 2;
  task.seconds = costs.structured;
  const Correction none;
  GroupCosts sizes(task, none);
  const LayerChoice layer = text_layer("AllGatherKV", "gather");
  for (const std::int64_t length : {128, 1024, 8192}) {  // of more ranks, fewer documents at once
    EXPECT_GT(sizes.of(2).layer(layer, length).wall, 0);
    EXPECT_LT(sizes.of(3).layer(layer, length).wall, sizes.of(2).layer(layer, length).wall);
  }
  // Kept in the costs file, and read from one that has no sizes.
  const test::Folder folder;
  const fs::path file = folder / "sizes.json";
  write_costs(costs, file);
  EXPECT_EQ(fingerprint(read_costs(file)), fingerprint(costs));
  std::ifstream stream(file);
  nlohmann::json old = nlohmann::json::parse(stream);
  ASSERT_TRUE(old["structured"].contains("sizes"));
  old["structured"].erase("sizes");
  std::ofstream(file) << old;
  EXPECT_GT(read_costs(file).structured->seconds(question_of(others.parts[0])).total(), 0);
}

TEST(Structured, NothingTakesNoTime) {
  const PartSeconds seconds = noisy_costs().structured->seconds({.part = "attention"});
  EXPECT_EQ(seconds.total(), 0);
}

// --- the hybrid model ----------------------------------------------------------------------------

PartQuestion question_at(std::int64_t length, const std::string& strategy = "UlyssesZ") {
  return {.part = "attention", .strategy = strategy, .ranks = 4, .length = length};
}

TEST(HybridModel, IsAStaircaseInsideAndAPolynomialBeyond) {
  const TimeModel& hybrid = *noisy_costs().hybrid;
  std::set<double> answers;
  for (std::int64_t length = 2048; length <= 4096; length += 8) {
    answers.insert(hybrid.seconds(question_at(length)).total());
  }
  EXPECT_LE(answers.size(), 8U);  // of 257
  answers.clear();
  for (std::int64_t length = 4104; length <= 6144; length += 8) {
    answers.insert(hybrid.seconds(question_at(length)).total());
  }
  EXPECT_EQ(answers.size(), 256U);
  EXPECT_LT(errors_at(*exact_costs().hybrid, {}, {8192, 16384}).worst, 0.01);
}

TEST(HybridModel, IsAPolynomialWithoutItsForest) {
  const auto polynomials = without_forest(exact_costs());
  std::set<double> answers;
  for (std::int64_t length = 1028; length <= 3076; length += 8) {  // inside the profiled range
    answers.insert(polynomials->seconds(question_at(length)).total());
  }
  EXPECT_GT(answers.size(), 256U);  // no staircase
  EXPECT_EQ(
      polynomials->seconds(question_at(8192)).total(),
      exact_costs().hybrid->seconds(question_at(8192)).total());
}

// The work of a question is nothing to it.
TEST(HybridModel, KnowsLengthsAlone) {
  PartQuestion question = question_at(700);
  const double before = noisy_costs().hybrid->seconds(question).total();
  question.work.phases[0].values[0] = 1e15;
  EXPECT_EQ(noisy_costs().hybrid->seconds(question).total(), before);
}

TEST(HybridModel, WhatItNeverSawIsTheStructuredModels) {
  std::vector<PretendGroup> others = {
      {"MegatronCZ", "gather"},
      {"UlyssesZ", "gather", Recompute::full},
      {"UlyssesZ", "gather", Recompute::none, 2}};
  for (const PartProbe& probe : pretend_profile({}, {512}, pretend_model(), others).parts) {
    const PartQuestion question = question_of(probe);
    if (probe.part == "attention") {
      EXPECT_EQ(
          noisy_costs().hybrid->seconds(question).total(),
          noisy_costs().structured->seconds(question).total());
    }
  }
}

TEST(HybridModel, ByStrategyUsesOneEverywhere) {
  const Profile profile = pretend_profile({.noise = 0.03}, kLengths);
  const Costs costs = fit(profile, {.hybrid = Hybrid::by_strategy});
  const auto& model = dynamic_cast<const HybridModel&>(*costs.hybrid);
  EXPECT_EQ(model.fits.size(), 10U);  // the rest on 4 ranks and on 1
  std::size_t polynomials = 0;
  for (const auto& [key, fit] : model.fits) {
    EXPECT_NE(fit.use, HybridFit::Use::by_range);
    polynomials += fit.use == HybridFit::Use::polynomial ? 1 : 0;
  }
  EXPECT_GT(polynomials, 0U);  // smooth data: they go on beyond what they saw
  // A staircase of seconds is a forest's.
  Profile stairs = profile;
  for (PartProbe& probe : stairs.parts) {
    for (Spread& phase : probe.seconds) {
      phase.median = probe.length <= 300 ? 1e-3 : 1;
    }
  }
  const Costs of_stairs = fit(stairs, {.hybrid = Hybrid::by_strategy});
  for (const auto& [key, fit] : dynamic_cast<const HybridModel&>(*of_stairs.hybrid).fits) {
    EXPECT_EQ(fit.use, HybridFit::Use::forest) << key.strategy;
  }
}

TEST(HybridModel, IsTheBetterOneWhereItIs) {
  // Seconds that have nothing to do with the work, and are level where lengths are left out.
  Profile profile = pretend_profile({}, {16, 64, 128, 192, 256, 384, 512, 1024, 2048});
  for (PartProbe& probe : profile.parts) {
    for (Spread& phase : probe.seconds) {
      phase.median = probe.part == "attention" ? 1e-2 : 1;
    }
  }
  const Costs costs = fit(profile);
  EXPECT_EQ(costs.best, "hybrid");
  EXPECT_EQ(&costs.model(), costs.hybrid.get());
}

// --- both ----------------------------------------------------------------------------------------

TEST(Fit, ErrorsAreOfLengthsThatWereNotSeen) {
  const Costs& costs = noisy_costs();
  std::set<std::string> names;
  for (const HeldOutError& error : costs.errors) {
    EXPECT_LE(error.mean, error.worst);
    EXPECT_GT(error.probes, 0);
    names.insert(error.model + " " + error.part + " " + error.strategy);
  }
  for (const std::string model : {"structured", "hybrid"}) {
    for (const std::string part :
         {"attention MegatronTS",
          "attention UlyssesZ",
          "attention METP",
          "attention DataZ",
          "attention ",
          "mlp hold",
          "mlp gather",
          "mlp pass",
          "mlp ",
          "rest ",
          " "}) {
      EXPECT_TRUE(names.contains(model + " " + part)) << part;
    }
  }
  // 5 lengths lie inside.  At each: 6 groups' attention and MLP, and the rest of 4 ranks and of 1.
  EXPECT_EQ(total(costs, "structured", false).probes, 5 * (6 + 6 + 2));
  EXPECT_EQ(total(costs, "structured", true).probes, 2 * (6 + 6 + 2));  // 2048, 4096
  EXPECT_EQ(total(costs, "hybrid", false).probes, 5 * (6 + 6 + 2));
  EXPECT_EQ(&costs.model(), costs.model(costs.best).get());
  EXPECT_EQ(costs.model("hybrid")->name(), "hybrid");
  EXPECT_EQ(costs.model("structured")->name(), "structured");
  EXPECT_THROW(static_cast<void>(costs.model("forest")), std::invalid_argument);
}

// One sigma, of what several measurements say together, as the fit takes them: of many questions
// most lie within it, and nearly all within three.
TEST(Fit, ModelsKnowTheirErrors) {
  const Profile truth = pooled(pretend_profile({.noise = 0.03, .seed = 2}, {96, 384, 1536}));
  int inside = 0;
  int far = 0;
  for (const PartProbe& probe : truth.parts) {
    const PartSeconds predicted = noisy_costs().structured->seconds(question_of(probe));
    EXPECT_GT(predicted.error, 0);
    const double error = std::abs(predicted.total() / total_seconds(probe) - 1);
    inside += error <= predicted.error ? 1 : 0;
    far += error > 3 * predicted.error ? 1 : 0;
    EXPECT_GT(noisy_costs().hybrid->seconds(question_of(probe)).error, 0);
  }
  EXPECT_GT(inside, static_cast<int>(truth.parts.size()) / 2);
  EXPECT_LE(far, static_cast<int>(truth.parts.size()) / 20);
}

TEST(Fit, WorksFromTheFewestLengthsAndWithGaps) {
  Profile profile = pretend_profile({}, {64, 512, 4096});
  for (PartProbe& probe : pretend_profile({}, {8192}).parts) {
    probe.outcome = Outcome::memory;  // whatever stands there is not read
    probe.seconds[0].median = 77;
    profile.parts.push_back(probe);
  }
  const Costs costs = fit(profile);
  EXPECT_LT(errors_at(*costs.structured, {}, {128, 1024, 8192}).mean, 0.05);
}

// Steps are predicted by the sum of their parts.  Noise of parts is of each for itself, and less in
// sums.
TEST(Fit, SaysHowWrongStepsAre) {
  Profile profile = pretend_profile({.noise = 0.03}, {64, 256, 1024, 4096, 8192});
  profile.header.layers = 2;
  const auto part = [&](const char* kind, const std::string& strategy, std::int64_t length) {
    for (const PartProbe& p : pretend_profile({}, {64, 256, 1024, 4096, 8192}).parts) {
      if (p.part == kind && p.length == length && p.recompute == "none" &&
          (strategy.empty() || p.strategy == strategy)) {
        return p;
      }
    }
    ADD_FAILURE() << kind << " of " << length;
    return PartProbe{};
  };
  const auto seconds = [](const PartProbe& p) {
    return p.seconds[0].median + p.seconds[1].median + p.seconds[2].median;
  };
  const std::string attention = part("attention", "", 64).strategy;
  const std::string mlp = part("mlp", "", 64).strategy;
  for (const std::int64_t length : {64, 256, 1024, 4096, 8192}) {
    const double of_layer =
        seconds(part("attention", attention, length)) + seconds(part("mlp", mlp, length));
    StepProbe step{
        .attention = attention,
        .mlp = mlp,
        .ranks = part("attention", attention, length).ranks,
        .length = length};
    step.seconds.median = 2 * of_layer + seconds(part("rest", "", length));
    profile.steps.push_back(step);
  }
  const Costs costs = fit(profile);
  std::set<std::string> rows;  // of the one attention, and of all
  for (const HeldOutError& error : costs.errors) {
    if (error.part == "step" && error.model == "structured") {
      rows.insert(error.strategy + (error.beyond ? " beyond" : " inside"));
      EXPECT_EQ(error.probes, error.beyond ? 2 : 3);  // 4096, 8192; 256, 1024, 4096
      EXPECT_LT(error.mean, 0.06);
      EXPECT_GT(error.mean, 0);
    }
  }
  EXPECT_THAT(
      rows,
      testing::ElementsAre(" beyond", " inside", attention + " beyond", attention + " inside"));
}

// A profile of several groups with steps, in rounds: parts as the pretended machine takes them, and
// steps that take `step_factor` times what their parts do.
Profile profile_with_steps(double noise, int rounds, double step_factor) {
  constexpr int kLayers = 2;
  Profile profile{.header = pretend_header()};
  profile.header.layers = kLayers;
  for (int round = 0; round < rounds; ++round) {
    const Profile one =
        pretend_profile({.noise = noise, .seed = static_cast<std::uint32_t>(round + 1)}, kLengths);
    for (std::size_t i = 0; i < one.parts.size(); i += 3) {  // attention, MLP, rest
      const PartProbe& attention = one.parts[i];
      const PartProbe& mlp = one.parts[i + 1];
      const double sum = kLayers * (total_seconds(attention) + total_seconds(mlp)) +
                         total_seconds(one.parts[i + 2]);
      StepProbe step{
          .attention = attention.strategy,
          .mlp = mlp.strategy,
          .recompute = attention.recompute,
          .ranks = attention.ranks,
          .length = attention.length};
      step.seconds.median = step_factor * sum;
      profile.steps.push_back(step);
    }
    profile.parts.insert(profile.parts.end(), one.parts.begin(), one.parts.end());
  }
  return profile;
}

const HeldOutError& row(const Costs& costs, const std::string& part, bool beyond = false) {
  const auto found = std::ranges::find_if(costs.errors, [&](const HeldOutError& error) {
    return error.model == "structured" && error.part == part && error.strategy.empty() &&
           error.ranks == 0 && error.beyond == beyond;
  });
  if (found == costs.errors.end()) {
    throw std::logic_error("no row of " + part);
  }
  return *found;
}

// What steps take beyond their parts is in the parts that are fitted: sums are not predicted short.
TEST(Fit, PartsAddUpToWholeSteps) {
  for (const double factor : {1.0, 1.25}) {
    const Costs costs = fit(profile_with_steps(0, 1, factor));
    const HeldOutError& steps = row(costs, "step");
    EXPECT_GT(steps.probes, 0);
    EXPECT_LT(steps.mean, 0.01);
    const Profile truth = pretend_profile({}, {1024});
    for (const PartProbe& probe : truth.parts) {
      EXPECT_NEAR(
          costs.structured->seconds(question_of(probe)).total() / total_seconds(probe),
          factor,
          0.01 * factor);
    }
  }
  // Parts whose step is not known are taken as they are.
  Profile profile = profile_with_steps(0, 1, 1.25);
  profile.steps.clear();
  const Profile truth = pretend_profile({}, {1024});
  EXPECT_NEAR(
      fit(profile).structured->seconds(question_of(truth.parts[0])).total() /
          total_seconds(truth.parts[0]),
      1,
      0.01);
}

// The floor is what repeats differ by, whatever the model: none of what was measured once, 0
// without noise.  Of one phase's noise of one sigma s it is about 1.2 sqrt(2/pi) s, a normal
// variable against the mean of two others; phases are drawn each for itself, so their sums have
// less.
TEST(Fit, SaysWhatRepeatsDifferBy) {
  EXPECT_EQ(row(fit(profile_with_steps(0.05, 1, 1)), "attention").floor, std::nullopt);
  EXPECT_NEAR(row(fit(profile_with_steps(0, 3, 1)), "").floor.value(), 0, 1e-12);
  const Costs costs = fit(profile_with_steps(0.05, 3, 1));
  EXPECT_LT(row(costs, "").floor.value(), 0.05);
  EXPECT_GT(row(costs, "").floor.value(), 0.02);
  EXPECT_LT(row(costs, "step").floor.value(), row(costs, "").floor.value());
  EXPECT_GT(row(costs, "step").floor.value(), 0.005);
}

// The signed error tells a model that is wrong in one direction from one that is noisy.
TEST(Fit, SaysInWhichDirectionItErrs) {
  const Costs noisy = fit(profile_with_steps(0.05, 3, 1));
  EXPECT_LT(std::abs(row(noisy, "").bias.value()), 0.5 * row(noisy, "").mean);
  // seconds that jump at a length are predicted short beyond what was fitted
  const Costs jumping =
      fit(pretend_profile({.step_seconds = 0.5}, {16, 32, 64, 128, 256, 512, 1024, 2048}));
  EXPECT_DOUBLE_EQ(row(jumping, "", true).bias.value(), -row(jumping, "", true).mean);
  for (const HeldOutError& error : jumping.errors) {
    EXPECT_LE(std::abs(error.bias.value()), error.mean * (1 + 1e-12));
  }
}

TEST(Fit, MemoryAndOptimizer) {
  Profile profile = pretend_profile({}, {64, 512, 4096});
  EXPECT_EQ(fit(profile).memory_overhead, 0);
  EXPECT_EQ(fit(profile).step_seconds, 0);
  EXPECT_EQ(fit(profile).optimizer_seconds_per_byte, 0);
  const auto step = [&](std::int64_t counted, std::int64_t measured, Outcome outcome) {
    profile.steps.push_back(
        {.length = static_cast<std::int64_t>(profile.steps.size()),
         .outcome = outcome,
         .counted_peak_bytes = counted,
         .peak_bytes = measured});
  };
  step(1000, 990, Outcome::measured);
  step(1000, 1030, Outcome::measured);
  step(1000, 1020, Outcome::measured);
  step(1000, 2000, Outcome::memory);
  for (const double bytes : {1e6, 1e7, 1e8}) {
    PartProbe probe{.part = "optimizer", .length = static_cast<std::int64_t>(bytes)};
    probe.work.phases[0].values[2] = bytes;
    probe.seconds[0].median = 2e-4 + 3e-10 * bytes;
    profile.parts.push_back(probe);
  }
  const Costs costs = fit(profile);
  EXPECT_NEAR(costs.memory_overhead, 0.03, 1e-12);
  EXPECT_NEAR(costs.step_seconds, 2e-4, 1e-12);
  EXPECT_NEAR(costs.optimizer_seconds_per_byte, 3e-10, 1e-18);
  profile.parts.resize(profile.parts.size() - 2);  // one size
  EXPECT_EQ(fit(profile).step_seconds, 0);
  EXPECT_NEAR(fit(profile).optimizer_seconds_per_byte, (2e-4 + 3e-4) / 1e6, 1e-16);
}

// The published model learns peaks as it learns seconds; the fold counts them.
TEST(Fit, PeakMemoryIsATargetToo) {
  Profile profile = pretend_profile({.noise = 0.03}, kLengths);
  for (const std::int64_t length : kLengths) {
    const std::int64_t counted = 1'000'000 + 300 * length;
    profile.steps.push_back(
        {.attention = "METP",
         .mlp = "gather",
         .ranks = 4,
         .length = length,
         .counted_peak_bytes = counted,
         .peak_bytes = counted + counted / 50});
  }
  const Costs costs = fit(profile);
  EXPECT_NEAR(costs.memory_overhead, 0.02, 1e-6);
  std::map<std::pair<std::string, bool>, HeldOutError> rows;
  for (const HeldOutError& error : costs.errors) {
    if (error.part == "peak memory") {
      EXPECT_EQ(error.strategy, "");
      EXPECT_EQ(error.probes, error.beyond ? 2 : 5);
      rows[{error.model, error.beyond}] = error;
    }
  }
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_LT((rows[{"structured", false}].worst), 1e-5);
  EXPECT_LT((rows[{"structured", true}].worst), 1e-5);
  EXPECT_GT((rows[{"hybrid", false}].mean), 0.01);   // a staircase
  EXPECT_LT((rows[{"hybrid", true}].worst), 0.001);  // a line goes on
  EXPECT_EQ(total(costs, "structured", false).mean, total(noisy_costs(), "structured", false).mean);

  const PartQuestion question{
      .part = "peak memory", .strategy = "METP+gather", .ranks = 4, .length = 16384};
  EXPECT_NEAR(costs.hybrid->seconds(question).total(), 1.02 * (1e6 + 300 * 16384), 1e3);
  const test::Folder folder;
  const fs::path file = folder / "peaks.json";
  write_costs(costs, file);
  EXPECT_EQ(fingerprint(read_costs(file)), fingerprint(costs));
  EXPECT_EQ(
      read_costs(file).hybrid->seconds(question).total(), costs.hybrid->seconds(question).total());
}

// Kernels and collectives alone say what one rank's profile does not.
TEST(Fit, CollectivesAloneTellWhatPartsDoNot) {
  const std::vector<PretendGroup> one = {{"DataZ", "gather", Recompute::none, 1}};
  Profile profile = pretend_profile({}, kLengths, pretend_model(), one);
  profile.header.cores = 2;
  for (PartProbe& probe : profile.parts) {  // as of one rank that sends nothing
    for (std::size_t i = 0; i < kPartPhases; ++i) {
      Amounts& amounts = probe.work.phases[i];
      amounts.values[4] = amounts.values[5] = 0;
      probe.seconds[i].median = PretendMachine{}.seconds(probe, i);
    }
  }
  const auto sends = [](std::int64_t bytes) {
    PartQuestion question{.part = "attention", .strategy = "UlyssesZ", .ranks = 4, .length = 512};
    question.work.phases[0] = {{1e6, 0, 1e5, 10, static_cast<double>(bytes), 20}};
    return question;
  };
  const double before = fit(profile).structured->seconds(sends(10000000)).total();
  for (const std::int64_t bytes : {1000, 100000, 10000000}) {
    // 4 ranks on 2 cores, 3 others each
    const double seconds = 2 * (6e-5 + 4e-8 * 3 * static_cast<double>(bytes));
    profile.collectives.push_back(
        {.collective = "all-gather", .ranks = 4, .bytes = bytes, .seconds = {.median = seconds}});
  }
  const double after = fit(profile).structured->seconds(sends(10000000)).total();
  EXPECT_LT(before, 0.1);
  EXPECT_NEAR(after, 4e-8 * 1e7 + 20 * 6e-5, 0.05);
}

std::string refusal(const Profile& profile) {
  return test::refusal([&] { fit(profile); });
}

TEST(Fit, RefusesWhatCannotBeFitted) {
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("no parts"), HasSubstr("paradyse profile")));
  EXPECT_THAT(
      refusal(pretend_profile({}, {64, 128})), HasSubstr("2 measured lengths of attention"));
  Profile profile = pretend_profile({}, {64, 128, 256});
  for (PartProbe& probe : profile.parts) {
    if (probe.part == "mlp" && probe.length == 256) {
      probe.outcome = Outcome::time;
    }
  }
  EXPECT_THAT(
      refusal(profile), AllOf(HasSubstr("2 measured lengths of mlp"), HasSubstr("more lengths")));
  profile = pretend_profile({}, {64, 128, 256});
  profile.parts[0].recompute = "ful";
  EXPECT_THAT(refusal(profile), AllOf(HasSubstr("attention MegatronTS"), HasSubstr("full")));
  profile = pretend_profile({}, {64, 128, 256});
  profile.parts[0].seconds = {};
  EXPECT_THAT(refusal(profile), AllOf(HasSubstr("attention MegatronTS"), HasSubstr("0 seconds")));
}

// Others of the part answer for it.
TEST(Fit, LeavesOutStrategiesOfTooFewLengths) {
  Profile profile = pretend_profile({}, {64, 128, 256, 512});
  EXPECT_THAT(left_out_of_a_fit(profile), testing::IsEmpty());
  for (PartProbe& probe : profile.parts) {
    if (probe.strategy == "METP" && probe.length > 128) {
      probe.outcome = Outcome::time;
    }
  }
  EXPECT_THAT(left_out_of_a_fit(profile), testing::ElementsAre("attention METP"));
  const auto model = std::dynamic_pointer_cast<const Structured>(fit(profile).structured);
  ASSERT_TRUE(model);
  EXPECT_FALSE(model->strategies.contains({"attention", "METP"}));
  EXPECT_EQ(&model->rates_for("attention", "METP"), &model->parts.at("attention"));
}

// --- the costs file ------------------------------------------------------------------------------

class CostsFile : public testing::Test {
 protected:
  std::string content() const {
    std::ifstream stream(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void put(const std::string& text) const { std::ofstream(file_, std::ios::binary) << text; }
  // The message of the refusal of `text`.
  std::string refused(const std::string& text) const {
    put(text);
    return test::refusal([&] { read_costs(file_); });
  }

  test::Folder folder_;
  fs::path file_ = folder_ / "costs.json";
};

Costs small_costs(Hybrid hybrid = Hybrid::by_range) {
  const std::vector<PretendGroup> groups = {{"UlyssesZ", "gather", Recompute::light}};
  Profile profile = pretend_profile({.noise = 0.03}, {64, 128, 256, 1024}, pretend_model(), groups);
  profile.steps.push_back({.counted_peak_bytes = 3, .peak_bytes = 4});
  return fit(profile, {.hybrid = hybrid, .trees = 2, .depth = 3});
}

TEST_F(CostsFile, HoldsWhereDenseAttentionBegins) {
  Profile profile = pretend_profile({}, {64, 128, 256});
  for (const std::int64_t tokens : {2048, 4096}) {
    const double flash = tokens == 2048 ? 1 : 4;
    profile.kernels.push_back(
        {.kernel = kFlashKernel, .shape = {tokens, 8, 64}, .seconds = {.median = flash}});
    profile.kernels.push_back(
        {.kernel = kDenseKernel, .shape = {tokens, 8, 64}, .seconds = {.median = 2}});
  }
  const Costs costs = fit(profile, {.trees = 2, .depth = 3});
  EXPECT_EQ(costs.attention_dense_from, 4096);
  write_costs(costs, file_);
  EXPECT_EQ(read_costs(file_).attention_dense_from, 4096);
  profile.kernels.clear();
  const Costs without = fit(profile, {.trees = 2, .depth = 3});
  EXPECT_EQ(without.attention_dense_from, std::nullopt);
  EXPECT_NE(fingerprint(without), fingerprint(costs));
  write_costs(without, file_);
  EXPECT_EQ(content().find("attention_dense_from"), std::string::npos) << "as before";
}

TEST_F(CostsFile, IsReadBackExactly) {
  for (const Costs& costs : {noisy_costs(), small_costs(), small_costs(Hybrid::by_strategy)}) {
    write_costs(costs, file_);
    const std::string text = content();
    const Costs read = read_costs(file_);
    EXPECT_EQ(read.header, costs.header);
    EXPECT_EQ(read.best, costs.best);
    EXPECT_EQ(read.memory_overhead, costs.memory_overhead);
    EXPECT_EQ(read.optimizer_seconds_per_byte, costs.optimizer_seconds_per_byte);
    EXPECT_EQ(read.step_seconds, costs.step_seconds);
    EXPECT_EQ(read.errors, costs.errors);
    for (const PartProbe& probe : pretend_profile({}, {100, 1000, 20000}).parts) {
      const PartQuestion question = question_of(probe);
      for (const char* model : {"structured", "hybrid"}) {
        const PartSeconds before = costs.model(model)->seconds(question);
        const PartSeconds after = read.model(model)->seconds(question);
        EXPECT_EQ(after.phases, before.phases) << model << " " << probe.strategy;
        EXPECT_EQ(after.error, before.error) << model << " " << probe.strategy;
      }
    }
    write_costs(read, file_);
    EXPECT_EQ(content(), text);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);  // nothing half written
}

TEST_F(CostsFile, TheSameProfileGivesTheSameFile) {
  write_costs(small_costs(), file_);
  const std::string first = content();
  write_costs(small_costs(), file_);
  EXPECT_EQ(content(), first);
}

const std::set<std::string> kNotInOldFiles = {"bias", "floor", "ranks", "sizes"};

// Every key of the file, wherever it stands: missing, misspelt, of a wrong kind.  Of those that
// files of before have not, a file may lack any.
TEST_F(CostsFile, RefusesByPath) {
  write_costs(small_costs(), file_);
  const nlohmann::json good = nlohmann::json::parse(content());
  const nlohmann::json flat = good.flatten();
  std::set<std::string> pointers;  // of keys, of one element of each list
  for (const auto& [pointer, value] : flat.items()) {
    std::string path;
    std::istringstream parts(pointer.substr(1));
    for (std::string part; std::getline(parts, part, '/');) {
      const bool number = std::all_of(part.begin(), part.end(), ::isdigit);
      if (number && part != "0") {
        break;
      }
      path += "/" + part;
      if (!number) {
        pointers.insert(path);
      }
    }
  }
  EXPECT_GT(pointers.size(), 90U);
  for (const std::string& pointer : pointers) {
    const nlohmann::json::json_pointer at(pointer);
    const std::string key = at.back();
    nlohmann::json bad = good;
    bad[at.parent_pointer()].erase(key);
    if (kNotInOldFiles.contains(key) &&
        (pointer.starts_with("/errors") || pointer == "/structured/sizes")) {
      put(bad.dump());
      EXPECT_NO_THROW(read_costs(file_)) << pointer;
    } else {
      EXPECT_THAT(refused(bad.dump()), AllOf(HasSubstr("costs.json: "), HasSubstr(key))) << pointer;
    }
    bad[at.parent_pointer()][key + "x"] = good[at];
    refused(bad.dump());
    bad = good;
    bad[at.parent_pointer()]["unheard of"] = 1;
    EXPECT_THAT(refused(bad.dump()), HasSubstr("unknown key")) << pointer;
    for (const nlohmann::json& value :
         {nlohmann::json(nullptr),
          nlohmann::json(true),
          nlohmann::json(nlohmann::json::array({nullptr}))}) {
      bad = good;
      bad[at] = value;
      EXPECT_THAT(refused(bad.dump()), HasSubstr(key)) << pointer << " = " << value;
    }
  }
  const auto with = [&](const std::string& pointer, const nlohmann::json& value) {
    nlohmann::json bad = good;
    bad[nlohmann::json::json_pointer(pointer)] = value;
    return refused(bad.dump());
  };
  EXPECT_THAT(with("/best", "hybird"), HasSubstr("did you mean 'hybrid'"));
  EXPECT_THAT(
      with("/memory_overhead", -1.5), HasSubstr("memory_overhead: expected a ratio above -1"));
  EXPECT_THAT(
      with("/structured/strategies/0/rates/forward/calls", 0),
      HasSubstr("structured.strategies[0].rates.forward.calls: a rate is above 0"));
  // Numbers of which no prediction could be made.
  const nlohmann::json flat_good = good.flatten();
  for (const auto& [pointer, value] : flat_good.items()) {
    const std::string key = pointer.substr(pointer.rfind('/') + 1);
    if (value.is_number_float() && !pointer.ends_with("/threshold/" + key)) {
      EXPECT_THAT(with(pointer, 1e308), AllOf(HasSubstr("expected a number"), HasSubstr("1e+308")))
          << pointer;
    }
  }
  EXPECT_THAT(
      with("/hybrid/strategies/0/levels/0/polynomials/forward/x_scale", 1e-300),
      HasSubstr("polynomials.forward.x_scale: expected a number from 1"));
  EXPECT_THAT(
      with(
          "/hybrid/strategies/0/levels/0/polynomials/forward/coefficients",
          std::vector<double>(5, 1)),
      HasSubstr("polynomials.forward.coefficients: expected at most 4 of them, found 5"));
  EXPECT_THAT(with("/hybrid/strategies/1", good["hybrid"]["strategies"][0]), HasSubstr("twice"));
  EXPECT_THAT(with("/format", "paradyse-plan"), HasSubstr("not a costs file"));
  EXPECT_THAT(with("/version", 1), HasSubstr("fit again"));
  EXPECT_THAT(refused(""), HasSubstr("not JSON"));
  EXPECT_THAT(refused("[]"), HasSubstr("the costs: expected an object"));
  fs::remove(file_);
  EXPECT_THROW(read_costs(file_), std::invalid_argument);
  EXPECT_THROW(read_costs(folder_), std::invalid_argument);
}

TEST_F(CostsFile, DamageIsRefusedOrReadNeverWorse) {
  write_costs(small_costs(), file_);
  const std::string text = content();
  for (std::size_t size = 0; size + 2 < text.size(); size += 97) {
    refused(text.substr(0, size));
  }
  std::mt19937 random(1);
  for (int round = 0; round < 1500; ++round) {
    std::string damaged = text;
    damaged[random() % damaged.size()] = static_cast<char>(random());
    put(damaged);
    try {
      const Costs costs = read_costs(file_);
      for (const std::int64_t length : {1, 100, 100000}) {
        PartQuestion question = question_at(length);
        question.recompute = Recompute::light;
        static_cast<void>(costs.hybrid->seconds(question));
        static_cast<void>(costs.structured->seconds(question));
      }
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr("costs.json"));
    }
  }
}

TEST_F(CostsFile, OnlyItsOwnModelsAreKept) {
  Costs costs = small_costs();
  costs.hybrid = closed_form({});
  EXPECT_THROW(write_costs(costs, file_), std::invalid_argument);
  EXPECT_FALSE(fs::exists(file_));
}

}  // namespace
}  // namespace paradyse
