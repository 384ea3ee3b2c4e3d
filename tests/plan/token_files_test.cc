// Token files are read as their programs wrote them, and damaged ones are refused by name: also
// under the sanitizers, which see what is read beyond a file.
#include "tests/support/token_files.h"

#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/plan/tokens/indexed_tokens.h"
#include "src/plan/tokens/llmc_tokens.h"
#include "tests/support/folder.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

template <typename File>
Ids read(const File& file, std::int64_t document, std::int64_t vocab = 1 << 20) {
  Ids ids(static_cast<std::size_t>(file.length(document)));
  file.read(document, 0, vocab, "this document", ids);
  return ids;
}

template <typename File>
std::string hash_of(const File& file) {
  Xxh64 hash;
  file.add_to(hash);
  return hash.hex();
}

class TokenFiles : public testing::Test {
 protected:
  [[nodiscard]] fs::path at(const std::string& name) const { return folder_ / name; }

  template <typename... Parts>
  void expect_index_refused(const std::string& index, const Parts&... parts) const {
    test::write_bytes(at("a.idx"), index);
    EXPECT_THAT(
        [&] { IndexedTokens(at("a.bin")); },
        testing::ThrowsMessage<std::runtime_error>(AllOf(HasSubstr("a.idx"), HasSubstr(parts)...)));
  }

  test::Folder folder_;
};

template <typename Number>
void expect_type(const fs::path& prefix, std::uint8_t code) {
  test::write_megatron<Number>(prefix, {{5, 0, 9}, {}, {100}}, code);
  const IndexedTokens file(prefix.string() + ".bin");
  ASSERT_EQ(file.size(), 3);
  EXPECT_EQ(file.tokens(), 4);
  EXPECT_THAT(read(file, 0), ElementsAre(5, 0, 9));
  EXPECT_THAT(read(file, 1), ElementsAre());
  EXPECT_THAT(read(file, 2), ElementsAre(100));
  Ids middle(1);
  file.read(0, 2, 10, "this document", middle);
  EXPECT_THAT(middle, ElementsAre(9));
}

TEST_F(TokenFiles, IndexedTokensOfEveryType) {
  expect_type<std::uint8_t>(at("a"), 1);
  expect_type<std::int8_t>(at("a"), 2);
  expect_type<std::int16_t>(at("a"), 3);
  expect_type<std::int32_t>(at("a"), 4);
  expect_type<std::int64_t>(at("a"), 5);
  expect_type<std::uint16_t>(at("a"), 8);
}

// Every part of documents that are one sequence, several or none.
TEST_F(TokenFiles, ADocumentMayBeSeveralSequences) {
  test::write_megatron<std::uint16_t>(at("a"), {{1, 2}, {3}, {}, {4, 5, 6}}, 8);
  test::write_bytes(at("a.idx"), test::megatron_index({2, 1, 0, 3}, 8, 2, {0, 2, 2, 4}));
  const IndexedTokens file(at("a.bin"));
  const std::vector<Ids> documents = {{1, 2, 3}, {}, {4, 5, 6}};
  ASSERT_EQ(file.size(), std::ssize(documents));
  for (std::int64_t d = 0; d < file.size(); ++d) {
    const Ids& whole = documents[static_cast<std::size_t>(d)];
    ASSERT_EQ(file.length(d), std::ssize(whole));
    for (std::size_t begin = 0; begin <= whole.size(); ++begin) {
      for (std::size_t end = begin; end <= whole.size(); ++end) {
        Ids part(end - begin);
        file.read(d, static_cast<std::int64_t>(begin), 100, "this document", part);
        EXPECT_EQ(
            part,
            Ids(whole.begin() + static_cast<std::ptrdiff_t>(begin),
                whole.begin() + static_cast<std::ptrdiff_t>(end)));
      }
    }
  }
}

TEST_F(TokenFiles, NumbersThatAreNoIdsAreNamed) {
  test::write_megatron<std::int32_t>(at("a"), {{1, 2}, {7, -3}, {9, 70000}}, 4);
  const IndexedTokens file(at("a.bin"));
  EXPECT_THAT(
      [&] { read(file, 1); },
      testing::ThrowsMessage<std::runtime_error>(
          AllOf(HasSubstr("this document"), HasSubstr("token 1 is -3"))));
  EXPECT_THAT(
      [&] { read(file, 2, 50257); },
      testing::ThrowsMessage<std::runtime_error>(
          AllOf(HasSubstr("token 1 is 70000"), HasSubstr("ids 0 to 50256"))));
}

