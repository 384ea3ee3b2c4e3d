// Ranks compare what they were given: what differs is found and named on every rank, and what may
// differ is not looked at.
#include "src/run/train/agreement.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/detail/index.h"
#include "tests/support/folder.h"
#include "tests/support/processes.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using Items = std::vector<Given>;

class AgreementTest : public testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& text) const {
    const fs::path file = folder_ / name;
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }

  test::Folder folder_;
};

// What each rank is told, by what each was given.
std::vector<std::string> told(const std::vector<Items>& of_ranks) {
  std::vector<std::string> messages(of_ranks.size());
  run_local_ranks(
      static_cast<int>(of_ranks.size()), LocalOptions(), [&](Communicators& communicators) {
        const auto r = idx(communicators.rank());
        messages[r] = difference_of_ranks(of_ranks[r], communicators.world());
      });
  return messages;
}

// What the ranks' files come to.
std::vector<std::string> hashes(const std::vector<std::vector<fs::path>>& of_ranks) {
  std::vector<std::string> found(of_ranks.size());
  run_local_ranks(
      static_cast<int>(of_ranks.size()), LocalOptions(), [&](Communicators& communicators) {
        const auto r = idx(communicators.rank());
        found[r] = shared_hash(of_ranks[r], communicators.world());
      });
  return found;
}

// First: the processes are forks of this one, which must have one thread.
TEST_F(AgreementTest, ProcessesEndTogetherAndAllNameTheDifference) {
  for (int repeat = 0; repeat < 3; ++repeat) {
    test::Processes processes(3, [](Backend& backend) {
      expect_same_on_ranks({{"data", "a"}}, 3, backend);  // goes on
      expect_same_on_ranks(
          {{"optimizer.lr", backend.first_rank() == 1 ? "0.1" : "0.001"}}, 3, backend);
    });
    for (const test::Ended& ended : processes.wait()) {
      EXPECT_EQ(ended.code, 3) << ended.message;
      EXPECT_THAT(
          ended.message, HasSubstr("optimizer.lr is 0.001 on ranks 0, 2 and 0.1 on rank 1"));
    }
  }
  // Copies of the weights on two of three machines, as it were: one has another byte.
  std::string bytes((std::size_t{20} << 20), '\0');
  for (std::size_t i = 0; i < bytes.size(); i += 997) {
    bytes[i] = static_cast<char>(i);
  }
  const fs::path one = write("one", bytes);
  const fs::path same = write("same", bytes);
  bytes[bytes.size() - 5] ^= 1;
  const fs::path other = write("other", bytes);
  for (const auto& [third, differs] : {std::pair{same, false}, {other, true}}) {
    test::Processes processes(3, [&, file = third, wrong = differs](Backend& backend) {
      const fs::path mine = backend.first_rank() == 2 ? file : one;
      backend.run(3, [&](Communicators& communicators) {
        const std::string told = difference_of_ranks(
            {{"the weights", shared_hash({mine}, communicators.world())}}, communicators.world());
        EXPECT_EQ(!told.empty(), wrong) << told;
      });
      backend.leave();
    });
    for (const test::Ended& ended : processes.wait()) {
      EXPECT_EQ(ended.code, 0) << ended.message;
    }
  }
}

// Rank 0's count: others may have none.
TEST_F(AgreementTest, CostsThatRanksHaveFoundAreTheSame) {
  const std::vector<std::vector<std::string>> fine = {
      {"a", "a"}, {"a", ""}, {"", "", ""}, {"a", "", "a", ""}};
  const std::vector<std::vector<std::string>> wrong = {
      {"a", "b"}, {"", "a"}, {"a", "", "b"}, {"a", "a", "", "b"}};
  for (const auto& [all, code] : {std::pair{fine, 0}, {wrong, 3}}) {
    for (const std::vector<std::string>& costs : all) {
      const auto ranks = static_cast<int>(costs.size());
      test::Processes processes(ranks, [&](Backend& backend) {
        expect_same_costs(costs[idx(backend.first_rank())], ranks, backend);
        backend.leave();
      });
      for (const test::Ended& ended : processes.wait()) {
        EXPECT_EQ(ended.code, code) << ended.message;
        EXPECT_EQ(
            ended.message.find("the costs that were measured before is") != std::string::npos,
            code != 0);
      }
    }
  }
}

