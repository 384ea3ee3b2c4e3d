// Corpora of token files, blends, and what is held out.
#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/data.h"
#include "src/plan/base/sha256.h"
#include "src/run/data/data_report.h"
#include "src/run/data/draws.h"
#include "src/run/train/dataset.h"
#include "tests/support/corpora.h"
#include "tests/support/token_files.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class CorpusTest : public test::DataTest {
 protected:
  // A prepared folder of two shards, with labels in the second.
  void write_prepared(const std::string& name, const nlohmann::json& more = {}) const {
    fs::create_directories(path(name));
    test::write_megatron<std::uint16_t>(path(name) / "00000", {{1, 2, 3}, {4, 5}}, 8);
    test::write_megatron<std::uint16_t>(path(name) / "00001", {{6, 7, 8, 9}}, 8);
    test::write_megatron<std::uint8_t>(path(name) / "00001.labels", {{0, 0, 1, 1}}, 1);
    std::string sources;
    test::put(sources, std::uint64_t{1});
    test::put(sources, std::uint64_t{12});
    test::write_bytes(path(name) / "00001.sources.bin", sources);
    nlohmann::json data = {
        {"format", "paradyse-data"},
        {"version", 1},
        {"vocab_size", 200},
        {"end_id", nullptr},
        {"documents", 3},
        {"tokens", 9},
        {"labels", 7},
        {"tokenizer", {{"name", "mine"}, {"sha256", "abc"}}},
        {"dtype", "uint16"},
        {"sources", {"a.txt", "b.jsonl"}},
        {"shards",
         {{{"name", "00000"}, {"documents", 2}, {"tokens", 5}, {"labels", 3}, {"sha256", "1"}},
          {{"name", "00001"}, {"documents", 1}, {"tokens", 4}, {"labels", 2}, {"sha256", "2"}}}}};
    if (!more.is_null()) {
      data.merge_patch(more);
    }
    test::write_bytes(path(name) / "data.json", data.dump());
  }
};

TEST_F(CorpusTest, TokenFilesAreDocumentsByAnyOfTheirNames) {
  test::write_megatron<std::int32_t>(path("a"), {{1, 2, 3}, {}, {4, 5}}, 4);
  for (const char* const name : {"a", "a.bin", "a.idx"}) {
    const Corpus corpus = read_corpus(options({name}));
    EXPECT_THAT(documents_of(corpus), ElementsAre(ElementsAre(1, 2, 3), ElementsAre(4, 5))) << name;
    EXPECT_FALSE(corpus.labelled());
    EXPECT_EQ(corpus.name(1), path("a.bin").string() + ", document 2");
    EXPECT_EQ(corpus.counts.skipped_short, 1);
    EXPECT_EQ(corpus.counts.labels, 3);
    EXPECT_THAT(
        data_lines(corpus.counts).front(), HasSubstr("2 documents, 5 tokens from 1 token file"));
  }
  // Among other files of a folder; what lies beside them is no text.
  write_file("d/notes", "no document");
  write_file("d/z.txt", "abc");
  write_file("d/l.bin", test::llmc_file<std::uint16_t>(20240520, 1, {50256, 7, 50256, 8}));
  test::write_megatron<std::int32_t>(path("d/m"), {{1}}, 4);
  write_file("d/other.bin", std::string("ab\0cd", 5));
  DataOptions folder = options({"d"});
  folder.vocab = 50257;
  const Corpus corpus = read_corpus(folder);
  EXPECT_THAT(
      documents_of(corpus),
      ElementsAre(
          ElementsAre(50256, 7),
          ElementsAre(50256, 8),
          ElementsAre(1),
          ElementsAre('a', 'b', 'c')));
  EXPECT_EQ(corpus.counts.left_out.at("beside JSONL").files, 2);
}

