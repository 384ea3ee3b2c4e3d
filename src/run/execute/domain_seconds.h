// How long a rank is inside operations of its weight domain: sending, and waiting for slower ranks.
#pragma once

#include <chrono>

#include "src/run/comm/observed.h"

namespace paradyse {

// Used by the thread of one rank alone.
class DomainSeconds final : public CommunicationObserver {
 public:
  void enter(Moment /*moment*/, const Call& /*call*/) override { since_ = Clock::now(); }
  void leave() override { inside_ += Clock::now() - since_; }

  // So far.
  [[nodiscard]] double seconds() const { return inside_.count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point since_;
  std::chrono::duration<double> inside_{0};
};

}  // namespace paradyse
