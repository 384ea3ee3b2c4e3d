// A plan file edited into nonsense: it is refused with its place, or problems are told with theirs,
// or it is still sound and can be simulated.  Nothing else ever happens.
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lab/flexsp/space_check.h"
#include "paradyse/plan/plan.h"
#include "paradyse/plan/simulate.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/plan/group_timeline.h"
#include "tests/plan/random_groups.h"
#include "tests/plan/small_cluster.h"

namespace paradyse {
namespace {

using Json = nlohmann::json;

class Fuzz {
 public:
  explicit Fuzz(unsigned seed) : random_(seed) {}

  // Changes one thing somewhere.
  void spoil(Json& json) {
    std::vector<Json*> all;
    collect(json, all);
    Json& at = *all[pick(all.size())];
    switch (pick(10)) {
      case 0:
        at = nonsense();
        return;
      case 1:
        at = Json(*all[pick(all.size())]);  // what stands elsewhere
        return;
      case 2:
      case 3:
      case 4:
        edit(at);
        return;
      default:  // of the same kind, which is read, and must be judged
        mistake(json);
    }
  }
  std::mt19937& random() { return random_; }
  std::size_t pick(std::size_t below) {
    return std::uniform_int_distribution<std::size_t>(0, below - 1)(random_);
  }

 private:
  static void collect(Json& json, std::vector<Json*>& all) {
    all.push_back(&json);
    if (json.is_structured()) {
      for (Json& inner : json) {
        collect(inner, all);
      }
    }
  }

  // Another number or name where one stands.
  void mistake(Json& json) {
    std::vector<Json*> all;
    collect(json, all);
    std::erase_if(all, [](const Json* one) {
      return one->is_structured() || one->is_null() || one->is_boolean();
    });
    if (all.empty()) {
      return;
    }
    Json& at = *all[pick(all.size())];
    if (at.is_string()) {
      at = word();
    } else if (at.is_number_integer() && pick(2) == 0) {
      at = at.get<std::int64_t>() + static_cast<std::int64_t>(pick(5)) - 2;
    } else {
      at = number();
    }
  }

  // Takes away, doubles, renames or moves what is inside.
  void edit(Json& at) {
    if (at.is_array() && !at.empty()) {
      const std::size_t i = pick(at.size());
      switch (pick(4)) {
        case 0:
          at.erase(i);
          return;
        case 1: {
          const Json same = at[i];
          at.push_back(same);
          return;
        }
        case 2:
          std::swap(at[i], at[pick(at.size())]);
          return;
        default:
          at.push_back(nonsense());
          return;
      }
    }
    if (at.is_object() && !at.empty()) {
      auto one = at.begin();
      std::advance(one, static_cast<std::ptrdiff_t>(pick(at.size())));
      const std::string key = one.key();
      const Json value = one.value();
      if (pick(4) != 0) {
        at.erase(key);
      }
      if (pick(3) != 0) {
        at[pick(2) == 0 ? key.substr(0, key.size() / 2) : word()] =
            pick(2) == 0 ? value : nonsense();
      }
      return;
    }
    at = nonsense();
  }

  std::string word() {
    const std::vector<std::string> words = {
        "",
        "UlyssesZ",
        "hold",
        "pass",
        "gather",
        "DataZ",
        "MegatronTS",
        "METP",
        "full",
        "p0",
        "p1",
        "attention",
        "mlp",
        "ranks",
        "layers",
        "shares",
        "mesh",
        "dims",
        "in",
        "out",
        "elements",
        "head_groups",
        "ulysses_degree",
        "token_tiles",
        "offload",
        "predicted",
        "S(tokens)",
        "S(columns)",
        "R",
        "x",
        "\xf0\x9f\x98\x80",
        std::string("a\0b", 3),
        std::string(300, 'z')};
    return words[pick(words.size())];
  }

  Json number() {
    const std::vector<Json> numbers = {
        0,
        1,
        -1,
        2,
        3,
        7,
        1000,
        65536,
        2147483647,
        2147483648,
        -2147483649,
        std::int64_t{1} << 40,
        (std::int64_t{1} << 40) + 1,
        std::int64_t{1} << 53,
        std::numeric_limits<std::int64_t>::max(),
        std::numeric_limits<std::int64_t>::min(),
        std::numeric_limits<std::uint64_t>::max(),
        0.5,
        -0.0,
        1e-320,
        1e308,
        -1e308};
    return numbers[pick(numbers.size())];
  }

  Json nonsense() {
    switch (pick(8)) {
      case 0:
        return nullptr;
      case 1:
        return pick(2) == 0;
      case 2:
        return Json::array();
      case 3:
        return Json::object();
      case 4:
        return word();
      case 5:
        return Json{{word(), number()}, {word(), word()}};
      case 6:
        return Json::array({number(), word(), number()});
      default:
        return number();
    }
  }