TEST_F(TokenFiles, DamagedIndicesAreRefused) {
  test::write_megatron<std::uint16_t>(at("a"), {{1, 2, 3}, {4, 5}}, 8);
  const std::string good = test::megatron_index({3, 2}, 8, 2);
  test::write_bytes(at("a.idx"), good);
  EXPECT_EQ(IndexedTokens(at("a.bin")).size(), 2);
  const auto with = [&](std::size_t place, auto number) {
    std::string bytes = good;
    std::memcpy(bytes.data() + place, &number, sizeof(number));
    return bytes;
  };
  constexpr std::size_t kLengths = 34;
  constexpr std::size_t kPointers = kLengths + 2 * 4;
  constexpr std::size_t kEnds = kPointers + 2 * 8;
  expect_index_refused("", "no index");
  expect_index_refused(good.substr(0, 20), "no index");
  expect_index_refused("N" + good.substr(1), "does not begin with MMIDIDX");
  expect_index_refused(with(9, std::uint64_t{2}), "version 2");
  expect_index_refused(with(17, std::uint8_t{7}), "type code 7", "uint16");
  expect_index_refused(with(17, std::uint8_t{9}), "type code 9");
  expect_index_refused(with(17, std::uint8_t{0}), "type code 0");
  expect_index_refused(with(18, std::uint64_t{3}), "3 sequences", "copy or make it again");
  expect_index_refused(with(18, ~std::uint64_t{0}), "18446744073709551615 sequences");
  expect_index_refused(with(26, ~std::uint64_t{0} / 8 + 2), "are not those of");
  expect_index_refused(with(26, std::uint64_t{0}), "are not those of");
  expect_index_refused(good.substr(0, good.size() - 1), "has 81 bytes");
  expect_index_refused(good + "12345", "are not those of");
  expect_index_refused(good + "12", "multimodal");
  expect_index_refused(with(kLengths, std::int32_t{-1}), "sequence 0 has length -1");
  expect_index_refused(with(kLengths + 4, std::int32_t{3}), "sequence 1 has 3 tokens from byte 6");
  expect_index_refused(with(kPointers, std::int64_t{-2}), "from byte -2");
  expect_index_refused(with(kPointers, std::int64_t{8}), "from byte 8");
  expect_index_refused(
      with(kPointers, std::numeric_limits<std::int64_t>::max()), "from byte 9223372036854775807");
  expect_index_refused(with(kEnds, std::int64_t{1}), "document 0 begins at sequence 1");
  expect_index_refused(with(kEnds + 8, std::int64_t{-1}), "document 1 begins at sequence -1");
  expect_index_refused(with(kEnds + 8, std::int64_t{3}), "document 1 begins at sequence 3");
  expect_index_refused(with(kEnds + 16, std::int64_t{1}), "of 2 sequences");
  // A .bin that was cut.
  test::write_bytes(at("a.bin"), "1234");
  expect_index_refused(good, "sequence 0 has 3 tokens", "a.bin has 4 bytes");
  fs::remove(at("a.idx"));
  EXPECT_THAT(
      [&] { IndexedTokens(at("a.bin")); },
      testing::ThrowsMessage<std::runtime_error>(HasSubstr("a.idx: cannot be read")));
}

// Whatever bytes are changed: refused, or read within the files.
TEST_F(TokenFiles, NoDamageReadsBeyondAFile) {
  constexpr int kTries = 1000;
  test::write_megatron<std::uint16_t>(at("a"), {{1, 2, 3}, {4, 5}, {6}}, 8);
  const std::string index = test::megatron_index({3, 2, 1}, 8, 2, {0, 2, 3});
  const std::string llmc = test::llmc_file<std::uint16_t>(20240520, 1, {50256, 1, 50256, 2, 3});
  std::mt19937_64 random(1);
  int refused = 0;
  const auto damaged = [&](std::string bytes) {
    for (std::uint64_t i = random() % 3; i < 3; ++i) {
      bytes[random() % std::min<std::size_t>(bytes.size(), 90)] = static_cast<char>(random());
    }
    if (random() % 4 == 0) {
      bytes.resize(random() % (bytes.size() + 8));
    }
    return bytes;
  };
  for (int i = 0; i < kTries; ++i) {
    SCOPED_TRACE(i);
    test::write_bytes(at("a.idx"), damaged(index));
    test::write_bytes(at("l.bin"), damaged(llmc));
    const auto all = [&](const auto& open) {
      try {
        const auto file = open();
        for (std::int64_t d = 0; d < file.size(); ++d) {
          EXPECT_LE(file.length(d), 18);  // three times the same sequence
          (void)read(file, d);
        }
      } catch (const std::runtime_error&) {
        ++refused;
      }
    };
    all([&] { return IndexedTokens(at("a.bin")); });
    all([&] { return LlmcTokens(at("l.bin")); });
  }
  EXPECT_GT(refused, kTries / 4);
}