// As of the same documents as lines, whatever the limits.
TEST_F(CorpusTest, LimitsAreThoseOfLines) {
  std::vector<Tokens> documents;
  std::string lines;
  for (std::int32_t n = 0; n < 12; ++n) {
    Tokens& document = documents.emplace_back();
    for (std::int32_t i = 0; i < n; ++i) {
      document.push_back(10 * n + i);
    }
    lines += nlohmann::json{{"tokens", document}}.dump() + "\n";
  }
  write_file("a.jsonl", lines);
  test::write_megatron<std::uint16_t>(path("a"), documents, 8);
  for (const TooLong too_long : {TooLong::cut, TooLong::skip, TooLong::split}) {
    for (const std::int64_t least : {0, 1, 4}) {
      for (const std::int64_t most : {0, 4, 5, 11}) {
        DataOptions of_lines = options({"a.jsonl"});
        of_lines.too_long = too_long;
        of_lines.min_tokens = least;
        of_lines.max_tokens = most;
        DataOptions of_tokens = of_lines;
        of_tokens.paths = {path("a.bin")};
        const Corpus wanted = read_corpus(of_lines);
        const Corpus found = read_corpus(of_tokens);
        EXPECT_EQ(documents_of(found), documents_of(wanted));
        nlohmann::json counts = json_of(found.counts);
        counts["jsonl_files"] = 1;
        counts["token_files"] = 0;
        EXPECT_EQ(counts, nlohmann::json(json_of(wanted.counts)));
      }
    }
  }
  DataOptions refuse = options({"a.bin"});
  refuse.too_long = TooLong::refuse;
  refuse.max_tokens = 5;
  expect_refused(refuse, "a.bin, document 6", "has 6 tokens, more than the 5 allowed");
}

TEST_F(CorpusTest, LabelsBesideTokens) {
  test::write_megatron<std::uint16_t>(path("a"), {{1, 2, 3}, {4, 5}}, 8);
  test::write_megatron<std::uint8_t>(path("a.labels"), {{0, 1, 0}, {1, 1}}, 1);
  const Corpus corpus = read_corpus(options({"a"}));
  EXPECT_THAT(
      labels_of(corpus), ElementsAre(ElementsAre(kNoLabel, 2, kNoLabel), ElementsAre(4, 5)));
  EXPECT_EQ(corpus.scored(0), 1);
  EXPECT_EQ(corpus.scored(1), 1);
  EXPECT_TRUE(json_of(corpus.counts)["labels"].is_null());  // nobody has counted them
  test::write_megatron<std::uint8_t>(path("a.labels"), {{0, 1, 2}, {1, 1}}, 1);
  EXPECT_THAT(
      [&] { labels_of(read_corpus(options({"a"}))); },
      testing::ThrowsMessage<std::runtime_error>(
          AllOf(HasSubstr("a.bin, document 0: its labels"), HasSubstr("token 2 is 2"))));
  test::write_megatron<std::uint8_t>(path("a.labels"), {{0, 1}, {1, 1}}, 1);
  expect_refused(options({"a"}), "a.labels.bin", "2 labels of document 0, which has 3 tokens");
  test::write_megatron<std::uint8_t>(path("a.labels"), {{0, 1, 1}}, 1);
  expect_refused(options({"a"}), "labels of 1 documents", "a.bin has 2");
  DataOptions masked = options({"a"});
  masked.labels = true;
  expect_refused(masked, "a.bin", "predicts masked tokens", ".jsonl");
}

