#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <numeric>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/run/data.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Every test has a folder of its own.
class Documents : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "documents_test.XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] fs::path path(const std::string& name) const { return folder_ / name; }

  void write_file(const std::string& name, const std::string& bytes) const {
    fs::create_directories(path(name).parent_path());
    std::ofstream(path(name), std::ios::binary) << bytes;
  }

  [[nodiscard]] DataOptions options(const std::string& name) const {
    DataOptions options;
    options.path = path(name);
    return options;
  }

 private:
  fs::path folder_;
};

template <class... Parts>
void expect_refused(const DataOptions& options, const Parts&... parts) {
  EXPECT_THAT(
      [&] { (void)read_corpus(options); },
      testing::ThrowsMessage<std::runtime_error>(
          AllOf(HasSubstr(options.path.string()), HasSubstr(parts)...)));
}

TEST_F(Documents, AFolderGivesItsFilesSortedByPath) {
  write_file("d/b.txt", "B\n");
  write_file("d/a/z.txt", "az");
  write_file("d/a.txt", std::string("\0\xff", 2));
  write_file("d/.hidden", "h");
  write_file("d/empty", "");
  const Corpus corpus = read_corpus(options("d"));
  // '.' sorts before '/'
  EXPECT_THAT(
      corpus.names,
      ElementsAre(
          path("d/.hidden").string(),
          path("d/a.txt").string(),
          path("d/a/z.txt").string(),
          path("d/b.txt").string()));
  EXPECT_THAT(
      corpus.documents,
      ElementsAre(
          ElementsAre('h'), ElementsAre(0, 255), ElementsAre('a', 'z'), ElementsAre('B', '\n')));
  EXPECT_EQ(corpus.counts.documents, 4);
  EXPECT_EQ(corpus.counts.tokens, 7);
  EXPECT_EQ(corpus.counts.skipped_short, 1);
}

TEST_F(Documents, AJsonlFileGivesItsLines) {
  write_file(
      "a.jsonl",
      "{\"tokens\": [3, 1, 2]}\n\n  \t\r\n{\"text\": \"h\\u00e9\", \"id\": 7}\r\n"
      "{\"tokens\": [255], \"text\": \"ignored\"}");  // no newline at the end
  const Corpus corpus = read_corpus(options("a.jsonl"));
  EXPECT_THAT(
      corpus.documents,
      ElementsAre(ElementsAre(3, 1, 2), ElementsAre('h', 0xc3, 0xa9), ElementsAre(255)));
  EXPECT_THAT(
      corpus.names,
      ElementsAre(
          path("a.jsonl").string() + ":1",
          path("a.jsonl").string() + ":4",
          path("a.jsonl").string() + ":5"));
  EXPECT_EQ(corpus.counts.documents, 3);
  EXPECT_EQ(corpus.counts.tokens, 7);
}

TEST_F(Documents, TooLongAndTooShort) {
  write_file(
      "a.jsonl",
      "{\"tokens\": []}\n{\"tokens\": [1]}\n{\"tokens\": [1, 2]}\n{\"tokens\": [1, 2, 3]}\n"
      "{\"tokens\": [1, 2, 3, 4]}\n");
  DataOptions limits = options("a.jsonl");
  limits.min_tokens = 2;
  limits.max_tokens = 3;
  Corpus corpus = read_corpus(limits);
  EXPECT_THAT(
      corpus.documents, ElementsAre(ElementsAre(1, 2), ElementsAre(1, 2, 3), ElementsAre(1, 2, 3)));
  EXPECT_EQ(corpus.counts.cut, 1);
  EXPECT_EQ(corpus.counts.skipped_short, 2);
  EXPECT_EQ(corpus.counts.skipped_long, 0);
  EXPECT_EQ(corpus.counts.tokens, 8);

  limits.too_long = TooLong::skip;
  corpus = read_corpus(limits);
  EXPECT_THAT(corpus.documents, ElementsAre(ElementsAre(1, 2), ElementsAre(1, 2, 3)));
  EXPECT_EQ(corpus.counts.cut, 0);
  EXPECT_EQ(corpus.counts.skipped_long, 1);
  EXPECT_EQ(corpus.counts.documents, 2);

  limits.too_long = TooLong::refuse;
  expect_refused(limits, "a.jsonl:5", "4 tokens", "the 3 allowed", "cut or skipped");
  limits.max_tokens = 4;
  EXPECT_EQ(read_corpus(limits).counts.documents, 3);
  limits.max_tokens = 0;  // no limit
  EXPECT_EQ(read_corpus(limits).counts.documents, 3);
  limits.min_tokens = 0;
  EXPECT_EQ(read_corpus(limits).counts.documents, 5);

  limits.min_tokens = 9;
  expect_refused(limits, "no document", "5 were shorter than 9");
}