TEST_F(AgreementTest, ABadInputOfOneRankIsOneOfAll) {
  for (const bool bad_input : {true, false}) {
    test::Processes processes(3, [=](Backend& backend) {
      try {
        backend.run(3, [&](Communicators& communicators) {
          communicators.world().barrier({.op = "all are here", .part = ""});
          if (communicators.rank() == 2 && bad_input) {
            throw std::invalid_argument("nowhere");
          }
          if (communicators.rank() == 2) {
            throw std::runtime_error("nowhere");
          }
          communicators.world().barrier({.op = "wait", .part = ""});
        });
      } catch (const Aborted& aborted) {
        throw std::runtime_error(
            fmt::format("{}, bad input: {}", aborted.what(), aborted.bad_input()));
      }
    });
    const std::vector<test::Ended> ended = processes.wait();
    const std::string of_others = fmt::format("rank 2 failed: nowhere, bad input: {}", bad_input);
    EXPECT_EQ(ended[0].message, of_others);
    EXPECT_EQ(ended[1].message, of_others);
    EXPECT_EQ(ended[2].message, "nowhere");
  }
}

TEST_F(AgreementTest, EqualItemsAreNoDifference) {
  for (const int ranks : {1, 2, 5}) {
    EXPECT_THAT(
        told(std::vector<Items>(idx(ranks), {{"data", "XXH64 1"}, {"optimizer.lr", "0.1"}})),
        Each(IsEmpty()));
    EXPECT_THAT(told(std::vector<Items>(idx(ranks), Items())), Each(IsEmpty()));
  }
}

TEST_F(AgreementTest, EveryRankIsToldWhatDiffersAndWhere) {
  EXPECT_THAT(
      told({{{"a", "1"}, {"b", "2"}}, {{"a", "1"}, {"b", "3"}}}),
      Each(AllOf(HasSubstr(": b is 2 on rank 0 and 3 on rank 1. Give"), Not(HasSubstr("a is")))));
  // rank 0 may be the one that is wrong, and there may be more than two values
  EXPECT_THAT(
      told({{{"a", "x"}}, {{"a", "y"}}, {{"a", "y"}}, {{"a", "z"}}}),
      Each(HasSubstr("a is x on rank 0, y on ranks 1, 2 and z on rank 3")));
  EXPECT_THAT(
      told({{{"a", "1"}, {"eval", "h"}}, {{"a", "1"}}}),
      Each(HasSubstr("eval is h on rank 0 and not given on rank 1")));
  std::vector<Items> many(12, {{"a", "1"}});
  many[0] = {{"a", "2"}};
  EXPECT_THAT(told(many), Each(HasSubstr("and 1 on ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more")));
  // long ones, bytes that are no UTF-8, and more than a reader wants
  EXPECT_THAT(
      told({{{"a", std::string(500, 'x')}}, {{"a", "\xff"}}}),
      Each(HasSubstr("a is " + std::string(80, 'x') + "... on rank 0")));
  Items ten, others;
  for (int i = 0; i < 10; ++i) {
    ten.push_back({fmt::format("key{}", i), "1"});
    others.push_back({fmt::format("key{}", i), "2"});
  }
  EXPECT_THAT(told({ten, others}), Each(AllOf(HasSubstr("key4"), HasSubstr("and 5 more"))));
}

