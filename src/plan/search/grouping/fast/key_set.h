// A set of small whole numbers that gives the largest one not above another.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "paradyse/plan/detail/index.h"

namespace paradyse::fast {

// Words of 64 bits, and above them a bit for each word that is not 0.
class KeySet {
 public:
  // Empty, for 0 <= key < keys.
  void reset(int keys) {
    words_.assign(idx(keys / 64 + 1), 0);
    above_.assign(words_.size() / 64 + 1, 0);
    size_ = 0;
  }
  // Faster than reset(), for few keys.
  void clear() {
    for (int key = last_at_most(static_cast<int>(words_.size()) * 64 - 1); key >= 0;
         key = last_at_most(key)) {
      erase(key);
    }
  }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  // Not in it yet.
  void insert(int key) {
    words_[idx(key / 64)] |= std::uint64_t{1} << (key % 64);
    above_[idx(key / 4096)] |= std::uint64_t{1} << (key / 64 % 64);
    ++size_;
  }
  // In it.
  void erase(int key) {
    std::uint64_t& word = words_[idx(key / 64)];
    word &= ~(std::uint64_t{1} << (key % 64));
    if (word == 0) {
      above_[idx(key / 4096)] &= ~(std::uint64_t{1} << (key / 64 % 64));
    }
    --size_;
  }
  // The smallest one; -1: it is empty.
  [[nodiscard]] int first() const {
    if (size_ == 0) {
      return -1;
    }
    std::size_t block = 0;
    while (above_[block] == 0) {
      ++block;
    }
    const std::size_t word = block * 64 + idx(std::countr_zero(above_[block]));
    return static_cast<int>(word) * 64 + std::countr_zero(words_[word]);
  }
  // -1: there is none.
  [[nodiscard]] int last_at_most(int key) const {
    if (size_ == 0) {
      return -1;
    }
    const int word = key / 64;
    if (const std::uint64_t low = up_to(words_[idx(word)], key % 64)) {
      return word * 64 + last(low);
    }
    int block = word / 64;
    std::uint64_t summary = word % 64 == 0 ? 0 : up_to(above_[idx(block)], word % 64 - 1);
    while (summary == 0) {
      if (--block < 0) {
        return -1;
      }
      summary = above_[idx(block)];
    }
    const int found = block * 64 + last(summary);
    return found * 64 + last(words_[idx(found)]);
  }

 private:
  static std::uint64_t up_to(std::uint64_t word, int bit) {
    return word & (~std::uint64_t{0} >> (63 - bit));
  }
  static int last(std::uint64_t word) { return 63 - std::countl_zero(word); }

  std::vector<std::uint64_t> words_;
  std::vector<std::uint64_t> above_;
  int size_ = 0;
};

}  // namespace paradyse::fast
