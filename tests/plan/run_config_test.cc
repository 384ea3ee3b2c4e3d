// What load_config promises: values, origins and messages.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/config.h"
#include "tests/support/folder.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class RunConfigTest : public testing::Test {
 protected:
  LoadedConfig load(const std::string& text, const std::vector<std::string>& settings = {}) const {
    std::ofstream(file_) << text;
    return load_config(file_, settings);
  }

  // What is said of this file and these settings; fails the test when nothing is wrong with them.
  std::string refusal(
      const std::string& text, const std::vector<std::string>& settings = {}) const {
    return test::refusal([&] { load(text, settings); });
  }

  static std::string origin(const LoadedConfig& loaded, const std::string& key) {
    for (const ConfigEntry& entry : loaded.entries) {
      if (entry.key == key) {
        return entry.origin;
      }
    }
    return "no such entry";
  }

  [[nodiscard]] std::string at_line(int line) const {
    return file_.string() + ":" + std::to_string(line);
  }

  test::Folder folder_;
  std::filesystem::path file_ = folder_ / "run.toml";
};

TEST_F(RunConfigTest, WithoutFileAndSettingsAllIsDefault) {
  const LoadedConfig loaded = load_config("", {});
  EXPECT_EQ(loaded.config.train.steps, RunConfig{}.train.steps);
  EXPECT_GT(loaded.entries.size(), 25U);
  for (const ConfigEntry& entry : loaded.entries) {
    EXPECT_EQ(entry.origin, "default") << entry.key;
  }
}

TEST_F(RunConfigTest, SettingsComeOverTheFileAndTheFileOverDefaults) {
  const LoadedConfig loaded = load(
      "[train]\nsteps = 7\ntokens_per_step = 512\n\n[optimizer]\nlr = 1\n[output]\ntrace = false\n",
      {"train.steps=9", "output.name=first run", "model.path=\"a b\"", "optimizer.lr=2e-4"});
  EXPECT_EQ(loaded.config.train.steps, 9);
  EXPECT_EQ(loaded.config.train.tokens_per_step, 512);
  EXPECT_EQ(loaded.config.optimizer.lr, 2e-4);
  EXPECT_EQ(loaded.config.output.name, "first run");
  EXPECT_EQ(loaded.config.model.path, "a b");
  EXPECT_FALSE(loaded.config.output.trace);
  EXPECT_TRUE(loaded.config.output.model);
  EXPECT_EQ(origin(loaded, "train.steps"), "--set");
  EXPECT_EQ(origin(loaded, "train.tokens_per_step"), at_line(3));
  EXPECT_EQ(origin(loaded, "output.trace"), at_line(8));
  EXPECT_EQ(origin(loaded, "output.model"), "default");
}

TEST_F(RunConfigTest, ASettingOfAStringNeedsNoQuotesWhateverItLooksLike) {
  const LoadedConfig loaded = load_config(
      "",
      {"output.name=12",
       "output.folder=",
       "model.path=[x",
       "data.path=a=b",
       "parallel.memory_per_rank=1048576"});
  EXPECT_EQ(loaded.config.output.name, "12");
  EXPECT_EQ(loaded.config.output.folder, "");
  EXPECT_EQ(loaded.config.model.path, "[x");
  EXPECT_EQ(loaded.config.data.path, std::vector<std::string>{"a=b"});
  EXPECT_EQ(loaded.config.parallel.memory_per_rank, "1048576");
}

TEST_F(RunConfigTest, PathsOfDataAreAStringOrAList) {
  const auto paths = [](const std::string& setting) {
    return load_config("", {setting}).config.data.path;
  };
  using Paths = std::vector<std::string>;
  EXPECT_EQ(paths("data.path=\"a b.jsonl\""), Paths({"a b.jsonl"}));
  EXPECT_EQ(paths("data.path=[\"a\", \"b,c\"]"), Paths({"a", "b,c"}));
  EXPECT_EQ(paths("data.path=[ab]*.txt"), Paths({"[ab]*.txt"}));  // a pattern
  EXPECT_EQ(paths("data.path=7"), Paths({"7"}));
  EXPECT_EQ(paths("data.path="), Paths());
  EXPECT_THROW(paths("data.path=[1]"), std::invalid_argument);
  EXPECT_THROW(paths("data.path=[\"\"]"), std::invalid_argument);
  const LoadedConfig loaded = load("[data]\npath = ['a', \"b'\"]\neval_path = 'c'\n");
  const LoadedConfig again = load(to_toml(loaded));
  EXPECT_EQ(again.config.data.path, Paths({"a", "b'"}));
  EXPECT_EQ(again.config.data.eval_path, Paths({"c"}));
}