// A masked LM: a label for every token, -100 where there is none; both are cut alike.
TEST_F(Documents, LabelsComeWithTheTokens) {
  write_file(
      "d.jsonl",
      R"({"tokens": [1, 2, 3], "labels": [-100, 5, -100], "other": 1})"
      "\n"
      R"({"tokens": [4], "labels": [0]})");
  DataOptions masked = options("d.jsonl");
  masked.vocab = 6;
  masked.labels = true;
  const Corpus corpus = read_corpus(masked);
  EXPECT_THAT(corpus.documents, ElementsAre(ElementsAre(1, 2, 3), ElementsAre(4)));
  EXPECT_THAT(corpus.labels, ElementsAre(ElementsAre(kNoLabel, 5, kNoLabel), ElementsAre(0)));
  masked.max_tokens = 2;
  EXPECT_THAT(read_corpus(masked).labels, ElementsAre(ElementsAre(kNoLabel, 5), ElementsAre(0)));
  for (const auto& [line, part] :
       {std::pair{R"({"tokens": [1, 2], "labels": [1]})", "2 tokens and 1 labels"},
        std::pair{R"({"tokens": [1]})", "tokens and labels"},
        std::pair{R"({"text": "a", "labels": [1]})", "tokens and labels"},
        std::pair{R"({"tokens": [1], "labels": [6]})", "label 0 is 6"},
        std::pair{R"({"tokens": [1], "labels": [-1]})", "label 0 is -1"},
        std::pair{R"({"tokens": [-100], "labels": [1]})", "token 0 is -100"},
        std::pair{R"({"tokens": [1], "labels": 1})", "labels is 1"}}) {
    write_file("bad.jsonl", line);
    DataOptions bad = masked;
    bad.path = path("bad.jsonl");
    expect_refused(bad, "bad.jsonl:1", part);
  }
  write_file("folder/a.txt", "text");
  DataOptions folder = masked;
  folder.path = path("folder");
  expect_refused(folder, "masked tokens", ".jsonl");
}

// A causal model takes them where they are; a line without, before or after, predicts itself.
TEST_F(Documents, LabelsMayComeWithTheTokens) {
  write_file(
      "d.jsonl",
      R"({"tokens": [9, 8]})"
      "\n"
      R"({"tokens": [1, 2, 3], "labels": [-100, 5, -100], "text": "ignored"})"
      "\n"
      R"({"text": "abc", "label": 7})"
      "\n"
      R"({"tokens": [], "labels": []})");
  DataOptions causal = options("d.jsonl");
  causal.min_tokens = 0;
  causal.max_tokens = 2;
  const Corpus corpus = read_corpus(causal);
  EXPECT_THAT(
      corpus.documents,
      ElementsAre(ElementsAre(9, 8), ElementsAre(1, 2), ElementsAre('a', 'b'), ElementsAre()));
  EXPECT_THAT(
      corpus.labels,
      ElementsAre(
          ElementsAre(9, 8), ElementsAre(kNoLabel, 5), ElementsAre('a', 'b'), ElementsAre()));

  causal.min_tokens = 2;  // what is skipped takes its labels along
  causal.max_tokens = 0;
  write_file(
      "d.jsonl",
      R"({"tokens": [9], "labels": [9]})"
      "\n"
      R"({"tokens": [1, 2], "labels": [3, 4]})");
  EXPECT_THAT(read_corpus(causal).labels, ElementsAre(ElementsAre(3, 4)));

  write_file("d.jsonl", R"({"tokens": [1, 2]})");
  EXPECT_TRUE(read_corpus(causal).labels.empty());
  for (const auto& [line, part] :
       {std::pair{R"({"tokens": [1, 2], "labels": [1]})", "2 tokens and 1 labels"},
        std::pair{R"({"text": "ab", "labels": [1, 2]})", "labels but no tokens"},
        std::pair{R"({"tokens": [1, 2], "labels": [1, 256]})", "label 1 is 256"},
        std::pair{R"({"tokens": [1, 2], "labels": [1, -1]})", "label 1 is -1"},
        std::pair{R"({"tokens": [1, 2], "labels": null})", "labels is null"}}) {
    write_file("d.jsonl", line);
    expect_refused(causal, "d.jsonl:1", part);
  }
}