TEST_F(CorpusTest, PreparedFolders) {
  write_prepared("p");
  const Corpus corpus = read_corpus(options({"p"}));
  EXPECT_THAT(
      documents_of(corpus),
      ElementsAre(ElementsAre(1, 2, 3), ElementsAre(4, 5), ElementsAre(6, 7, 8, 9)));
  EXPECT_THAT(
      labels_of(corpus),
      ElementsAre(ElementsAre(1, 2, 3), ElementsAre(4, 5), ElementsAre(kNoLabel, kNoLabel, 8, 9)));
  EXPECT_THAT(corpus.name(2), AllOf(HasSubstr("b.jsonl:12 ("), HasSubstr("00001.bin, document 0")));
  // Below a folder, too.
  write_file("d/a.jsonl", R"({"tokens": [9]})");
  fs::rename(path("p"), path("d/p"));
  EXPECT_EQ(read_corpus(options({"d"})).counts.documents, 4);
  EXPECT_EQ(read_corpus(options({"d"})).counts.token_files, 2);

  const auto with = [&](const nlohmann::json& more) {
    write_prepared("q", more);
    return options({"q"});
  };
  DataOptions other = with({});
  write_file("model/tokenizer.json", "{}");
  const std::string models = sha256_hex("{}");
  other.tokenizer_folder = path("model");
  expect_refused(other, "another tokenizer (mine, SHA-256 abc)", "SHA-256 " + models.substr(0, 16));
  other = with({{"tokenizer", {{"name", "mine"}, {"sha256", models}}}});
  other.tokenizer_folder = path("model");
  EXPECT_EQ(read_corpus(other).counts.documents, 3);
  other = with({{"tokenizer", nullptr}});
  other.tokenizer_folder = path("model");
  EXPECT_EQ(read_corpus(other).counts.documents, 3);
  expect_refused(with({{"vocab_size", 257}}), "a tokenizer of 257 ids, but the model has 256");
  expect_refused(with({{"version", 2}}), "data.json", "version");
  expect_refused(with({{"shards", 5}}), "data.json", "shards");
  test::write_bytes(path("q/data.json"), R"({"format": "paradyse-data", "version": 1, "sha)");
  expect_refused(options({"q"}), "data.json", "JSON");
  test::write_bytes(path("q/data.json"), R"({"tokens": [1, 2]})");  // anybody's
  fs::remove(path("q/00001.sources.bin"));
  EXPECT_EQ(read_corpus(options({"q"})).counts.documents, 4);
  expect_refused(
      with(
          {{"shards",
            {{{"name", "../x"}, {"documents", 2}, {"tokens", 5}, {"labels", 3}, {"sha256", ""}}}}}),
      "is no name of a file");
  expect_refused(
      with(
          {{"shards",
            {{{"name", "00002"},
              {"documents", 2},
              {"tokens", 5},
              {"labels", 3},
              {"sha256", ""}}}}}),
      "names the shard 00002.bin, which is not there");
  expect_refused(
      with(
          {{"shards",
            {{{"name", "00000"},
              {"documents", 2},
              {"tokens", 6},
              {"labels", 4},
              {"sha256", ""}}}}}),
      "has 2 documents and 5 tokens, but data.json says 2 and 6");
  expect_refused(
      with(
          {{"shards",
            {{{"name", "00000"},
              {"documents", 2},
              {"tokens", 5},
              {"labels", 2},
              {"sha256", ""}}}}}),
      "has no 00000.labels.bin",
      "says that 2 labels of 5 tokens count");
  fs::remove(path("q/data.json"));
  expect_refused(options({"q"}), "without its data.json", "not finished");
}

TEST_F(CorpusTest, AnIdOutsideTheVocabularyIsNamedWhenItIsRead) {
  test::write_megatron<std::uint16_t>(path("a"), {{1, 2}, {3, 300}}, 8);
  const Corpus corpus = read_corpus(options({"a"}));
  EXPECT_THAT(corpus.document(0).tokens, ElementsAre(1, 2));
  EXPECT_THAT(
      [&] { (void)corpus.document(1); },
      testing::ThrowsMessage<std::runtime_error>(
          AllOf(HasSubstr("a.bin, document 1: token 1 is 300"), HasSubstr("ids 0 to 255"))));
}

// Text and lines stay in their files, too.
TEST_F(CorpusTest, FilesThatWereChangedAreRefused) {
  for (const auto& [name, bytes] :
       {std::pair<std::string, std::string>{"a.txt", "abc"},
        {"a.jsonl", "{\"tokens\": [1, 2]}\n{\"tokens\": [3]}\n"}}) {
    write_file(name, bytes);
    const Corpus corpus = read_corpus(options({name}));
    const std::vector<Tokens> before = documents_of(corpus);
    EXPECT_EQ(documents_of(corpus), before);
    fs::resize_file(path(name), 2);
    EXPECT_THAT(
        [&] { (void)corpus.document(0); },
        testing::ThrowsMessage<std::runtime_error>(
            AllOf(HasSubstr(name), HasSubstr("has 2 bytes, but had"), HasSubstr("restore it"))));
    fs::remove(path(name));
    EXPECT_THAT(
        [&] { (void)corpus.document(0); },
        testing::ThrowsMessage<std::runtime_error>(HasSubstr("cannot be read")));
  }
}