// Another value of any key is found, but of those that name places.
TEST_F(AgreementTest, AllOfAConfigurationIsComparedButForPlaces) {
  const LoadedConfig config = load_config("", {});
  const Items given = given_by(config);
  std::set<std::string> compared;
  for (const Given& item : given) {
    compared.insert(item.name);
  }
  const std::set<std::string> places = {
      "model.path",
      "lora.path",
      "data.path",
      "data.eval_path",
      "output.folder",
      "output.name",
      "parallel.backend",
      "parallel.rendezvous",
      "parallel.interface",
      "parallel.timeout_seconds"};
  for (const ConfigEntry& entry : config.entries) {
    EXPECT_EQ(compared.contains(entry.key), !places.contains(entry.key)) << entry.key;
  }
  EXPECT_THAT(
      told({given, given_by(load_config("", {"optimizer.beta2=0.99", "data.path=elsewhere"}))}),
      Each(AllOf(
          HasSubstr("optimizer.beta2 is 0.95 on rank 0 and 0.99 on rank 1"),
          Not(HasSubstr("data.path")))));
  // costs that are named are compared by what is in them, wherever they lie
  const auto by_costs = [](const fs::path& file) {
    return given_by(load_config("", {"costs.file=" + file.string()}));
  };
  EXPECT_THAT(
      told({by_costs(write("a.json", "1")), by_costs(write("b.json", "1"))}), Each(IsEmpty()));
  EXPECT_THAT(
      told({by_costs(write("a.json", "1")), by_costs(write("b.json", "2"))}),
      Each(HasSubstr("the file of costs.file is XXH64")));
  EXPECT_THAT(
      told({by_costs(write("a.json", "1")), by_costs("none")}),
      Each(HasSubstr("costs.file is a file on rank 0 and 'none' on rank 1")));
}

TEST_F(AgreementTest, DataIsComparedByItsTokensAndLabels) {
  const auto of = [](std::vector<Tokens> documents, std::vector<Tokens> labels = {}) {
    return given_data("data", Dataset(Corpus(std::move(documents), std::move(labels)))).value;
  };
  EXPECT_EQ(of({{1, 2}, {3}}), of({{1, 2}, {3}}));
  EXPECT_NE(of({{1, 2}, {3}}), of({{1, 2}, {4}}));  // of equal lengths
  EXPECT_NE(of({{1, 2}, {3}}), of({{1}, {2, 3}}));
  EXPECT_NE(of({{1, 2}, {3}}), of({{3}, {1, 2}}));
  EXPECT_NE(of({{1, 2}}, {{1, 2}}), of({{1, 2}}, {{1, -100}}));
}

TEST_F(AgreementTest, FilesAreComparedByTheirContents) {
  // more than a block, and no whole number of them
  const std::string content(std::size_t{9} << 20, 'a');
  const fs::path one = write("one", content);
  fs::create_directory(folder_ / "elsewhere");
  const fs::path copy = folder_ / "elsewhere" / "one";
  fs::copy_file(one, copy);
  // one file of all: nobody reads it
  EXPECT_THAT(hashes({{one}, {one}, {one}}), Each(IsEmpty()));
  // one rank reads all of it, or two share the blocks: the same
  for (const auto& files : std::vector<std::vector<std::vector<fs::path>>>{
           {{one}, {copy}}, {{one}, {one}, {copy}}, {{copy}, {one}, {copy}, {one}, {one}}}) {
    const std::vector<std::string> found = hashes(files);
    EXPECT_THAT(found, Each(AllOf(found.front(), Not(IsEmpty()))));
  }
  for (const std::size_t at : {std::size_t{0}, std::size_t{8} << 20, content.size() - 1}) {
    std::string changed = content;
    changed[at] = 'b';
    std::ofstream(copy, std::ios::binary) << changed;
    const std::vector<std::string> found = hashes({{one}, {one}, {copy}});
    EXPECT_EQ(found[0], found[1]);
    EXPECT_NE(found[0], found[2]) << at;
  }
  std::ofstream(copy, std::ios::binary) << content.substr(1);
  const std::vector<std::string> shorter = hashes({{one}, {copy}});
  EXPECT_NE(shorter[0], shorter[1]);
  // blocks that changed places
  const std::string blocks = std::string(std::size_t{8} << 20, 'a') + std::string(8 << 20, 'b');
  const std::string turned = std::string(std::size_t{8} << 20, 'b') + std::string(8 << 20, 'a');
  const std::vector<std::string> places =
      hashes({{write("blocks", blocks)}, {write("turned", turned)}});
  EXPECT_NE(places[0], places[1]);
  EXPECT_EQ(given_file("f", one).value, given_file("f", one).value);
  EXPECT_NE(given_file("f", one).value, given_file("f", copy).value);
  EXPECT_EQ(given_file("f", folder_ / "nowhere").value, "cannot be read: it is not there");
}

}  // namespace
}  // namespace paradyse