TEST_F(RunConfigTest, NumbersMayBeInThousands) {
  const LoadedConfig loaded = load("[data]\nmax_tokens = \"32K\"\n", {"train.tokens_per_step=1M"});
  EXPECT_EQ(loaded.config.data.max_tokens, 32768);
  EXPECT_EQ(loaded.config.train.tokens_per_step, 1 << 20);
  EXPECT_THAT(refusal("[data]\nmax_tokens = \"32KB\"\n"), HasSubstr("a whole number"));
}

TEST_F(RunConfigTest, AnEndIdIsAnIdOrAWord) {
  const auto id = [](const std::string& value) {
    return load_config("", {"data.end_id=" + value}).config.data.end_id;
  };
  EXPECT_EQ(id("2"), "2");
  EXPECT_EQ(id("none"), "none");
  EXPECT_EQ(load("[data]\nend_id = 7\n").config.data.end_id, "7");
  for (const char* const wrong : {"-1", "eos", "1.5", "", "99999999999"}) {
    EXPECT_THROW(id(wrong), std::invalid_argument) << wrong;
  }
}

TEST_F(RunConfigTest, ToTomlIsReadBackToTheSame) {
  const LoadedConfig loaded = load(
      "[optimizer]\nlr = 1\neps = 1e-12\nbeta2 = 0.30000000000000004\n[model]\nseed = "
      "9223372036854775807\n",
      {"output.name=it's \"quoted\" \\ # and\ttabbed\nlines \x7f", "data.order=curriculum"});
  const LoadedConfig again = load(to_toml(loaded));
  ASSERT_EQ(again.entries.size(), loaded.entries.size());
  for (std::size_t i = 0; i < loaded.entries.size(); ++i) {
    EXPECT_EQ(again.entries[i].key, loaded.entries[i].key);
    EXPECT_EQ(again.entries[i].value, loaded.entries[i].value);
  }
  EXPECT_EQ(again.config.output.name, loaded.config.output.name);
  EXPECT_EQ(again.config.optimizer.beta2, 0.30000000000000004);
  EXPECT_THAT(to_toml(loaded), HasSubstr("# --set"));
  EXPECT_THAT(to_toml(loaded), HasSubstr("# default"));
}

TEST_F(RunConfigTest, UnknownNamesGetTheNearest) {
  EXPECT_THAT(
      refusal("[train]\nstep = 3\n"),
      AllOf(HasSubstr(at_line(2)), HasSubstr("train.step "), HasSubstr("'train.steps'")));
  EXPECT_THAT(
      refusal("\n[trian]\nsteps = 3\n"),
      AllOf(HasSubstr(at_line(2)), HasSubstr("[trian]"), HasSubstr("'train'")));
  EXPECT_THAT(refusal("steps = 3\n"), HasSubstr("'train.steps'"));
  EXPECT_THAT(
      refusal("", {"optimizer.learning_rate=1"}),
      AllOf(HasSubstr("--set"), HasSubstr("optimizer.lr")));
  EXPECT_THAT(refusal("", {"lr=1"}), HasSubstr("'optimizer.lr'"));
  EXPECT_THAT(refusal("", {"train.steps"}), HasSubstr("key=value"));
  EXPECT_THAT(
      refusal("[parallel]\nattention = \"Ulysses\"\n"),
      AllOf(HasSubstr(at_line(2)), HasSubstr("'UlyssesZ'"), HasSubstr("MegatronTS")));
}

// Keys and values that have a usual name now; what earlier versions called them is accepted.
struct OldAndNew {
  const char* old_setting;
  const char* setting;
};
const OldAndNew kOldAndNew[] = {
    {"parallel.planner=exact", "parallel.layer_planner=exact"},
    {"parallel.planner=paper", "parallel.layer_planner=paradyse-heuristic"},
    {"parallel.layer_planner=paper", "parallel.layer_planner=paradyse-heuristic"},
    {"parallel.batch_planner=flexsp", "parallel.batch_planner=groups"},
    {"parallel.mlp=hold", "parallel.mlp=tensor-parallel"},
    {"parallel.mlp=gather", "parallel.mlp=zero3"},
    {"parallel.mlp=pass", "parallel.mlp=streamed"},
    {"parallel.deadline_seconds=7.5", "parallel.timeout_seconds=7.5"},
    {"optimizer.clip_norm=0.25", "optimizer.max_grad_norm=0.25"}};

