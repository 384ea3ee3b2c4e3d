// The profile as a file: read back exactly, cut off anywhere, damaged anywhere, gone on with.
#include "paradyse/plan/profile.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/folder.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class ProfileTest : public testing::Test {
 protected:
  test::Folder folder_;
  fs::path file_ = folder_ / "p.jsonl";
};

void write(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

std::string content(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

ProfileHeader header() {
  return {
      .machine = "2 cores of a \"test\" \u00e9",
      .machine_sha256 = "c0ffee",
      .model = "llama, H 256",
      .model_sha256 = "beef",
      .hidden = 256,
      .layers = 2,
      .ranks = 4,
      .cores = 2,
      .backend = "local",
      .device = "cpu",
      .dtype = Dtype::float32};
}

// Of many sizes, and with all their digits.
double any_number(std::mt19937& random) {
  return std::exp(std::uniform_real_distribution<double>(-20, 60)(random));
}

Spread any_spread(std::mt19937& random) {
  return {any_number(random), any_number(random), any_number(random)};
}

PartProbe any_part(std::mt19937& random) {
  PartProbe probe{
      .part = "attention",
      .strategy = "UlyssesZ",
      .recompute = "light",
      .ranks = 4,
      .length = static_cast<std::int64_t>(random()),
      .reshard_after_backward = random() % 2 == 0,
      .outcome = static_cast<Outcome>(random() % 3)};
  for (std::size_t i = 0; i < kPartPhases; ++i) {
    probe.seconds[i] = any_spread(random);
    for (double& amount : probe.work.phases[i].values) {
      amount = any_number(random);
    }
  }
  if (random() % 2 == 0) {
    probe.processor_seconds = {any_number(random), any_number(random), any_number(random)};
  }
  return probe;
}

StepProbe any_step(std::mt19937& random) {
  return {
      .attention = "METP",
      .mlp = "pass",
      .recompute = "full",
      .ranks = 2,
      .length = static_cast<std::int64_t>(random()),
      .reshard_after_backward = random() % 2 == 0,
      .outcome = static_cast<Outcome>(random() % 3),
      .seconds = any_spread(random),
      .counted_saved_bytes = static_cast<std::int64_t>(random()) << 20,
      .saved_bytes = 1,
      .counted_peak_bytes = std::numeric_limits<std::int64_t>::max(),
      .peak_bytes = 3};
}

CollectiveProbe any_collective(std::mt19937& random) {
  return {.collective = "all-to-all", .ranks = 3, .bytes = 4096, .seconds = any_spread(random)};
}

KernelProbe any_kernel(std::mt19937& random) {
  return {
      .kernel = "matmul",
      .shape = {64, 128, static_cast<std::int64_t>(random())},
      .flops = any_number(random),
      .seconds = any_spread(random)};
}

TEST(Profile, SaysFromWhereDenseAttentionIsFaster) {
  const auto from = [](const std::vector<std::array<double, 3>>& measured) {
    Profile profile{.header = header()};
    for (const auto& [tokens, flash, dense] : measured) {
      const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(tokens), 16, 128};
      for (const auto& [kernel, seconds] :
           {std::pair(kFlashKernel, flash), {kDenseKernel, dense}}) {
        if (seconds > 0) {
          profile.kernels.push_back(
              {.kernel = kernel, .shape = shape, .seconds = {.median = seconds}});
        }
      }
    }
    return attention_dense_from(profile);
  };
  EXPECT_EQ(from({}), std::nullopt);
  EXPECT_EQ(from({{1024, 1, 0}}), std::nullopt);
  EXPECT_EQ(from({{1024, 1, 2}, {2048, 3, 3}, {4096, 9, 8}, {8192, 30, 20}}), 4096);
  EXPECT_EQ(from({{8192, 30, 20}, {4096, 9, 8}, {1024, 1, 2}}), 4096) << "in any order";
  EXPECT_EQ(from({{1024, 2, 1}, {2048, 3, 4}, {4096, 9, 8}}), 4096) << "once below is no rule";
  EXPECT_EQ(from({{1024, 2, 1}, {2048, 3, 2}}), 1024);
  EXPECT_EQ(from({{1024, 2, 1}, {2048, 3, 4}}), 4096) << "not as far as was measured";
}

// The median of the rounds' medians, the range of all; what was measured once is measured.
TEST(Profile, IsPooledOverItsRounds) {
  Profile profile{.header = header()};
  PartProbe part{.part = "rest", .length = 64};
  StepProbe step{.attention = "METP", .mlp = "pass", .length = 64, .saved_bytes = 5};
  for (const double seconds : {4.0, 1.0, 2.5}) {
    part.seconds[1] = {.median = seconds, .least = seconds - 0.5, .most = seconds + 2};
    step.seconds = part.seconds[1];
    step.peak_bytes = static_cast<std::int64_t>(100 * seconds);
    profile.parts.push_back(part);
    profile.steps.push_back(step);
  }
  part.length = 128;
  profile.parts.insert(profile.parts.begin() + 1, part);
  step.outcome = Outcome::time;
  profile.steps.insert(profile.steps.begin(), step);
  step.mlp = "hold";
  profile.steps.push_back(step);

  const Profile all = pooled(profile);
  ASSERT_EQ(all.parts.size(), 2);
  EXPECT_EQ(all.parts[0].length, 64);
  EXPECT_EQ(all.parts[0].seconds[1], (Spread{.median = 2.5, .least = 0.5, .most = 6}));
  EXPECT_EQ(all.parts[1], part);
  ASSERT_EQ(all.steps.size(), 2);
  EXPECT_EQ(all.steps[0].outcome, Outcome::measured);
  EXPECT_EQ(all.steps[0].seconds, all.parts[0].seconds[1]);
  EXPECT_EQ(all.steps[0].peak_bytes, 400);
  EXPECT_EQ(all.steps[0].saved_bytes, 5);
  EXPECT_EQ(all.steps[1], step);
  EXPECT_EQ(pooled(all), all);
  EXPECT_EQ(pooled({}), Profile{});
}

// A file with some probes of every kind, and what it holds.
Profile example(const fs::path& file, std::uint32_t seed, int rounds = 2) {
  std::mt19937 random(seed);
  Profile profile;
  ProfileWriter writer(file, header(), profile);
  for (int i = 0; i < rounds; ++i) {
    profile.parts.push_back(any_part(random));
    writer.add(profile.parts.back());
    profile.kernels.push_back(any_kernel(random));
    writer.add(profile.kernels.back());
    profile.steps.push_back(any_step(random));
    writer.add(profile.steps.back());
    profile.collectives.push_back(any_collective(random));
    writer.add(profile.collectives.back());
  }
  return profile;
}

template <typename Probe>
bool begins_with(const std::vector<Probe>& all, const std::vector<Probe>& first) {
  return first.size() <= all.size() && std::equal(first.begin(), first.end(), all.begin());
}

bool begins_with(const Profile& all, const Profile& first) {
  return all.header == first.header && begins_with(all.parts, first.parts) &&
         begins_with(all.steps, first.steps) && begins_with(all.collectives, first.collectives) &&
         begins_with(all.kernels, first.kernels);
}

std::size_t probes(const Profile& profile) {
  return profile.parts.size() + profile.steps.size() + profile.collectives.size() +
         profile.kernels.size();
}

std::string refusal_of(const fs::path& file) {
  return test::refusal([&] { read_profile(file); });
}

TEST_F(ProfileTest, ReadsWhatWasWrittenBitByBit) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    fs::remove(file_);
    const Profile written = example(file_, seed, 5);
    EXPECT_EQ(read_profile(file_), written) << "seed " << seed;
  }
}

