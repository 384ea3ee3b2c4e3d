// Which documents of a file are kept, and from which token on: nothing is stored for a file whose
// documents all are, each from its first.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "paradyse/plan/detail/index.h"

namespace paradyse {

class KeptPieces {
 public:
  void add(std::int64_t document, std::int64_t begin) {
    const bool plain = document == count_ && begin == 0;
    if (!listed_ && !plain) {
      documents_.resize(idx(count_));
      std::iota(documents_.begin(), documents_.end(), std::int64_t{0});
      listed_ = true;
    }
    if (listed_) {
      documents_.push_back(document);
    }
    if (begin > 0 && begins_.empty()) {
      begins_.resize(idx(count_));
    }
    if (begin > 0 || !begins_.empty()) {
      begins_.push_back(begin);
    }
    ++count_;
  }
  [[nodiscard]] std::int64_t size() const { return count_; }
  [[nodiscard]] std::int64_t document(std::int64_t piece) const {
    return listed_ ? documents_[idx(piece)] : piece;
  }
  [[nodiscard]] std::int64_t begin(std::int64_t piece) const {
    return begins_.empty() ? 0 : begins_[idx(piece)];
  }

 private:
  std::int64_t count_ = 0;
  bool listed_ = false;
  std::vector<std::int64_t> documents_;
  std::vector<std::int64_t> begins_;
};

}  // namespace paradyse