// "a.b=c" as a file: strings in quotes.
std::string as_file(const std::string& setting) {
  const std::size_t dot = setting.find('.');
  const std::size_t equals = setting.find('=');
  const std::string value = setting.substr(equals + 1);
  const bool number = value.find_first_not_of("0123456789.") == std::string::npos;
  return "[" + setting.substr(0, dot) + "]\n" + setting.substr(dot + 1, equals - dot) +
         (number ? value : "\"" + value + "\"") + "\n";
}

TEST_F(RunConfigTest, OldNamesMeanTheSame) {
  for (const auto& [old_setting, setting] : kOldAndNew) {
    const LoadedConfig now = load("", {setting});
    for (const LoadedConfig& old : {load("", {old_setting}), load(as_file(old_setting))}) {
      ASSERT_EQ(old.entries.size(), now.entries.size());
      for (std::size_t i = 0; i < now.entries.size(); ++i) {
        EXPECT_EQ(old.entries[i].key, now.entries[i].key);
        EXPECT_EQ(old.entries[i].value, now.entries[i].value) << old_setting;
      }
    }
  }
}

TEST_F(RunConfigTest, AnOldNameBesideTheNewOneIsRefused) {
  const auto same = AllOf(
      HasSubstr("optimizer.max_grad_norm is given twice"), HasSubstr("leave optimizer.clip_norm"));
  EXPECT_THAT(
      refusal("[optimizer]\nclip_norm = 1.0\nmax_grad_norm = 1.0\n"),
      AllOf(same, HasSubstr(file_.string())));
  EXPECT_THAT(refusal("", {"optimizer.clip_norm=1", "optimizer.max_grad_norm=1"}), same);
  EXPECT_THAT(refusal("", {"optimizer.max_grad_norm=1", "optimizer.clip_norm=1"}), same);
  // but --set comes over the file, by either name, and over itself
  const std::string old_file = "[optimizer]\nclip_norm = 2.0\n";
  EXPECT_EQ(load(old_file, {"optimizer.max_grad_norm=3"}).config.optimizer.max_grad_norm, 3);
  EXPECT_EQ(
      load("[optimizer]\nmax_grad_norm = 2.0\n", {"optimizer.clip_norm=1", "optimizer.clip_norm=3"})
          .config.optimizer.max_grad_norm,
      3);
  EXPECT_THAT(refusal("", {"optimizer.=1"}), HasSubstr("there is no key"));
  EXPECT_THAT(refusal("", {"=1"}), HasSubstr("there is no key"));
}

TEST_F(RunConfigTest, WhatAnEarlierVersionWroteDownGetsTheNamesOfNow) {
  using Written = std::map<std::string, std::string>;
  EXPECT_EQ(
      with_current_names(
          {{"parallel.planner", "'paper'"},
           {"parallel.batch_planner", "'flexsp'"},
           {"parallel.mlp", "'hold'"},
           {"parallel.deadline_seconds", "60.0"},
           {"optimizer.clip_norm", "0.5"},
           {"train.steps", "9"}}),
      (Written{
          {"parallel.layer_planner", "'paradyse-heuristic'"},
          {"parallel.batch_planner", "'groups'"},
          {"parallel.mlp", "'tensor-parallel'"},
          {"parallel.timeout_seconds", "60.0"},
          {"optimizer.max_grad_norm", "0.5"},
          {"train.steps", "9"}}));
  const Written now = {{"parallel.mlp", "'UlyssesZ'"}, {"parallel.layer_planner", "'exact'"}};
  EXPECT_EQ(with_current_names(now), now);
}

// Of steps and epochs one is given; what is written down is read back as the same run.
TEST_F(RunConfigTest, ARunIsAsLongAsStepsOrEpochsSay) {
  const LoadedConfig epochs = load_config("", {"train.epochs=2"});
  EXPECT_EQ(epochs.config.train.steps, 0);
  const LoadedConfig again = load(to_toml(epochs));
  EXPECT_EQ(again.config.train.epochs, 2);
  EXPECT_EQ(again.config.train.steps, 0);
  EXPECT_EQ(load_config("", {}).config.train.steps, 100);
  EXPECT_EQ(load_config("", {"train.epochs=0", "train.steps=7"}).config.train.steps, 7);
  EXPECT_THAT(
      refusal("[train]\nsteps = 5\nepochs = 2\n"),
      AllOf(
          HasSubstr("train.epochs is 2"), HasSubstr("train.steps is 5"), HasSubstr("one of them")));
}

