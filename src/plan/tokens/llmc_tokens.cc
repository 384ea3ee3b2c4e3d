#include "src/plan/tokens/llmc_tokens.h"

#include <stdexcept>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/refuse.h"
#include "src/plan/tokens/indexed_tokens.h"

namespace paradyse {
namespace {

constexpr std::int32_t kGpt2 = 20240520;
constexpr std::int32_t kLlama3 = 20240801;
constexpr std::int32_t kMultipleChoice = 20240522;  // HellaSwag, MMLU: no documents
constexpr std::size_t kHeaderBytes = 256 * sizeof(std::int32_t);
constexpr std::uint16_t kEndOfGpt2 = 50256;
constexpr std::uint32_t kEndOfLlama3 = 128000;

}  // namespace

bool is_llmc(const std::filesystem::path& path) {
  const std::string begin = beginning_of(path, sizeof(std::int32_t));
  if (begin.size() < sizeof(std::int32_t)) {
    return false;
  }
  const auto magic = number_at<std::int32_t>(begin, 0);
  return magic == kGpt2 || magic == kLlama3 || magic == kMultipleChoice;
}

LlmcTokens::LlmcTokens(const std::filesystem::path& path) : file_(path) {
  const std::string where = path.string();
  const std::string_view bytes = file_.bytes();
  if (bytes.size() < kHeaderBytes) {
    refuse(where, "is shorter than the header of a token file of llm.c; copy or make it again");
  }
  const auto magic = number_at<std::int32_t>(bytes, 0);
  const auto version = number_at<std::int32_t>(bytes, 4);
  tokens_ = number_at<std::int32_t>(bytes, 8);
  if (magic == kMultipleChoice) {
    refuse(where, "is a multiple-choice file of llm.c, which has no documents to train on");
  }
  if (magic != kGpt2 && magic != kLlama3) {
    refuse(where, fmt::format("is no token file of llm.c: it begins with {}", magic));
  }
  type_ = magic == kGpt2 ? TokenType::uint16 : TokenType::uint32;
  if (const std::int32_t read = magic == kGpt2 ? 1 : 7; version != read) {
    refuse(
        where,
        fmt::format(
            "is a token file of llm.c of version {}; of this kind version {} is read",
            version,
            read));
  }
  const auto width = static_cast<std::int64_t>(width_of(type_));
  const auto room = static_cast<std::int64_t>(bytes.size() - kHeaderBytes);
  if (tokens_ < 0 || room != tokens_ * width) {
    refuse(
        where,
        fmt::format(
            "says that it has {} tokens, but has {} bytes for them; it is damaged, or was not "
            "copied whole: copy or make it again",
            tokens_,
            room));
  }
  if (magic == kGpt2) {
    find_documents(kEndOfGpt2);
  } else {
    find_documents(kEndOfLlama3);
  }
}

template <typename Id>
void LlmcTokens::find_documents(Id end_of_text) {
  constexpr std::int64_t kReleased = std::int64_t{1} << 24U;  // tokens
  const std::string_view ids = file_.bytes().substr(kHeaderBytes);
  for (std::int64_t t = 0; t < tokens_; ++t) {
    if (t == 0 || number_at<Id>(ids, idx(t) * sizeof(Id)) == end_of_text) {
      begins_.push_back(t);
    }
    if (t % kReleased == 0) {
      file_.release();
    }
  }
  file_.release();
}

std::int64_t LlmcTokens::length(std::int64_t document) const {
  const bool last = document + 1 == size();
  return (last ? tokens_ : begins_[idx(document + 1)]) - begins_[idx(document)];
}

void LlmcTokens::read(
    std::int64_t document,
    std::int64_t begin,
    std::int64_t vocab,
    const std::string& where,
    std::span<std::int32_t> ids) const {
  if (begin < 0 || begin + std::ssize(ids) > length(document)) {
    throw std::logic_error("LlmcTokens::read: tokens beyond the document");
  }
  file_.expect_unchanged();
  const std::size_t width = width_of(type_);
  const std::size_t at = kHeaderBytes + idx(begins_[idx(document)] + begin) * width;
  const std::size_t bytes = ids.size() * width;
  const NoId wrong = ids_from(file_.bytes().substr(at, bytes), type_, vocab, ids);
  if (wrong.place >= 0) {
    refuse_id(where, begin + wrong.place, wrong.number, vocab);
  }
  file_.release(at, bytes);
}

void LlmcTokens::add_to(Xxh64& hash) const {
  hash.add({reinterpret_cast<const char*>(begins_.data()), begins_.size() * sizeof(std::int64_t)});
  add_sampled_pages(file_, hash);
}

}  // namespace paradyse
