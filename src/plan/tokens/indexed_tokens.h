// Megatron-core's indexed data set (megatron/core/datasets/indexed_dataset.py): X.bin has numbers
// without a gap, X.idx says where sequences lie in it and which of them make a document.
//
//   X.idx, little-endian: "MMIDIDX\0\0"; uint64 version, 1; uint8 code of the type (TokenType);
//   uint64 sequences; uint64 documents + 1; int32 lengths [sequence]; int64 bytes in X.bin where
//   each begins; int64 [documents + 1] the sequence where a document begins, and where the last
//   ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "src/plan/base/xxh64.h"
#include "src/plan/tokens/mapped_file.h"
#include "src/plan/tokens/token_type.h"

namespace paradyse {

class IndexedTokens {
 public:
  // `bin`: X.bin.  Reads X.idx, and of X.bin only its size.  Throws std::runtime_error naming the
  // file, what is wrong with which number, and the remedy: every number that says where something
  // lies is checked before it is used.
  explicit IndexedTokens(const std::filesystem::path& bin);

  [[nodiscard]] const std::filesystem::path& path() const { return bin_.path(); }
  [[nodiscard]] TokenType type() const { return type_; }
  [[nodiscard]] std::int64_t size() const { return documents_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }  // of all documents
  [[nodiscard]] std::int64_t length(std::int64_t document) const;

  // ids.size() ids of a document from `begin` on, all from 0 and below `vocab`.  Throws
  // std::runtime_error where a file was changed since it was opened, and for a number that is no
  // such id, named as `where`'s.
  void read(
      std::int64_t document,
      std::int64_t begin,
      std::int64_t vocab,
      const std::string& where,
      std::span<std::int32_t> ids) const;

  // The index, and of the .bin its size and some of its pages (add_sampled_pages()).
  void add_to(Xxh64& hash) const;

 private:
  struct Sequence {
    std::int64_t length = 0;
    std::int64_t begin = 0;  // byte
  };
  [[nodiscard]] Sequence sequence(std::int64_t i) const;
  [[nodiscard]] std::int64_t first_sequence(std::int64_t document) const;
  void read_header();
  void check();

  MappedFile bin_;
  MappedFile idx_;
  TokenType type_ = TokenType::uint8;
  std::int64_t sequences_ = 0;
  std::int64_t documents_ = 0;
  std::int64_t tokens_ = 0;
  bool one_each_ = true;  // a sequence is a document
};

// X.idx of X.bin.
std::filesystem::path index_of(std::filesystem::path bin);

// The first and the last page of a file, and up to 62 between them, evenly apart: enough to tell
// another corpus of the same lengths, too few to find a single changed token.
void add_sampled_pages(const MappedFile& file, Xxh64& hash);

// Throws std::runtime_error: `number` of `where` is no id below `vocab`.
[[noreturn]] void refuse_id(
    const std::string& where, std::int64_t place, std::int64_t number, std::int64_t vocab);

}  // namespace paradyse