TEST_F(RunConfigTest, ABlendHasAWeightForEachPath) {
  const LoadedConfig blend = load_config("", {"data.path=[\"a\", \"b\"]", "data.weights=[1, 2.5]"});
  EXPECT_EQ(blend.config.data.weights, (std::vector<double>{1, 2.5}));
  EXPECT_THAT(to_toml(blend), HasSubstr("weights = [1.0, 2.5]"));
  EXPECT_THAT(refusal("", {"data.weights=[1, -2]"}), HasSubstr("a list of numbers above 0"));
  EXPECT_THAT(refusal("", {"data.weights=[1, nan]"}), HasSubstr("a list of numbers above 0"));
  EXPECT_THAT(refusal("", {"data.path=a", "data.weights=[1, 2]"}), HasSubstr("1 entries"));
}

TEST_F(RunConfigTest, HeldOutDocumentsHaveOneOrigin) {
  EXPECT_EQ(load_config("", {"data.held_out=0.01"}).config.data.held_out, 0.01);
  EXPECT_EQ(load_config("", {"data.held_out=100"}).config.data.held_out, 100);
  EXPECT_THAT(refusal("", {"data.held_out=2.5"}), HasSubstr("a whole number of documents"));
  EXPECT_THAT(
      refusal("", {"data.held_out=2", "data.eval_path=a"}), HasSubstr("leave the other out"));
  EXPECT_THAT(refusal("", {"train.eval_every=2"}), HasSubstr("nothing is held out"));
}

TEST_F(RunConfigTest, WrongTypesAndRangesAreRefusedWithWhatIsAccepted) {
  EXPECT_THAT(
      refusal("[train]\nsteps = \"ten\"\n"),
      AllOf(HasSubstr(at_line(2)), HasSubstr("train.steps"), HasSubstr("a whole number from 0")));
  EXPECT_THAT(refusal("[train]\nsteps = 1.5\n"), HasSubstr("a whole number"));
  EXPECT_THAT(refusal("[train]\nsteps = 0\n"), HasSubstr("nothing would be trained"));
  EXPECT_THAT(refusal("[model]\nseed = -1\n"), HasSubstr("from 0"));
  EXPECT_THAT(refusal("[parallel]\nranks = 0\n"), HasSubstr("from 1 to 1024"));
  for (const std::string setting :
       {"train.steps=1000000000000000",
        "train.epochs=4611686018427387904",
        "train.tokens_per_step=9223372036854775807",
        "lora.r=9223372036854775807"}) {
    EXPECT_THAT(
        refusal("", {setting}),
        AllOf(HasSubstr(setting.substr(0, setting.find('='))), HasSubstr("a whole number from")));
  }
  for (const std::string key : {"output.name", "data.path", "model.path", "costs.file"}) {
    EXPECT_THAT(
        refusal("", {key + R"(="a\u0000b")"}),
        AllOf(HasSubstr(key + " has a NUL byte"), HasSubstr("leave it out")));
  }
  EXPECT_THAT(refusal("[data]\npath = [\"a\", \"b\\u0000\"]\n"), HasSubstr("data.path has a NUL"));
  EXPECT_THAT(refusal("[optimizer]\nbeta1 = 1.0\n"), HasSubstr("from 0 and below 1"));
  EXPECT_THAT(refusal("[optimizer]\nlr = nan\n"), HasSubstr("optimizer.lr"));
  EXPECT_THAT(refusal("[optimizer]\nlr = inf\n"), HasSubstr("optimizer.lr"));
  EXPECT_THAT(refusal("[optimizer]\neps = 0.0\n"), HasSubstr("above 0"));
  EXPECT_THAT(refusal("[data]\ncurriculum_share = 1.5\n"), HasSubstr("from 0 to 1"));
  EXPECT_THAT(refusal("[data]\norder = \"random\"\n"), HasSubstr("shuffled, sorted, curriculum"));
  EXPECT_THAT(refusal("[output]\ntrace = 1\n"), HasSubstr("true or false"));
  EXPECT_THAT(refusal("[output]\nname = [1, 2]\n"), HasSubstr("a string"));
  EXPECT_THAT(refusal("train = 3\n"), HasSubstr("[train]"));
  EXPECT_THAT(refusal("", {"train.steps=1\ntrain.dtype=3"}), HasSubstr("a whole number"));
  EXPECT_THAT(
      refusal("[data]\nmin_tokens = 9\n", {"data.max_tokens=3"}),
      AllOf(HasSubstr("data.max_tokens"), HasSubstr(at_line(2)), HasSubstr("--set")));
}