TEST_F(ProfileTest, EveryTruncationIsAPrefixOrAHeaderThatIsRefused) {
  const Profile all = example(file_, 1, 1);
  const std::string text = content(file_);
  const std::size_t first_line = text.find('\n') + 1;
  std::size_t most = 0;
  for (std::size_t size = 0; size <= text.size(); ++size) {
    write(file_, text.substr(0, size));
    if (size < first_line) {
      EXPECT_THAT(
          refusal_of(file_), AllOf(HasSubstr("p.jsonl: line 1"), HasSubstr("profile again")));
      continue;
    }
    const Profile read = read_profile(file_);
    EXPECT_TRUE(begins_with(all, read)) << "cut at " << size;
    const auto lines = static_cast<std::size_t>(
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size), '\n'));
    EXPECT_EQ(probes(read), lines - 1) << "cut at " << size;
    most = std::max(most, probes(read));
  }
  EXPECT_EQ(most, probes(all));
}

// Wherever it was killed, the profile goes on, and what it adds comes after the whole lines.
TEST_F(ProfileTest, GoesOnAfterEveryTruncation) {
  const Profile all = example(file_, 2, 1);
  const std::string text = content(file_);
  std::mt19937 random(3);
  const PartProbe more = any_part(random);
  for (std::size_t size = text.find('\n') + 1; size <= text.size(); size += 7) {
    write(file_, text.substr(0, size));
    const Profile before = read_profile(file_);
    Profile known;
    ProfileWriter(file_, header(), known).add(more);
    EXPECT_EQ(known, before) << "cut at " << size;
    Profile expected = before;
    expected.parts.push_back(more);
    EXPECT_EQ(read_profile(file_), expected) << "cut at " << size;
  }
  write(file_, "");  // as of `mktemp`
  Profile known;
  ProfileWriter(file_, header(), known).add(more);
  EXPECT_EQ(read_profile(file_).parts, std::vector{more});
}