TEST_F(Documents, RefusesWhatIsNotThere) {
  expect_refused(options("none"), "is not there", "folder of text files or a .jsonl file");
  expect_refused(options("none.jsonl"), "is not there");
  write_file("a.txt", "text");
  expect_refused(options("a.txt"), "neither a folder nor named .jsonl");
  fs::create_directories(path("d/e"));
  expect_refused(options("d"), "no document");
  write_file("a.jsonl", "\n\n");
  expect_refused(options("a.jsonl"), "no document");
  fs::create_directory_symlink(path("d/e"), path("d/link"));
  expect_refused(options("d"), "link", "not followed");
  fs::remove(path("d/link"));
  fs::create_symlink(path("nothing"), path("d/link"));
  expect_refused(options("d"), "link", "not followed");
  fs::remove(path("d/link"));
  fs::create_symlink(path("a.txt"), path("d/link"));
  EXPECT_THAT(read_corpus(options("d")).documents, ElementsAre(ElementsAre('t', 'e', 'x', 't')));
}

TEST_F(Documents, RefusesLinesThatAreNoDocument) {
  const auto refused = [&](const std::string& line, const auto&... parts) {
    SCOPED_TRACE(line.substr(0, 100));
    write_file("a.jsonl", "{\"tokens\": [1]}\n\n" + line + "\n{\"tokens\": [1]}\n");
    expect_refused(options("a.jsonl"), "a.jsonl:3", parts...);
  };
  refused("hello", "no JSON");
  refused("{\"tokens\": [1]", "no JSON");
  refused("{\"tokens\": [1]} {}", "no JSON");
  refused("{\"text\": \"\xff\"}", "UTF-8");
  refused("{\"tokens\": [1e999]}", "no JSON");
  refused("[1, 2]", "tokens (ids) or text");
  refused("5", "tokens (ids) or text");
  refused("{\"token\": 1}", "{\"token\":1}", "tokens (ids) or text");
  refused("{\"tokens\": 5}", "tokens is 5", "list of ids");
  refused("{\"text\": [5]}", "text is [5]", "string");
  refused("{\"tokens\": [1, -1]}", "token 1 is -1", "0 to 255");
  refused("{\"tokens\": [256]}", "token 0 is 256", "0 to 255");
  refused("{\"tokens\": [1.0]}", "token 0 is 1.0", "whole number");
  refused("{\"tokens\": [\"1\"]}", "token 0 is \"1\"");
  refused("{\"tokens\": [true]}", "token 0 is true");
  refused("{\"tokens\": [null]}", "token 0 is null");
  refused("{\"tokens\": [18446744073709551615]}", "18446744073709551615");
  refused("{\"tokens\": [4294967296]}", "4294967296");
  refused("{\"tokens\": [99999999999999999999]}", "whole number");
  const std::string brackets(1'000'000, '[');
  const std::string closed = brackets + std::string(brackets.size(), ']');
  refused("{\"tokens\": " + brackets, "no JSON");
  refused("{\"tokens\": [" + closed + "]}", "token 0 is a nested array");
  refused(closed, "nested array");
}

TEST_F(Documents, IdsAreBelowTheVocabulary) {
  write_file("a.jsonl", "{\"tokens\": [9]}");
  DataOptions few = options("a.jsonl");
  few.vocab = 10;
  EXPECT_THAT(read_corpus(few).documents, ElementsAre(ElementsAre(9)));
  few.vocab = 9;
  expect_refused(few, "a.jsonl:1", "0 to 8");

  write_file("a.jsonl", "{\"text\": \"a\"}");
  expect_refused(few, "a.jsonl:1", "vocabulary has 9 ids", "256");
  write_file("d/a.txt", "a");
  few.path = path("d");
  expect_refused(few, "a.txt", "vocabulary has 9 ids", "256");

  write_file("a.jsonl", "{\"tokens\": [2147483647]}");
  DataOptions many = options("a.jsonl");
  many.vocab = std::numeric_limits<std::int64_t>::max();
  expect_refused(many, "2147483647");  // an id is 32 bits wide
}

// Every epoch of `order` has every document once; the last may be cut.
void expect_epochs(const std::vector<std::int64_t>& order, std::int64_t documents) {
  const auto n = static_cast<std::size_t>(documents);
  for (std::size_t begin = 0; begin < order.size(); begin += n) {
    const std::size_t end = std::min(begin + n, order.size());
    std::vector<std::int64_t> epoch(
        order.begin() + static_cast<std::ptrdiff_t>(begin),
        order.begin() + static_cast<std::ptrdiff_t>(end));
    std::sort(epoch.begin(), epoch.end());
    EXPECT_EQ(std::adjacent_find(epoch.begin(), epoch.end()), epoch.end()) << "drawn twice";
    EXPECT_TRUE(epoch.empty() || (epoch.front() >= 0 && epoch.back() < documents));
  }
}

