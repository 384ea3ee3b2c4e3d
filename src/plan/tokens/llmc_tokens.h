// Token files of llm.c (dev/data/data_common.py): 256 int32 of header, then ids without a gap.
// header[0] is 20240520 (GPT-2: uint16) or 20240801 (Llama 3: uint32), header[1] the version, 1 or
// 7, header[2] the number of tokens.  A document begins at each end-of-text token, which is its
// first: 50256, or 128000.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "src/plan/base/xxh64.h"
#include "src/plan/tokens/mapped_file.h"
#include "src/plan/tokens/token_type.h"

namespace paradyse {

class LlmcTokens {
 public:
  // Reads all of the file once, to find where documents begin; 8 bytes of memory a document.  What
  // stands before the first end-of-text token is a document, too: a shard may begin inside one.
  // Throws std::runtime_error naming file, what is wrong and the remedy.
  explicit LlmcTokens(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] std::int64_t size() const { return std::ssize(begins_); }
  [[nodiscard]] std::int64_t length(std::int64_t document) const;
  // As IndexedTokens::read().
  void read(
      std::int64_t document,
      std::int64_t begin,
      std::int64_t vocab,
      const std::string& where,
      std::span<std::int32_t> ids) const;
  // The number of tokens, where documents begin, and some pages.
  void add_to(Xxh64& hash) const;

 private:
  template <typename Id>
  void find_documents(Id end_of_text);

  MappedFile file_;
  TokenType type_ = TokenType::uint16;
  std::int64_t tokens_ = 0;
  std::vector<std::int64_t> begins_;  // [document] token
};

// Whether a file begins as one of llm.c's; not whether it is whole.
bool is_llmc(const std::filesystem::path& path);

}  // namespace paradyse