TEST_F(ProfileTest, DamageIsRefusedOrReadNeverWorse) {
  const Profile all = example(file_, 4, 1);
  const std::string text = content(file_);
  std::mt19937 random(5);
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string damaged = text;
    for (auto bytes = random() % 3 + 1; bytes > 0; --bytes) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    write(file_, damaged);
    try {
      const Profile read = read_profile(file_);
      EXPECT_LE(probes(read), probes(all));
    } catch (const std::invalid_argument& error) {
      ++refused;
      EXPECT_THAT(error.what(), HasSubstr("p.jsonl: line ")) << "round " << round;
    }
  }
  EXPECT_GT(refused, 300);
}

TEST_F(ProfileTest, AnotherHeaderIsRefusedAndTheFileStays) {
  example(file_, 6);
  const std::string text = content(file_);
  const std::vector<std::pair<std::string, std::function<void(ProfileHeader&)>>> changes = {
      {"'machine' is \"2 cores", [](ProfileHeader& h) { h.machine = "8 cores"; }},
      {"'machine_sha256' is \"c0ffee\" there and \"x\" here",
       [](ProfileHeader& h) { h.machine_sha256 = "x"; }},
      {"'model'", [](ProfileHeader& h) { h.model = "x"; }},
      {"'model_sha256'", [](ProfileHeader& h) { h.model_sha256 = "x"; }},
      {"'hidden' is 256 there and 512 here", [](ProfileHeader& h) { h.hidden = 512; }},
      {"'layers'", [](ProfileHeader& h) { h.layers = 3; }},
      {"'ranks'", [](ProfileHeader& h) { h.ranks = 8; }},
      {"'cores'", [](ProfileHeader& h) { h.cores = 1; }},
      {"'backend'", [](ProfileHeader& h) { h.backend = "gloo"; }},
      {"'device'", [](ProfileHeader& h) { h.device = "cuda"; }},
      {"'dtype'", [](ProfileHeader& h) { h.dtype = Dtype::bfloat16; }}};
  for (const auto& [message, change] : changes) {
    ProfileHeader other = header();
    change(other);
    Profile known;
    EXPECT_THAT(
        test::refusal([&] { const ProfileWriter writer(file_, other, known); }),
        AllOf(HasSubstr("p.jsonl"), HasSubstr(message), HasSubstr("name another file")));
    EXPECT_EQ(known, Profile{});
    EXPECT_EQ(content(file_), text);
  }
}

TEST_F(ProfileTest, AFileOfSomethingElseStays) {
  for (const std::string text :
       {"my notes",
        "my notes\n",
        "{}\n",
        "{\"format\": \"paradyse-plan\", \"version\": 1}\n",
        "\n"}) {
    write(file_, text);
    Profile known;
    EXPECT_THROW(ProfileWriter(file_, header(), known), std::invalid_argument) << text;
    EXPECT_EQ(content(file_), text);
  }
}

TEST_F(ProfileTest, TwoWritersAreOneTooMany) {
  Profile known;
  const ProfileWriter writer(file_, header(), known);
  EXPECT_THAT(
      test::refusal<std::runtime_error>(
          [&] { const ProfileWriter second(file_, header(), known); }),
      HasSubstr("another program"));
}

TEST_F(ProfileTest, WhatCouldNotBeReadBackIsNotWritten) {
  Profile known;
  ProfileWriter writer(file_, header(), known);
  const std::string text = content(file_);
  std::mt19937 random(7);
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity(), 1e31}) {
    PartProbe part = any_part(random);
    part.seconds[1].median = bad;
    EXPECT_THROW(writer.add(part), std::invalid_argument);
    part = any_part(random);
    part.work.phases[2].values[3] = bad;
    EXPECT_THROW(writer.add(part), std::invalid_argument);
    KernelProbe kernel = any_kernel(random);
    kernel.flops = bad;
    EXPECT_THROW(writer.add(kernel), std::invalid_argument);
  }
  PartProbe part = any_part(random);
  part.strategy = "\xff";
  EXPECT_THROW(writer.add(part), std::invalid_argument);
  EXPECT_EQ(content(file_), text);
}