TEST(DocumentOrder, ShuffledEpochsArePermutations) {
  for (const std::int64_t n : {1, 2, 7, 100}) {
    const std::vector<std::int64_t> lengths(static_cast<std::size_t>(n), 5);
    for (const std::int64_t count : {std::int64_t{0}, n - 1, n, n + 1, 5 * n}) {
      const auto order = document_order(lengths, Order::shuffled, count, 3);
      ASSERT_EQ(order.size(), static_cast<std::size_t>(count));
      expect_epochs(order, n);
      EXPECT_EQ(document_order(lengths, Order::shuffled, count, 3), order) << "not repeatable";
      // A shorter run sees the beginning of a longer one.
      auto longer = document_order(lengths, Order::shuffled, count + 3, 3);
      longer.resize(order.size());
      EXPECT_EQ(longer, order);
    }
  }
  const std::vector<std::int64_t> lengths(50, 5);
  const auto order = document_order(lengths, Order::shuffled, 100, 3);
  EXPECT_NE(order, document_order(lengths, Order::shuffled, 100, 4));
  EXPECT_FALSE(std::equal(order.begin(), order.begin() + 50, order.begin() + 50)) << "epochs alike";
}

// Made by another implementation (MT19937-64 and Fisher-Yates in Python).
TEST(DocumentOrder, IsTheSameEverywhere) {
  const std::vector<std::int64_t> lengths(8, 1);
  EXPECT_THAT(
      document_order(lengths, Order::shuffled, 12, 0),
      ElementsAre(4, 5, 2, 0, 7, 1, 3, 6, 4, 3, 1, 7));
}

// Every permutation is as likely: 6 of 3 documents, over many seeds.
TEST(DocumentOrder, ShufflesEvenly) {
  constexpr int kSeeds = 6000;
  std::vector<int> seen(9, 0);  // [position * 3 + document]
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto order = document_order({1, 1, 1}, Order::shuffled, 3, seed);
    for (std::size_t i = 0; i < 3; ++i) {
      ++seen[i * 3 + static_cast<std::size_t>(order[i])];
    }
  }
  for (const int count : seen) {
    EXPECT_NEAR(count, kSeeds / 3, 5 * std::sqrt(kSeeds * 2.0 / 9));  // 5 standard deviations
  }
}

TEST(DocumentOrder, SortedGoesShortToLongInEveryEpoch) {
  EXPECT_THAT(
      document_order({5, 1, 9, 1, 5}, Order::sorted, 12, 7),
      ElementsAre(1, 3, 0, 4, 2, 1, 3, 0, 4, 2, 1, 3));
}

TEST(DocumentOrder, CurriculumSortsTheBeginningOfShuffled) {
  std::vector<std::int64_t> lengths(20);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    lengths[i] = static_cast<std::int64_t>(i * 7 % 13);
  }
  const auto shuffled = document_order(lengths, Order::shuffled, 50, 11);
  for (const auto& [share, first] : std::vector<std::pair<double, std::ptrdiff_t>>{
           {0.0, 0}, {0.3, 15}, {0.5, 25}, {0.99, 50}, {1.0, 50}}) {
    const auto order = document_order(lengths, Order::curriculum, 50, 11, share);
    EXPECT_TRUE(std::is_sorted(
        order.begin(),
        order.begin() + first,
        [&](std::int64_t a, std::int64_t b) {
          return lengths[static_cast<std::size_t>(a)] < lengths[static_cast<std::size_t>(b)];
        }))
        << share;
    EXPECT_TRUE(std::is_permutation(order.begin(), order.begin() + first, shuffled.begin()));
    EXPECT_TRUE(std::equal(order.begin() + first, order.end(), shuffled.begin() + first)) << share;
  }
}

TEST(DocumentOrder, RefusesWhatCannotBeDrawn) {
  EXPECT_TRUE(document_order({}, Order::shuffled, 0, 1).empty());
  EXPECT_TRUE(document_order({}, Order::sorted, 0, 1).empty());
  EXPECT_THROW(document_order({}, Order::sorted, 1, 1), std::invalid_argument);
  EXPECT_THROW(document_order({4}, Order::sorted, -1, 1), std::invalid_argument);
  for (const double share : {-0.1, 1.1, std::nan("")}) {
    EXPECT_THROW(document_order({4}, Order::curriculum, 1, 1, share), std::invalid_argument);
  }
}

}  // namespace
}  // namespace paradyse