TEST_F(CorpusTest, FingerprintsTellCorporaApart) {
  write_prepared("p");
  std::set<std::string> all = {read_corpus(options({"p"})).fingerprint()};
  EXPECT_TRUE(all.contains(read_corpus(options({"p"})).fingerprint()));
  fs::rename(path("p"), path("elsewhere"));
  EXPECT_TRUE(all.contains(read_corpus(options({"elsewhere"})).fingerprint()));
  test::write_megatron<std::uint16_t>(path("elsewhere/00000"), {{1, 2, 4}, {4, 5}}, 8);
  EXPECT_TRUE(all.insert(read_corpus(options({"elsewhere"})).fingerprint()).second);
  test::write_megatron<std::uint8_t>(path("elsewhere/00001.labels"), {{0, 1, 1, 1}}, 1);
  EXPECT_TRUE(all.insert(read_corpus(options({"elsewhere"})).fingerprint()).second);
  // Of lines and text as ever: what checkpoints of earlier versions have is still true.
  write_file("a.jsonl", "{\"tokens\": [1, 2]}\n{\"tokens\": [3]}\n");
  EXPECT_EQ(read_corpus(options({"a.jsonl"})).fingerprint(), Corpus({{1, 2}, {3}}).fingerprint());
  write_file("a.jsonl", "{\"tokens\": [1, 2]}\n{\"tokens\": [3], \"labels\": [-100]}\n");
  EXPECT_EQ(
      read_corpus(options({"a.jsonl"})).fingerprint(),
      Corpus({{1, 2}, {3}}, {{1, 2}, {-100}}).fingerprint());
}

// --- blends --------------------------------------------------------------------------------------

struct BlendCase {
  std::vector<std::int64_t> lengths;
  Draws::Blend blend;
};

// At any time the tokens of two paths, by their weights, differ by at most the longest document by
// the least weight.
void expect_shares(const BlendCase& one, Order order) {
  Draws draws([&](std::int64_t d) { return one.lengths[idx(d)]; }, order, 7, one.blend);
  std::vector<double> tokens(one.blend.ends.size());
  const auto most = static_cast<double>(std::ranges::max(one.lengths));
  const double bound = most / std::ranges::min(one.blend.weights) * (1 + 1e-9);
  for (int i = 0; i < 2000; ++i) {
    const std::int64_t d = draws.next();
    const auto k = std::ranges::upper_bound(one.blend.ends, d) - one.blend.ends.begin();
    tokens[idx(k)] += static_cast<double>(one.lengths[idx(d)]) / one.blend.weights[idx(k)];
    ASSERT_LE(std::ranges::max(tokens) - std::ranges::min(tokens), bound) << "after draw " << i;
  }
}

TEST(Blend, SharesAreOfTokens) {
  const std::vector<std::int64_t> lengths = {5, 100, 30, 1, 1, 1, 2, 400, 7, 9, 11};
  for (const Order order : {Order::shuffled, Order::sorted}) {
    expect_shares({lengths, {.ends = {3, 7, 11}, .weights = {1, 1, 1}}}, order);
    expect_shares({lengths, {.ends = {3, 7, 11}, .weights = {0.7, 0.2, 0.1}}}, order);
    expect_shares({lengths, {.ends = {1, 11}, .weights = {3, 5}}}, order);
  }
}

// Each path in epochs of its own; a shorter run sees the beginning of a longer one.
TEST(Blend, PathsHaveEpochsOfTheirOwn) {
  const std::vector<std::int64_t> lengths(10, 4);
  const Draws::Blend blend{.ends = {3, 10}, .weights = {2, 1}};
  const auto length = [&](std::int64_t d) { return lengths[idx(d)]; };
  const auto drawn = drawn_documents(length, Order::shuffled, 60, 3, 0, blend);
  std::vector<std::int64_t> first;
  std::ranges::copy_if(drawn, std::back_inserter(first), [](std::int64_t d) { return d < 3; });
  EXPECT_EQ(first.size(), 40U);
  for (std::size_t i = 0; i + 3 <= first.size(); i += 3) {
    EXPECT_EQ(
        std::set(first.begin() + std::ptrdiff_t(i), first.begin() + std::ptrdiff_t(i + 3)).size(),
        3U);
  }
  auto shorter = drawn_documents(length, Order::shuffled, 25, 3, 0, blend);
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), drawn.begin()));
  EXPECT_NE(drawn, drawn_documents(length, Order::shuffled, 60, 4, 0, blend));
  // Empty documents alone never end it.
  Draws empty(
      [](std::int64_t) { return 0; }, Order::shuffled, 1, {.ends = {1, 2}, .weights = {1, 1}});
  std::set<std::int64_t> seen;
  for (int i = 0; i < 4; ++i) {
    seen.insert(empty.next());
  }
  EXPECT_EQ(seen.size(), 2U);
  EXPECT_THROW(
      Draws(length, Order::shuffled, 1, {.ends = {3, 10}, .weights = {1}}), std::invalid_argument);
  EXPECT_THROW(
      Draws(length, Order::shuffled, 1, {.ends = {10, 10}, .weights = {1, 1}}),
      std::invalid_argument);
}