// Each field of each kind of line missing, unknown, or of a wrong kind: refused by line and name.
TEST_F(ProfileTest, RefusesByLineAndField) {
  const auto change = [&](std::size_t line, const std::string& from, const std::string& to) {
    fs::remove(file_);
    example(file_, 8, 1);
    std::string text = content(file_);
    std::size_t begin = 0;
    for (std::size_t i = 1; i < line; ++i) {
      begin = text.find('\n', begin) + 1;
    }
    const std::size_t at = text.find(from, begin);
    ASSERT_LT(at, text.find('\n', begin)) << from;
    text.replace(at, from.size(), to);
    write(file_, text);
  };
  struct Case {
    std::size_t line;
    std::string from;
    std::string to;
    std::vector<std::string> said;
  };
  const std::vector<Case> cases = {
      {1, "paradyse-profile", "paradyse-plan", {"line 1: format", "not a profile"}},
      {1, "\"version\":2", "\"version\":1", {"line 1: version", "profile again"}},
      {1, "\"hidden\":256", "\"hidden\":-1", {"line 1: hidden", "found -1"}},
      {1, "\"cores\":2", "\"cores\":0", {"line 1: cores", "found 0"}},
      {1, "\"dtype\"", "\"dtpe\"", {"line 1: dtpe", "did you mean 'dtype'"}},
      {2, "\"probe\":\"part\"", "\"probe\":\"prt\"", {"line 2: probe", "did you mean 'part'"}},
      {2, "\"strategy\":\"UlyssesZ\",", "", {"line 2: the probe", "'strategy' is missing"}},
      {2, "\"length\":", "\"length\":-", {"line 2: length", "expected an integer"}},
      {2, "\"ranks\":4", "\"ranks\":1.5", {"line 2: ranks", "found 1.5"}},
      {2, "\"least\":", "\"least\":-", {"line 2: seconds.forward.least", "a number from 0"}},
      {2, "\"median\":", "\"median\":NaN,\"x\":", {"line 2", "seconds.forward.x: unknown key"}},
      {2, "\"median\":", "\"median\":null,\"x\":", {"line 2: seconds.forward.x", "unknown key"}},
      {2, "\"calls\":", "\"cals\":", {"line 2: work.forward.cals", "did you mean 'calls'"}},
      {2, "\"forward\":", "\"forwrd\":", {"line 2: seconds.forwrd", "did you mean 'forward'"}},
      {2, "\"seconds\":", "\"seconds\":3,\"second\":", {"line 2: second", "unknown key"}},
      {2, "\"seconds\":", "\"work\":", {"line 2: work", "twice"}},
      {3, "\"shape\":[64", "\"shape\":[\"64\"", {"line 3: shape[0]", "found \"64\""}},
      {3, "\"flops\":", "\"flops\":1e999,\"x\":", {"line 3: flops", "1e999", "larger"}},
      {4, "\"peak_bytes\":3", "\"peak_bytes\":3e99", {"line 4: peak_bytes", "expected an integer"}},
      {4, "\"outcome\":\"", "\"outcome\":\"x", {"line 4: outcome", "not an outcome"}},
      {5, "\"bytes\":4096", "\"bytes\":[]", {"line 5: bytes", "found a list"}},
      {5, "{", "[", {"line 5", "not JSON"}}};
  for (const Case& one : cases) {
    change(one.line, one.from, one.to);
    for (const std::string& said : one.said) {
      EXPECT_THAT(refusal_of(file_), HasSubstr(said)) << one.from << " -> " << one.to;
    }
  }
  // Numbers of which no prediction could be made.
  for (const auto& [line, pointer] :
       {std::pair{2U, "/seconds/forward/most"},
        {2U, "/work/forward/calls"},
        {3U, "/flops"},
        {5U, "/seconds/median"}}) {
    fs::remove(file_);
    example(file_, 8, 1);
    std::istringstream lines(content(file_));
    std::string text;
    std::string one;
    for (std::size_t i = 1; std::getline(lines, one); ++i) {
      if (i == line) {
        nlohmann::json json = nlohmann::json::parse(one);
        json.at(nlohmann::json::json_pointer(pointer)) = 1e308;
        one = json.dump();
      }
      text += one + "\n";
    }
    write(file_, text);
    std::string path = pointer + 1;
    std::ranges::replace(path, '/', '.');
    EXPECT_THAT(
        refusal_of(file_),
        HasSubstr(
            "line " + std::to_string(line) + ": " + path +
            ": expected a number from 0 to 1e+30, found 1e+308"));
  }
  EXPECT_THAT(
      refusal_of(folder_ / "none.jsonl"), AllOf(HasSubstr("none.jsonl"), HasSubstr("not there")));
  EXPECT_THAT(refusal_of(folder_), HasSubstr("cannot be read"));
}

}  // namespace
}  // namespace paradyse
