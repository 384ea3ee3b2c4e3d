#include "paradyse/xxh64.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace paradyse {

namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie");

// With kPrime1 and kPrime2: the constants of the algorithm.
constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9;
constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5;

template <typename Word>
std::uint64_t word_at(const char* bytes) {
  Word word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

}  // namespace

void Xxh64::add_stripes(const char* bytes, std::size_t count) {
  std::array<std::uint64_t, 4> lanes = lanes_;  // in registers
  for (std::size_t s = 0; s < count; ++s) {
    for (std::size_t lane = 0; lane < 4; ++lane) {
      const std::uint64_t word = word_at<std::uint64_t>(bytes + s * kStripe + lane * 8);
      lanes[lane] = std::rotl(lanes[lane] + word * kPrime2, 31) * kPrime1;
    }
  }
  lanes_ = lanes;
}

void Xxh64::add(std::string_view bytes) {
  const std::size_t held = length_ % kStripe;
  length_ += bytes.size();
  if (held > 0) {
    const std::size_t taken = std::min(kStripe - held, bytes.size());
    std::copy_n(bytes.begin(), taken, rest_.begin() + held);
    bytes.remove_prefix(taken);
    if (held + taken < kStripe) {
      return;
    }
    add_stripes(rest_.data(), 1);
  }
  add_stripes(bytes.data(), bytes.size() / kStripe);
  bytes.remove_prefix(bytes.size() - bytes.size() % kStripe);
  std::copy(bytes.begin(), bytes.end(), rest_.begin());
}

std::uint64_t Xxh64::value() const {
  std::uint64_t hash = kPrime5;
  if (length_ >= kStripe) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
           std::rotl(lanes_[3], 18);
    for (const std::uint64_t lane : lanes_) {
      hash = (hash ^ (std::rotl(lane * kPrime2, 31) * kPrime1)) * kPrime1 + kPrime4;
    }
  }
  hash += length_;
  const char* rest = rest_.data();
  std::size_t left = length_ % kStripe;
  for (; left >= 8; left -= 8, rest += 8) {
    hash ^= std::rotl(word_at<std::uint64_t>(rest) * kPrime2, 31) * kPrime1;
    hash = std::rotl(hash, 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    hash = std::rotl(hash ^ (word_at<std::uint32_t>(rest) * kPrime1), 23) * kPrime2 + kPrime3;
    left -= 4;
    rest += 4;
  }
  for (; left > 0; --left, ++rest) {
    hash = std::rotl(hash ^ (word_at<std::uint8_t>(rest) * kPrime5), 11) * kPrime1;
  }
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

std::string Xxh64::hex() const {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) {
    text += kDigits[(value() >> shift) & 15];
  }
  return text;
}

}  // namespace paradyse