TEST_F(TokenFiles, LlmcDocumentsBeginAtEndOfText) {
  test::write_bytes(
      at("g.bin"),
      test::llmc_file<std::uint16_t>(20240520, 1, {7, 8, 50256, 1, 2, 50256, 50256, 60000}));
  const LlmcTokens gpt2(at("g.bin"));
  ASSERT_EQ(gpt2.size(), 4);
  EXPECT_THAT(read(gpt2, 0), ElementsAre(7, 8));
  EXPECT_THAT(read(gpt2, 1), ElementsAre(50256, 1, 2));
  EXPECT_THAT(read(gpt2, 2), ElementsAre(50256));
  EXPECT_THAT(read(gpt2, 3), ElementsAre(50256, 60000));
  EXPECT_THAT(
      [&] { read(gpt2, 3, 50257); },
      testing::ThrowsMessage<std::runtime_error>(HasSubstr("token 1 is 60000")));
  test::write_bytes(
      at("l.bin"), test::llmc_file<std::uint32_t>(20240801, 7, {128000, 70000, 128000}));
  const LlmcTokens llama(at("l.bin"));
  ASSERT_EQ(llama.size(), 2);
  EXPECT_THAT(read(llama, 0), ElementsAre(128000, 70000));
  EXPECT_TRUE(is_llmc(at("l.bin")));
  EXPECT_FALSE(is_llmc(at("none.bin")));

  const std::string good = test::llmc_file<std::uint16_t>(20240520, 1, {50256, 1});
  for (const auto& [bytes, part] :
       {std::pair{good.substr(0, 1000), "shorter than the header"},
        std::pair{good.substr(0, good.size() - 1), "says that it has 2 tokens, but has 3 bytes"},
        std::pair{good + "ab", "but has 6 bytes"},
        std::pair{test::llmc_file<std::uint16_t>(20240520, 2, {1}), "version 2"},
        std::pair{test::llmc_file<std::uint16_t>(20240522, 1, {1}), "multiple-choice"},
        std::pair{test::llmc_file<std::uint16_t>(5, 1, {1}), "begins with 5"}}) {
    test::write_bytes(at("b.bin"), bytes);
    EXPECT_THAT(
        [&] { LlmcTokens(at("b.bin")); },
        testing::ThrowsMessage<std::runtime_error>(AllOf(HasSubstr("b.bin"), HasSubstr(part))));
  }
}

TEST_F(TokenFiles, AFileThatWasChangedIsRefusedNotRead) {
  test::write_megatron<std::uint16_t>(at("a"), {{1, 2, 3}, {4, 5}}, 8);
  const IndexedTokens file(at("a.bin"));
  fs::resize_file(at("a.bin"), 2);
  EXPECT_THAT(
      [&] { read(file, 1); },
      testing::ThrowsMessage<std::runtime_error>(
          AllOf(HasSubstr("a.bin: has 2 bytes, but had 10"), HasSubstr("restore it"))));
  fs::remove(at("a.bin"));
  EXPECT_THAT(
      [&] { read(file, 1); },
      testing::ThrowsMessage<std::runtime_error>(HasSubstr("cannot be read any more")));
  test::write_bytes(at("a.bin"), "0123456789");
  EXPECT_THAT(
      [&] { read(file, 1); },
      testing::ThrowsMessage<std::runtime_error>(HasSubstr("written or replaced")));
}

TEST_F(TokenFiles, AnotherCorpusHasAnotherHash) {
  test::write_megatron<std::uint16_t>(at("a"), {{1, 2, 3}, {4, 5}}, 8);
  test::write_megatron<std::uint16_t>(at("b"), {{1, 2, 3}, {4, 5}}, 8);
  const std::string hash = hash_of(IndexedTokens(at("a.bin")));
  EXPECT_EQ(hash, hash_of(IndexedTokens(at("b.bin"))));
  test::write_megatron<std::uint16_t>(at("b"), {{1, 2, 3}, {4, 6}}, 8);
  EXPECT_NE(hash, hash_of(IndexedTokens(at("b.bin"))));
  test::write_megatron<std::uint16_t>(at("b"), {{1, 2}, {3, 4, 5}}, 8);
  EXPECT_NE(hash, hash_of(IndexedTokens(at("b.bin"))));
}

TEST_F(TokenFiles, AnEmptyFileIsNoDocuments) {
  test::write_megatron<std::uint16_t>(at("a"), {}, 8);
  EXPECT_EQ(IndexedTokens(at("a.bin")).size(), 0);
  test::write_bytes(at("l.bin"), test::llmc_file<std::uint16_t>(20240520, 1, {}));
  EXPECT_EQ(LlmcTokens(at("l.bin")).size(), 0);
}

}  // namespace
}  // namespace paradyse
