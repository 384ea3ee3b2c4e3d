#include "src/plan/tokens/indexed_tokens.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/refuse.h"

namespace paradyse {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::size_t kHeader = 9 + 8 + 1 + 8 + 8;  // bytes
constexpr std::size_t kLength = sizeof(std::int32_t);
constexpr std::size_t kPointer = sizeof(std::int64_t);
constexpr const char* kRemedy = "it is damaged, or was not copied whole: copy or make it again";

}  // namespace

std::filesystem::path index_of(std::filesystem::path bin) { return bin.replace_extension(".idx"); }

void refuse_id(
    const std::string& where, std::int64_t place, std::int64_t number, std::int64_t vocab) {
  refuse(
      where,
      fmt::format(
          "token {} is {}, but the model has the ids 0 to {}; give data made with the model's own "
          "tokenizer, or the model that it was made for",
          place,
          number,
          vocab - 1));
}

void add_sampled_pages(const MappedFile& file, Xxh64& hash) {
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kPages = 64;
  const std::string_view bytes = file.bytes();
  hash.add(fmt::format("{} bytes|", bytes.size()));
  const std::size_t pages = (bytes.size() + kPage - 1) / kPage;
  const std::size_t taken = std::min(pages, kPages);
  for (std::size_t i = 0; i < taken; ++i) {
    const std::size_t page = taken == 1 ? 0 : i * (pages - 1) / (taken - 1);
    hash.add(bytes.substr(page * kPage, kPage));
  }
  file.release();
}

IndexedTokens::IndexedTokens(const std::filesystem::path& bin) : bin_(bin), idx_(index_of(bin)) {
  read_header();
  check();
  idx_.release();
}

void IndexedTokens::read_header() {
  const std::string where = idx_.path().string();
  const std::string_view bytes = idx_.bytes();
  if (bytes.size() < kHeader || !bytes.starts_with(kMagic)) {
    refuse(
        where,
        "is no index of an indexed data set of Megatron-core: it does not begin with MMIDIDX; give "
        "the .idx that was written with the .bin");
  }
  if (const auto version = number_at<std::uint64_t>(bytes, 9); version != 1) {
    refuse(where, fmt::format("is of version {}; version 1 is read", version));
  }
  const auto code = number_at<std::uint8_t>(bytes, 17);
  type_ = static_cast<TokenType>(code);
  if (code < 1 || code > 8 || !holds_ids(type_)) {
    refuse(
        where,
        fmt::format(
            "has numbers of type code {}, which are no token ids; read are 1 uint8, 2 int8, 3 "
            "int16, 4 int32, 5 int64 and 8 uint16",
            code));
  }
  const auto sequences = number_at<std::uint64_t>(bytes, 18);
  const auto ends = number_at<std::uint64_t>(bytes, 26);
  // Compared by division: the products may not overflow.
  const std::uint64_t room = bytes.size() - kHeader;
  const bool fits = sequences <= room / (kLength + kPointer) &&
                    ends <= (room - sequences * (kLength + kPointer)) / kPointer;
  const std::uint64_t left = fits ? room - sequences * (kLength + kPointer) - ends * kPointer : 0;
  if (fits && left == sequences && sequences > 0) {
    refuse(where, "has a mode for each sequence: multimodal data sets are not read");
  }
  if (!fits || left != 0) {
    refuse(
        where,
        fmt::format(
            "has {} bytes, which are not those of {} sequences and {} documents; {}",
            bytes.size(),
            sequences,
            ends == 0 ? 0 : ends - 1,
            kRemedy));
  }
  sequences_ = static_cast<std::int64_t>(sequences);
  documents_ = static_cast<std::int64_t>(ends) - 1;
  if (documents_ < 0) {
    refuse(where, fmt::format("does not say where its documents end; {}", kRemedy));
  }
}