// --- held out ------------------------------------------------------------------------------------

std::set<std::string> names(const Dataset& data) {
  std::set<std::string> all;
  for (std::int64_t i = 0; i < data.size(); ++i) {
    all.insert(data.name(i));
  }
  return all;
}

TEST_F(CorpusTest, HeldOutDocumentsAreNoOthersAfterMoreFiles) {
  const auto write = [&](const std::string& name, int lines) {
    std::string text;
    for (int i = 0; i < lines; ++i) {
      text += R"({"tokens": [1, 2, 3]})"
              "\n";
    }
    write_file("d/" + name, text);
  };
  write("b.jsonl", 400);
  Dataset all(read_corpus(options({"d"})));
  const std::set<std::string> whole = names(all);
  const Dataset held = all.hold_out(0.1, 5);
  EXPECT_NEAR(static_cast<double>(held.size()), 40, 4 * std::sqrt(400 * 0.1 * 0.9));
  EXPECT_EQ(all.size() + held.size(), 400);
  std::set<std::string> together = names(all);
  together.merge(names(held));
  EXPECT_EQ(together, whole);
  EXPECT_EQ(held.counts().tokens, 3 * held.size());
  EXPECT_EQ(all.fingerprint(), held.fingerprint());

  write("a.jsonl", 50);  // sorts before it
  Dataset more(read_corpus(options({"d"})));
  const Dataset held_of_more = more.hold_out(0.1, 5);
  EXPECT_THAT(names(held_of_more), testing::IsSupersetOf(names(held)));
  EXPECT_THAT(names(more), testing::IsSupersetOf(names(all)));
  Dataset other(read_corpus(options({"d"})));
  EXPECT_NE(names(other.hold_out(0.1, 6)), names(held_of_more));

  Dataset ten(read_corpus(options({"d"})));
  EXPECT_EQ(ten.hold_out(10, 5).size(), 10);
  EXPECT_EQ(ten.size(), 440);
  EXPECT_THROW((void)ten.hold_out(440, 5), std::invalid_argument);
  EXPECT_THROW((void)ten.hold_out(1e30, 5), std::invalid_argument);
  EXPECT_THROW((void)ten.hold_out(1e-9, 5), std::invalid_argument);
}

TEST_F(CorpusTest, PiecesOfADocumentAreHeldOutTogether) {
  write_file("a.jsonl", [] {
    std::string text;
    for (int i = 0; i < 60; ++i) {
      text += R"({"tokens": [1, 2, 3, 4, 5, 6, 7]})"
              "\n";
    }
    return text;
  }());
  DataOptions split = options({"a.jsonl"});
  split.max_tokens = 3;
  split.too_long = TooLong::split;
  Dataset all(read_corpus(split));
  const Dataset held = all.hold_out(0.3, 1);
  const auto documents = [](const Dataset& data) {
    std::set<std::string> lines;
    for (const std::string& name : names(data)) {
      lines.insert(name.substr(0, name.find(",")));
    }
    return lines;
  };
  std::vector<std::string> both;
  std::ranges::set_intersection(documents(all), documents(held), std::back_inserter(both));
  EXPECT_TRUE(both.empty());
  EXPECT_EQ(documents(all).size() + documents(held).size(), 60U);
}

// The blend of what is left is still by path.
TEST_F(CorpusTest, ABlendOfWhatIsLeft) {
  test::write_megatron<std::uint16_t>(path("a"), std::vector<Tokens>(30, Tokens{1, 2}), 8);
  test::write_megatron<std::uint16_t>(path("b"), std::vector<Tokens>(20, Tokens{3, 4}), 8);
  Dataset all(read_corpus(options({"a", "b"})));
  EXPECT_THAT(all.blend({1, 2}).ends, ElementsAre(30, 50));
  const Dataset held = all.hold_out(0.2, 1);
  const auto ends = all.blend({1, 2}).ends;
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends[1], all.size());
  EXPECT_THAT(all.name(ends[0] - 1), HasSubstr("a.bin"));
  EXPECT_THAT(all.name(ends[0]), HasSubstr("b.bin"));
}

}  // namespace
}  // namespace paradyse
