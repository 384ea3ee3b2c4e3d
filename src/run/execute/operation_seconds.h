// How long a rank is inside operations of a communicator: sending, and waiting for slower ranks.
#pragma once

#include "src/run/comm/observed.h"
#include "src/run/device/stopwatch.h"

namespace paradyse {

// Used by the thread of one rank alone.
class OperationSeconds final : public CommunicationObserver {
 public:
  void enter(Moment /*moment*/, const Call& /*call*/) override { inside_.start(); }
  void leave() override { inside_.stop(); }

  // So far (Stopwatch::seconds).
  [[nodiscard]] double seconds() { return inside_.seconds(); }

 private:
  Stopwatch inside_;
};

}  // namespace paradyse
