// What rank 0 writes of a model while all ranks bring it together.
#pragma once

#include <stdexcept>
#include <string>

#include "paradyse/run/weights.h"
#include "src/plan/base/disk_file.h"

namespace paradyse {

// With the first failure nothing more is written; it is thrown when the others are through, so that
// all can go on.
class FirstRankWrites {
 public:
  explicit FirstRankWrites(bool writes) : writes_(writes) {}

  // `write`, on rank 0.
  template <typename Write>
  void tried(const Write& write) {
    if (!writes_ || !wrong_.empty()) {
      return;
    }
    try {
      write();
    } catch (const std::runtime_error& error) {  // a filesystem_error is one
      wrong_ = message_of(error);
    }
  }
  // At the end, behind the last collective.
  void expect_written() const {
    if (!wrong_.empty()) {
      throw NotSaved(wrong_);
    }
  }

 private:
  bool writes_;
  std::string wrong_;
};

}  // namespace paradyse
