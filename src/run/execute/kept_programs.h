// The programs that a rank has built, for groups that come again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>

#include "src/plan/plan/group_timeline.h"

namespace paradyse {

// At most kMost of them, 0.1 MB each as a rule and 15 MB of 512 documents cut over 8 ranks.  Those
// of the batch under way stay, so that a batch of more groups than fit finds the first ones again;
// of the others, the one that was used longest ago goes first.
class KeptPrograms {
 public:
  static constexpr std::size_t kMost = 16;

  // The next batch begins.
  void begin_batch() { ++batch_; }
  // Built where there is none for an equal task; all tasks are of the same model.  Good until the
  // next call.
  const Timeline& of(const GroupTask& task, const Model& model);

  [[nodiscard]] std::int64_t built() const { return built_; }  // so far
  [[nodiscard]] std::size_t size() const { return kept_.size(); }

 private:
  struct Kept {
    GroupTask task;
    Timeline programs;
    std::int64_t batch = 0;  // that used them last
  };
  std::list<Kept> kept_;  // last used last
  Timeline passing_;      // for which there is no room
  std::int64_t batch_ = 0;
  std::int64_t built_ = 0;
};

}  // namespace paradyse