TEST_F(RunConfigTest, FilesThatAreNoTomlAreNamedWithTheLine) {
  EXPECT_THAT(refusal("[train]\nsteps = \n"), AllOf(HasSubstr(file_.string()), HasSubstr("TOML")));
  EXPECT_THAT(refusal("[train]\nsteps = 1\nsteps = 2\n"), HasSubstr(at_line(3)));
  EXPECT_THROW(load_config("/nowhere/run.toml", {}), std::invalid_argument);
  EXPECT_THROW(load_config("/tmp", {}), std::invalid_argument);
}

// What a run writes down is found from anywhere, and read back as it was.
TEST(RunConfigPaths, AreAbsoluteWhereTheyAreFiles) {
  const std::filesystem::path before = std::filesystem::current_path();
  const test::Folder folder;
  std::filesystem::create_directories(folder / "texts");
  std::filesystem::current_path(folder);
  const std::filesystem::path here = std::filesystem::current_path();
  const LoadedConfig given = load_config(
      "",
      {"model.path=stdit", "data.path=./texts", "data.eval_path=*.jsonl", "output.folder=runs"});
  const LoadedConfig loaded = with_absolute_paths(given);
  std::ofstream("written.toml") << to_toml(loaded);
  const LoadedConfig again = load_config("written.toml", {});
  std::filesystem::current_path(before);
  EXPECT_EQ(again.config.model.path, "stdit");  // a preset
  EXPECT_EQ(again.config.costs.file, "auto");
  using Paths = std::vector<std::string>;
  EXPECT_EQ(again.config.data.path, Paths{(here / "texts").string()});
  EXPECT_EQ(again.config.data.eval_path, Paths{(here / "*.jsonl").string()});
  EXPECT_EQ(again.config.output.folder, (here / "runs").string());
  EXPECT_EQ(loaded.config.data.path, Paths{"./texts"});
  for (std::size_t i = 0; i < again.entries.size(); ++i) {
    EXPECT_EQ(again.entries[i].value, loaded.entries[i].value) << again.entries[i].key;
    EXPECT_EQ(with_absolute_paths(again).entries[i].value, again.entries[i].value);
  }
}

std::string source(const char* path) {
  std::ifstream file(std::filesystem::path(PARADYSE_SOURCE_DIR) / path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Every key has a meaning, and documents say what the program does.
TEST_F(RunConfigTest, HasAReference) {
  const std::vector<ConfigKey> keys = config_keys();
  const LoadedConfig defaults = load_config("", {});
  ASSERT_EQ(keys.size(), defaults.entries.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(keys[i].key, defaults.entries[i].key);
    EXPECT_EQ(keys[i].default_value, defaults.entries[i].value);
    EXPECT_TRUE(keys[i].meaning.ends_with('.')) << keys[i].key;
    EXPECT_FALSE(keys[i].accepted.empty()) << keys[i].key;
  }
  EXPECT_EQ(source("docs/reference/config.md"), config_reference())
      << "write it anew: build/release/paradyse config --markdown > docs/reference/config.md";
}

// As it stands it says nothing; with its comments taken away, the defaults.
TEST_F(RunConfigTest, HasATemplate) {
  const LoadedConfig defaults = load_config("", {});
  const auto values = [](const LoadedConfig& loaded) {
    std::vector<std::string> all;
    for (const ConfigEntry& entry : loaded.entries) {
      all.push_back(entry.key + " = " + entry.value);
    }
    return all;
  };
  const std::string text = config_template();
  EXPECT_EQ(values(load(text)), values(defaults));
  EXPECT_EQ(load(text).entries.front().origin, "default");
  std::istringstream lines(text);
  std::string set;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80U) << line;
    const bool is_key = line.starts_with("# ") && line.find(" = ") != std::string::npos &&
                        line.find(' ', 2) == line.find(" = ");
    set += (is_key ? line.substr(2) : line.starts_with("#") ? "" : line) + "\n";
  }
  const LoadedConfig all = load(set);
  EXPECT_EQ(values(all), values(defaults));
  for (const ConfigEntry& entry : all.entries) {
    EXPECT_NE(entry.origin, "default") << entry.key;
  }
}

}  // namespace
}  // namespace paradyse