  std::mt19937 random_;
};

// A sound plan of everything that a file may say.
Plan sound_plan(Fuzz& fuzz, const TextShape& model) {
  Plan plan = random_groups(
      fuzz.random(),
      model,
      {.ranks = 1 + static_cast<int>(fuzz.pick(6)), .domains = 1 + static_cast<int>(fuzz.pick(2))});
  plan.model_sha256 = fuzz.pick(2) == 0 ? fingerprint(model) : "";
  plan.predicted = {.seconds = 1, .lower_bound_seconds = 0.5, .bytes = {}};
  plan.planner_name = "random";
  plan.planner_space = "full";
  plan.planner_seconds = 0.25;
  for (PlanMicroBatch& micro_batch : plan.micro_batches) {
    micro_batch.predicted.seconds = 0.5;
    for (PlanGroup& group : micro_batch.groups) {
      group.predicted.seconds = 0.25;
      group.predicted.bytes = PredictedBytes{1, 2, 3};
      if (fuzz.pick(2) == 0) {
        group.mesh = {static_cast<int>(group.ranks.size())};
      }
    }
  }
  return plan;
}

// A problem begins with its place: a key of the file, with what stands inside it.
void expect_placed(const std::string& problem) {
  EXPECT_THAT(
      problem,
      testing::MatchesRegex("(model|cluster|weight_domain|lengths|dims|programs|micro_batches|"
                            "predicted|planner)[^ ]*.*: .*"));
}

enum class Outcome { refused, unsound, sound };

Outcome tried(const std::string& text, const TextShape& model) {
  Plan plan;
  try {
    plan = plan_from_json(text, "plan.json");
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("plan.json: "));
    return Outcome::refused;
  }
  const std::vector<std::string> alone = problems(plan);
  const std::vector<std::string> found = problems(
      plan,
      {.model = model,
       .memory_per_rank = std::int64_t{1} << 40,
       .precision = {.activation = 2, .statistic = 4}});
  for (const auto* list : {&alone, &found}) {
    for (const std::string& problem : *list) {
      expect_placed(problem);
    }
  }
  for (const std::string& problem : flexsp_space_problems(plan)) {
    expect_placed(problem);
  }
  for (const std::string& problem : flexsp_preset_problems(
           plan, {.model = flexsp_model("flexsp-7b"), .ranks = 8, .memory_mb = 1 << 20})) {
    expect_placed(problem);
  }
  EXPECT_EQ(plan_from_json(to_json(plan), "again"), plan);
  hash(plan);
  if (!found.empty()) {
    return Outcome::unsound;
  }
  EXPECT_THAT(alone, testing::IsEmpty());
  try {
    const Simulation played = simulate(plan, model, small_cluster(plan.ranks));
    EXPECT_TRUE(std::isfinite(played.seconds));
  } catch (const std::invalid_argument& error) {
    // Documents longer than any batch are still sums of bytes; nothing else is refused here.
    ADD_FAILURE() << error.what();
  }
  return Outcome::sound;
}

TEST(PlanFuzz, NonsenseIsToldAndNothingBreaks) {
  const TextShape model = random_groups_model();
  int outcomes[3] = {};
  for (unsigned seed = 0; seed < 800; ++seed) {
    Fuzz fuzz(seed);
    Json json = Json::parse(to_json(sound_plan(fuzz, model)));
    if (seed % 10 == 0) {
      ASSERT_EQ(tried(json.dump(), model), Outcome::sound) << "seed " << seed;
    }
    for (std::size_t edits = 1 + fuzz.pick(3); edits > 0; --edits) {
      fuzz.spoil(json);
    }
    const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
    try {
      ++outcomes[static_cast<int>(tried(text, model))];
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ": " << error.what() << "\n" << text;
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << "\n" << text;
  }
  EXPECT_GT(outcomes[static_cast<int>(Outcome::refused)], 300);
  EXPECT_GT(outcomes[static_cast<int>(Outcome::unsound)], 60);
  EXPECT_GT(outcomes[static_cast<int>(Outcome::sound)], 30);
}

// The same of text: bytes changed, cut off, put in.
TEST(PlanFuzz, BrokenTextIsRefused) {
  const TextShape model = random_groups_model();
  for (unsigned seed = 0; seed < 800; ++seed) {
    Fuzz fuzz(seed);
    std::string text = to_json(sound_plan(fuzz, model));
    for (std::size_t edits = 1 + fuzz.pick(4); edits > 0 && !text.empty(); --edits) {
      const std::size_t at = fuzz.pick(text.size());
      switch (fuzz.pick(4)) {
        case 0:
          text[at] = static_cast<char>(fuzz.pick(256));
          break;
        case 1:
          text.erase(at, 1 + fuzz.pick(20));
          break;
        case 2:
          text.insert(at, text.substr(fuzz.pick(text.size()), fuzz.pick(40)));
          break;
        default:
          text.insert(at, std::string(1 + fuzz.pick(70), "[{\"0-9"[fuzz.pick(6)]));
      }
    }
    if (fuzz.pick(10) == 0) {
      text.resize(fuzz.pick(text.size() + 1));
    }
    try {
      tried(text, model);
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ": " << error.what() << "\n" << text;
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << "\n" << text;
  }
}

}  // namespace
}  // namespace paradyse