void IndexedTokens::check() {
  const std::string where = idx_.path().string();
  const std::int64_t bytes = std::ssize(bin_.bytes());
  const auto width = static_cast<std::int64_t>(width_of(type_));
  for (std::int64_t s = 0; s < sequences_; ++s) {
    const Sequence one = sequence(s);
    if (one.length < 0) {
      refuse(where, fmt::format("sequence {} has length {}; {}", s, one.length, kRemedy));
    }
    if (one.begin < 0 || one.begin > bytes || one.length > (bytes - one.begin) / width) {
      refuse(
          where,
          fmt::format(
              "sequence {} has {} tokens from byte {} on, but {} has {} bytes; one of the files is "
              "damaged, or was not copied whole: copy or make both again",
              s,
              one.length,
              one.begin,
              bin_.path().string(),
              bytes));
    }
    tokens_ += one.length;
  }
  std::int64_t before = 0;
  for (std::int64_t d = 0; d <= documents_; ++d) {
    const std::int64_t begin = first_sequence(d);
    if (begin < before || begin > sequences_ || (d == 0 && begin != 0) ||
        (d == documents_ && begin != sequences_)) {
      refuse(
          where,
          fmt::format(
              "document {} begins at sequence {}, after one that begins at {}, of {} sequences; {}",
              d,
              begin,
              before,
              sequences_,
              kRemedy));
    }
    before = begin;
    one_each_ = one_each_ && begin == d;
  }
}

IndexedTokens::Sequence IndexedTokens::sequence(std::int64_t i) const {
  const std::string_view bytes = idx_.bytes();
  const std::size_t pointers = kHeader + idx(sequences_) * kLength;
  return {
      .length = number_at<std::int32_t>(bytes, kHeader + idx(i) * kLength),
      .begin = number_at<std::int64_t>(bytes, pointers + idx(i) * kPointer)};
}

std::int64_t IndexedTokens::first_sequence(std::int64_t document) const {
  const std::size_t ends = kHeader + idx(sequences_) * (kLength + kPointer);
  return number_at<std::int64_t>(idx_.bytes(), ends + idx(document) * kPointer);
}

std::int64_t IndexedTokens::length(std::int64_t document) const {
  if (one_each_) {
    return number_at<std::int32_t>(idx_.bytes(), kHeader + idx(document) * kLength);
  }
  std::int64_t tokens = 0;
  for (std::int64_t s = first_sequence(document); s < first_sequence(document + 1); ++s) {
    tokens += sequence(s).length;
  }
  return tokens;
}

void IndexedTokens::read(
    std::int64_t document,
    std::int64_t begin,
    std::int64_t vocab,
    const std::string& where,
    std::span<std::int32_t> ids) const {
  idx_.expect_unchanged();
  bin_.expect_unchanged();
  const std::size_t width = width_of(type_);
  std::int64_t first = 0;  // token of the document where the sequence begins
  std::size_t done = 0;
  for (std::int64_t s = first_sequence(document);
       done < ids.size() && s < first_sequence(document + 1);
       ++s) {
    const Sequence one = sequence(s);
    const std::int64_t skipped =
        std::clamp<std::int64_t>(begin + static_cast<std::int64_t>(done) - first, 0, one.length);
    const std::size_t count = std::min(idx(one.length - skipped), ids.size() - done);
    const std::size_t at = idx(one.begin) + idx(skipped) * width;
    const NoId wrong =
        ids_from(bin_.bytes().substr(at, count * width), type_, vocab, ids.subspan(done, count));
    if (wrong.place >= 0) {
      refuse_id(where, begin + static_cast<std::int64_t>(done) + wrong.place, wrong.number, vocab);
    }
    bin_.release(at, count * width);
    done += count;
    first += one.length;
  }
  if (done < ids.size()) {
    throw std::logic_error(fmt::format(
        "IndexedTokens::read: tokens {} to {} of document {}, which has {}",
        begin,
        begin + std::ssize(ids),
        document,
        length(document)));
  }
}

void IndexedTokens::add_to(Xxh64& hash) const {
  idx_.expect_unchanged();
  bin_.expect_unchanged();
  hash.add(idx_.bytes());
  idx_.release();
  add_sampled_pages(bin_, hash);
}

}  // namespace paradyse
